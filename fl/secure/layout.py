"""What an experiment agrees on: the terms of its agreement, the shape of its rounds, and what they would reveal.

`secagg.Agreement` says who is summed with whom. A simulation makes one from the seed of the experiment, with all
members in this process.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Final

from fl.config.schema import CELL, LASTING, MOST_ROUNDS, Experiment
from fl.errors import ConfigError
from fl.secure.noise import with_noise
from secagg import AgreementRefused, Identity, Member, Policy, Schedule, UsageError, Verdict, audit
from secagg.agreement import SURVIVORS, WHOLE, Agreement, Terms
from secagg.crypto import Segment
from secagg.exposure import Anonymity, Drawn, keep_whole_atoms
from secagg.simulation import agree_on, make_identities

UPDATE: Final = "update"
CLIPPED: Final = "clipped"
HALF_RING: Final = 2**31  # sums are read as signed numbers below this
SIMULATED: Final = "simulated training"  # the configuration and the model are in the context of every round


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of every round: the size of each cell, and what all cells give together.

    Whole groups have one cell. `clustered` counts the clients that are in a cluster. `no-share` has no schedule.
    """

    cells: tuple[int, ...]
    schedule: Schedule | None
    clusters: int
    clustered: int
    groupings: int

    @classmethod
    def of(cls, experiment: Experiment) -> Layout:
        """The layout of an experiment; ConfigError if the clients cannot be divided as it asks."""
        n = experiment.per_round
        if experiment.method == "no-share":
            return cls((n,), None, n, n, 1)
        terms = terms_of(experiment, placeholder_members(experiment.clients))
        schedule, sizes = terms.schedule, terms.cells
        count = sum(schedule.groups(size) for size in sizes)
        return cls(sizes, schedule, count, schedule.size * count, schedule.groupings)


def terms_of(experiment: Experiment, members: Sequence[Member], length: int = 1, name: str = SIMULATED) -> Terms:
    """The terms of an experiment; ConfigError if nobody could keep them."""
    clusters, privacy, survivors = experiment.clusters, experiment.privacy, experiment.groups == SURVIVORS
    n, cell = experiment.per_round, clusters.cell or CELL
    try:
        if experiment.method == "fedavg":
            schedule = Schedule(name="fixed" if experiment.alike else "random", size=n // experiment.cells)
        else:
            schedule = Schedule(
                name=clusters.schedule, size=clusters.size, groupings=clusters.groupings, atom=clusters.atom
            )
    except UsageError as error:
        raise ConfigError(f"clusters: {error}") from None
    segments = segments_of(length, privacy.clip, schedule.size)
    try:
        terms = Terms(
            name=name,
            members=tuple(members),
            segments=segments,
            schedule=schedule,
            last_round=(MOST_ROUNDS if experiment.open_ended else experiment.rounds) - 1,
            groups=experiment.groups,
            sample=0 if n == experiment.clients else n,
            policy=policy(experiment),
            colluders=privacy.colluders if survivors else None,
            threshold=privacy.threshold if survivors else None,
            cell=cell if survivors and n > cell else 0,
        )
        return with_noise(experiment, terms)
    except UsageError as error:
        raise ConfigError(f"{_section(str(error))}: {error}") from None


def segments_of(length: int, clip: float, clients: int) -> tuple[Segment, Segment]:
    """What each client sends: its update, and how many coordinates of it were clipped, for sums of so many clients.

    The count is one more coordinate of the same sum, so the server learns how much was clipped, and not by whom. Where
    the sum could wrap, a client's count ends at the bound.
    """
    most = min(length, (HALF_RING - 1) // clients)
    return Segment(name=UPDATE, shape=(length,), clip=clip), Segment(name=CLIPPED, shape=(), bound=most)


def _section(problem: str) -> str:
    """The table of the configuration in which the cause of a problem is likely to be found."""
    about_privacy = ("threshold", "colluders", "policy", "clip", "wrap", "anonymity", "noise")
    return "privacy" if any(word in problem for word in about_privacy) else "clusters"


def policy(experiment: Experiment) -> Policy:
    """The exposure policy of an experiment. What is left of groups differs from round to round: no memory."""
    p = experiment.privacy
    lasts = experiment.groups == WHOLE or (experiment.method == "share" and experiment.clusters.schedule == "atoms")
    rules = Policy(
        min_survivors=p.min_survivors,
        anonymity=p.anonymity,
        max_leverage=p.max_leverage,
        memory="training" if p.memory == "training" and lasts else "round",
    )
    return rules if p.audit == "enforce" else replace(rules, mode="report-even-if-exposed")


@lru_cache(maxsize=1)
def placeholder_members(clients: int) -> tuple[Member, ...]:
    """Members to inspect terms with: hashes in the place of public keys, so nobody can take part."""
    return tuple(Member(c, hashlib.sha256(b"fl/nobody:%d" % c).digest()) for c in range(clients))


def simulated_agreement(
    experiment: Experiment, weights: Sequence[int], length: int
) -> tuple[Agreement, dict[int, Identity]]:
    """The agreement of a simulated training and all identities: the same for the same experiment.

    For simulations only: identities and contributions follow from the public seed of the experiment, so that a run can
    be repeated and resumed. Real members draw both at random.
    """
    entropy = _simulated_entropy(experiment.seed)
    identities = make_identities(range(experiment.clients), entropy)
    members = [Member(c, identity.public, weight=weights[c]) for c, identity in identities.items()]
    terms = terms_of(experiment, members, length)
    try:
        return agree_on(terms, identities, entropy), identities
    except AgreementRefused as error:
        ratio = fitting_ratio(experiment, terms.schedule.size)
        hint = f"; with privacy.weight_ratio = {ratio} any weights fit one grouping" if len(set(weights)) > 1 else ""
        raise ConfigError(f"privacy: {str(error).removeprefix('policy: ')}{hint}") from None


def fitting_ratio(experiment: Experiment, size: int) -> float:
    """The largest `privacy.weight_ratio` with which no client of a group of this size exceeds `max_leverage`."""
    most = experiment.privacy.max_leverage
    return math.floor(100 * math.sqrt(most / (1 - most) * (size - 1))) / 100 if most < 1 else math.inf


def _simulated_entropy(seed: int) -> Callable[[int], bytes]:
    """Bytes that everybody who knows the seed can compute: never for real keys."""
    calls = count()

    def entropy(size: int) -> bytes:
        return hashlib.shake_256(b"fl/simulated-entropy/v2:%d:%d" % (seed, next(calls))).digest(size)

    return entropy


def sampling_seed(seed: int) -> bytes:
    """The public randomness that draws clients for rounds without an agreement."""
    return hashlib.sha256(b"fl/sampling-seed/v2:%d" % seed).digest()


def check_size(experiment: Experiment) -> None:
    """Raise ConfigError for clusters that are too small for the policy."""
    privacy, size = experiment.privacy, experiment.clusters.size
    wanted = max(privacy.anonymity, privacy.min_survivors)
    if experiment.method == "share" and privacy.audit == "enforce" and size < wanted:
        raise ConfigError(
            f"clusters.size: {size} clients cannot hide among {wanted} (privacy.anonymity and min_survivors); use "
            f"clusters of at least {wanted}"
        )


def check_exposure(experiment: Experiment, layout: Layout) -> None:
    """Raise ConfigError for clusters that the policy does not allow even if nobody drops out."""
    privacy, schedule = experiment.privacy, layout.schedule
    if schedule is None or privacy.audit != "enforce":
        return
    n = layout.cells[0]
    if experiment.method == "share" and privacy.memory == "training":
        _check_memory(experiment)
    _, verdict = preview(n, schedule, policy(experiment), groups=experiment.groups, seed=experiment.seed)
    if not verdict.closed:
        return
    opened, exposed = len(verdict.opened), len(verdict.would_expose)
    leak = f"expose {exposed} of {n} clients" if exposed else f"break anonymity {privacy.anonymity} or max_leverage"
    raise ConfigError(
        f"clusters.groupings: {schedule.groupings} {schedule.name} groupings in clusters of {schedule.size} "
        f"would {leak}, so only {opened} of {opened + len(verdict.closed)} sums could be opened; "
        f"{_alternatives(experiment, n, schedule)}"
    )


def _check_memory(experiment: Experiment) -> None:
    """Raise ConfigError if the sums of several rounds together could expose a client."""
    schedule = experiment.clusters.schedule
    if schedule not in LASTING:
        raise ConfigError(
            f"privacy.memory: {schedule} clusters are new in every round, so the sums of several rounds together can "
            'expose a client whose update hardly changes; use clusters.schedule = "fixed" or "atoms", or set '
            'privacy.memory = "round" to protect each round alone'
        )
    if experiment.groups == SURVIVORS and schedule == "fixed":
        raise ConfigError(
            "privacy.memory: a cluster of survivors changes with its dropouts, so the sums of two rounds can differ by "
            'one client; use clusters.groups = "whole" or clusters.schedule = "atoms", or set privacy.memory = "round" '
            "to protect each round alone"
        )


def _alternatives(experiment: Experiment, n: int, schedule: Schedule) -> str:
    """What to write instead: the most groupings that are safe, with this schedule and with others."""
    offers = []
    others = ("transversal",) if experiment.privacy.memory == "round" else ()
    for name in dict.fromkeys((schedule.name, *others)):
        other = replace(schedule, name=name, atom=0, groupings=1)
        if most := _safe_groupings(n, other, experiment):
            offers.append(f"schedule = {name!r} allows groupings = {most}")
    atom = experiment.privacy.anonymity
    if n >= 4 * atom:
        offers.append(f"schedule = 'atoms' with atom = {atom} and size = {2 * atom} allows any number")
    offers.append("`share plan` compares them")
    return "; ".join(offers)


def _safe_groupings(n: int, schedule: Schedule, experiment: Experiment) -> int:
    """The largest number of groupings, up to 10, of which the audit opens every sum; 0 if none."""
    for groupings in range(1, 11):
        try:
            wider = replace(schedule, groupings=groupings)
            _, verdict = preview(n, wider, policy(experiment), groups=experiment.groups, seed=experiment.seed)
        except UsageError:
            return groupings - 1
        if verdict.closed:
            return groupings - 1
    return 10


@lru_cache(maxsize=4)  # the planner asks again for what it has just seen
def preview(
    n: int,
    schedule: Schedule,
    rules: Policy,
    *,
    groups: str,
    seed: int,
    round: int = 0,
    dropouts: tuple[int, ...] = (),
) -> tuple[list[list[tuple[int, ...]]], Verdict]:
    """What one cell of n clients would open in a round, without running anything.

    Returns the clients of every opened cluster, by grouping, and the verdict of the audit.
    """
    (drawn,) = schedule.draw_cells(range(n), sampling_seed(seed), round, (n,))
    alive = frozenset(range(n)).difference(dropouts)
    if groups == WHOLE:
        opened = [[group for group in grouping if alive.issuperset(group)] for grouping in drawn.groupings]
        return opened, verdict_of(drawn, opened, rules)
    if drawn.atoms and rules.enforced:
        alive = keep_whole_atoms(drawn.atoms, alive, schedule.atom)
    verdict = audit(drawn.groupings, alive, rules, plan_hash=b"", atoms=drawn.atoms, columns=drawn.columns)
    found = enumerate(drawn.groupings)
    return [
        [tuple(alive.intersection(group)) for g, group in enumerate(grouping) if (r, g) in verdict.opened]
        for r, grouping in found
    ], verdict


def verdict_of(
    drawn: Drawn,
    opened: Sequence[Sequence[tuple[int, ...]]],
    rules: Policy,
    weights: Mapping[int, int] | None = None,
) -> Verdict:
    """What whole groups reveal that were opened in one round: some or all of those that were drawn."""
    groupings = tuple(tuple(grouping) for grouping in opened if grouping)
    columns = drawn.columns if groupings == drawn.groupings else ()  # the proof needs all groups
    if len(groupings) == 1 and (found := _disjoint(groupings[0], rules, weights)):
        return found
    clients = {client for grouping in groupings for group in grouping for client in group}
    return audit(groupings, clients, rules, weights=weights, plan_hash=b"", atoms=drawn.atoms, columns=columns)


def _disjoint(groups: Sequence[tuple[int, ...]], rules: Policy, weights: Mapping[int, int] | None) -> Verdict | None:
    """The audit's verdict on disjoint groups that all meet the policy, in no time; None if one does not."""
    leverage: dict[int, float] = {}
    for group in groups:
        squares = [float(weights[client]) ** 2 if weights else 1.0 for client in group]
        leverage |= {client: square / sum(squares) for client, square in zip(group, squares, strict=True)}
    smallest = min(map(len, groups))
    if smallest < max(rules.anonymity, rules.min_survivors) or max(leverage.values()) > rules.max_leverage:
        return None
    report = () if rules.enforced else ("REPORT ONLY: every group sum is opened, whatever it exposes",)
    anonymity = Anonymity(smallest, smallest, "disjoint groups")
    return Verdict(
        policy=rules,
        opened=frozenset((0, number) for number in range(len(groups))),
        closed={},
        objections={},
        exposed=frozenset(),
        would_expose=frozenset(),
        clients=len(leverage),
        rank=len(groups),
        leverage=leverage,
        anonymity=anonymity,
        sentences=(*report, f"{len(groups)} of {len(groups)} group sums are opened; {anonymity}"),
    )
