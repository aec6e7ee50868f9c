"""What an answer of whole groups costs: a constant of the agreement, or of the members that a flat sum has left."""

from __future__ import annotations

from collections.abc import Sequence

from secagg.agreement.agreement import Agreement
from secagg.agreement.cost import flat_charge, round_charge
from secagg.privacy.budget import Charge
from secagg.types import ClientId, Group, GroupId
from secagg.whole.flat import is_flat
from secagg.whole.layout import layout


def answer_charge(
    agreement: Agreement, me: ClientId, round: int, groups: Sequence[tuple[GroupId, Group]]
) -> Charge | None:
    """The charge of an answer to these groups; None without noise.

    With several groups it does not depend on which of them are answered: sums of the others count as well.
    """
    noise = agreement.terms.noise
    if noise is None:
        return None
    if is_flat(layout(agreement, round)):
        (_, members), *_ = groups
        return flat_charge(agreement.terms, me, len(members), noise.colluders)  # audit: flat-sum-charged-as-left
    return round_charge(agreement, round, me)
