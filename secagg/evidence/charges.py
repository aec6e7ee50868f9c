"""What a round of an agreement with noise costs: the most that any member who was asked is charged for it.

It follows from the agreement and from who is summed. A client's own balance is nobody's business and is not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

from secagg.agreement.agreement import Agreement
from secagg.agreement.cost import flat_charge, round_charge
from secagg.privacy.budget import Charge
from secagg.types import Group, GroupId


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
    return (Charge(max(one.rho for one in charges), max(one.eta for one in charges)),)
