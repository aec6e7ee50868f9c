"""What a client needs of an agreement, and where it looks up what follows from public data alone.

A client on its own derives its plan and its audit's verdict once per run. A process that simulates many clients passes
them one cache, so that each answer is computed once instead of once per client.
"""

from typing import Protocol

from secagg.agreement.plan import Plan
from secagg.agreement.terms import Terms
from secagg.arguments import has, instance
from secagg.exposure.audit import Verdict
from secagg.types import ClientId


class Agreed(Protocol):
    """What `Client` asks of an agreement: `secagg.Agreement` has it.

    >>> from secagg.protocol.cache import Agreed
    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=6, size=3, length=4, clip=1.0, groups="survivors")
    >>> agreed: Agreed = agreement
    >>> agreed.plan(0, agreed.cell_of(2, 0), b"").round
    0
    """

    @property
    def fingerprint(self) -> bytes: ...
    @property
    def terms(self) -> Terms: ...
    @property
    def sparse_risk(self) -> float: ...
    def cell_of(self, client: ClientId, round: int) -> int: ...
    def plan(self, round: int, cell: int, context: bytes) -> Plan: ...


class Cache(Protocol):
    """What `Client` asks. Answers must equal those of `NoCache`.

    >>> from secagg.protocol import Cache, NoCache
    >>> cache: Cache = NoCache()  # or secagg.simulation's, which remembers
    """

    def plan(self, agreed: Agreed, round: int, cell: int, context: bytes) -> Plan: ...
    def verdict(self, plan: Plan, survivors: tuple[ClientId, ...]) -> Verdict: ...


class NoCache:
    """Computes every answer.

    >>> from secagg.protocol import NoCache
    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=6, size=3, length=4, clip=1.0, groups="survivors")
    >>> NoCache().plan(agreement, 0, 0, b"model").context
    b'model'
    """

    def plan(self, agreed: Agreed, round: int, cell: int, context: bytes) -> Plan:
        has("agreed", agreed, "an Agreement", "plan", "cell_of", "fingerprint")
        return agreed.plan(round, cell, context)

    def verdict(self, plan: Plan, survivors: tuple[ClientId, ...]) -> Verdict:
        return instance("plan", plan, Plan).audit(survivors)
