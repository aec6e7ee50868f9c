"""Flat sums: one group of all clients of a round. Only there, a sum may be opened without some members.

A release says "I have not answered this round and never will" and fills the slot of the answer. So a server that has
it cannot also have an answer, and the sum of the others is the only one that this round can open. In other schedules a
released member is a missing one: its groups are lost.

With a roll call, the server says who is present when the round begins. Each client answers for one such set, in its
one slot of the round, and the set is in every mask key. So sets that both open share no honest client.

Two rounds are another matter: a sum with everybody and a sum without one member differ by that member's update if
updates stand still. So both need a policy that promises each round alone (memory = "round").
"""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import Final

from secagg.agreement.agreement import Agreement
from secagg.agreement.terms import Terms
from secagg.types import ClientId, Group, GroupId
from secagg.whole.layout import RoundLayout, layout

NO_RELEASES: Final = (
    "the agreement has no releases: with memory = 'training', sums of two rounds, with a member and without it, must "
    "not be compared; repeat the round with all members, or agree on memory = 'round'"
)
CALLED: Final = (
    "the agreement has a roll call and no releases: a member that does not take part in a round sends no advert"
)
_SLACK: Final = 1e-9  # a computed 1/3 can be slightly above a written 1/3


def is_flat(places: RoundLayout) -> bool:
    return len(places.groups) == 1


def releases_refused(agreement: Agreement, round: int) -> str:
    """Why a release of this round is refused; nothing if it is not.

    With memory = "training" it would let sums of several rounds be compared; a roll call does without it.
    """
    if agreement.terms.roll_call:
        return CALLED
    return NO_RELEASES if is_flat(layout(agreement, round)) and agreement.terms.policy.memory == "training" else ""


def summed(
    agreement: Agreement,
    places: RoundLayout,
    group: GroupId,
    released: Container[ClientId],
    present: Container[ClientId],
) -> Group:
    """The members of a group that are summed: those present after a roll call, otherwise all.

    In a flat sum without a roll call, released members are left out, if enough are left.
    """
    members = places.groups[group]
    if agreement.terms.roll_call:
        return tuple(client for client in members if client in present)
    if not is_flat(places):  # audit: release-only-in-flat-sums
        return members
    rest = tuple(client for client in members if client not in released)
    return members if objection(agreement.terms, rest) else rest


def objection(terms: Terms, rest: Collection[ClientId]) -> str:
    """Why the sum of these members would break the limits that the agreement sets for a group, or nothing.

    Weights only raise the leverage of somebody, so integers, which are not weighted, need no check of their own.
    """
    if len(rest) < terms.least_summed:  # audit: release-leaves-enough
        return f"{len(rest)} members are summed, and the agreement asks for {terms.least_summed}"
    squares = {client: terms.weights[client] ** 2 for client in rest}
    heaviest = max(squares, key=lambda client: squares[client])
    leverage = squares[heaviest] / sum(squares.values())
    if leverage > terms.policy.max_leverage + _SLACK:  # audit: release-keeps-leverage
        return f"the leverage of client {heaviest} is {leverage:.3f}, above {terms.policy.max_leverage:g}"
    return ""
