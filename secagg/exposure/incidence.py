"""The incidence matrix of groups and clients, without dropouts and assumed colluders.

All groupings have the same survivors. If two groupings were summed over sets that differ by one client, their
totals would differ by that client's update. So this module takes one survivor set and not one per grouping.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from secagg import labels
from secagg.arguments import each, ids, keyed, raw, real
from secagg.errors import UsageError
from secagg.types import ClientId, Group, GroupId, Grouping

if TYPE_CHECKING:
    from secagg.exposure.rowspace import Field


class Incidence:
    """The 0/1 matrix A of what the server would see: one row per group, one column per client to protect.

    `members` has the clients of each row and `index` their columns. `alive` counts the survivors of a row,
    assumed colluders included. `key` hashes all public sets; the audit's random choices are drawn from it.
    """

    def __init__(
        self,
        groupings: Sequence[Grouping],
        survivors: Collection[ClientId],
        *,
        colluders: Collection[ClientId] = (),
        weights: Mapping[ClientId, float] | None = None,
        plan_hash: bytes,
    ) -> None:
        alive, colluders = frozenset(ids("survivors", survivors)), frozenset(ids("colluders", colluders))
        hidden = alive.difference(colluders)
        groupings = tuple(
            tuple(ids("groupings, each group", group) for group in each("groupings, each grouping", grouping, object))
            for grouping in each("groupings", groupings, object)
        )
        self.groupings = groupings
        self.alive: dict[GroupId, int] = {}
        self.members: dict[GroupId, Group] = {}
        for g, grouping in enumerate(groupings):
            placed = [client for group in grouping for client in group]
            if len(set(placed)) != len(placed):
                raise UsageError(f"grouping {g} has a client twice; its groups must be disjoint")
            for k, group in enumerate(grouping):
                self.alive[g, k] = len(alive.intersection(group))
                self.members[g, k] = tuple(sorted(hidden.intersection(group)))
        self.clients = tuple(sorted({client for row in self.members.values() for client in row}))
        column = {client: index for index, client in enumerate(self.clients)}
        self.index = {row: tuple(column[client] for client in members) for row, members in self.members.items()}
        self.missing = {v for grouping in groupings for group in grouping for v in group}.difference(self.clients)
        self.weights = _weights(self.clients, weights)
        self.key = digest(groupings, alive, colluders, raw("plan_hash", plan_hash))

    @cached_property
    def field(self) -> Field:
        """The field that the audit computes in: its prime was unknown before these rows were fixed."""
        from secagg.exposure.rowspace import Field  # imports numba

        return Field.drawn_from(self.key)


def _weights(clients: Sequence[ClientId], weights: Mapping[ClientId, float] | None) -> npt.NDArray[np.float64]:
    if weights is None:
        return np.ones(len(clients))
    known = keyed("weights", weights, object)
    missing = [client for client in clients if client not in known]
    if missing:
        raise UsageError(f"client {missing[0]} has no weight")
    values = np.array([real(f"weights[{client}]", known[client]) for client in clients], np.float64)
    if not (values > 0).all():
        raise UsageError("weights must be positive and finite")
    return values


def digest(
    groupings: Sequence[Grouping], alive: Collection[ClientId], colluders: Collection[ClientId], plan_hash: bytes
) -> bytes:
    """A hash of the public sets. Each list is preceded by its length, so different sets hash differently."""
    state = hashlib.sha256(labels.AUDIT_SETS + plan_hash)
    lists: list[Sequence[int]] = [sorted(alive), sorted(colluders)]
    for grouping in groupings:
        lists += [[len(grouping)], *grouping]
    for numbers in lists:
        state.update(b"".join(int(v).to_bytes(4, "little") for v in (len(numbers), *numbers)))
    return state.digest()
