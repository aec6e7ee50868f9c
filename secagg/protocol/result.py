"""What a run ends with: the sums of the opened rows, and who is missing or to blame, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.crypto.fixedpoint import Integers
from secagg.errors import UsageError
from secagg.exposure.audit import Verdict
from secagg.protocol.plan import Plan
from secagg.types import ClientId, GroupId, Ring32


class Stage(IntEnum):
    """The five stages of a run; DONE has the result, FAILED has none."""

    KEYS = 0
    SHARES = 1
    INPUTS = 2
    CONSISTENCY = 3
    UNMASKING = 4
    DONE = 5
    FAILED = 6


@dataclass(frozen=True, slots=True)
class Dropout:
    """Why a client is out, and since when. A reason is not blame: messages get lost."""

    stage: Stage
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class RowSum:
    """The sum of one row: `total` in the ring, over exactly these survivors."""

    total: Ring32 = field(repr=False)
    members: tuple[ClientId, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """The outcome of one run.

    `closed` rows were refused by the exposure audit; `lost` rows could not be rebuilt. `dropouts` says why
    a client is missing; `blamed` names only those whom evidence convicts: their own signature, their own
    shares, or the word of more peers than may collude.
    """

    plan: Plan
    survivors: tuple[ClientId, ...]
    rows: Mapping[GroupId, RowSum]
    closed: Mapping[GroupId, str]
    lost: Mapping[GroupId, str]
    dropouts: Mapping[ClientId, Dropout]
    blamed: Mapping[ClientId, str]
    verdict: Verdict

    @property
    def semi_honest_only(self) -> bool:
        """True for a sparse run: its privacy holds only if the server followed the protocol."""
        return self.plan.semi_honest_only

    def sum(self, row: GroupId = (0, 0)) -> npt.NDArray[Any]:
        """The sum of a row's (weighted) updates: float32, or int64 for exact integers."""
        return self.plan.encoding.decode(self._row(row).total)

    def mean(
        self,
        row: GroupId = (0, 0),
        *,
        divisor: float | None = None,
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[Any]:
        """The weighted mean of a row's updates over its survivors: float32, or float64 of exact integers.

        `divisor` replaces the sum of the survivors' relative weights. A float32 mean is written to `out`.
        """
        opened = self._row(row)
        weight = divisor or sum(self.plan.relative_weight(client) for client in opened.members)
        encoding = self.plan.encoding
        if isinstance(encoding, Integers):
            return encoding.decode(opened.total) / weight
        return encoding.decode(opened.total, divisor=weight, out=out)

    def _row(self, row: GroupId) -> RowSum:
        opened = self.rows.get(row)
        if opened is None:
            why = self.closed.get(row) or self.lost.get(row) or "there is no such row"
            raise UsageError(f"row {row} has no sum: {why}")
        return opened
