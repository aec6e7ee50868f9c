"""Who takes part in a training, who is summed with whom in each round, and what the run of one cell gives.

Samples, cells, clusters and the clients that are left out follow from the agreement (`fl.secure.layout`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import secagg
from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.secure.layout import Layout, policy, sampling_seed, simulated_agreement, verdict_of
from secagg import Dropout, Identity, LossWarning, Plan, Result, Stage, TooFewSurvivors, UsageError, Verdict
from secagg.agreement import WHOLE, Agreement
from secagg.crypto import FixedPoint, Segments
from secagg.exposure import Anonymity, shuffled
from secagg.protocol import GroupId, GroupSum
from secagg.simulation import Cost, Misbehaviour, WholeRun, clear, clear_whole, cores, run

Vector = NDArray[np.float32]
NO_ANSWER = "it did not answer in time"
WORTH_FORKING = 24  # fewer clients with short vectors are done before processes could be started
LONG = 10**7  # values of all clients together
KEPT_VERDICTS = 8
Opened = tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """The clients of one run of secure aggregation, and the clusters that may be opened.

    A cell of survivors has a plan. With whole groups there is one cell, of all clients of the round. Without SHARE
    every client is a cluster of its own.
    """

    index: int
    round: int
    clients: tuple[int, ...]
    clusters: Mapping[GroupId, tuple[int, ...]]
    context: bytes
    plan: Plan | None = None


@dataclass(slots=True, kw_only=True)
class CellResult:
    """What the server has after a cell's run: sums, or the reason why there are none.

    `weights` has the weight n_i of every client, by its number; updates were multiplied by n_i over `mean_weight`
    before they were encoded. `clusters` has the clients that each sum is of, and `closed` and `lost` say why a sum is
    missing: the audit refused it, or a client of it did not answer or cheated.
    """

    cell: Cell
    weights: Sequence[int]
    mean_weight: float
    encoding: FixedPoint
    dropouts: dict[int, Dropout]
    cost: Cost
    clusters: Mapping[GroupId, tuple[int, ...]] = field(default_factory=dict)
    groups: Mapping[GroupId, GroupSum] = field(default_factory=dict)
    closed: Mapping[GroupId, str] = field(default_factory=dict)
    lost: Mapping[GroupId, str] = field(default_factory=dict)
    blamed: Mapping[int, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    failed: str = ""

    @classmethod
    def of_survivors(cls, result: Result, cell: Cell, cohort: Cohort, cost: Cost) -> CellResult:
        """What a run with recovery of dropouts gave."""
        survivors = frozenset(result.survivors)
        return cls(
            cell=cell,
            weights=cohort.weights,
            mean_weight=cohort.mean_weight,
            encoding=_floats(result.plan.encoding),
            dropouts=dict(result.dropouts),
            cost=cost,
            clusters={g: tuple(c for c in group if c in survivors) for g, group in cell.clusters.items()},
            groups=result.groups,
            closed=result.closed,
            lost=result.lost,
            blamed=result.blamed,
            verdict=result.verdict,
        )

    @classmethod
    def failure(cls, why: str, cell: Cell, cohort: Cohort, cost: Cost, dropouts: Mapping[int, Dropout]) -> CellResult:
        """What there is after a run of survivors that could not finish."""
        assert cell.plan is not None
        return cls(
            cell=cell,
            weights=cohort.weights,
            mean_weight=cohort.mean_weight,
            encoding=_floats(cell.plan.encoding),
            dropouts=dict(dropouts),
            cost=cost,
            clusters=dict.fromkeys(cell.clusters, ()),
            failed=why,
        )

    def state(self, cluster: GroupId) -> tuple[str, str]:
        """`opened`, `closed` or `lost`, and the reason if the cluster's sum was not opened."""
        for state, reasons in (("lost", self.lost), ("closed", self.closed)):
            if cluster in reasons:
                return state, reasons[cluster]
        return ("lost", "too few clients answered") if self.failed else ("opened", "")

    def opened(self, grouping: int) -> list[GroupId]:
        """The clusters of one grouping whose sums were opened."""
        return sorted(row for row in self.groups if row[0] == grouping)

    def mean(self, cluster: GroupId, out: Vector | None = None) -> Vector:
        """The weighted mean of a cluster's updates: g_j of Algorithm 1."""
        group = self.groups[cluster]
        divisor = self._weight(group.members) / self.mean_weight
        out = np.empty(len(group.total), np.float32) if out is None else out
        self.encoding.decode(group.total, divisor=divisor, out=out)
        return out

    def total(self, grouping: int) -> tuple[NDArray[np.float64], int]:
        """The sum of a grouping's opened clusters, added as integers, and their weight (Lemma 1).

        Any two groupings of the same clients give the same integers, and therefore the same floats.
        """
        sums = [self.groups[row] for row in self.opened(grouping)]
        whole = sum(part.total.view(np.int32).astype(np.int64) for part in sums)
        weight = sum(self._weight(part.members) for part in sums)
        return np.asarray(whole, dtype=np.float64) * (self.mean_weight / self.encoding.scale), weight

    def forget(self, grouping: int) -> None:
        """Free the sums of a grouping that was aggregated: at the paper's size all of them are 1.7 GB."""
        self.groups = {row: part for row, part in self.groups.items() if row[0] != grouping}

    def _weight(self, clients: Iterable[int]) -> int:
        return sum(self.weights[client] for client in clients)


def _why_lost(members: Iterable[int], drop: Mapping[int, Stage]) -> str:
    """The dropouts of a lost cluster. Whether one still sent an advert depends on when the run was resumed."""
    return "; ".join(f"client {client}: {NO_ANSWER}" for client in members if client in drop)


def _floats(encoding: Segments) -> FixedPoint:
    [only] = encoding.encodings
    assert isinstance(only, FixedPoint)
    return only


class Cohort:
    """Who takes part in a training, and who is summed with whom. It holds nothing secret.

    Without an agreement (`no-share`) only the clients of each round are drawn.
    """

    def __init__(self, experiment: Experiment, weights: Sequence[int], agreement: Agreement | None) -> None:
        self.experiment = experiment
        self.layout = Layout.of(experiment)
        self.weights = tuple(weights)
        self.agreement = agreement

    @property
    def mean_weight(self) -> float:
        """The mean n_i of all members: updates are multiplied by n_i over this before they are encoded."""
        return sum(self.weights) / len(self.weights)

    def drawn(self, round: int) -> list[int]:
        """The clients drawn for a round."""
        if self.agreement is not None:
            return sorted(client for cell in self.agreement.cells(round) for client in cell.clients)
        order = shuffled(range(self.experiment.clients), sampling_seed(self.experiment.seed), round, b"fl/sample")
        return sorted(order[: self.experiment.per_round])

    def cells(self, round: int, context: bytes) -> list[Cell]:
        """The clients drawn for a round, divided into cells, each with what may be opened."""
        agreement = self.agreement
        if agreement is None:
            clients = tuple(self.drawn(round))
            return [Cell(0, round, clients, {(0, client): (client,) for client in clients}, context)]
        if agreement.terms.groups == WHOLE:
            return [Cell(0, round, tuple(self.drawn(round)), agreement.groups(round), context)]
        cells = []
        for index in range(len(agreement.cells(round))):
            try:
                plan = agreement.plan(round, index, context)
            except UsageError as error:
                raise ConfigError(f"privacy: {error}") from None
            clusters = {(r, g): group for r, grouping in enumerate(plan.groupings) for g, group in enumerate(grouping)}
            cells.append(Cell(index, round, plan.ids, clusters, context, plan))
        return cells


class Population(Cohort):
    """A cohort whose clients are all simulated in this process, so it holds every key."""

    def __init__(self, experiment: Experiment, sizes: Sequence[int], length: int) -> None:
        workers = experiment.machine.workers
        self.secure = experiment.secure and experiment.method != "no-share"
        self.processes = 1 if workers == 0 else workers or cores()
        if self.secure and self.processes > 1:
            secagg.warm_up()
        weights = capped_weights(sizes, experiment.privacy.weight_ratio)
        agreement: Agreement | None = None
        self._identities: dict[int, Identity] = {}
        if experiment.method != "no-share":
            agreement, self._identities = simulated_agreement(experiment, weights, length)
        super().__init__(experiment, weights, agreement)
        self._run: WholeRun | None = None  # keeps the clients from round to round
        self._verdicts: dict[Opened, Verdict] = {}

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
        inside = frozenset(cell.clients)
        drop = {client: stage for client, stage in drop.items() if client in inside}
        misbehave = {client: kind for client, kind in misbehave.items() if client in inside}
        cost = Cost(clients=0 if self.secure else len(inside))  # a secure run counts its clients itself
        if self.agreement is None:
            return self._without_share(cell, inputs, drop, misbehave, cost)
        inputs = {client: self._or_zeros(cell, client, update) for client, update in inputs.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LossWarning)  # the experiment sets the clip; attacks exceed it
            if cell.plan is None:
                return self._whole(self.agreement, cell, inputs, drop, misbehave, cost, on_answer)
            return self._survivors(cell.plan, cell, inputs, drop, misbehave, cost, on_answer)

    def _whole(
        self,
        agreement: Agreement,
        cell: Cell,
        inputs: Mapping[int, Vector],
        drop: Mapping[int, Stage],
        misbehave: Mapping[int, Misbehaviour],
        cost: Cost,
        on_answer: Callable[[Stage, int], None] | None,
    ) -> CellResult:
        if self.secure:
            self._run = self._run or WholeRun(agreement, self._identities)
            result = self._run.round(
                cell.round,
                inputs,
                context=cell.context,
                drop=drop,
                misbehave=misbehave,
                cost=cost,
                on_answer=on_answer,
            )
        else:
            result = clear_whole(agreement, cell.round, inputs, {*drop, *misbehave}, context=cell.context)
        return CellResult(
            cell=cell,
            weights=self.weights,
            mean_weight=self.mean_weight,
            encoding=_floats(agreement.terms.encoding),
            dropouts={
                client: Dropout(Stage.INPUTS, NO_ANSWER if client in drop else why)
                for client, why in result.dropouts.items()
            },
            cost=cost,
            clusters=cell.clusters,
            groups=result.groups,
            lost={group: _why_lost(cell.clusters[group], drop) or why for group, why in result.lost.items()},
            blamed=result.blamed,
            verdict=self._verdict(agreement, cell, result.groups),
            failed=result.skipped,
        )

    def _verdict(self, agreement: Agreement, cell: Cell, groups: Mapping[GroupId, GroupSum]) -> Verdict:
        """What these sums reveal. Fixed clusters are audited once."""
        (drawn,) = agreement.cells(cell.round)
        opened = tuple(
            tuple(group for g, group in enumerate(grouping) if (r, g) in groups)
            for r, grouping in enumerate(drawn.groupings)
        )
        if opened not in self._verdicts:
            if len(self._verdicts) >= KEPT_VERDICTS:
                self._verdicts.clear()
            weights = dict(enumerate(self.weights)) if len(set(self.weights)) > 1 else None
            self._verdicts[opened] = verdict_of(drawn, opened, agreement.terms.policy, weights)
        return self._verdicts[opened]

    def _survivors(
        self,
        plan: Plan,
        cell: Cell,
        inputs: Mapping[int, Vector],
        drop: Mapping[int, Stage],
        misbehave: Mapping[int, Misbehaviour],
        cost: Cost,
        on_answer: Callable[[Stage, int], None] | None,
    ) -> CellResult:
        try:
            if self.secure:
                result = run(
                    plan,
                    inputs,
                    {client: self._identities[client] for client in cell.clients},
                    drop=drop,
                    misbehave=misbehave,
                    processes=self._processes_for(cell),
                    cost=cost,
                    on_answer=on_answer,
                )
            else:
                result = clear(plan, inputs, drop=drop, misbehave=misbehave)
        except TooFewSurvivors as error:
            silent = (c for c, kind in misbehave.items() if kind is Misbehaviour.SILENCE)
            stopped = {**dict.fromkeys(silent, Stage.INPUTS), **drop}
            dropouts = {client: Dropout(stage, NO_ANSWER) for client, stage in stopped.items()}
            return CellResult.failure(str(error), cell, self, cost, dropouts)
        return CellResult.of_survivors(result, cell, self, cost)

    def _or_zeros(self, cell: Cell, client: int, update: Vector) -> Vector:
        """The update, or zeros if all of it is below half a step: its encoding would refuse that."""
        assert self.agreement is not None
        scale = _floats(self.agreement.terms.encoding).scale
        factor = self.weights[client] / self.mean_weight * scale
        parts = (update[:1000], update)  # the first values of most updates suffice
        vanishes = all(max(float(part.max()), -float(part.min())) * factor <= 0.5 for part in parts)
        return np.zeros_like(update) if vanishes else update

    def _processes_for(self, cell: Cell) -> int:
        assert self.agreement is not None
        terms = self.agreement.terms
        n, values = len(cell.clients), terms.length * terms.schedule.groupings
        return self.processes if n >= WORTH_FORKING or n * values >= LONG else 1

    def _without_share(
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
        dropouts |= {c: Dropout(Stage.INPUTS, f"it misbehaved: {kind.value}") for c, kind in misbehave.items()}
        survivors = tuple(client for client in cell.clients if client not in dropouts)
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
        return CellResult(
            cell=cell,
            weights=self.weights,
            mean_weight=self.mean_weight,
            encoding=encoding,
            dropouts=dropouts,
            cost=cost,
            clusters={(0, client): (client,) for client in survivors},
            groups={(0, c): GroupSum(encoding.encode(inputs[c])[0], (c,)) for c in survivors},
            verdict=verdict,
        )


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
