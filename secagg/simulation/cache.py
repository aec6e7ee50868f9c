"""What the simulated clients of one process share: answers that depend on public data alone.

A real client does not need this. `run` gives one `SharedCache` to all its clients, so that the same plan is
decoded once and the same survivors are audited once, instead of n times.
"""

from __future__ import annotations

from secagg.exposure.audit import Verdict
from secagg.protocol.cache import NoCache
from secagg.protocol.plan import Plan
from secagg.types import ClientId


class SharedCache(NoCache):
    """Remembers the last plan and the last verdict; computes anything else again."""

    def __init__(self) -> None:
        self._plan: tuple[bytes, Plan] | None = None
        self._verdict: tuple[tuple[bytes, tuple[ClientId, ...]], Verdict] | None = None

    def plan(self, data: bytes) -> Plan:
        if self._plan is None or self._plan[0] != data:
            self._plan = (data, super().plan(data))
        return self._plan[1]

    def verdict(self, plan: Plan, survivors: tuple[ClientId, ...]) -> Verdict:
        key = (plan.hash, survivors)
        if self._verdict is None or self._verdict[0] != key:
            self._verdict = (key, super().verdict(plan, survivors))
        return self._verdict[1]
