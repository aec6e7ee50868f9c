"""The runs of a sweep as numbers: mean and confidence interval over seeds, and the worst case over attacks.

The worst case is that of ByzFL's benchmark: for every attack the mean over the seeds, and of these the worst. It is
given only where every attack of the grid has a result: a rule that cannot run under an attack has no worst case.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from fl.config.grid import Axis
from fl.reporting.compared import Measure
from fl.reporting.table import as_csv

FINISHED: Final = "finished"
NO_VALUE: Final = "no value"  # it has ended, and the measure is not a number after its last round
MOST_FOOTNOTES: Final = 8
STUDENT: Final = (  # 97.5% points of Student's t for 1 to 30 degrees of freedom
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)

Labels = Mapping[str, str]
Points = Sequence[tuple[float, float]]


class Outcome(NamedTuple):
    """One run: its value on each axis, whether it is finished, what was measured in each round, and its summary.

    `error` says why it failed, if it did.
    """

    id: str
    labels: Labels
    status: str
    points: Points = ()
    summary: Mapping[str, Any] = {}
    error: str = ""

    @property
    def name(self) -> str:
        """The run in words."""
        return in_words(self.labels)

    @property
    def final(self) -> float | None:
        """The value after the last round, of a finished run."""
        return self.points[-1][1] if self.points and self.status == FINISHED else None


class LeftOut(NamedTuple):
    """A combination that cannot run, and why."""

    labels: Labels
    why: str

    @property
    def name(self) -> str:
        """The combination in words."""
        return in_words(self.labels)


class Mean(NamedTuple):
    """A mean over seeds with its 95% confidence interval, which needs at least two, and half of its width.

    `low` and `high` end where the values of the measure do, so they need not be `half` away from the mean.
    """

    value: float
    low: float | None
    high: float | None
    half: float | None = None


class Cell(NamedTuple):
    """One combination of the axes without seeds: its mean over the finished seeds, and how many there are."""

    labels: Labels
    finished: int
    wanted: int
    mean: Mean | None
    best: float | None
    curve: Sequence[tuple[float, Mean]]


class Worst(NamedTuple):
    """The worst attack on one combination of the other axes; no mean if an attack of the grid has no result.

    `impossible` are the attacks of which every run was left out, `unfinished` those without a finished run. `finished`
    are the seeds of the attack that has the fewest: if some are missing there, another attack may turn out the worst.
    """

    labels: Labels
    attack: str
    mean: Mean | None
    impossible: Sequence[str] = ()
    unfinished: Sequence[str] = ()
    finished: int = 0
    wanted: int = 0


def in_words(labels: Labels) -> str:
    """A run in words.

    >>> in_words({"rule": "krum", "seed": "0"})
    'rule krum, seed 0'
    """
    return ", ".join(f"{axis} {label}" for axis, label in labels.items())


def grouped(entries: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Pairs of a name and a text as texts with their names, in the order in which they come.

    A name in its own text becomes "the run", unless it is part of a longer word or number.

    >>> grouped([("a", "no"), ("b", "why"), ("c", "no")])
    [('no', ['a', 'c']), ('why', ['b'])]
    """
    found: dict[str, list[str]] = {}
    for name, text in entries:
        whole = rf"(?<!\w){re.escape(name)}(?!\.?\w)"
        found.setdefault(re.sub(whole, "the run", text), []).append(name)
    return list(found.items())


def mean_of(values: Sequence[float], least: float = -math.inf, most: float = math.inf) -> Mean:
    """The mean of values with its 95% interval of Student's t, as far as it lies between the least and the most.

    >>> [round(each, 4) for each in mean_of([0.5, 0.7], most=1.0) if each is not None]
    [0.6, -0.6706, 1.0, 1.2706]
    """
    n, value = len(values), math.fsum(values) / len(values)
    if n < 2:
        return Mean(value, None, None)
    spread = math.sqrt(math.fsum((each - value) ** 2 for each in values) / (n - 1))
    t = STUDENT[n - 2] if n - 2 < len(STUDENT) else 1.96 + 2.372 / (n - 1)
    half = t * spread / math.sqrt(n)
    return Mean(value, max(value - half, least), min(value + half, most), half)


@dataclass(frozen=True)
class Results:
    """All runs of a sweep, and the tables that they make."""

    name: str
    axes: Sequence[Axis]
    measure: Measure
    outcomes: Sequence[Outcome]
    impossible: Sequence[LeftOut] = ()  # combinations that were left out

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
        curve = [(number, self._mean_of([each[number] for each in values])) for number in rounds]
        best = self.measure.best(mean.value for _, mean in curve)
        wanted = math.prod(len(axis.values) for axis in self.seeds)
        return Cell(labels, len(done), wanted, self._mean_of(finals) if finals else None, best, curve)

    def _mean_of(self, values: Sequence[float]) -> Mean:
        return mean_of(values, self.measure.least, self.measure.most)

    @cached_property
    def worst(self) -> list[Worst]:
        """For every combination of the other axes, the attack with the worst mean; empty without an axis of attacks."""
        if not self.attacks:
            return []
        rows: dict[str, dict[str, Cell]] = {}
        for cell in self.cells:
            rows.setdefault(self._down(cell.labels), {})[self._across(cell)] = cell
        attacks = [", ".join(chosen) for chosen in itertools.product(*(axis.labels for axis in self.attacks))]
        return [self._worst(cells, attacks) for cells in rows.values()]

    def _worst(self, cells: Mapping[str, Cell], attacks: Sequence[str]) -> Worst:
        """The worst of the cells of one row, by attack, if there is a mean for every attack."""
        some = next(iter(cells.values()))
        labels, wanted = {axis.name: some.labels[axis.name] for axis in self.others}, some.wanted
        means = {attack: cell.mean for attack, cell in cells.items() if cell.mean is not None}
        impossible = [attack for attack in attacks if attack not in cells]
        unfinished = [attack for attack in attacks if attack in cells and attack not in means]
        if impossible or unfinished:
            return Worst(labels, "", None, impossible, unfinished, 0, wanted)
        finished = min(cell.finished for cell in cells.values())
        value = self.measure.worst(mean.value for mean in means.values())
        attack = next(attack for attack in attacks if means[attack].value == value)
        return Worst(labels, attack, means[attack], finished=finished, wanted=wanted)

    @cached_property
    def footnotes(self) -> list[str]:
        """Why a worst case is missing, and which runs have ended without a value."""
        found = []
        for entry in self.worst:
            if entry.mean is None:
                parts = [f"{', '.join(entry.impossible)} cannot run (skip_impossible)"] if entry.impossible else []
                has = "has" if len(entry.unfinished) == 1 else "have"
                parts += [f"{', '.join(entry.unfinished)} {has} no finished run"] if entry.unfinished else []
                found.append(f"no worst case for {self._down(entry.labels) or self.name}: {'; '.join(parts)}")
        for outcome in self.outcomes:
            if outcome.status == NO_VALUE:
                found.append(f"{outcome.id} is in no mean: {self.measure.name} is not a number after its last round")
        more = len(found) - MOST_FOOTNOTES
        return found if more <= 0 else [*found[:MOST_FOOTNOTES], f"and {more} more like these"]

    def show(self, value: float | None) -> str:
        """A value of the measure in words."""
        if value is None:
            return "-"
        return f"{value:.1%}" if self.measure.in_percent else f"{value:.4g}"

    def show_mean(self, mean: Mean | None, finished: int = 0, wanted: int = 0) -> str:
        """A mean with half of its interval, and how many seeds it has if not all."""
        if mean is None:
            return "-"
        text = self.show(mean.value)
        if mean.half is not None:
            text += f" ± {mean.half * 100:.1f}" if self.measure.in_percent else f" ± {mean.half:.2g}"
        return text + (f" ({finished} of {wanted})" if finished < wanted else "")

    def table(self) -> list[list[str]]:
        """The means as rows of text: the other axes down, the attacks across, and the worst case."""
        across = list(dict.fromkeys(self._across(cell) for cell in self.cells))
        down = list(dict.fromkeys(self._down(cell.labels) for cell in self.cells))
        texts = {
            (self._down(cell.labels), self._across(cell)): self.show_mean(cell.mean, cell.finished, cell.wanted)
            for cell in self.cells
        }
        worst = {
            self._down(entry.labels): self.show_mean(entry.mean, entry.finished, entry.wanted) for entry in self.worst
        }
        head = [self.down_head, *(column or self.measure.name for column in across), *(["worst"] if worst else [])]
        return [head] + [
            [row or self.name, *(texts.get((row, column), "-") for column in across), *([worst[row]] if worst else [])]
            for row in down
        ]

    def _across(self, cell: Cell) -> str:
        return ", ".join(cell.labels[axis.name] for axis in self.attacks)

    @property
    def down_head(self) -> str:
        """What the labels of a row mean: the names of their axes."""
        return ", ".join(axis.name for axis in self.others)

    def _down(self, labels: Labels) -> str:
        return ", ".join(labels[axis.name] for axis in self.others)

    def to_json(self) -> dict[str, Any]:
        """Everything but the times, so that two sweeps of the same file are equal."""
        return {
            "sweep": self.name,
            "measure": self.measure.name,
            "better": self.measure.better,
            "axes": {axis.name: list(axis.labels) for axis in self.axes},
            "runs": [
                {
                    "run": outcome.id,
                    **{"labels": dict(outcome.labels), "status": outcome.status, "final": outcome.final},
                    "curve": [[int(number), value] for number, value in outcome.points],
                    **({"error": outcome.error} if outcome.error else {}),
                }
                for outcome in self.outcomes
            ],
            "impossible": [{"labels": dict(each.labels), "why": each.why} for each in self.impossible],
            "cells": [
                {
                    **{"labels": dict(cell.labels), "finished": cell.finished, "wanted": cell.wanted},
                    **{"mean": cell.mean and cell.mean._asdict(), "best": cell.best},
                    "curve": [[int(number), *mean[:3]] for number, mean in cell.curve],
                }
                for cell in self.cells
            ],
            "worst": [
                {
                    **{"labels": dict(entry.labels), "attack": entry.attack},
                    **{"mean": entry.mean and entry.mean._asdict()},
                    **{"impossible": list(entry.impossible), "unfinished": list(entry.unfinished)},
                    **{"finished": entry.finished, "wanted": entry.wanted},
                }
                for entry in self.worst
            ],
        }

    def runs_csv(self) -> str:
        """One line per run."""
        axes = [axis.name for axis in self.axes]
        facts_of = ["exposed", "exposed_over_training", "skipped"]
        heads = ["run", *axes, "status", "rounds", self.measure.name, "best", *facts_of]
        rows = []
        for outcome in self.outcomes:
            facts = outcome.summary
            best = self.measure.best(value for _, value in outcome.points)
            last: list[Any] = [None] * 6
            if facts:
                told = [len(facts["exposed"]), facts["exposed_over_training"], len(facts["skipped_rounds"])]
                last = [facts["rounds"], outcome.final, best, *told]
            rows.append([outcome.id, *(outcome.labels[name] for name in axes), outcome.status, *last])
        return as_csv(heads, rows)

    def table_csv(self) -> str:
        """One line per combination of the axes without seeds."""
        names = [axis.name for axis in self.axes if not axis.is_seed]
        rows = [
            [*cell.labels.values(), cell.finished, cell.wanted, *(cell.mean or [None] * 3)[:3], cell.best]
            for cell in self.cells
        ]
        return as_csv([*names, "finished", "wanted", "mean", "low", "high", "best_mean"], rows)

    def worst_csv(self) -> str:
        """One line per combination of the axes without seeds and attacks."""
        rows = [
            [*entry.labels.values(), entry.attack, entry.finished, entry.wanted, *(entry.mean or [None] * 3)[:3]]
            for entry in self.worst
        ]
        heads = ["worst_attack", "finished", "wanted", "mean", "low", "high"]
        return as_csv([*(axis.name for axis in self.others), *heads], rows)
