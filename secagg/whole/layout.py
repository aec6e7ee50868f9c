"""What follows from an agreement for one round: the members of every group, and the groups of every member."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from secagg.agreement.agreement import Agreement
from secagg.types import ClientId, Group, GroupId

_KEPT: Final = 16
_kept: dict[tuple[bytes, int], RoundLayout] = {}
_lock: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class RoundLayout:
    """The permitted groups of one round."""

    groups: Mapping[GroupId, Group]
    seats: Mapping[ClientId, tuple[GroupId, ...]]


def layout(agreement: Agreement, round: int) -> RoundLayout:
    """The layout of a round. A few are kept: they are public, and a simulation asks for one many times."""
    key = (agreement.fingerprint, round)
    with _lock:
        found = _kept.get(key)
        if found is None:
            groups = agreement.groups(round)
            seats: dict[ClientId, list[GroupId]] = {}
            for group in sorted(groups):
                for client in groups[group]:
                    seats.setdefault(client, []).append(group)
            found = RoundLayout(groups, {client: tuple(places) for client, places in seats.items()})
            while len(_kept) >= _KEPT:
                del _kept[next(iter(_kept))]
            _kept[key] = found
        return found
