"""An agreement on a single plan, for simulations and tests that write their plan themselves."""

from dataclasses import dataclass, replace

from secagg.agreement.plan import Plan
from secagg.errors import UsageError
from secagg.types import ClientId


@dataclass(frozen=True, slots=True)
class OnePlan:
    """What `Client` asks of an agreement, for this plan only. `sparse_risk` allows small sparse graphs.

    >>> from secagg import Plan, Schedule
    >>> from secagg.simulation import make_identities, make_roster
    >>> roster = make_roster(make_identities(range(4)))
    >>> plan = Plan(training_id=bytes(32), training_seed=bytes(32), round=0, roster=roster, length=2, bound=9,
    ...             schedule=Schedule(name="random", size=4))
    >>> OnePlan(plan).plan(0, 0, b"model").context
    b'model'
    """

    only: Plan
    sparse_risk: float = 1.0

    @property
    def fingerprint(self) -> bytes:
        return self.only.training_id

    def cell_of(self, client: ClientId, round: int) -> int:
        if client not in self.only.identities:
            raise UsageError(f"client {client} is not on the roster")
        return 0

    def plan(self, round: int, cell: int, context: bytes) -> Plan:
        if round != self.only.round:
            raise UsageError(f"expected round {self.only.round}, got {round}: this is an agreement on one plan")
        return self.only if context == self.only.context else replace(self.only, context=context)
