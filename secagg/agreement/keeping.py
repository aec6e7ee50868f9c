"""A successor that keeps the groups of an earlier agreement on the same data, without the clusters or atoms that left.

New groups of the same members cut across the old ones, and together they usually expose somebody whose update stands
still. Groups that were opened before add nothing. So a successor names the seed of the earlier agreement and the
members that left: everybody draws the earlier groups or atoms again and takes out whole ones. `Agreement.check`
compares both with the earlier agreement itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from secagg.arguments import ids, raw, settle
from secagg.codec import U32, Fixed, Many, Struct
from secagg.crypto.keys import HASH_BYTES
from secagg.errors import UsageError
from secagg.exposure.schedules import Drawn, Schedule
from secagg.types import ClientId, Group, Grouping

MOST_DROPPED: Final = 65535


@dataclass(frozen=True, slots=True)
class Kept:
    """The earlier groups that are kept: the seed that drew them, and the ids of earlier members that have left.

    A successor of a successor keeps the groups of the first agreement: the seed is the first one's, and `dropped` has
    everybody that has left since; nobody, if all go on.

    >>> Kept(bytes(32), (3, 4, 5)).dropped
    (3, 4, 5)
    """

    seed: bytes
    dropped: tuple[ClientId, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", raw("keep.seed", self.seed, HASH_BYTES))
        settle(self, ids, "dropped")
        if list(self.dropped) != sorted(set(self.dropped)) or len(self.dropped) > MOST_DROPPED:
            raise UsageError(
                f"keep.dropped: expected at most {MOST_DROPPED} different ids in ascending order, got "
                f"{len(self.dropped)}; list the members that left"
            )


KEPT: Final = Struct(Kept, (("seed", Fixed(HASH_BYTES)), ("dropped", Many(U32, MOST_DROPPED))))


def check_kept(kept: Kept, schedule: Schedule, members: Sequence[ClientId]) -> None:
    """UsageError unless what is left are whole groups, or whole atoms, of the earlier members."""
    if schedule.name not in ("fixed", "atoms"):
        raise UsageError(f"keep: {schedule.name!r} groups are new in every round; only 'fixed' and 'atoms' can be kept")
    both = set(members).intersection(kept.dropped)
    if both:
        raise UsageError(f"keep.dropped: member {min(both)} is still a member; list only those that left")
    now = set(members)
    for unit in _earlier_units(kept, schedule, members):
        left = sorted(now.intersection(unit))
        if left and len(left) < len(unit):  # audit: kept-units-whole
            what = "atom" if schedule.atom else "group"
            raise UsageError(
                f"keep: the {what} of members {', '.join(map(str, unit))} has lost some of them; a successor drops "
                f"whole {what}s, so leave out {', '.join(map(str, left))} too"
            )


def together(kept: Kept | None, schedule: Schedule, members: Sequence[ClientId], seed: bytes) -> tuple[Group, ...]:
    """The sets that can only leave together: groups of `fixed`, atoms of `atoms`."""
    if schedule.atom:
        return lasting_atoms(kept, schedule, members, seed)
    return tuple(chain.from_iterable(lasting_groupings(kept, schedule, members, seed)))


def lasting_groupings(
    kept: Kept | None, schedule: Schedule, members: Sequence[ClientId], seed: bytes
) -> tuple[Grouping, ...]:
    """The groupings of `fixed`, of which a sample may be drawn in each round."""
    if kept is None:
        return schedule.draw(members, seed, 0)
    now = set(members)
    drawn = schedule.draw(_earlier_members(kept, members), kept.seed, 0)
    return tuple(tuple(group for group in grouping if now.issuperset(group)) for grouping in drawn)


def lasting_atoms(kept: Kept | None, schedule: Schedule, members: Sequence[ClientId], seed: bytes) -> tuple[Group, ...]:
    """All atoms of the training."""
    if kept is None:
        return schedule.all_atoms(members, seed)
    now = set(members)
    atoms = schedule.all_atoms(_earlier_members(kept, members), kept.seed)
    return tuple(atom for atom in atoms if now.issuperset(atom))


def draw_kept(
    kept: Kept, schedule: Schedule, members: Sequence[ClientId], seed: bytes, round: int, sample: int | None
) -> Drawn:
    """What is drawn for a round: a sample of the kept groups, or new groups of the kept atoms."""
    if schedule.atom:
        atoms = schedule.sampled_atoms(lasting_atoms(kept, schedule, members, seed), seed, round, sample)
        return Drawn(schedule.regrouped(atoms, seed, round), atoms)
    groupings = lasting_groupings(kept, schedule, members, seed)
    return Drawn(groupings if sample is None else schedule.sampled(groupings, seed, round, sample))


def _earlier_members(kept: Kept, members: Iterable[ClientId]) -> list[ClientId]:
    return sorted({*members, *kept.dropped})


def _earlier_units(kept: Kept, schedule: Schedule, members: Sequence[ClientId]) -> tuple[Group, ...]:
    return together(None, schedule, _earlier_members(kept, members), kept.seed)
