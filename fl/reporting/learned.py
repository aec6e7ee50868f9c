"""What runs have learned, by the measures of their own tasks: which comes first, and how values are written.

A record has `accuracy` and `loss` beside its `metrics`; a task without accuracy, such as a regression, has None there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fl.config.own import short_name

if TYPE_CHECKING:
    from fl.config.schema import Experiment
    from fl.reporting.records import Recorded

ACCURACY, LOSS, BACKDOOR = "accuracy", "loss", "backdoor success"
SHARES: Final = frozenset({ACCURACY, BACKDOOR, "worst class", "worst client"})  # written in per cent


def values(record: Mapping[str, Any]) -> dict[str, float]:
    """What was measured in a round, the first as the headline: accuracy and backdoor, then metrics, then the loss."""
    found = {ACCURACY: record.get(ACCURACY), BACKDOOR: None, **(record.get("metrics") or {}), LOSS: record.get(LOSS)}
    return {name: float(value) for name, value in found.items() if value is not None}


def headline(record: Mapping[str, Any]) -> tuple[str, float] | None:
    """The measure that stands for a round, and its value; None in a round without evaluation."""
    return next(((name, value) for name, value in values(record).items() if name != BACKDOOR), None)


def show(name: str, value: float | None, digits: int = 1) -> str:
    """The value of a measure in words."""
    if value is None:
        return "-"
    return f"{value:.{digits}%}" if name in SHARES else f"{value:.4g}"


def show_all(found: Mapping[str, float | None], digits: int = 1) -> str:
    """Measures and their values in words."""
    return ", ".join(f"{name} {show(name, value, digits)}" for name, value in found.items())


def points(run: Recorded, name: str) -> list[tuple[float, float]]:
    """(round, value) of a measure in every round that has it.

    The last round of a run is always measured: if it is not among these, its value was not a number.
    """
    found = ((record["round"], values(record).get(name)) for record in run.rounds)
    return [(number, value) for number, value in found if value is not None]


def names(runs: Iterable[Recorded]) -> list[str]:
    """The measures of some runs: accuracy and backdoor success first, the loss last."""
    found = dict.fromkeys(name for run in runs for record in run.rounds for name in values(record))
    order = sorted(found, key=lambda name: (name == LOSS, name != ACCURACY, name != BACKDOOR))
    return order or [expected(run.experiment) for run in runs][:1]


def expected(e: Experiment) -> str:
    """The measure that will stand for a run in which nothing is measured yet."""
    return next(map(short_name, e.task.metrics), LOSS)


def main_measure(run: Recorded) -> str:
    """The measure that stands for a run."""
    found = (headline(record) for record in reversed(run.rounds))
    return next((each[0] for each in found if each is not None), expected(run.experiment))
