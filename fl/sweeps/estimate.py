"""How long a sweep will take, from measured rounds.

The first run is measured, and then, while there is time, one run for every other value of every axis. The cost of a run
is that of the first one, times a factor for each value that was measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Final, NamedTuple

from fl.config.grid import Axis
from fl.errors import TrainingError
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
    """The answer of a dry run, in seconds."""

    runs: int
    rounds: int
    finished: int
    at_once: int
    measured: int
    seconds_per_round: tuple[float, float]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        low, high = self.seconds_per_round
        spent = f"{low:.2g} s" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g} s"
        kept = f", of which {self.finished} are finished" if self.finished else ""
        return (
            f"{self.runs} runs{kept}; {self.rounds} rounds to train, {self.at_once} runs at once: about "
            f"{duration(self.seconds)} (a round of {self.measured} of the runs was measured: {spent})"
        )


def duration(seconds: float) -> str:
    """A time in words, rounded as a forecast should be.

    >>> [duration(each) for each in (3, 95, 4000, 400000)]
    ['3 seconds', '95 seconds', '67 minutes', '4.6 days']
    """
    for unit, size, most in (("second", 1, 120), ("minute", 60, 120), ("hour", 3600, 48)):
        if seconds / size < most:
            count = max(1, round(seconds / size))
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{seconds / 86400:.1f} days"


def estimate(axes: Sequence[Axis], runs: Sequence[Checked], left: Mapping[str, int], at_once: int) -> Estimate:
    """Measure rounds and add up. `left` says how many rounds each run still has to train."""
    costs: dict[str, Cost] = {}
    wanted = [run for run in _samples(axes, runs) if left[run.planned.id]]
    start = time.monotonic()
    in_time = (run for run in wanted if run is wanted[0] or time.monotonic() - start < ENOUGH)
    work((job(run, None, at_once) for run in in_time), at_once, _into(costs))
    by_id = {run.planned.id: run for run in runs}
    measured = {name: cost for name, cost in costs.items() if name in by_id}
    spent = {name: _cost(by_id[name], by_id, measured) for name, count in left.items() if count}
    seconds = sum(spent[name].setup + spent[name].round * count for name, count in left.items() if count)
    longest = max((cost.setup + cost.round * left[name] for name, cost in spent.items()), default=0.0)
    rounds = [cost.round for cost in measured.values()] or [0.0]
    return Estimate(
        runs=len(runs),
        rounds=sum(left.values()),
        finished=sum(not count for count in left.values()),
        at_once=at_once,
        measured=len(measured),
        seconds_per_round=(min(rounds), max(rounds)),
        seconds=max(seconds / at_once, longest),
    )


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
    first_id, first = next(iter(measured.items()))
    base = runs[first_id].planned.labels
    factors = []
    for axis, label in run.planned.labels.items():
        for name, cost in measured.items():
            labels = runs[name].planned.labels
            if labels[axis] == label != base[axis] and sum(labels[each] != base[each] for each in labels) == 1:
                factors.append(cost.round / max(first.round, 1e-9))
    return Cost(first.setup, first.round * prod(factors))


def _into(costs: dict[str, Cost]) -> Any:
    def hear(job: Job, message: Message) -> None:
        if message["do"] == "failed":
            raise TrainingError(f"{job.name}: {message['error']}")
        if message["do"] == "measured":
            costs[job.id] = Cost(message["setup"], message["round"])

    return hear
