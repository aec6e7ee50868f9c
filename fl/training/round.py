"""One round of SHARE, from top to bottom (Algorithm 1; with the rule `zeno++` it is Algorithm 2).

`play` is the whole round of a simulation, in the order in which things happen. `conclude` is the part that the server
does once the sums are open. Everything random comes from the seed and the round, so a repeated round has the same bits.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fl.config import rules
from fl.config.rules import averages_by_weight
from fl.config.schema import DATA_ATTACKS, Experiment
from fl.reporting.compared import BACKDOOR_SUCCESS
from fl.reporting.progress import Progress
from fl.secure.cohort import Cell, CellResult, Cohort
from fl.secure.layout import fitting_ratio
from fl.secure.population import Population
from fl.training import aggregation
from fl.training.interrupt import Interrupt
from fl.training.models import Matrix, Vector
from fl.training.randomness import absences, context, generator
from fl.training.scaffold import Variates, shifts
from fl.training.server import LAST, MOMENTS, Memory, step
from fl.training.workers import Trainer
from secagg import Stage, Verdict
from secagg.agreement import Agreement, worst_round
from secagg.simulation import Cost, Misbehaviour

Callback = Callable[[Mapping[str, Any], Vector], object]
"""Called after every round with its record and the model's vector. Returns None, or a text that ends the training."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same from round to round."""

    experiment: Experiment
    trainer: Trainer
    cohort: Cohort
    byzantine: frozenset[int]
    show: Progress = field(default_factory=Progress)
    interrupt: Interrupt = field(default_factory=Interrupt)
    callbacks: Sequence[Callback] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """The model after a round, what the server remembers, and the record of the round."""

    x: Vector
    memory: Memory
    record: dict[str, Any]


def play(setting: Setting, population: Population, t: int, x: Vector, memory: Memory) -> Played:
    """Round t (counted from 0) from the model x. `memory` is what the server kept of the rounds before."""
    experiment, clock = setting.experiment, Clock()
    bound = context(experiment, hashlib.sha256(x.tobytes()).digest())
    absent, left_out = absences(experiment, t), population.suspects.in_round(t)
    results, cut, variates = [], [], Variates(setting.trainer.task, memory, t)
    for cell in population.cells(t, bound):
        active = [c for c in cell.clients if absent.get(c, Stage.DONE) > Stage.INPUTS and c not in left_out]
        with clock("training"):
            updates = train(setting, t, x, active, memory)
            variates.remember(active, updates)
        with clock("attack"):
            attack(setting, t, cell, active, updates)
            cut.append(beyond_clip(setting, active, updates))
            rows = dict(zip(active, updates, strict=True))
            broken = [client for client, row in rows.items() if not np.isfinite(row).all()]
        with clock("secure"):
            drop = absent | dict.fromkeys(broken, Stage.INPUTS)
            result = aggregate_securely(setting, population, cell, rows, drop, left_out)
            result.reject(broken)
            results.append(result)
        del updates, rows  # keep one cell's updates at a time
        setting.interrupt.safe_point()
    played = conclude(setting, t, x, memory, results, clock)
    played.record["attack_clipped"] = max(cut, default=0.0)
    return Played(played.x, variates.after(played.memory, bool(played.record["skipped"])), played.record)


def beyond_clip(setting: Setting, clients: Sequence[int], updates: Matrix) -> float:
    """The part of the attackers' coordinates that the encoding of an honest client clips, as this simulation does.

    A real attacker writes its own code: it can send as much as the whole cluster may, and the sum is of that.
    """
    bad = [place for place, client in enumerate(clients) if client in setting.byzantine]
    if setting.experiment.attack.name in DATA_ATTACKS or not bad:
        return 0.0
    weights = np.array([setting.cohort.weights[clients[place]] for place in bad]) / setting.cohort.mean_weight
    with np.errstate(invalid="ignore"):
        return float((np.abs(updates[bad]) * weights[:, None] > setting.experiment.privacy.clip).mean())


def conclude(
    setting: Setting, t: int, x: Vector, memory: Memory, results: Sequence[CellResult], clock: Clock
) -> Played:
    """What the server does once the sums are open: aggregate, step, evaluate, and describe the round."""
    counts = [result.clipped(0) for result in results]
    with clock("aggregation"):
        parts = [combine(setting, t, r, x, memory[LAST], results) for r in range(setting.cohort.layout.groupings)]
    given = [part.update for part in parts if part.update is not None]
    update, after, reason = np.zeros_like(x), x, ""
    kept: Memory = {**memory, LAST: update}
    if given:
        update = (sum(given[1:], start=given[0].astype(np.float64)) / len(given)).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            moved, remembered = step(setting.experiment.server, update, memory)
            there = x + np.float32(setting.experiment.server_lr) * moved
        moments = [remembered[name] for name in MOMENTS & remembered.keys()]
        if all(np.isfinite(part).all() for part in (there, *moments)):
            after, kept = there, remembered
        else:
            reason = "the server's step leads to values that are not finite; lower server_lr"
    else:
        reasons = [*(result.failed for result in results), *(part.skipped for part in parts)]
        reason = next(filter(None, reasons), "no sum was opened")
    skipped = f"round skipped, the model stays as it was: {reason}" if reason else ""
    clipped, values = map(sum, zip(*counts, strict=True))
    record = {"round": t + 1, "skipped": skipped, **describe(setting, results, parts, update)}
    record["clipped"] = min(max(clipped / values, 0.0), 1.0) if values else None  # whoever lies about its count
    if (agreement := setting.cohort.agreement) is not None and agreement.terms.noise is not None:
        record |= {"clipped": None, "epsilon": spent_epsilon(agreement, t + 1, setting.experiment.privacy.delta)}
    with clock("evaluation"):
        record |= evaluate(setting, t, after)
    record["seconds"] = clock.seconds()
    return Played(after, kept, record)


def spent_epsilon(agreement: Agreement, rounds: int, delta: float) -> dict[str, float]:
    """What so many rounds cost the client that pays most: with all noise, without that of colluders, with its own."""
    names = ("everybody", "assumed", "local")
    return dict(zip(names, worst_round(agreement).times(rounds).epsilons(delta), strict=True)) | {"delta": delta}


def train(setting: Setting, t: int, x: Vector, clients: Sequence[int], memory: Memory) -> Matrix:
    """x_{i,K} - x^t of every client, a few clients at a time so that the user sees progress and can stop."""
    trainer = setting.trainer
    updates = np.empty((len(clients), len(x)), dtype=np.float32)
    for first in range(0, len(clients), trainer.at_once):
        some = clients[first : first + trainer.at_once]
        setting.show.phase("training", first, len(clients))
        rows = updates[first : first + len(some)]
        trainer.train(x, some, round_index=t, out=rows, shift=shifts(memory, some))
        setting.interrupt.safe_point()
    return updates


def attack(setting: Setting, t: int, cell: Cell, clients: Sequence[int], updates: Matrix) -> None:
    """Replace what the Byzantine clients of a cell send. They know each other and every honest update."""
    chosen = setting.experiment.attack
    bad = np.array([client in setting.byzantine for client in clients], dtype=bool)
    if chosen.name in DATA_ATTACKS or t + 1 < chosen.start or not bad.any():
        return
    honest = ~bad & np.isfinite(updates).all(axis=1) if chosen.adaptive else ~bad  # a rehearsal has finite rows only
    if not honest.any():
        return  # there is nothing to know: they send what they trained
    options: dict[str, Any] = dict(chosen.options)
    if chosen.adaptive:
        order = [*np.flatnonzero(honest), *np.flatnonzero(bad)]
        against = target(setting, t, cell, [clients[place] for place in order])
        options |= {} if against is None else {"against": against}
    random = generator(setting.experiment.seed, t, "attack")
    send = rules.attack(chosen.name)
    updates[bad] = send(updates[honest], int(bad.sum()), own=updates[bad], rng=random, **options)


def target(setting: Setting, t: int, cell: Cell, order: Sequence[int]) -> Callable[[Matrix], Vector] | None:
    """What an adaptive attacker moves: updates of clients, in this order, to the result of the first grouping.

    None if no cluster of it will be opened: the attack then has its usual strength.
    """
    experiment, place = setting.experiment, {client: row for row, client in enumerate(order)}
    weights = setting.cohort.weights
    opened = _will_open(experiment, cell, order)
    if not opened:
        return None

    def against(rows: Matrix) -> Vector:
        if experiment.method == "fedavg":
            return np.average(rows, axis=0, weights=[weights[client] for client in order]).astype(np.float32)
        means = np.stack([
            np.average(rows[[place[c] for c in group]], axis=0, weights=[weights[c] for c in group]) for group in opened
        ])  # fmt: skip
        names = tuple((cell.index, (0, g)) for g in range(len(opened)))
        if averages_by_weight(experiment):
            return np.asarray(means.mean(axis=0), dtype=np.float32)
        random = generator(experiment.seed, t, "rehearsal")
        zero = np.zeros(rows.shape[1], dtype=np.float32)
        found = aggregation.decide(experiment, t, means.astype(np.float32), names, setting.trainer, zero, zero, random)
        return np.asarray(means.mean(axis=0), dtype=np.float32) if found.update is None else found.update

    return against


def _will_open(experiment: Experiment, cell: Cell, present: Sequence[int]) -> list[tuple[int, ...]]:
    """The clients of each cluster of the first grouping that will be opened, as far as these clients alone decide it.

    Of a whole group nobody may be missing. Of survivors, the audit says which groups are opened.
    """
    groups = [group for (r, _), group in cell.clusters.items() if r == 0]
    if cell.plan is None:
        return [group for group in groups if set(group).issubset(present)]
    if len(present) < cell.plan.t:
        return []
    summed = set(cell.plan.summed(present))
    opened = sorted(g for r, g in cell.plan.audit(summed).opened if r == 0)
    return [tuple(client for client in groups[g] if client in summed) for g in opened]


def aggregate_securely(
    setting: Setting,
    population: Population,
    cell: Cell,
    updates: Mapping[int, Vector],
    drop: Mapping[int, Stage],
    left_out: Mapping[int, str],
) -> CellResult:
    """The cluster sums of a cell, through secure aggregation."""
    protocol = setting.experiment.attack.protocol
    cheats = setting.byzantine.intersection(cell.clients) if protocol != "none" else ()
    cells = len(setting.cohort.layout.cells)
    which = f" of cell {cell.index + 1}/{cells}" if cells > 1 else ""
    answered: Counter[Stage] = Counter()

    def on_answer(stage: Stage, client: int) -> None:
        answered[stage] += 1
        setting.show.phase(f"secure aggregation{which}: {stage.name.lower()}", answered[stage], len(cell.clients))

    return population.aggregate(
        cell,
        updates,
        drop=drop,
        misbehave={client: Misbehaviour(protocol) for client in cheats},
        left_out=left_out,
        on_answer=on_answer,
    )


def combine(
    setting: Setting, t: int, r: int, x: Vector, last: Vector, results: Sequence[CellResult]
) -> aggregation.Decision:
    """g^r: the clusters of all cells in one reclustering, through one rule."""
    experiment = setting.experiment
    setting.show.phase("robust aggregation", r, setting.cohort.layout.groupings)
    pairs = [(result, cluster) for result in results for cluster in result.opened(r)]
    if not pairs:
        return aggregation.Decision(None, (), (), "no sum was opened")
    clusters = tuple((result.cell.index, cluster) for result, cluster in pairs)
    if averages_by_weight(experiment):
        totals = [result.total(r) for result in results if result.opened(r)]
        update = sum(total for total, _ in totals) / sum(weight for _, weight in totals)
        decision = aggregation.Decision(np.asarray(update, dtype=np.float32), clusters, ())
    else:
        means = np.empty((len(pairs), len(x)), dtype=np.float32)
        for row, (result, cluster) in zip(means, pairs, strict=True):
            result.mean(cluster, out=row)
        random = generator(experiment.seed, t, f"validation {r}")
        decision = aggregation.decide(experiment, t, means, clusters, setting.trainer, x, last, random)
    for result in results:
        result.forget(r)
    setting.interrupt.safe_point()
    return decision


def evaluated(experiment: Experiment, number: int) -> bool:
    """Whether the model is tested after this round."""
    return number % experiment.machine.evaluate_every == 0 or number >= experiment.rounds


def evaluate(setting: Setting, t: int, x: Vector) -> dict[str, Any]:
    """Accuracy, loss and other metrics on the test examples, or nothing in a round without evaluation."""
    experiment = setting.experiment
    if not evaluated(experiment, t + 1):
        return {"accuracy": None, "loss": None, "metrics": {}}
    setting.show.phase("testing", 0, 1)
    score = setting.trainer.evaluate(x)
    loss = score.loss if math.isfinite(score.loss) else None
    metrics = dict(score.metrics)
    if setting.trainer.task.data.backdoor is not None:
        success = setting.trainer.evaluate(x, "backdoor").accuracy
        metrics |= {} if success is None else {BACKDOOR_SUCCESS: success}
    return {"accuracy": score.accuracy, "loss": loss, "metrics": metrics} | _in_detail(setting, x, metrics)


def _in_detail(setting: Setting, x: Vector, metrics: dict[str, Any]) -> dict[str, Any]:
    """Accuracies per class and per client, if they are asked for. The worst of each, of honest clients, is a metric."""
    wanted, found = setting.experiment.task, dict[str, Any]()
    if wanted.per_class:
        found["per_class"] = setting.trainer.class_accuracies(x)
        metrics["worst class"] = min(value for value in found["per_class"] if value is not None)
    if wanted.per_client:
        found["per_client"] = setting.trainer.client_accuracies(x, range(setting.experiment.clients))
        honest = [value for client, value in enumerate(found["per_client"]) if client not in setting.byzantine]
        metrics["worst client"] = min(honest, default=0.0)
    return found


class Clock:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._spent: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - start

    def seconds(self) -> dict[str, float]:
        return {**self._spent, "total": time.perf_counter() - self._start}


def describe(
    setting: Setting, results: Sequence[CellResult], parts: Sequence[aggregation.Decision], update: Vector
) -> dict[str, Any]:
    """What happened, in plain values. Only a simulation knows which clusters were poisoned."""
    cost = Cost()
    for result in results:
        cost.add(result.cost)
    kept = {c: share for part in parts if part.kept for c, share in zip(part.clusters, part.kept, strict=True)}
    return {
        "clusters": [entry for result in results for entry in _describe_clusters(result, setting.byzantine, kept)],
        "groupings": [{"opened": len(part.clusters), "f": part.f, "skipped": part.skipped} for part in parts],
        "dropouts": [
            {"client": client, "stage": dropout.stage.name.lower(), "why": dropout.reason}
            for result in results
            for client, dropout in sorted(result.dropouts.items())
        ],
        "blamed": {str(client): reason for result in results for client, reason in sorted(result.blamed.items())},
        "disputes": sorted(list(pair) for result in results for pair in result.disputes),
        "left_out": {str(client): why for result in results for client, why in sorted(result.left_out.items())},
        "closed": _describe_closed(setting, results),
        "failed_cells": {str(result.cell.index): result.failed for result in results if result.failed},
        "exposure": _describe_exposure([result.verdict for result in results if result.verdict is not None]),
        "cryptography": cost.as_dict(),
        "update_norm": float(np.linalg.norm(update.astype(np.float64))),
    }


def _describe_clusters(
    result: CellResult, byzantine: frozenset[int], kept: Mapping[aggregation.ClusterId, float]
) -> Iterator[dict[str, Any]]:
    for cluster, members in result.clusters.items():
        state, reason = result.state(cluster)
        yield {
            "cell": result.cell.index,
            "grouping": cluster[0],
            "cluster": cluster[1],
            "members": list(members),
            "bad": len(byzantine.intersection(members)),
            "state": state,
            "kept": kept.get((result.cell.index, cluster)),
            **({"why": reason} if reason else {}),
        }


def _describe_closed(setting: Setting, results: Sequence[CellResult]) -> str:
    """How many sums stay closed because clients are unequal, one reason, and what to change; empty if none do."""
    cohort, schedule = setting.cohort, setting.cohort.layout.schedule
    reasons = [why for result in results for why in result.closed.values() if "leverage" in why]
    if not reasons or schedule is None or len(set(cohort.weights.values())) == 1:
        return ""
    every, ratio = sum(len(result.clusters) for result in results), fitting_ratio(setting.experiment, schedule.size)
    return (
        f"{len(reasons)} of {every} sums stay closed: {reasons[0]}; clients count by their examples, which differ: set "
        f"privacy.weight_ratio = {ratio}, or make clusters larger (clusters.size)"
    )


def _describe_exposure(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What the server learned from the opened sums of all cells."""
    anonymities = [v.anonymity for v in verdicts if v.anonymity.upper is not None]
    clients = sum(verdict.clients for verdict in verdicts)
    return {
        "exposed": [client for verdict in verdicts for client in sorted(verdict.exposed)],
        "would_expose": sum(len(verdict.would_expose) for verdict in verdicts),
        "anonymity": min((anonymity.lower for anonymity in anonymities), default=None),
        "anonymity_at_most": min((anonymity.upper or 0 for anonymity in anonymities), default=None),
        "leverage": sum(verdict.rank for verdict in verdicts) / clients if clients else 0.0,
        "most_leverage": max((value for v in verdicts for value in v.leverage.values()), default=0.0),
        "sentences": list(verdicts[0].sentences[:4]) if verdicts else [],
    }
