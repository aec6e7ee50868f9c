"""Who takes part in a training, who is summed with whom in each round, and what the run of one cell gives.

Samples, cells, clusters and the clients that are left out are drawn by `secagg` from the training seed and the round.
"""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

import secagg
from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.secure.layout import Cell, Layout, placeholder_roster, policy, training_seed
from secagg import Dropout, Identity, LossWarning, Member, Plan, Result, Stage, TooFewSurvivors, UsageError, Verdict
from secagg.crypto import FixedPoint
from secagg.exposure import Anonymity, shuffled
from secagg.protocol import GroupId, GroupSum
from secagg.simulation import Cost, Misbehaviour, clear, cores, make_identities, make_roster, run

Vector = NDArray[np.float32]
NO_ANSWER = "it did not answer in time"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnprotectedResult:
    """What a `Result` is without secure aggregation: the server sees every encoded update."""

    survivors: tuple[int, ...]
    groups: Mapping[GroupId, GroupSum]
    verdict: Verdict
    encoding: FixedPoint
    closed: Mapping[GroupId, str] = field(default_factory=dict)
    lost: Mapping[GroupId, str] = field(default_factory=dict)
    blamed: Mapping[int, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class CellResult:
    """What the server has after a cell's run: a result, or the reason why there is none.

    `weights` has the weight of every client of the cohort, by its number.
    """

    cell: Cell
    weights: Sequence[int]
    dropouts: dict[int, Dropout]
    cost: Cost
    result: Result | UnprotectedResult | None = None
    failed: str = ""

    def clusters(self) -> dict[GroupId, tuple[int, ...]]:
        """The survivors of every cluster of the cell. Without SHARE only survivors have a cluster."""
        survivors = set(self.result.survivors) if self.result else set()
        return {
            row: tuple(client for client in clients if client in survivors)
            for row, clients in self.cell.clusters().items()
            if self.cell.plan or row[1] in survivors
        }

    def state(self, cluster: GroupId) -> tuple[str, str]:
        """`opened`, `closed` or `lost`, and the reason if the cluster's sum was not opened."""
        if self.result is None:
            return "lost", "too few clients answered"
        for state, reasons in (("lost", self.result.lost), ("closed", self.result.closed)):
            if cluster in reasons:
                return state, reasons[cluster]
        return "opened", ""

    def opened(self, grouping: int) -> list[GroupId]:
        """The clusters of one grouping whose sums were opened."""
        return sorted(row for row in self.result.groups if row[0] == grouping) if self.result else []

    def mean(self, cluster: GroupId, out: Vector | None = None) -> Vector:
        """The weighted mean of a cluster's updates: g_j of Algorithm 1."""
        assert self.result is not None
        group = self.result.groups[cluster]
        divisor = self._weight(group.members) / self._mean_weight
        out = np.empty(len(group.total), np.float32) if out is None else out
        self._encoding.decode(group.total, divisor=divisor, out=out)
        return out

    def total(self, grouping: int) -> tuple[NDArray[np.float64], int]:
        """The sum of a grouping's opened clusters, added as integers, and their weight (Lemma 1).

        Any two groupings of the same survivors give the same integers, and therefore the same floats.
        """
        assert self.result is not None
        sums = [self.result.groups[row] for row in self.opened(grouping)]
        whole = sum(part.total.view(np.int32).astype(np.int64) for part in sums)
        weight = sum(self._weight(part.members) for part in sums)
        return np.asarray(whole, dtype=np.float64) * (self._mean_weight / self._encoding.scale), weight

    def forget(self, grouping: int) -> None:
        """Free the sums of a grouping that was aggregated: at the paper's size all of them are 1.7 GB."""
        if self.result is not None:
            kept = {row: part for row, part in self.result.groups.items() if row[0] != grouping}
            self.result = replace(self.result, groups=kept)

    def _weight(self, clients: Iterable[int]) -> int:
        return sum(self.weights[client] for client in clients)

    @property
    def _mean_weight(self) -> float:
        """The mean n_i of the cell: updates were multiplied by n_i over this before they were encoded."""
        return self._weight(self.cell.clients) / len(self.cell.clients)

    @property
    def _encoding(self) -> FixedPoint:
        assert self.result is not None
        if isinstance(self.result, UnprotectedResult):
            return self.result.encoding
        [encoding] = self.result.plan.encoding.encodings
        assert isinstance(encoding, FixedPoint)
        return encoding


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
        order = shuffled(range(self.experiment.clients), self.seed, round, b"fl/sample")
        return sorted(order[: self.experiment.per_round])

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
            unprotected = experiment.method == "no-share"
            plan = None if unprotected else self._plan(index, clients, round, length, context)
            clustered = tuple(c for c in clients if plan is None or plan.groups_of[c])
            cells.append(Cell(index, clients, clustered, plan))
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
        dropouts = {client: Dropout(stage, NO_ANSWER) for client, stage in drop.items()}
        cost = Cost(clients=0 if self.secure else len(inside))  # a secure run counts its clients itself
        outcome = partial(CellResult, cell=cell, weights=self.weights, cost=cost)
        plan = cell.plan
        if plan is None:
            dropouts |= {c: Dropout(Stage.INPUTS, f"it misbehaved: {kind.value}") for c, kind in misbehave.items()}
            survivors = tuple(client for client in cell.clients if client not in dropouts)
            return outcome(dropouts=dropouts, result=self._unprotected(survivors, inputs))
        # Few clients with short vectors are done before processes could be started.
        worth_forking = len(inside) >= 24 or len(inside) * plan.length * plan.schedule.groupings >= 10**7
        zeros = np.zeros(plan.length, dtype=np.float32)
        inputs = {**dict.fromkeys(inside.difference(cell.clustered), zeros), **inputs}
        inputs = {client: zeros if _vanishes(plan, client, update) else update for client, update in inputs.items()}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LossWarning)  # the experiment sets the clip; attacks exceed it
                if self.secure:
                    result = run(
                        plan,
                        inputs,
                        {client: self._identities[client] for client in cell.clients},
                        drop=drop,
                        misbehave=misbehave,
                        processes=self.processes if worth_forking else 1,
                        cost=cost,
                        on_answer=on_answer,
                    )
                else:
                    result = clear(plan, inputs, drop=drop, misbehave=misbehave)
        except TooFewSurvivors as error:
            silent = (c for c, kind in misbehave.items() if kind is Misbehaviour.SILENCE)
            dropouts = dict.fromkeys(silent, Dropout(Stage.INPUTS, NO_ANSWER)) | dropouts
            return outcome(dropouts=dropouts, failed=str(error))
        return outcome(dropouts=dict(result.dropouts), result=result)

    def _unprotected(self, survivors: tuple[int, ...], inputs: Mapping[int, Vector]) -> UnprotectedResult:
        """The baseline without SHARE: the server sees every encoded update, and nothing is protected."""
        encoding = FixedPoint(clients=1, clip=self.experiment.privacy.clip)
        verdict = Verdict(
            policy=policy(self.experiment),
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
        groups = {(0, c): GroupSum(encoding.encode(inputs[c])[0], (c,)) for c in survivors}
        return UnprotectedResult(survivors=survivors, groups=groups, verdict=verdict, encoding=encoding)


def _vanishes(plan: Plan, client: int, update: Vector) -> bool:
    """Whether all of an update is below half a step: a client sends zeros then, since its encoding would refuse it."""
    [encoding] = plan.encoding.encodings
    assert isinstance(encoding, FixedPoint)
    factor = plan.relative_weight(client) * encoding.scale
    parts = (update[:1000], update)  # the first values of most updates suffice
    return all(max(float(part.max()), -float(part.min())) * factor <= 0.5 for part in parts)


def capped_weights(sizes: Sequence[int], ratio: float) -> tuple[int, ...]:
    """The numbers of examples n_i as weights, none more than `ratio` times another.

    Where they differ by more, those too far from the median are moved to median / sqrt(ratio) or median * sqrt(ratio):
    a client that claims a million examples, or one, changes nobody else's weight.
    """
    counts = np.asarray(sizes, dtype=np.int64)
    if counts.max() <= ratio * counts.min():
        return tuple(counts.tolist())
    median, spread = float(np.median(counts)), math.sqrt(ratio)
    low = max(1, math.ceil(median / spread))
    high = max(low, math.floor(min(median * spread, low * ratio)))
    return tuple(np.clip(counts, low, high).tolist())
