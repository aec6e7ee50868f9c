"""Flat sums: one group of all clients of a round. Only there, members may leave a round by a signed release.

A release says "I have not answered this round and never will" and fills the slot of the answer. So a server that has
it cannot also have an answer, and the sum of the others is the only one that this round can open. In other schedules a
released member is a missing one: its groups are lost.
"""

from __future__ import annotations

from collections.abc import Container

from secagg.agreement.agreement import Agreement
from secagg.types import ClientId, Group, GroupId
from secagg.whole.layout import RoundLayout


def is_flat(places: RoundLayout) -> bool:
    return len(places.groups) == 1


def remaining(agreement: Agreement, places: RoundLayout, group: GroupId, released: Container[ClientId]) -> Group:
    """The members of a group that are summed: without the released ones in a flat sum, if enough are left."""
    members = places.groups[group]
    if not is_flat(places):  # audit: release-only-in-flat-sums
        return members
    rest = tuple(client for client in members if client not in released)
    policy = agreement.terms.policy
    if len(rest) < max(2, policy.anonymity, policy.min_survivors):  # audit: release-leaves-enough
        return members
    return rest
