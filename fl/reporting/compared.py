"""What a sweep compares: a measure, which of two values is better, and which values it can have.

The direction decides which attack is the worst and which round is the best, so it is never guessed: for a metric of
your own, the sweep file says it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fl.config.own import is_own, short_name
from fl.config.schema import BACKDOOR, Experiment
from fl.errors import ConfigError

ACCURACY, LOSS = "accuracy", "loss"  # a record has these beside its metrics
BACKDOOR_SUCCESS: Final = "backdoor success"
LOWER, HIGHER = "lower", "higher"


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that is measured after a round: its name, and whether lower or higher is better.

    >>> rmse = Measure("rmse", LOWER)
    >>> rmse.best([0.5, 0.2]), rmse.worst([0.5, 0.2])
    (0.2, 0.5)
    """

    name: str
    better: str
    least: float = -math.inf
    most: float = math.inf

    @property
    def lower_is_better(self) -> bool:
        return self.better == LOWER

    @property
    def in_percent(self) -> bool:
        """Whether it is shown in per cent."""
        return self.name == ACCURACY

    def best(self, values: Iterable[float]) -> float | None:
        """The best of some values; None if there are none."""
        return min(values, default=None) if self.lower_is_better else max(values, default=None)

    def worst(self, values: Iterable[float]) -> float | None:
        """The worst of some values; None if there are none."""
        return max(values, default=None) if self.lower_is_better else min(values, default=None)


KNOWN: Final = {
    measure.name: measure
    for measure in (
        Measure(ACCURACY, HIGHER, 0.0, 1.0),
        Measure(LOSS, LOWER),
        Measure("f1", HIGHER, 0.0, 1.0),
        Measure("mean-absolute-error", LOWER, 0.0),
        Measure("r2", HIGHER, most=1.0),
        Measure("worst class", HIGHER, 0.0, 1.0),
        Measure("worst client", HIGHER, 0.0, 1.0),
        Measure(BACKDOOR_SUCCESS, LOWER, 0.0, 1.0),
    )
}


def measures_of(e: Experiment) -> Iterator[str]:
    """The names of what the records of an experiment measure: the metrics of the task first."""
    yield from (short_name(metric) for metric in e.task.metrics)
    yield LOSS
    if e.attack.name == BACKDOOR and ACCURACY in e.task.metrics:  # the accuracy on marked examples
        yield BACKDOOR_SUCCESS
    if e.task.per_class:
        yield "worst class"
    if e.task.per_client:
        yield "worst client"


def compared(name: str | None, better: str | None, runs: Sequence[tuple[str, Experiment]]) -> Measure:
    """The measure that a sweep compares, by default the first metric of the task. `runs` are names and experiments.

    A measure that a run does not have, or whose direction is not known, is refused.

    >>> compared(None, None, [("a", Experiment())]).better
    'higher'
    """
    chosen = name or next(measures_of(runs[0][1]))
    for run, e in runs:
        if chosen not in (there := list(measures_of(e))):
            what = f"{chosen!r} is not measured in the run {run}"
            raise ConfigError(f"measure: expected one of {', '.join(dict.fromkeys(there))}; {what}")
    own = {metric for _, e in runs for metric in e.task.metrics if is_own(metric) and short_name(metric) == chosen}
    if not own:
        measure = KNOWN[chosen]
        if chosen == LOSS and not any(is_own(e.task.loss) for _, e in runs):
            measure = replace(measure, least=0.0)
        if better not in (None, measure.better):
            raise ConfigError(f"better: {measure.better} {chosen} is better, got {better!r}; leave this key out")
        return measure
    if chosen in KNOWN:
        raise ConfigError(
            f"measure: {', '.join(sorted(own))} has the name of another measure, {chosen!r}; give your function another"
        )
    if better is None:
        raise ConfigError(
            f'better: {chosen} is a metric of your own, so the sweep must say which values are better; set better = "'
            f'{LOWER}" (an error, say) or better = "{HIGHER}" (a score)'
        )
    return Measure(chosen, better)
