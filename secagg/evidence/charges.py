"""What a round of an agreement with noise costs: the most that any member who was asked is charged for it.

It follows from the agreement and from who is summed. A client's own balance is nobody's business and is not recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from secagg.agreement.agreement import Agreement
from secagg.agreement.cost import flat_charge, round_charge, survivors_reserve, survivors_settled
from secagg.agreement.plan import Plan
from secagg.evidence.runs import RunRecord
from secagg.privacy.budget import Charge
from secagg.types import ClientId, Group, GroupId


def highest(agreement: Agreement, round: int, complete: Mapping[GroupId, Group]) -> tuple[Charge, ...]:
    """The highest charge, of the complete groups of a round; () without noise, or if nobody was asked."""
    noise = agreement.terms.noise
    asked = {client: len(members) for members in complete.values() for client in members}
    if noise is None or not asked:
        return ()
    if len(agreement.groups(round)) == 1:
        charges = [flat_charge(agreement.terms, v, members, noise.colluders) for v, members in asked.items()]
    else:
        charges = [round_charge(agreement, round, client) for client in asked]
    return _highest(charges)


def highest_reserved(agreement: Agreement, sent: Collection[ClientId]) -> tuple[Charge, ...]:
    """The highest reserve of those who sent masked vectors in a run with survivors; () without noise or vectors."""
    if agreement.terms.noise is None or not sent:
        return ()
    return _highest([survivors_reserve(agreement.terms, client) for client in sent])


def highest_settled(
    agreement: Agreement, paid: Collection[ClientId], groups: Sequence[Collection[ClientId]]
) -> tuple[Charge, ...]:
    """The highest charge that is left when those in `paid` have seen that the sums of these groups are opened."""
    if agreement.terms.noise is None or not paid:
        return ()
    return _highest([survivors_settled(agreement.terms, client, groups) for client in paid])


def charged(agreement: Agreement, record: RunRecord) -> RunRecord:
    """The record with what its run costs, which follows from the agreement."""
    if agreement.terms.noise is None or not record.inputs:
        return record
    plan = agreement.plan(record.round, record.cell, record.context)
    sent, paid = [one.sender for one in record.inputs], [one.sender for one in record.unmaskings]
    groups = summed_in(plan, sent, record.groups(plan))
    reserved, settled = highest_reserved(agreement, sent), highest_settled(agreement, paid, groups)
    return replace(record, reserved=reserved, settled=settled)


def summed_in(plan: Plan, sent: Collection[ClientId], groups: Sequence[GroupId]) -> list[Group]:
    """Who is summed in each of these groups, of those who sent masked vectors."""
    alive = frozenset(plan.summed(sent))
    return [tuple(v for v in plan.group(group) if v in alive) for group in groups]


def text(charges: Sequence[Charge]) -> str:
    """A charge in words."""
    return "none" if not charges else f"rho {charges[0].rho}, eta {charges[0].eta}"


def _highest(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    rho = max(one.rho for one in charges)  # audit: evidence-highest-rho
    eta = max(one.eta for one in charges)  # audit: evidence-highest-eta
    return (Charge(rho, eta),)
