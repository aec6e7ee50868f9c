"""One round of SHARE, top to bottom (Algorithm 1; with the rule `zeno++` it is Algorithm 2).

`play` is the whole round in the order in which it happens; no step calls back. Everything random in it is
drawn from the seed and the round, so a round that is played again gives the same bits.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.config.schema import LABEL_FLIP, NO_ATTACK, STAGES, Experiment
from fl.reporting.progress import Progress
from fl.secure.layout import Cell, Cluster, Cohort, Opened, Population
from fl.training import aggregation
from fl.training.interrupt import Interrupt
from fl.training.learner import Learner
from fl.training.randomness import absences, context, generator
from fl.training.workers import Pool
from secagg.simulation import Cost

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same from round to round."""

    experiment: Experiment
    trainer: Learner | Pool
    population: Cohort
    byzantine: frozenset[int]
    show: Progress = field(default_factory=Progress)
    interrupt: Interrupt = field(default_factory=Interrupt)


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """The model after a round, the aggregated update that led there, and the record of it."""

    x: Vector
    update: Vector
    record: dict[str, Any]


def play(setting: Setting, t: int, x: Vector, last: Vector) -> Played:
    """Round t (counted from 0) from the model x. `last` is the previous round's aggregated update."""
    e, clock = setting.experiment, Clock()
    cells = setting.population.cells(t, len(x), context(e, hashlib.sha256(x.tobytes()).digest()))
    absent = absences(e, t)

    opened = []
    for cell in cells:
        active = [c for c in cell.seated if absent.get(c, "unmasking") not in STAGES[:3]]
        with clock("training"):
            updates = train(setting, t, x, active)
        with clock("attack"):
            attack(setting, t, active, updates)
            broken = [c for c, row in zip(active, updates, strict=True) if not np.isfinite(row).all()]
        with clock("secure"):
            opened.append(secure(setting, cell, active, updates, absent | dict.fromkeys(broken, "inputs")))
        del updates  # one cell's updates at a time
        setting.interrupt.safe_point()
    return conclude(setting, t, x, last, opened, clock)


def conclude(
    setting: Setting, t: int, x: Vector, last: Vector, opened: Sequence[Opened], clock: Clock
) -> Played:
    """What the server does once the sums are open, wherever the clients are."""
    e = setting.experiment
    with clock("aggregation"):
        parts = [combine(setting, t, r, x, last, opened) for r in range(setting.population.layout.groupings)]
    given = [part.update for part in parts if part.update is not None]
    if given:
        update = (sum(given[1:], start=given[0].astype(np.float64)) / len(given)).astype(np.float32)
        after = x + np.float32(e.server_lr) * update
        skipped = ""
    else:
        update, after = np.zeros_like(x), x
        skipped = "round skipped, the model stays as it was: " + why_nothing(opened, parts)
    record = {"round": t + 1, "skipped": skipped, **described(setting, opened, parts, update)}
    with clock("evaluation"):
        record |= evaluate(setting, t, after)
    record["seconds"] = clock.seconds()
    return Played(after, update, record)


# --- the steps ----------------------------------------------------------------------------------------------


def train(setting: Setting, t: int, x: Vector, clients: Sequence[int]) -> Matrix:
    """x_{i,K} - x^t of every client, a few at a time so that a person sees it move and can stop it."""
    trainer = setting.trainer
    at_once = 4 * trainer.count if isinstance(trainer, Pool) else max(16, trainer.together)
    updates = np.empty((len(clients), len(x)), dtype=np.float32)
    for first in range(0, len(clients), at_once):
        some = clients[first : first + at_once]
        setting.show.phase("training", first, len(clients))
        trainer.train(x, some, round_index=t, out=updates[first : first + len(some)])
        setting.interrupt.safe_point()
    return updates


def attack(setting: Setting, t: int, clients: Sequence[int], updates: Matrix) -> None:
    """Replace what the Byzantine clients of a cell send. They know each other and every honest update."""
    e = setting.experiment
    if e.attack.name in (NO_ATTACK, LABEL_FLIP) or t + 1 < e.attack.start:
        return
    bad = np.array([client in setting.byzantine for client in clients], dtype=bool)
    if bad.any():
        updates[bad] = aggregation.attacked(e, updates, bad, generator(e.seed, t, "attack"))


def secure(
    setting: Setting, cell: Cell, active: Sequence[int], updates: Matrix, absent: Mapping[int, str]
) -> Opened:
    """The cluster sums of a cell, through secure aggregation."""
    e = setting.experiment
    place = {client: row for row, client in enumerate(active)}
    deed = e.attack.protocol
    cheats = {c: deed for c in cell.clients if c in setting.byzantine} if deed != "none" else {}
    total = len(setting.population.layout.cells)
    which = f" of cell {cell.index + 1}/{total}" if total > 1 else ""

    def on_answer(stage: str, answers: int) -> None:
        setting.show.phase(f"secure aggregation{which}: {stage}", answers, len(cell.clients))

    assert isinstance(setting.population, Population), "only a simulation holds every client's keys"
    return setting.population.aggregate(
        cell, lambda client: updates[place[client]], drop=absent, misbehave=cheats, on_answer=on_answer
    )


def combine(
    setting: Setting, t: int, r: int, x: Vector, last: Vector, opened: Sequence[Opened]
) -> aggregation.Decision:
    """g^r: the clusters of all cells in one reclustering, through one rule."""
    e = setting.experiment
    setting.show.phase("robust aggregation", r, setting.population.layout.groupings)
    pairs = [(cell, cluster) for cell in opened for cluster in cell.of(r)]
    if not pairs:
        return aggregation.Decision(None, (), (), "no sum was opened")
    clusters = tuple(cluster for _, cluster in pairs)
    if aggregation.by_weight(e):
        totals = [cell.total(r) for cell in opened if cell.of(r)]
        update = sum(total for total, _ in totals) / sum(weight for _, weight in totals)
        decision = aggregation.Decision(np.asarray(update, dtype=np.float32), clusters, ())
    else:
        means = np.empty((len(pairs), len(x)), dtype=np.float32)
        for row, (cell, cluster) in zip(means, pairs, strict=True):
            cell.mean(cluster, out=row)
        lot = generator(e.seed, t, f"validation {r}")
        decision = aggregation.decide(e, means, clusters, setting.trainer, x, last, lot)
    for cell in opened:
        cell.forget(r)
    setting.interrupt.safe_point()
    return decision


def evaluate(setting: Setting, t: int, x: Vector) -> dict[str, float | None]:
    machine = setting.experiment.machine
    if (t + 1) % machine.evaluate_every and t + 1 < setting.experiment.rounds:
        return {"accuracy": None, "loss": None}
    setting.show.phase("testing", 0, 1)
    score = setting.trainer.evaluate(x)
    return {"accuracy": score.accuracy, "loss": score.loss if math.isfinite(score.loss) else None}


# --- the record ---------------------------------------------------------------------------------------------


class Clock:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._spent: dict[str, float] = {}

    def __call__(self, name: str) -> _Span:
        return _Span(lambda seconds: self._add(name, seconds))

    def _add(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        return {**self._spent, "total": time.perf_counter() - self._start}


class _Span:
    def __init__(self, add: Callable[[float], None]) -> None:
        self._add = add

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._add(time.perf_counter() - self._start)


def described(
    setting: Setting, opened: Sequence[Opened], parts: Sequence[aggregation.Decision], update: Vector
) -> dict[str, Any]:
    """What happened, in plain values. Which clusters were poisoned is known only to a simulation."""
    cost = Cost()
    for cell in opened:
        cost.add(cell.cost)
    exposures = [cell.exposure for cell in opened if cell.exposure is not None]
    learned = [found for found in exposures if found.anonymity is not None]
    clients = sum(found.clients for found in exposures)
    verdicts = {
        (cluster.cell, cluster.grouping, cluster.index): kept
        for part in parts
        if part.kept
        for cluster, kept in zip(part.clusters, part.kept, strict=True)
    }
    return {
        "clusters": [
            _cluster(setting, cluster, verdicts.get((cluster.cell, cluster.grouping, cluster.index)))
            for cell in opened
            for cluster in cell.clusters
        ],
        "groupings": [{"opened": len(part.clusters), "f": part.f, "skipped": part.skipped} for part in parts],
        "dropouts": [
            {"client": client, "stage": gone.stage.name.lower(), "why": gone.reason}
            for cell in opened
            for client, gone in sorted(cell.dropouts.items())
        ],
        "blamed": {str(client): why for cell in opened for client, why in sorted(cell.blamed.items())},
        "failed_cells": {str(cell.cell.index): cell.failed for cell in opened if cell.failed},
        "exposure": {
            "exposed": [client for found in exposures for client in found.exposed],
            "would_expose": sum(found.would_expose for found in exposures),
            "anonymity": min((found.anonymity or 0 for found in learned), default=None),
            "anonymity_at_most": min((found.anonymity_at_most or 0 for found in learned), default=None),
            "leverage": sum(found.rank for found in exposures) / clients if clients else 0.0,
            "most_leverage": max((found.most_leverage for found in exposures), default=0.0),
            "sentences": list(exposures[0].sentences[:4]) if exposures else [],
        },
        "cryptography": cost.as_dict(),
        "update_norm": float(np.linalg.norm(update.astype(np.float64))),
    }


def _cluster(setting: Setting, cluster: Cluster, kept: float | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "cell": cluster.cell,
        "grouping": cluster.grouping,
        "cluster": cluster.index,
        "members": list(cluster.members),
        "bad": sum(client in setting.byzantine for client in cluster.members),
        "state": cluster.state,
        "kept": kept,
    }
    if cluster.why:
        told["why"] = cluster.why
    return told


def why_nothing(opened: Sequence[Opened], parts: Sequence[aggregation.Decision]) -> str:
    reasons = [cell.failed for cell in opened if cell.failed] + [
        part.skipped for part in parts if part.skipped
    ]
    return reasons[0] if reasons else "no sum was opened"
