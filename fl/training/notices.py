"""What goes wrong in a round without ending the training: each is said once."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from fl.config.schema import Experiment
from fl.secure.cohort import NOT_FINITE
from fl.training.round import evaluated

MOST_NAMED: Final = 5  # clients that a message names
ADVICE: Final = "look for values that are not finite in {where}, or lower local.lr or server_lr"


class Notices:
    """The warnings of a training so far. Those about attackers are left out: a simulation does what is asked of it."""

    def __init__(self, experiment: Experiment, byzantine: Collection[int] = ()) -> None:
        self._experiment = experiment
        self._told: set[int | str] = set(byzantine)

    def remember(self, record: Mapping[str, Any]) -> None:
        """A round that a resumed run has behind it: what was told of it is not told again."""
        self._told.update(entry["client"] for entry in record["dropouts"] if entry["why"] == NOT_FINITE)
        tested = record["accuracy"] is not None or record["metrics"]  # perhaps less often than the next rounds
        if tested and record["loss"] is None:
            self._told.add("loss")

    def of(self, record: Mapping[str, Any]) -> list[str]:
        """What to say about a round that was not said before."""
        found = []
        broken = [entry["client"] for entry in record["dropouts"] if entry["why"] == NOT_FINITE]
        if new := [client for client in broken if client not in self._told]:
            self._told.update(new)
            found.append(
                f"round {record['round']}: the updates of {_clients(new)} are not finite and were not summed; "
                + ADVICE.format(where="their examples")
            )
        lost = record["loss"] is None and evaluated(self._experiment, record["round"])
        if lost and "loss" not in self._told:
            self._told.add("loss")
            found.append(
                f"round {record['round']}: the loss on the test examples is not finite; "
                + ADVICE.format(where="the test examples")
            )
        return found


def _clients(numbers: list[int]) -> str:
    """
    >>> _clients([3]), _clients([1, 2, 3, 4, 5, 6, 7])
    ('client 3', 'clients 1, 2, 3, 4, 5 and 2 more')
    """
    named, more = ", ".join(map(str, numbers[:MOST_NAMED])), len(numbers) - MOST_NAMED
    return f"client{'s' if len(numbers) > 1 else ''} {named}" + (f" and {more} more" if more > 0 else "")
