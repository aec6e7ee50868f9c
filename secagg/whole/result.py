"""What a round ends with: the sums of the groups whose members all answered, and why other groups are lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.agreement.agreement import Agreement
from secagg.errors import UsageError
from secagg.protocol.result import NO_ANSWER, TOO_LARGE, GroupSum
from secagg.types import ClientId, GroupId
from secagg.whole import encoding

NO_ADVERT: Final = "it sent no advert"
NOT_CALLED: Final = "it was left out of the roll call"
RELEASED: Final = "it released the round"
NOT_ASKED: Final = "nothing was sent, because too few groups were complete"
__all__ = ["NOT_ASKED", "NOT_CALLED", "NO_ADVERT", "NO_ANSWER", "RELEASED", "TOO_LARGE", "GroupSum", "WholeResult"]


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeResult:
    """The outcome of one round with whole groups.

    `groups` holds the opened sums, `lost` the reason for every other group of the round. `answers` has the hash of each
    client's answer, `dropouts` why a client has none, `blamed` the clients that their own signatures convict.
    `inconsistent` names sets of opened groups whose sums contradict each other: some member of them sent different
    vectors to different groups. If `skipped` is not empty, fewer groups were complete than the agreement asks for, and
    it says so; then no sum is opened. `record` is what the round leaves behind for the evidence of the training.

    >>> from secagg.simulation import make_agreement, run_whole
    >>> agreement, identities = make_agreement(members=6, size=3, length=2, bound=9)
    >>> result = run_whole(agreement, 0, {v: [v, 1] for v in range(6)}, identities, drop=[3])
    >>> len(result.groups), len(result.lost), len(result.answered), result.dropouts
    (1, 1, 3, {3: 'it sent no advert'})
    """

    agreement: Agreement
    round: int
    context: bytes
    groups: Mapping[GroupId, GroupSum]
    lost: Mapping[GroupId, str]
    answers: Mapping[ClientId, bytes]
    dropouts: Mapping[ClientId, str]
    blamed: Mapping[ClientId, str]
    inconsistent: tuple[tuple[GroupId, ...], ...] = ()
    skipped: str = ""
    record: bytes = field(default=b"", repr=False)

    @property
    def answered(self) -> tuple[ClientId, ...]:
        """The clients whose answers were accepted, by id."""
        return tuple(sorted(self.answers))

    def sum(self, group: GroupId = (0, 0)) -> Any:
        """The sum of a group's weighted updates: an array, or a dict of arrays for named segments."""
        return self.agreement.terms.encoding.decode(self._opened(group).total)

    def mean(
        self,
        group: GroupId = (0, 0),
        *,
        divisor: float | None = None,
        out: npt.NDArray[np.floating[Any]] | None = None,
    ) -> Any:
        """The weighted mean over a group's members; integers are not weighted.

        `divisor` replaces the sum of the members' relative weights. With `out`, a flat vector of float32 or float64,
        all values are written there.
        """
        opened = self._opened(group)
        return encoding.mean(self.agreement.terms, opened.total, opened.members, divisor, out)

    def _opened(self, group: GroupId) -> GroupSum:
        opened = self.groups.get(group)
        if opened is None:
            why = self.lost.get(group) or "the agreement has no such group in this round"
            raise UsageError(f"group {group} has no sum: {why}")
        return opened
