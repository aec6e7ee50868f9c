"""What one cell's run gives to training: the result of `secagg`, with the weights that training needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fl.secure.layout import Cell
from secagg import Dropout, Result, Verdict
from secagg.crypto import FixedPoint
from secagg.protocol import GroupId, GroupSum
from secagg.simulation import Cost

Vector = NDArray[np.float32]


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

    def mean(self, row: GroupId, *, divisor: float, out: Vector | None = None) -> Vector:
        """The update of the one client in a cluster, over `divisor`."""
        return self.encoding.decode(self.groups[row].total, divisor=divisor, out=out)


@dataclass(slots=True, kw_only=True)
class CellResult:
    """What the server has after a cell's run: a result, or the reason why there is none."""

    cell: Cell
    weights: Mapping[int, int]
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
        weight = self._weight(self.result.groups[cluster].members)
        return self.result.mean(cluster, divisor=weight / self._mean_weight, out=out)

    def _weight(self, clients: Iterable[int]) -> int:
        return sum(self.weights[client] for client in clients)

    @property
    def _mean_weight(self) -> float:
        """The mean n_i of the cell: updates were multiplied by n_i over this before they were encoded."""
        return sum(self.weights.values()) / len(self.weights)

    def total(self, grouping: int) -> tuple[NDArray[np.float64], int]:
        """The sum of a grouping's opened clusters, added as integers, and their weight (Lemma 1).

        Any two groupings of the same survivors give the same integers, and therefore the same floats.
        """
        result = self.result
        assert result is not None
        encoding = result.encoding if isinstance(result, UnprotectedResult) else result.plan.encoding
        assert isinstance(encoding, FixedPoint)
        sums = [result.groups[row] for row in self.opened(grouping)]
        whole = sum(part.total.view(np.int32).astype(np.int64) for part in sums)
        weight = sum(self._weight(part.members) for part in sums)
        return np.asarray(whole, dtype=np.float64) * (self._mean_weight / encoding.scale), weight

    def forget(self, grouping: int) -> None:
        """Free the sums of a grouping that was aggregated: at the paper's size all of them are 1.7 GB."""
        if self.result is not None:
            kept = {row: part for row, part in self.result.groups.items() if row[0] != grouping}
            self.result = replace(self.result, groups=kept)
