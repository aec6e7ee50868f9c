"""Who takes part in a training, who is summed with whom in each round, and how one cell is run.

Samples, cells, clusters and the clients that are left out are drawn by `secagg` from the training seed and the round.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

import secagg
from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.secure.layout import Cell, Layout, placeholder_roster, policy, training_seed
from fl.secure.results import CellResult, UnprotectedResult
from secagg import Dropout, Identity, Member, Plan, Result, Stage, TooFewSurvivors, UsageError, Verdict
from secagg.crypto import FixedPoint
from secagg.exposure import Anonymity, shuffled
from secagg.protocol import GroupSum
from secagg.simulation import Cost, Misbehaviour, clear, cores, make_identities, make_roster, run

Vector = NDArray[np.float32]
NO_ANSWER = "it did not answer in time"


class Cohort:
    """Who takes part in a training, and who is summed with whom. It holds nothing secret."""

    def __init__(
        self, experiment: Experiment, sizes: Sequence[int], roster: tuple[Member, ...], training_id: bytes, seed: bytes
    ) -> None:
        self.experiment = experiment
        self.layout = Layout.of(experiment)
        self.seed = seed
        self.training_id = training_id
        self.weights = capped_weights(sizes, experiment.privacy.weight_ratio)
        self._roster = roster

    def drawn(self, round: int) -> list[int]:
        """The clients drawn for a round."""
        experiment = self.experiment
        order = shuffled(range(experiment.clients), self.seed, round, b"fl/sample")
        return sorted(order[: experiment.per_round])

    def cells(self, round: int, length: int, context: bytes) -> list[Cell]:
        """The clients drawn for a round, divided into cells, each with its plan."""
        experiment = self.experiment
        drawn = self.drawn(round)
        lasting = experiment.method == "share" and experiment.clusters.schedule in ("fixed", "atoms")
        if len(self.layout.cells) > 1:
            drawn = shuffled(drawn, self.seed, None if lasting else round, b"fl/cells")
        cells, start = [], 0
        for index, size in enumerate(self.layout.cells):
            clients = tuple(sorted(drawn[start : start + size]))
            start += size
            if experiment.method == "no-share":
                cells.append(Cell(index, clients, clients, None))
                continue
            plan = self._plan(index, clients, round, length, context)
            cells.append(Cell(index, clients, tuple(c for c in clients if plan.groups_of[c]), plan))
        return cells

    def _plan(self, index: int, clients: tuple[int, ...], round: int, length: int, context: bytes) -> Plan:
        privacy = self.experiment.privacy
        weights = tuple(self.weights[c] for c in clients)
        try:
            return Plan(
                training_id=self.training_id,
                round=round,
                roster=tuple(self._roster[c] for c in clients),
                length=length,
                schedule=self.layout.schedules[index],
                training_seed=self.seed,
                clip=privacy.clip,
                threshold=privacy.threshold,
                colluders=privacy.colluders,
                weights=weights if len(set(weights)) > 1 else (),
                policy=policy(self.experiment),
                context=context,
            )
        except UsageError as error:
            raise ConfigError(f"privacy: {error}") from None

    def succeeded(self, cell: Cell, result: Result, cost: Cost) -> CellResult:
        """The outcome of a run that has a result."""
        return CellResult(
            cell=cell, weights=self._weights_in(cell), dropouts=dict(result.dropouts), cost=cost, result=result
        )

    def failed(self, cell: Cell, dropouts: Mapping[int, Dropout], reason: str, cost: Cost) -> CellResult:
        """The outcome of a run that opened nothing."""
        weights = self._weights_in(cell)
        return CellResult(cell=cell, weights=weights, dropouts=dict(dropouts), cost=cost, failed=reason)

    def _weights_in(self, cell: Cell) -> dict[int, int]:
        return {client: self.weights[client] for client in cell.clients}


class Population(Cohort):
    """A cohort whose clients are all simulated in this process, so it holds every key."""

    def __init__(self, experiment: Experiment, sizes: Sequence[int]) -> None:
        clients, workers = range(experiment.clients), experiment.machine.workers
        self.secure = experiment.secure and experiment.method != "no-share"
        self.processes = 1 if workers == 0 else workers or cores()
        if self.secure and self.processes > 1:
            secagg.warm_up()
        self._identities: dict[int, Identity] = make_identities(clients) if self.secure else {}
        roster = make_roster(self._identities) if self.secure else placeholder_roster(clients)
        training_id = hashlib.sha256(b"fl/training-id/v1:" + experiment.fingerprint).digest()
        super().__init__(experiment, sizes, roster, training_id, training_seed(experiment.seed))

    def aggregate(
        self,
        cell: Cell,
        inputs: Mapping[int, Vector],
        *,
        drop: Mapping[int, Stage],
        misbehave: Mapping[int, Misbehaviour],
        on_answer: Callable[[Stage, int], None] | None = None,
    ) -> CellResult:
        """The cluster sums of one cell, from the updates of its clients.

        A client in `drop` stops answering at that stage; one in `misbehave` breaks the protocol in that way.
        `on_answer` is called with the stage and the client each time a client answered.
        """
        inside = set(cell.clients)
        drop = {client: stage for client, stage in drop.items() if client in inside}
        misbehave = {client: kind for client, kind in misbehave.items() if client in inside}
        plan, cost = cell.plan, Cost()
        if plan is None:
            cost.clients = len(cell.clients)
            return self._unprotected(cell, inputs, drop, misbehave, cost)
        zeros = np.zeros(plan.length, dtype=np.float32)
        inputs = {**dict.fromkeys(inside.difference(cell.clustered), zeros), **inputs}
        try:
            if self.secure:
                result = run(
                    plan,
                    inputs,
                    {client: self._identities[client] for client in cell.clients},
                    drop=drop,
                    misbehave=misbehave,
                    processes=self.processes if _worth_forking(plan) else 1,
                    cost=cost,
                    on_answer=on_answer,
                )
            else:
                cost.clients = len(cell.clients)
                result = clear(plan, inputs, drop=drop, misbehave=misbehave)
        except TooFewSurvivors as error:
            dropouts = {client: Dropout(stage, NO_ANSWER) for client, stage in drop.items()}
            silent = (c for c, kind in misbehave.items() if kind is Misbehaviour.SILENCE)
            dropouts = dict.fromkeys(silent, Dropout(Stage.INPUTS, NO_ANSWER)) | dropouts
            return self.failed(cell, dropouts, str(error), cost)
        return self.succeeded(cell, result, cost)

    def _unprotected(
        self,
        cell: Cell,
        inputs: Mapping[int, Vector],
        drop: Mapping[int, Stage],
        misbehave: Mapping[int, Misbehaviour],
        cost: Cost,
    ) -> CellResult:
        """The baseline without SHARE: the server sees every encoded update, and nothing is protected."""
        encoding = FixedPoint(clients=1, clip=self.experiment.privacy.clip)
        dropouts = {client: Dropout(stage, NO_ANSWER) for client, stage in drop.items()}
        for client, kind in misbehave.items():
            dropouts[client] = Dropout(Stage.INPUTS, f"it misbehaved: {kind.value}")
        survivors = tuple(client for client in cell.clients if client not in dropouts)
        result = UnprotectedResult(
            survivors=survivors,
            groups={(0, c): GroupSum(encoding.encode(inputs[c])[0], (c,)) for c in survivors},
            verdict=_everything_exposed(survivors, self.experiment),
            encoding=encoding,
        )
        weights = self._weights_in(cell)
        return CellResult(cell=cell, weights=weights, dropouts=dropouts, cost=cost, result=result)


def _everything_exposed(survivors: tuple[int, ...], experiment: Experiment) -> Verdict:
    """What the audit would say where the server sees every update."""
    return Verdict(
        policy=policy(experiment),
        opened=frozenset((0, client) for client in survivors),
        closed={},
        objections={},
        exposed=frozenset(survivors),
        would_expose=frozenset(survivors),
        clients=len(survivors),
        rank=len(survivors),
        leverage=dict.fromkeys(survivors, 1.0),
        anonymity=Anonymity(1, 1, "every update is visible"),
        sentences=("NO SECURE AGGREGATION: the server learns every client's update exactly",),
    )


def _worth_forking(plan: Plan) -> bool:
    """Few clients with short vectors are done before processes could be started."""
    return len(plan.roster) >= 24 or len(plan.roster) * plan.length * plan.schedule.groupings >= 10**7


def capped_weights(sizes: Sequence[int], ratio: float) -> tuple[int, ...]:
    """The numbers of examples n_i as weights, none more than `ratio` times another.

    Where they differ by more, those too far from the median are moved to median / sqrt(ratio) or
    median * sqrt(ratio): a client that claims a million examples, or one, changes nobody else's weight.
    """
    counts = np.asarray(sizes, dtype=np.int64)
    if counts.max() <= ratio * counts.min():
        return tuple(int(count) for count in counts)
    median, spread = float(np.median(counts)), math.sqrt(ratio)
    low = max(1, math.ceil(median / spread))
    high = max(low, math.floor(min(median * spread, low * ratio)))
    return tuple(int(count) for count in np.clip(counts, low, high))
