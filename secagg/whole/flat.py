"""Flat sums: one group of all clients of a round. Only there, members may leave a round by a signed release.

A release says "I have not answered this round and never will" and fills the slot of the answer. So a server that has
it cannot also have an answer, and the sum of the others is the only one that this round can open. In other schedules a
released member is a missing one: its groups are lost.

Two rounds are another matter: a sum with everybody and a sum without one member differ by that member's update if
updates stand still. So releases need a policy that promises each round alone (memory = "round").
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
_SLACK: Final = 1e-9  # a computed 1/3 can be slightly above a written 1/3


def is_flat(places: RoundLayout) -> bool:
    return len(places.groups) == 1


def releases_refused(agreement: Agreement, round: int) -> bool:
    """Whether a release of this round would let sums of several rounds be compared."""
    return is_flat(layout(agreement, round)) and agreement.terms.policy.memory == "training"


def remaining(agreement: Agreement, places: RoundLayout, group: GroupId, released: Container[ClientId]) -> Group:
    """The members of a group that are summed: without the released ones in a flat sum, if enough are left."""
    members = places.groups[group]
    if not is_flat(places):  # audit: release-only-in-flat-sums
        return members
    rest = tuple(client for client in members if client not in released)
    return rest if _keeps_policy(agreement.terms, rest) else members


def _keeps_policy(terms: Terms, rest: Collection[ClientId]) -> bool:
    """Whether the sum of these members keeps the limits that the agreement sets for a group."""
    policy = terms.policy
    if len(rest) < max(2, policy.anonymity, policy.min_survivors):  # audit: release-leaves-enough
        return False
    squares = [terms.weights[client] ** 2 for client in rest]
    return max(squares) / sum(squares) <= policy.max_leverage + _SLACK  # audit: release-keeps-leverage
