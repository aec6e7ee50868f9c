"""What a run ends with: the sums of the opened groups, and who dropped out or is to blame, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.agreement.plan import Plan
from secagg.errors import UsageError
from secagg.exposure.audit import Verdict
from secagg.types import ClientId, Group, GroupId, Ring32

NO_ANSWER: Final = "it did not answer in time"
TOO_LARGE: Final = "its sum is larger than honest members can reach: some member sent a value out of range"
BROKEN_ATOM: Final = "its atom is not complete, and only whole atoms are summed"


class Stage(IntEnum):
    """The five stages of a run; DONE has a result, FAILED has none.

    >>> Stage.KEYS < Stage.UNMASKING < Stage.DONE
    True
    """

    KEYS = 0
    SHARES = 1
    INPUTS = 2
    CONSISTENCY = 3
    UNMASKING = 4
    DONE = 5
    FAILED = 6


@dataclass(frozen=True, slots=True)
class Dropout:
    """The stage in which a client dropped out, and why. A reason is not blame: messages get lost.

    >>> Dropout(Stage.INPUTS, "it did not answer in time").stage.name
    'INPUTS'
    """

    stage: Stage
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class GroupSum:
    """The sum of one group: `total` modulo 2^32, over exactly the surviving `members`.

    >>> import numpy as np
    >>> GroupSum(np.array([6], np.uint32), members=(0, 1, 2)).members
    (0, 1, 2)
    """

    total: Ring32 = field(repr=False)
    members: Group


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """The outcome of one run.

    `groups` holds the opened sums. The exposure audit refused the `closed` groups; the `lost` ones could not
    be rebuilt, or honest members cannot reach their sum. `inconsistent` are sets of groups whose sums contradict each
    other: a member sent different vectors, and nobody can say who. `dropouts` says why a client is missing. `blamed`
    names only clients that evidence convicts: their own signature, their own shares, or the word of more peers than may
    collude. `disputes` are pairs (dealer, peer without a good share from it): one of the two cheats (`Suspects`).
    `record` is what the run leaves behind for the evidence of the training (docs/evidence.md).

    >>> from secagg.simulation import make_agreement, run
    >>> agreement, identities = make_agreement(members=4, size=4, length=2, bound=100, groups="survivors")
    >>> result = run(agreement, {i: [i, 10 * i] for i in range(4)}, identities)
    >>> result.sum(), result.mean(), result.survivors
    (array([ 6, 60]), array([ 1.5, 15. ]), (0, 1, 2, 3))
    """

    plan: Plan
    survivors: Group
    groups: Mapping[GroupId, GroupSum]
    closed: Mapping[GroupId, str]
    lost: Mapping[GroupId, str]
    dropouts: Mapping[ClientId, Dropout]
    blamed: Mapping[ClientId, str]
    disputes: tuple[tuple[ClientId, ClientId], ...] = ()
    inconsistent: tuple[tuple[GroupId, ...], ...] = ()
    verdict: Verdict
    record: bytes = field(default=b"", repr=False)

    @property
    def semi_honest_only(self) -> bool:
        """True for a sparse run: its privacy holds only if the server followed the protocol."""
        return self.plan.semi_honest_only

    def sum(self, group: GroupId = (0, 0)) -> Any:
        """The sum of a group's (weighted) updates: float64, int64 for exact integers, a dict for named segments."""
        return self.plan.encoding.decode(self._opened(group).total)

    def mean(
        self, group: GroupId = (0, 0), *, divisor: float | None = None, out: npt.NDArray[np.floating[Any]] | None = None
    ) -> Any:
        """The mean over a group's survivors in float64, weighted except for exact integers; a dict for named segments.

        `divisor` replaces the sum of the survivors' relative weights, and for integers their number. All values are
        written to `out`, a flat vector of float32 or float64, if there is one.
        """
        opened = self._opened(group)
        if divisor is not None:
            return self.plan.encoding.decode(opened.total, divisor=divisor, count=divisor, out=out)
        weight = sum(self.plan.relative_weight(client) for client in opened.members)
        return self.plan.encoding.decode(opened.total, divisor=weight, count=len(opened.members), out=out)

    def _opened(self, group: GroupId) -> GroupSum:
        try:
            opened = self.groups.get(group)
        except TypeError:
            raise UsageError(f"group: expected (grouping, group), got {group!r}") from None
        if opened is None:
            why = self.closed.get(group) or self.lost.get(group) or "the plan has no such group"
            raise UsageError(f"group {group} has no sum: {why}")
        return opened
