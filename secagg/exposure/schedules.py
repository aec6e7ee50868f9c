"""Who is summed with whom: the groupings of one run, drawn from public randomness that nobody can steer.

SHARE, Algorithm 1, line 3 ("assign clients to clusters"), repeated R times for the same updates. Each draw
depends only on the training seed, the round and the pinned roster, and not on a run id or an attempt. So a
server can neither choose a grouping nor try again for a better one, and every client draws it itself.

- `random`: R independent random groupings, new ones every round (the paper). No guarantee; the audit decides.
- `fixed`: the same, drawn once for the whole training (one grouping is the paper's "fixed clustering").
- `transversal`: groups cross each other evenly. Without dropouts nobody is exposed for any R <= m, and the
  anonymity T is at least min(m, 2(m - R + 1)) if the number of groups has no prime factor below m.
- `atoms`: fixed atoms of k clients always move together; T >= the smallest surviving atom, for any R.

`docs/exposure.md` has the proofs. All groups have the same size, because nested groups of different sizes
leak. Clients that do not fit are left out at random. The same clients are left out of all groupings of a run;
otherwise the difference of two groupings would reveal the sum of those few clients.
"""

import hashlib
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, pairwise
from typing import Any, TypeVar

from secagg import labels
from secagg.arguments import MOST_ID, MOST_ROUND, each, ids, raw, settle, whole
from secagg.errors import UsageError
from secagg.types import ClientId, Group, Grouping

SCHEDULES = ("random", "fixed", "transversal", "atoms")
MIN_SEED_BYTES = 16
_WHOLE_TRAINING = None
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn for one round, or for one cell of it: groupings, and the atoms or columns behind them.

    >>> Drawn(groupings=(((0, 2), (1, 3)),)).clients
    (0, 1, 2, 3)
    """

    groupings: tuple[Grouping, ...]
    atoms: tuple[Group, ...] = ()
    columns: tuple[Group, ...] = ()

    @property
    def clients(self) -> Group:
        return tuple(sorted(chain.from_iterable(self.groupings[0])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How the groupings of every round are drawn: `groupings` partitions into groups of `size` clients.

    `Schedule(name="random", size=n)` is the flat sum of Bonawitz et al. 2017. Only `atoms` has an `atom`.

    >>> schedule = Schedule(name="transversal", size=3, groupings=2)
    >>> schedule.draw(range(9), bytes(32), round=0)[0]
    ((1, 2, 7), (0, 4, 5), (3, 6, 8))
    """

    name: str
    size: int
    groupings: int = 1
    atom: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in SCHEDULES:
            raise UsageError(f"unknown schedule {self.name!r}; choose one of {', '.join(SCHEDULES)}")
        settle(self, whole, "size", "groupings", "atom")
        if max(self.size, self.groupings, self.atom) > MOST_ID:
            raise UsageError(f"size, groupings and atom: expected less than 2^32, got {self}")
        if self.size < 2:
            raise UsageError(f"size must be at least 2 to hide anybody, not {self.size}")
        if self.groupings < 1:
            raise UsageError(f"groupings must be at least 1, not {self.groupings}")
        if self.name == "atoms":
            self._check_atom()
        elif self.atom:
            raise UsageError(f"atom={self.atom} is only for the schedule 'atoms', not for {self.name!r}")
        if self.name == "transversal" and self.groupings > self.size:
            raise UsageError(
                f"transversal allows at most as many groupings as a group has clients: "
                f"{self.groupings} > {self.size}; lower groupings or raise size"
            )

    def _check_atom(self) -> None:
        if self.atom < 2:
            raise UsageError(f"atom must be at least 2 to hide anybody, not {self.atom}")
        if self.size % self.atom:
            raise UsageError(f"size {self.size} must be a multiple of atom {self.atom}")
        if self.size == self.atom and self.groupings > 1:
            raise UsageError(
                f"a group of one atom is the same in all {self.groupings} groupings; "
                f"raise size to {2 * self.atom} or set groupings=1"
            )

    def check(self, n: int) -> None:
        """Raise UsageError, with a setting that works, if this schedule cannot be drawn for n clients."""
        self.groups(n)

    def groups(self, n: int) -> int:
        """The number c of groups in each grouping of n clients."""
        n = whole("n, the number of clients", n, 0)
        if n < self.size:
            raise UsageError(f"{n} clients are too few for one group of {self.size}")
        groups = n // self.size
        if groups == 1 and self.groupings > 1:
            raise UsageError(
                f"one group of {self.size} among {n} clients is the same in all {self.groupings} groupings; "
                f"set groupings=1 or lower size to {max(2, n // 2)}"
            )
        if self.name == "transversal" and self.groupings > groups:
            raise UsageError(
                f"transversal allows at most as many groupings as there are groups: "
                f"{self.groupings} > {groups}; set groupings={groups} or lower size to {n // self.groupings}"
            )
        return groups

    def draw(
        self, roster: Sequence[ClientId], training_seed: bytes, round: int, sample: int | None = None
    ) -> tuple[Grouping, ...]:
        """The groupings of one round: the same for everyone who has the roster and the training seed.

        With `sample`, at most that many clients of the roster are drawn for the round: single clients, whole
        atoms, or, for `fixed`, whole groups (with several groupings: all groups that are connected).
        """
        if self.name == "transversal":
            return self._cross(self.columns(roster, training_seed, round, sample))
        if self.name == "fixed":
            drawn = self._regroup(self._units(roster, training_seed, round), training_seed, _WHOLE_TRAINING)
            return drawn if sample is None else self.sampled(drawn, training_seed, round, sample)
        return self._regroup(self._units(roster, training_seed, round, sample), training_seed, round)

    def draw_cells(
        self,
        roster: Sequence[ClientId],
        training_seed: bytes,
        round: int,
        sizes: Sequence[int],
        sample: int | None = None,
    ) -> tuple[Drawn, ...]:
        """The clients of a round, divided into cells of these sizes, with groupings inside each cell.

        A cell has whole groups, and with `atoms` whole atoms. One cell is drawn as by `draw`. Several are drawn once
        for the whole training if `lasting`, otherwise for the round; clients that do not fit are left out.

        >>> schedule = Schedule(name="fixed", size=2)
        >>> [cell.clients for cell in schedule.draw_cells(range(8), bytes(32), round=3, sizes=(4, 4))]
        [(1, 2, 4, 7), (0, 3, 5, 6)]
        """
        sizes = tuple(whole("sizes, each", size, 1) for size in each("sizes", sizes, object))
        if len(sizes) == 1:
            where = roster, training_seed, round, sample
            return (Drawn(self.draw(*where), self.atoms(*where), self.columns(*where)),)
        when = _WHOLE_TRAINING if self.lasting(sample) else round  # audit: lasting-cells
        if self.name == "fixed" and sample is not None:
            units = self._sampled_groups(roster, training_seed, round, sample)
        elif self.name == "atoms" and sample is None:
            # All of them: none may move from cell to cell.
            units = self.all_atoms(roster, training_seed)  # audit: lasting-atoms
        else:
            units = self._units(roster, training_seed, round, sample)
        order, start, cells = shuffled(units, training_seed, when, b"cells"), 0, []
        for index, size in enumerate(sizes):
            end = start + size // len(units[0])
            cells.append(self._draw_inside(tuple(sorted(order[start:end])), training_seed, round, index, sample))
            start = end
        return tuple(cells)

    def lasting(self, sample: int | None) -> bool:
        """Whether several cells are drawn once for the whole training."""
        return self.name in ("fixed", "atoms") and sample is None

    def _draw_inside(
        self, units: tuple[Group, ...], training_seed: bytes, round: int, cell: int, sample: int | None
    ) -> Drawn:
        """The groupings of one cell. Each cell has its own random order."""
        if self.name == "fixed" and sample is not None:
            return Drawn((units,))
        if self.name == "transversal":
            columns = self._columns(list(chain.from_iterable(units)), training_seed, round, cell)
            return Drawn(self._cross(columns), (), columns)
        when = _WHOLE_TRAINING if self.name == "fixed" else round
        return Drawn(self._regroup(units, training_seed, when, cell), units if self.atom else ())

    def _sampled_groups(self, roster: Sequence[ClientId], training_seed: bytes, round: int, sample: int) -> Grouping:
        if self.groupings > 1:
            raise UsageError(
                f"{self.groupings} fixed groupings connect the clients, so a sample cannot be divided into cells; "
                "use the schedule 'atoms', groupings=1 or no sample"
            )
        return self.draw(roster, training_seed, round, sample)[0]

    def _regroup(
        self, units: Sequence[Group], training_seed: bytes, when: int | None, cell: int = 0
    ) -> tuple[Grouping, ...]:
        orders = (shuffled(units, training_seed, when, b"grouping", (cell << 32) + r) for r in range(self.groupings))
        return tuple(_cut(list(chain.from_iterable(order)), self.size) for order in orders)

    def atoms(
        self, roster: Sequence[ClientId], training_seed: bytes, round: int, sample: int | None = None
    ) -> tuple[Group, ...]:
        """The atoms that take part in this round; () for every other schedule."""
        return self._units(roster, training_seed, round, sample) if self.name == "atoms" else ()

    def columns(
        self, roster: Sequence[ClientId], training_seed: bytes, round: int, sample: int | None = None
    ) -> tuple[Group, ...]:
        """The classes a = 0..m-1 of a transversal round, each in the order b = 0..c-1; () for the others.

        These tuples are *not* ascending: a client's position in its tuple is its coordinate b, which the
        proof of the bound on T needs (see `anonymity.transversal_bound`).
        """
        if self.name != "transversal":
            return ()
        clients = chain.from_iterable(self._units(roster, training_seed, round, sample))
        return self._columns(list(clients), training_seed, round)

    def _columns(
        self, clients: Sequence[ClientId], training_seed: bytes, round: int, cell: int = 0
    ) -> tuple[Group, ...]:
        order = shuffled(clients, training_seed, round, b"transversal", cell)
        c = len(order) // self.size
        return tuple(tuple(order[a * c : (a + 1) * c]) for a in range(self.size))

    def _cross(self, columns: Sequence[Group]) -> tuple[Grouping, ...]:
        """Client (a, b) is in group (b + r·a) mod c of grouping r."""
        c = len(columns[0])
        return tuple(
            tuple(tuple(sorted(column[(k - r * a) % c] for a, column in enumerate(columns))) for k in range(c))
            for r in range(self.groupings)
        )

    def _units(
        self, roster: Sequence[ClientId], training_seed: bytes, round: int, sample: int | None = None
    ) -> tuple[Group, ...]:
        """The clients that take part, one by one or in atoms. Atoms are drawn without the round: they never change."""
        roster = check_roster(roster)
        units = self.all_atoms(roster, training_seed) if self.atom else _cut(roster, 1)
        return self._lot(units, len(roster), training_seed, _WHOLE_TRAINING if self.name == "fixed" else round, sample)

    def _lot(
        self, units: Sequence[Group], clients: int, training_seed: bytes, when: int | None, sample: int | None
    ) -> tuple[Group, ...]:
        clients = clients if sample is None else min(whole("sample", sample, 0), clients)
        wanted = self.groups(clients) * self.size // (self.atom or 1)
        return tuple(sorted(shuffled(units, training_seed, when, b"lot")[:wanted]))

    def sampled_atoms(
        self, atoms: Sequence[Group], training_seed: bytes, round: int, sample: int | None = None
    ) -> tuple[Group, ...]:
        """The atoms that take part in a round, of atoms that were drawn before."""
        atoms = _groups("atoms", atoms)
        return self._lot(atoms, len(atoms) * self.atom, training_seed, round, sample)

    def regrouped(self, atoms: Sequence[Group], training_seed: bytes, round: int) -> tuple[Grouping, ...]:
        """The groupings of a round, of atoms that were drawn before."""
        return self._regroup(_groups("atoms", atoms), training_seed, round)

    def sampled(
        self, groupings: Sequence[Grouping], training_seed: bytes, round: int, sample: int
    ) -> tuple[Grouping, ...]:
        """The groups of at most `sample` clients. Groups that share a client, directly or not, are drawn together."""
        parts = components(groupings)
        groupings = tuple(_groups("groupings", grouping) for grouping in groupings)
        left, chosen = whole("sample", sample, 0), set[ClientId]()
        for part in shuffled(parts, training_seed, round, b"sample"):
            if len(part) <= left:
                left -= len(part)
                chosen.update(part)
        return tuple(tuple(group for group in grouping if group[0] in chosen) for grouping in groupings)

    def all_atoms(self, roster: Sequence[ClientId], training_seed: bytes) -> tuple[Group, ...]:
        """The atoms of the whole training, also those that no round has drawn yet."""
        if not self.atom:
            raise UsageError(f"the schedule {self.name!r} has no atoms; use 'atoms'")
        order = shuffled(check_roster(roster), training_seed, _WHOLE_TRAINING, b"atoms")
        return _cut(order[: len(order) // self.atom * self.atom], self.atom)


def check_roster(roster: Sequence[ClientId]) -> Group:
    """The ids of a roster; refuse one that has more than one possible order or an id that is out of range."""
    found = ids("roster", roster)
    for a, b in pairwise(found):
        if a >= b:
            raise UsageError(f"roster ids must be strictly ascending, but {b} follows {a}; sort the members by id")
    return found


def keep_whole_atoms(atoms: Sequence[Group], survivors: Collection[ClientId], least: int) -> frozenset[ClientId]:
    """The survivors without the atoms that have fewer than `least` survivors: these leave the run whole.

    The sum of a group with such an atom would have to stay closed. Without the atom it can be opened.

    >>> sorted(keep_whole_atoms([(0, 1, 2), (3, 4, 5)], {0, 1, 2, 5}, 2))
    [0, 1, 2]
    """
    alive, least = frozenset(ids("survivors", survivors)), whole("least", least, 0)
    remaining = [alive.intersection(ids("atoms, each atom", atom)) for atom in each("atoms", atoms, object)]
    return alive.difference(*(atom for atom in remaining if len(atom) < least))


def hash_parts(*parts: bytes) -> bytes:
    """SHA-256 of the parts, each preceded by its length, so no two different lists hash the same bytes."""
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def uniform(key: bytes) -> Iterator[int]:
    """An endless stream of 64-bit words from SHA-256 in counter mode."""
    for counter in count():
        yield from struct.unpack(">4Q", hashlib.sha256(key + counter.to_bytes(8, "big")).digest())


def below(bound: int, words: Iterator[int]) -> int:
    """An unbiased number in [0, bound), by rejection sampling."""
    limit = 2**64 - 2**64 % bound
    return next(word for word in words if word < limit) % bound


def shuffled(
    items: Sequence[Item], training_seed: bytes, round: int | None, purpose: bytes, index: int = 0
) -> list[Item]:
    """The items in an order drawn from H(training seed, round, purpose, index), by Fisher and Yates.

    `round=None` draws once for the whole training.

    >>> shuffled("abcd", bytes(32), 0, b"example")
    ['c', 'b', 'a', 'd']
    """
    if len(raw("training_seed", training_seed)) < MIN_SEED_BYTES:
        raise UsageError(f"a training seed of {len(training_seed)} bytes is too short; use 32")
    when = 0 if round is None else whole("round", round, 0, MOST_ROUND) + 1
    numbers = (when.to_bytes(8, "big"), whole("index", index, 0, MOST_ROUND).to_bytes(8, "big"))
    words = uniform(hash_parts(labels.SCHEDULE, raw("purpose", purpose), *numbers, training_seed))
    if not isinstance(items, Iterable):
        raise UsageError(f"items: expected a sequence, got {type(items).__name__}")
    order = list(items)
    for last in range(len(order) - 1, 0, -1):
        other = below(last + 1, words)
        order[last], order[other] = order[other], order[last]
    return order


def components(groupings: Sequence[Grouping]) -> tuple[Group, ...]:
    """The clients, divided so that clients of one group are together: the smallest such sets, in order.

    >>> components([((0, 1), (2, 3), (4, 5)), ((0, 2), (1, 3), (4, 5))])
    ((0, 1, 2, 3), (4, 5))
    """
    above: dict[ClientId, ClientId] = {}

    def top(client: ClientId) -> ClientId:
        while above.setdefault(client, client) != client:
            above[client] = above[above[client]]
            client = above[client]
        return client

    for group in chain.from_iterable(_groups("groupings", one) for one in each("groupings", groupings, object)):
        for client in group:
            above[top(client)] = top(group[0])
    parts: dict[ClientId, list[ClientId]] = {}
    for client in sorted(above):
        parts.setdefault(top(client), []).append(client)
    return tuple(sorted(map(tuple, parts.values())))


def _groups(name: str, groups: Any) -> tuple[Group, ...]:
    """Groups of clients, each with one at least."""
    found = tuple(ids(name, group) for group in each(name, groups, object))
    if not all(found):
        raise UsageError(f"{name}: expected groups with clients, got an empty one")
    return found


def _cut(order: Sequence[ClientId], size: int) -> Grouping:
    return tuple(tuple(sorted(order[start : start + size])) for start in range(0, len(order), size))
