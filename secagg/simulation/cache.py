"""What one process that simulates many clients may remember: answers that depend on public data alone.

A real client needs none of this. The local engine gives one `Memo` to all its clients, so that the same
plan is decoded once and the same survivors are audited once instead of n times.
"""

from __future__ import annotations

from secagg.exposure.audit import Verdict
from secagg.exposure.schedules import ClientId
from secagg.protocol.plan import Plan


class Memo:
    """The last plan decoded and the last verdict reached; anything else is worked out again."""

    def __init__(self) -> None:
        self._plan: tuple[bytes, Plan] | None = None
        self._verdict: tuple[tuple[bytes, tuple[ClientId, ...]], Verdict] | None = None

    def plan(self, data: bytes) -> Plan:
        if self._plan is None or self._plan[0] != data:
            self._plan = (data, Plan.from_bytes(data))
        return self._plan[1]

    def verdict(self, plan: Plan, survivors: tuple[ClientId, ...]) -> Verdict:
        key = (plan.hash, survivors)
        if self._verdict is None or self._verdict[0] != key:
            self._verdict = (key, plan.audit(survivors))
        return self._verdict[1]
