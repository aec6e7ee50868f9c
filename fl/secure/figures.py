"""Three figures of a training's privacy: exposed in a round, exposed over all rounds, alone among colluders.

The first is the verdict of each round's audit. The second assumes that no update ever changes, so that the server can
combine the sums of all rounds: the worst case. The third is the probability that the sum of some cluster has one honest
client and otherwise colluders of the server, who subtract their own updates from it.
"""

from collections.abc import Collection, Iterable
from itertools import islice

from fl.config.schema import Experiment
from fl.secure.layout import placeholder_members, terms_of
from secagg.agreement import alone
from secagg.exposure import components, revealed

COLLUDING = 5  # one of so many clients is taken to work together with the server
MOST_ENTRIES = 20_000_000  # groups times clients that are compared; more take too long


def exposed_together(groups: Iterable[Collection[int]]) -> frozenset[int] | None:
    """The clients whose updates the sums over these groups determine, if every update is the same in all of them.

    None if there are too many sums to compare.

    >>> sorted(exposed_together([{0, 1, 2}, {0, 1}, {3, 4, 5}, {5, 4, 3}]))
    [2]
    """
    distinct = sorted({tuple(sorted(group)) for group in groups})
    found: set[int] = set()
    for part in components([(group,) for group in distinct]):
        inside = frozenset(part)
        some = [group for group in distinct if group[0] in inside]
        if len(some) == 1 and len(part) > 1:
            continue
        # A few more sums than clients usually show all that there is to see.
        for count in (2 * len(part), len(some)):
            if min(count, len(some)) * len(part) > MOST_ENTRIES:
                return None
            exposed = revealed(islice(some, count)).exposed
            if len(exposed) == len(part) or count >= len(some):
                break
        found |= exposed
    return frozenset(found)


def colluding(experiment: Experiment) -> int:
    """How many clients are taken to work together with the server: a fifth of them."""
    return experiment.clients // COLLUDING


def alone_probability(experiment: Experiment, rounds: int) -> float:
    """How likely it is at most that over these rounds some honest client is in a cluster with colluders only.

    A fifth of the clients collude; they were chosen before the seed was known (`secagg.agreement.alone`).
    """
    if experiment.method == "no-share":
        return 1.0
    terms = terms_of(experiment, placeholder_members(experiment.clients))
    return alone(terms, colluding(experiment), rounds=rounds).probability if rounds else 0.0
