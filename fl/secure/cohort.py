"""Who takes part in a training, who is summed with whom in each round, and what the run of one cell gives.

Samples, cells, clusters and the clients that are left out follow from the agreement (`fl.secure.layout`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.secure.layout import Layout, sampling_seed, verdict_of
from fl.secure.suspects import LeftOut
from secagg import Dropout, Plan, Result, Stage, UsageError, Verdict
from secagg.agreement import WHOLE, Agreement
from secagg.crypto import FixedPoint, Segments
from secagg.exposure import shuffled
from secagg.protocol import GroupId, GroupSum
from secagg.simulation import Cost
from secagg.whole import WholeResult

Vector = NDArray[np.float32]
Ring32 = NDArray[np.uint32]
NO_ANSWER = "it did not answer in time"
NOT_FINITE = "its update is not finite"
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
    missing: the audit refused it, or a client of it did not answer or cheated. `disputes` are pairs of clients of which
    one cheats; `left_out` has the clients that were not asked because of earlier rounds, with the reason.
    """

    cell: Cell
    weights: Mapping[int, int]
    mean_weight: float
    encoding: Segments
    dropouts: dict[int, Dropout]
    cost: Cost
    clusters: Mapping[GroupId, tuple[int, ...]] = field(default_factory=dict)
    groups: Mapping[GroupId, GroupSum] = field(default_factory=dict)
    closed: Mapping[GroupId, str] = field(default_factory=dict)
    lost: Mapping[GroupId, str] = field(default_factory=dict)
    blamed: Mapping[int, str] = field(default_factory=dict)
    disputes: tuple[tuple[int, int], ...] = ()
    left_out: Mapping[int, str] = field(default_factory=dict)
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
            encoding=result.plan.encoding,
            dropouts=dict(result.dropouts),
            cost=cost,
            clusters={g: tuple(c for c in group if c in survivors) for g, group in cell.clusters.items()},
            groups=result.groups,
            closed=result.closed,
            lost=result.lost,
            blamed=result.blamed,
            disputes=result.disputes,
            verdict=result.verdict,
        )

    @classmethod
    def of_whole(
        cls,
        result: WholeResult,
        cell: Cell,
        cohort: Cohort,
        cost: Cost,
        dropouts: Mapping[int, str],
        lost: Mapping[GroupId, str],
    ) -> CellResult:
        """What a round of whole groups gave, with the reasons for dropouts and lost clusters."""
        return cls(
            cell=cell,
            weights=cohort.weights,
            mean_weight=cohort.mean_weight,
            encoding=result.agreement.terms.encoding,
            dropouts={client: Dropout(Stage.INPUTS, why) for client, why in dropouts.items()},
            cost=cost,
            clusters=cell.clusters,
            groups=result.groups,
            lost=lost,
            blamed=result.blamed,
            verdict=cohort.verdict(cell, result.groups),
            failed=result.skipped,
        )

    @classmethod
    def failure(cls, why: str, cell: Cell, cohort: Cohort, cost: Cost, dropouts: Mapping[int, Dropout]) -> CellResult:
        """What there is after a run of survivors that could not finish."""
        assert cell.plan is not None
        return cls(
            cell=cell,
            weights=cohort.weights,
            mean_weight=cohort.mean_weight,
            encoding=cell.plan.encoding,
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
        length = self.encoding.segments[0].length
        out = np.empty(length, np.float32) if out is None else out
        floats_of(self.encoding).decode(group.total[:length], divisor=divisor, out=out)
        return out

    def total(self, grouping: int) -> tuple[NDArray[np.float64], int]:
        """The sum of a grouping's opened clusters, added as integers, and their weight (Lemma 1).

        Any two groupings of the same clients give the same integers, and therefore the same floats.
        """
        sums = [self.groups[row] for row in self.opened(grouping)]
        length = self.encoding.segments[0].length
        whole = sum(part.total[:length].view(np.int32).astype(np.int64) for part in sums)
        weight = sum(self._weight(part.members) for part in sums)
        return np.asarray(whole, dtype=np.float64) * (self.mean_weight / floats_of(self.encoding).scale), weight

    def clipped(self, grouping: int) -> tuple[int, int]:
        """How many coordinates the clients of a grouping's opened clusters clipped, and of how many."""
        update = self.encoding.segments[0]
        sums = [self.groups[row] for row in self.opened(grouping)]
        found = sum(int(part.total[update.length :].view(np.int32)[0]) for part in sums)
        return found, update.length * sum(len(part.members) for part in sums)

    def reject(self, clients: Collection[int]) -> None:
        """Give the reason why these dropped out: their updates are not finite. It is that of whole clusters too.

        Clusters of survivors are not lost with a member.
        """
        self.dropouts |= dict.fromkeys(clients, Dropout(Stage.INPUTS, NOT_FINITE))
        reasons = {client: dropout.reason for client, dropout in self.dropouts.items()}
        if self.cell.plan is not None:
            return
        lost = (group for group in self.lost if not set(clients).isdisjoint(self.cell.clusters[group]))
        self.lost = {**self.lost, **{group: why_lost(self.cell.clusters[group], reasons) for group in lost}}

    def forget(self, grouping: int) -> None:
        """Free the sums of a grouping that was aggregated: at the paper's size all of them are 1.7 GB."""
        self.groups = {row: part for row, part in self.groups.items() if row[0] != grouping}

    def _weight(self, clients: Iterable[int]) -> int:
        return sum(self.weights[client] for client in clients)


def why_lost(members: Iterable[int], reasons: Mapping[int, str]) -> str:
    """The dropouts of a lost cluster. Whether one still sent an advert depends on when the run was resumed."""
    return "; ".join(f"client {client}: {reasons[client]}" for client in members if client in reasons)


def floats_of(encoding: Segments) -> FixedPoint:
    """The encoding of the update itself."""
    update = encoding.encodings[0]
    assert isinstance(update, FixedPoint)
    return update


class Cohort:
    """Who takes part in a training, and who is summed with whom. It holds nothing secret.

    Without an agreement (`no-share`) only the clients of each round are drawn.
    """

    def __init__(self, experiment: Experiment, weights: Mapping[int, int], agreement: Agreement | None) -> None:
        self.experiment = experiment
        self.layout = Layout.of(experiment)
        self.weights = dict(weights)
        self.agreement = agreement
        self.suspects = LeftOut(experiment, agreement)
        self._verdicts: dict[Opened, Verdict] = {}

    @property
    def mean_weight(self) -> float:
        """The mean n_i of all members: updates are multiplied by n_i over this before they are encoded."""
        return sum(self.weights.values()) / len(self.weights)

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

    def verdict(self, cell: Cell, groups: Mapping[GroupId, GroupSum]) -> Verdict:
        """What these sums of whole groups reveal. Fixed clusters are audited once."""
        assert self.agreement is not None
        (drawn,) = self.agreement.cells(cell.round)
        opened = tuple(
            tuple(group for g, group in enumerate(grouping) if (r, g) in groups)
            for r, grouping in enumerate(drawn.groupings)
        )
        if opened not in self._verdicts:
            if len(self._verdicts) >= KEPT_VERDICTS:
                self._verdicts.clear()
            weights = self.weights if len(set(self.weights.values())) > 1 else None
            self._verdicts[opened] = verdict_of(drawn, opened, self.agreement.terms.policy, weights)
        return self._verdicts[opened]
