"""What a run with survivors costs a client: reserved before its masked input leaves, settled when the sums are opened.

A server may sum a client's vector and never ask the client to sign. So the most that the policy allows is reserved with
the masked input, once per update: of all runs of an update, at most one can be opened. What at least t clients have
signed is what is opened; then the charge is lowered to what that costs.
"""

from __future__ import annotations

from secagg.agreement.cost import survivors_reserve, survivors_settled
from secagg.agreement.plan import Plan
from secagg.privacy.budget import Budget
from secagg.protocol import ledger
from secagg.protocol.cache import Agreed
from secagg.protocol.client_state import ClientMemory
from secagg.protocol.journal import Journal
from secagg.types import ClientId


def reserve(agreement: Agreed, journal: Journal, update: str, me: ClientId, budget: Budget | None) -> None:
    """Pay for the most that can be opened of an update; BudgetExceeded if it is too much."""
    if agreement.terms.noise is not None:
        ledger.pay(journal, update.encode(), survivors_reserve(agreement.terms, me), budget)  # audit: masked-input-paid


def settle_opened(agreement: Agreed, journal: Journal, update: str, plan: Plan, memory: ClientMemory) -> None:
    """Lower the charge of an update to what its opening costs, which at least t clients have signed."""
    if agreement.terms.noise is not None:
        alive = set(plan.summed(memory.survivors))
        opened = [tuple(alive.intersection(plan.group(group))) for group in memory.groups]
        reserved = survivors_reserve(agreement.terms, memory.me)
        ledger.settle(journal, update.encode(), reserved, survivors_settled(agreement.terms, memory.me, opened))
