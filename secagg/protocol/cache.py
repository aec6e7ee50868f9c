"""Where a client looks up what follows from public data alone: a decoded plan, an audit's verdict.

A client on its own computes both once per run. A process that simulates many clients passes them one cache,
so that each answer is computed once instead of once per client.
"""

from typing import Protocol

from secagg.agreement.plan import Plan
from secagg.exposure.audit import Verdict
from secagg.types import ClientId


class Cache(Protocol):
    """What `Client` asks. Answers must equal those of `NoCache`.

    >>> from secagg.protocol import Cache, NoCache
    >>> cache: Cache = NoCache()  # or secagg.simulation's, which remembers
    """

    def plan(self, data: bytes) -> Plan: ...
    def verdict(self, plan: Plan, survivors: tuple[ClientId, ...]) -> Verdict: ...


class NoCache:
    """Computes every answer.

    >>> from secagg.protocol import NoCache
    >>> NoCache().plan(b"")
    Traceback (most recent call last):
    secagg.errors.WireError: message ends 1 bytes too early
    """

    def plan(self, data: bytes) -> Plan:
        return Plan.from_bytes(data)

    def verdict(self, plan: Plan, survivors: tuple[ClientId, ...]) -> Verdict:
        return plan.audit(survivors)
