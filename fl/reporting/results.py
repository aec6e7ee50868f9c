"""The runs of a sweep as numbers: mean and confidence interval over seeds, and the worst case over attacks.

The worst case is that of ByzFL's benchmark: for every attack the mean over the seeds, and of these the worst. It is
given only where every attack has a result.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from fl.config.grid import Axis
from fl.reporting.records import Recorded

FINISHED: Final = "finished"
BACKDOOR_SUCCESS: Final = "backdoor success"
LOWER_IS_BETTER: Final = frozenset({"loss", "mean-absolute-error", BACKDOOR_SUCCESS})
OWN_FIELDS: Final = ("accuracy", "loss")  # measures that a record has beside its metrics
STUDENT: Final = (  # 97.5% points of Student's t for 1 to 30 degrees of freedom
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)

Labels = Mapping[str, str]
Points = Sequence[tuple[float, float]]


class Outcome(NamedTuple):
    """One run: its value on each axis, whether it is finished, what was measured in each round, and its summary."""

    id: str
    labels: Labels
    status: str
    points: Points = ()
    summary: Mapping[str, Any] = {}

    @property
    def final(self) -> float | None:
        """The value after the last round."""
        return self.points[-1][1] if self.points else None


class Mean(NamedTuple):
    """A mean over seeds with its 95% confidence interval, which needs at least two."""

    value: float
    low: float | None
    high: float | None


class Cell(NamedTuple):
    """One combination of the axes without seeds: its mean over the finished seeds, and how many there are."""

    labels: Labels
    finished: int
    wanted: int
    mean: Mean | None
    best: float | None
    curve: Sequence[tuple[float, Mean]]


class Worst(NamedTuple):
    """The worst attack on one combination of the other axes; no mean if an attack has no result yet."""

    labels: Labels
    attack: str
    mean: Mean | None


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of values with its 95% interval of Student's t.

    >>> mean_of([0.5, 0.7])
    Mean(value=0.6, low=-0.6706, high=1.8706)
    """
    n, value = len(values), math.fsum(values) / len(values)
    if n < 2:
        return Mean(value, None, None)
    spread = math.sqrt(math.fsum((each - value) ** 2 for each in values) / (n - 1))
    t = STUDENT[n - 2] if n - 2 < len(STUDENT) else 1.96 + 2.372 / (n - 1)
    half = t * spread / math.sqrt(n)
    return Mean(value, value - half, value + half)


def measured(run: Recorded, measure: str) -> list[tuple[float, float]]:
    """(round, value) of a measure in every round that has it."""
    found = []
    for record in run.rounds:
        value = record.get(measure) if measure in OWN_FIELDS else (record.get("metrics") or {}).get(measure)
        if value is not None:
            found.append((float(record["round"]), float(value)))
    return found


@dataclass(frozen=True)
class Results:
    """All runs of a sweep, and the tables that they make."""

    name: str
    axes: Sequence[Axis]
    measure: str
    outcomes: Sequence[Outcome]

    @property
    def lower_is_better(self) -> bool:
        return self.measure in LOWER_IS_BETTER

    @property
    def seeds(self) -> list[Axis]:
        return [axis for axis in self.axes if axis.is_seed]

    @property
    def attacks(self) -> list[Axis]:
        return [axis for axis in self.axes if axis.is_attack]

    @property
    def others(self) -> list[Axis]:
        """The axes that are neither averaged nor attacks."""
        return [axis for axis in self.axes if not axis.is_seed and not axis.is_attack]

    @property
    def finished(self) -> int:
        return sum(outcome.status == FINISHED for outcome in self.outcomes)

    @cached_property
    def cells(self) -> list[Cell]:
        """Every combination of the axes without seeds, in the order of the grid."""
        names = [axis.name for axis in self.axes if not axis.is_seed]
        groups: dict[tuple[str, ...], list[Outcome]] = {}
        for outcome in self.outcomes:
            groups.setdefault(tuple(outcome.labels[name] for name in names), []).append(outcome)
        order = {axis.name: {label: i for i, label in enumerate(axis.labels)} for axis in self.axes}
        keys = sorted(groups, key=lambda key: [order[name][label] for name, label in zip(names, key, strict=True)])
        return [self._cell(dict(zip(names, key, strict=True)), groups[key]) for key in keys]

    def _cell(self, labels: Labels, outcomes: Sequence[Outcome]) -> Cell:
        done = [outcome for outcome in outcomes if outcome.status == FINISHED and outcome.points]
        finals = [outcome.points[-1][1] for outcome in done]
        rounds = sorted(set.intersection(*({x for x, _ in outcome.points} for outcome in done))) if done else []
        values = [dict(outcome.points) for outcome in done]
        curve = [(number, mean_of([each[number] for each in values])) for number in rounds]
        pick = min if self.lower_is_better else max
        best = pick((mean.value for _, mean in curve), default=None)
        return Cell(labels, len(done), len(outcomes), mean_of(finals) if finals else None, best, curve)

    @cached_property
    def worst(self) -> list[Worst]:
        """For every combination of the other axes, the attack with the worst mean; empty without an axis of attacks."""
        if not self.attacks:
            return []
        others, attacks = [axis.name for axis in self.others], [axis.name for axis in self.attacks]
        groups: dict[tuple[str, ...], list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(tuple(cell.labels[name] for name in others), []).append(cell)
        pick = max if self.lower_is_better else min
        found = []
        for key, cells in groups.items():
            labels = dict(zip(others, key, strict=True))
            means = [(cell.mean, ", ".join(cell.labels[name] for name in attacks)) for cell in cells]
            whole = [(mean, attack) for mean, attack in means if mean is not None]
            if len(whole) < len(means):
                found.append(Worst(labels, "", None))
            else:
                mean, attack = pick(whole, key=lambda each: each[0].value)
                found.append(Worst(labels, attack, mean))
        return found

    def show(self, value: float | None) -> str:
        """A value of the measure in words."""
        if value is None:
            return "-"
        return f"{value:.1%}" if self.measure == "accuracy" else f"{value:.4g}"

    def show_mean(self, mean: Mean | None, finished: int = 0, wanted: int = 0) -> str:
        """A mean with half of its interval, and how many seeds it has if not all."""
        if mean is None:
            return "-"
        text = self.show(mean.value)
        if mean.high is not None:
            half = mean.high - mean.value
            text += f" ± {half * 100:.1f}" if self.measure == "accuracy" else f" ± {half:.2g}"
        return text + (f" ({finished} of {wanted})" if finished < wanted else "")

    def table(self) -> list[list[str]]:
        """The means as rows of text: the other axes down, the attacks across, and the worst case."""
        across = list(dict.fromkeys(self._across(cell) for cell in self.cells))
        down = list(dict.fromkeys(self._down(cell.labels) for cell in self.cells))
        texts = {
            (self._down(cell.labels), self._across(cell)): self.show_mean(cell.mean, cell.finished, cell.wanted)
            for cell in self.cells
        }
        worst = {self._down(entry.labels): self.show_mean(entry.mean) for entry in self.worst}
        head = ["", *(column or self.measure for column in across), *(["worst"] if worst else [])]
        return [head] + [
            [row or self.name, *(texts.get((row, column), "-") for column in across), *([worst[row]] if worst else [])]
            for row in down
        ]

    def _across(self, cell: Cell) -> str:
        return ", ".join(cell.labels[axis.name] for axis in self.attacks)

    def _down(self, labels: Labels) -> str:
        return ", ".join(labels[axis.name] for axis in self.others)

    def to_json(self) -> dict[str, Any]:
        """Everything but the times, so that two sweeps of the same file are equal."""
        return {
            "sweep": self.name,
            "measure": self.measure,
            "axes": {axis.name: list(axis.labels) for axis in self.axes},
            "runs": [
                {
                    "run": outcome.id,
                    **{"labels": dict(outcome.labels), "status": outcome.status, "final": outcome.final},
                    "curve": [[int(number), value] for number, value in outcome.points],
                }
                for outcome in self.outcomes
            ],
            "cells": [
                {
                    **{"labels": dict(cell.labels), "finished": cell.finished, "wanted": cell.wanted},
                    **{"mean": cell.mean and cell.mean._asdict(), "best": cell.best},
                    "curve": [[int(number), *mean] for number, mean in cell.curve],
                }
                for cell in self.cells
            ],
            "worst": [
                {"labels": dict(entry.labels), "attack": entry.attack, "mean": entry.mean and entry.mean._asdict()}
                for entry in self.worst
            ],
        }

    def runs_csv(self) -> str:
        """One line per run."""
        axes = [axis.name for axis in self.axes]
        heads = ["run", *axes, "status", "rounds", self.measure, "best", "exposed", "exposed_over_training", "skipped"]
        pick = min if self.lower_is_better else max
        rows = []
        for outcome in self.outcomes:
            facts = outcome.summary
            best = pick((value for _, value in outcome.points), default=None)
            last: list[Any] = [None] * 6
            if facts:
                told = [len(facts["exposed"]), facts["exposed_over_training"], len(facts["skipped_rounds"])]
                last = [facts["rounds"], outcome.final, best, *told]
            rows.append([outcome.id, *(outcome.labels[name] for name in axes), outcome.status, *last])
        return _csv(heads, rows)

    def table_csv(self) -> str:
        """One line per combination of the axes without seeds."""
        names = [axis.name for axis in self.axes if not axis.is_seed]
        rows = [
            [*cell.labels.values(), cell.finished, cell.wanted, *(cell.mean or [None] * 3), cell.best]
            for cell in self.cells
        ]
        return _csv([*names, "finished", "wanted", "mean", "low", "high", "best_mean"], rows)

    def worst_csv(self) -> str:
        """One line per combination of the axes without seeds and attacks."""
        rows = [[*entry.labels.values(), entry.attack, *(entry.mean or [None] * 3)] for entry in self.worst]
        return _csv([*(axis.name for axis in self.others), "worst_attack", "mean", "low", "high"], rows)


def _csv(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    return text.getvalue()
