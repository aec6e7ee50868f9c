"""How long a sweep will take, from measured rounds.

The first run is measured, and then, while there is time, one run for every other value of every axis. The cost of a run
is that of the first one, times a factor for each value that was measured. Processes start before that, all at once: how
long this takes is measured too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any, Final, NamedTuple

from fl.config.grid import Axis
from fl.errors import TrainingError
from fl.reporting.results import grouped
from fl.sweeps.folder import Checked, job
from fl.sweeps.pool import Job, work
from fl.training.channel import Message

ENOUGH: Final = 30.0  # seconds of measuring, after which no further run is measured


class Cost(NamedTuple):
    """Seconds of one run: before its first round, and per round."""

    setup: float
    round: float


@dataclass(frozen=True)
class Estimate:
    """The answer of a dry run, in seconds.

    `not_measured` has the runs that failed when they were measured, with their errors: they count nothing. `left_out`
    are the combinations that cannot run: `runs` does not count them.
    """

    runs: int
    rounds: int
    finished: int
    at_once: int
    measured: int
    seconds_per_round: tuple[float, float]
    start: float
    seconds: float
    not_measured: Mapping[str, str] = field(default_factory=dict)
    left_out: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        left_out = f"; {cannot_run(self.left_out)}" if self.left_out else ""
        if not self.rounds:
            runs = f"{several(self.runs, 'run')}, {'all' if self.runs > 1 else 'it is'} finished: " if self.runs else ""
            return f"{runs}nothing to train{left_out}"
        low, high = self.seconds_per_round
        spent = f"{low:.2g} s" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g} s"
        kept = f", of which {self.finished} {'are' if self.finished > 1 else 'is'} finished" if self.finished else ""
        missing, count = several(len(self.not_measured), "run"), "counts" if len(self.not_measured) == 1 else "count"
        problems = [
            f"\n- {error} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
            for error, names in grouped(self.not_measured.items())
        ]
        told = f"\n{missing} could not be measured and {count} nothing here:{''.join(problems)}" if problems else ""
        return (
            f"{several(self.runs, 'run')}{kept}; {several(self.rounds, 'round')} to train, "
            f"{several(self.at_once, 'run')} at once: about {duration(self.seconds)} (a round of "
            f"{several(self.measured, 'run')} was measured: {spent}; processes start in {self.start:.2g} s)"
            f"{left_out}{told}"
        )


def several(count: int, word: str) -> str:
    """A number with its word.

    >>> several(1, "run"), several(2, "run")
    ('1 run', '2 runs')
    """
    return f"{count} {word}{'' if count == 1 else 's'}"


def cannot_run(count: int) -> str:
    """How many combinations are left out.

    >>> cannot_run(1)
    '1 combination cannot run and is left out'
    """
    return f"{several(count, 'combination')} cannot run and {'is' if count == 1 else 'are'} left out"


def duration(seconds: float) -> str:
    """A time in words, rounded as a forecast should be.

    >>> [duration(each) for each in (3, 95, 4000, 400000)]
    ['3 seconds', '95 seconds', '67 minutes', '4.6 days']
    """
    for unit, size, most in (("second", 1, 120), ("minute", 60, 120), ("hour", 3600, 48)):
        if seconds / size < most:
            count = max(1, round(seconds / size))
            return several(count, unit)
    return f"{seconds / 86400:.1f} days"


def estimate(axes: Sequence[Axis], runs: Sequence[Checked], left: Mapping[str, int], at_once: int) -> Estimate:
    """Measure rounds and add up. `left` says how many rounds each run still has to train, `runs` which have some.

    A run that fails when it is measured counts nothing, and the next one is measured in its place.
    """
    costs, finished = Costs(), sum(not count for count in left.values())
    if not runs:
        return Estimate(len(left), 0, finished, at_once, 0, (0.0, 0.0), 0.0, 0.0)
    start = time.monotonic()
    possible = list(runs)
    while possible and possible[0].planned.id not in costs.measured:
        if costs.measured and time.monotonic() - start >= ENOUGH:
            break
        wanted = [run for run in _samples(axes, possible) if run.planned.id not in costs.measured]
        in_time = (job(run, None, at_once) for run in wanted if _due(run, wanted, start))
        work(in_time, at_once, costs.hear)
        possible = [run for run in possible if run.planned.id not in costs.failed]
    if not costs.measured:
        name, error = next((run.planned.name, costs.failed[run.planned.id]) for run in runs)
        raise TrainingError(f"no run could be measured; the first: {name}: {error}")
    by_id = {run.planned.id: run for run in possible}
    spent = {name: _cost(run, by_id, costs.measured) for name, run in by_id.items()}
    each = [cost.setup + cost.round * left[name] for name, cost in spent.items()]
    rounds = [cost.round for cost in costs.measured.values()]
    return Estimate(
        runs=len(left),
        rounds=sum(rounds for name, rounds in left.items() if name not in costs.failed),
        finished=finished,
        at_once=at_once,
        measured=len(costs.measured),
        seconds_per_round=(min(rounds), max(rounds)),
        start=costs.start,
        seconds=costs.start + max(sum(each) / at_once, *each),
        not_measured={run.planned.name: costs.failed[run.planned.id] for run in runs if run.planned.id in costs.failed},
    )


def _due(run: Checked, wanted: Sequence[Checked], start: float) -> bool:
    """Whether a run is still measured: the first in any case, the others while there is time."""
    return run is wanted[0] or time.monotonic() - start < ENOUGH


def _samples(axes: Sequence[Axis], runs: Sequence[Checked]) -> list[Checked]:
    """The first run, then runs that differ from it in one axis; seeds are taken to cost the same."""
    first = runs[0]
    found = [first]
    for axis in axes:
        if not axis.is_seed:
            others = {name: label for name, label in first.planned.labels.items() if name != axis.name}
            found += [
                run
                for run in runs[1:]
                if all(run.planned.labels[name] == label for name, label in others.items()) and run is not first
            ]
    return found


def _cost(run: Checked, runs: Mapping[str, Checked], measured: Mapping[str, Cost]) -> Cost:
    first_id = next(each for each in runs if each in measured)  # in the order of the grid, not of the answers
    first = measured[first_id]
    base = runs[first_id].planned.labels
    factors = []
    for axis, label in run.planned.labels.items():
        for name, cost in measured.items():
            labels = runs[name].planned.labels
            if labels[axis] == label != base[axis] and sum(labels[each] != base[each] for each in labels) == 1:
                factors.append(cost.round / max(first.round, 1e-9))
    return Cost(first.setup, first.round * prod(factors))


class Costs:
    """Hears what was measured. What passes before the first answer, without measuring, is the start of a process."""

    def __init__(self) -> None:
        self.measured: dict[str, Cost] = {}
        self.failed: dict[str, str] = {}
        self.start = 0.0
        self._begun = time.monotonic()

    def hear(self, job: Job, message: Message) -> None:
        if message["do"] in ("failed", "impossible"):
            self.failed[job.id] = message["error"]
        if message["do"] == "measured":
            if not self.measured:
                self.start = max(0.0, time.monotonic() - self._begun - message["spent"])
            self.measured[job.id] = Cost(message["setup"], message["round"])
