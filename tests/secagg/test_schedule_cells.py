"""Cells and samples of a schedule, drawn a second time from the words of SHA-256, and the limits of its arguments."""

import hashlib
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from secagg import labels
from secagg.errors import UsageError
from secagg.exposure.schedules import Drawn, Schedule, below, components, keep_whole_atoms, shuffled

SEED = bytes(range(32))
Units = list[tuple[int, ...]]


def words(round: int | None, purpose: bytes, index: int) -> Iterator[int]:
    numbers = [0 if round is None else round + 1, index]
    parts = [labels.SCHEDULE, purpose, *(number.to_bytes(8, "big") for number in numbers), SEED]
    key = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
    for counter in range(10**6):
        block = hashlib.sha256(key + counter.to_bytes(8, "big")).digest()
        yield from (int.from_bytes(block[at : at + 8], "big") for at in (0, 8, 16, 24))


def order(items: Any, round: int | None, purpose: bytes, index: int = 0) -> list[Any]:
    """Fisher and Yates from the last place down. With so few items no word is rejected."""
    items, source = list(items), words(round, purpose, index)
    for last in reversed(range(1, len(items))):
        other = next(source) % (last + 1)
        items[last], items[other] = items[other], items[last]
    return items


def pieces(items: list[int], size: int) -> Units:
    return [tuple(sorted(items[at : at + size])) for at in range(0, len(items), size)]


def groupings(schedule: Schedule, units: Units, round: int | None, cell: int) -> tuple[Any, ...]:
    """Every unit moves as a whole. The cell stands in the upper half of the number of a draw."""
    drawn = [order(units, round, b"grouping", cell * 2**32 + r) for r in range(schedule.groupings)]
    return tuple(tuple(pieces(list(chain(*one)), schedule.size)) for one in drawn)


def crossing(schedule: Schedule, clients: list[int], round: int, cell: int) -> Drawn:
    """Client (a, b) is in group b + r·a of grouping r."""
    c = len(clients) // schedule.size
    shuffled_clients = order(clients, round, b"transversal", cell)
    columns = tuple(tuple(shuffled_clients[a * c : a * c + c]) for a in range(schedule.size))
    result = []
    for r in range(schedule.groupings):
        groups: list[list[int]] = [[] for _ in range(c)]
        for a, column in enumerate(columns):
            for b, client in enumerate(column):
                groups[(b + r * a) % c].append(client)
        result.append(tuple(tuple(sorted(group)) for group in groups))
    return Drawn(tuple(result), (), columns)


def lot(schedule: Schedule, units: Units, clients: int, round: int | None) -> Units:
    seated = clients // schedule.size * schedule.size // max(1, schedule.atom)
    return sorted(order(units, round, b"lot")[:seated])


def expected(schedule: Schedule, n: int, round: int, sizes: tuple[int, ...], sample: int | None) -> list[Drawn]:
    """What the documentation says about cells, without the product's code."""
    name, several = schedule.name, len(sizes) > 1
    atoms = pieces(order(range(n), None, b"atoms")[: n // max(1, schedule.atom) * schedule.atom], schedule.atom or 1)
    units = atoms if name == "atoms" else [(client,) for client in range(n)]
    clients = n if sample is None else min(n, sample)
    if name == "fixed":
        units = lot(schedule, units, n, None)
        if sample is not None:  # whole groups; with one grouping nothing connects two of them
            (grouping,) = groupings(schedule, units, None, 0)
            chosen = set(order(sorted(grouping), round, b"sample")[: sample // schedule.size])
            units = [group for group in grouping if group in chosen]
            if not several:
                return [Drawn((tuple(units),))]
    elif not (name == "atoms" and several and sample is None):  # all atoms have a place in some cell for ever
        units = lot(schedule, units, clients, round)
    lasting = name in ("fixed", "atoms") and sample is None
    if several:
        everyone, at, cells = order(units, None if lasting else round, b"cells"), 0, []
        for size in sizes:
            count = size // len(units[0])
            cells.append(sorted(everyone[at : at + count]))
            at += count
    else:
        cells = [units]
    result = []
    for cell, mine in enumerate(cells):
        if name == "transversal":
            result.append(crossing(schedule, list(chain(*mine)), round, cell))
        elif name == "fixed" and sample is not None:
            result.append(Drawn((tuple(mine),)))
        else:
            drawn = groupings(schedule, mine, None if name == "fixed" else round, cell)
            result.append(Drawn(drawn, tuple(mine) if name == "atoms" else ()))
    return result


RANDOM, FIXED = Schedule(name="random", size=3, groupings=2), Schedule(name="fixed", size=3, groupings=2)
ONE_FIXED, CROSSED = Schedule(name="fixed", size=4), Schedule(name="transversal", size=3, groupings=3)
ATOMS = Schedule(name="atoms", size=4, groupings=3, atom=2)


@pytest.mark.parametrize(
    ("schedule", "n", "sizes", "sample"),
    [
        (RANDOM, 20, (9, 6, 3), None),
        (RANDOM, 20, (6, 6), 13),
        (RANDOM, 20, (18,), None),
        (RANDOM, 20, (9,), 10),
        (FIXED, 20, (9, 9), None),
        (ONE_FIXED, 26, (8, 8), 18),
        (ONE_FIXED, 26, (16,), 18),
        (ONE_FIXED, 8, (4, 4), 4),  # the sample fills only the first cell
        (CROSSED, 40, (18, 12, 9), None),
        (CROSSED, 40, (9, 9), 20),
        (CROSSED, 40, (39,), None),
        (ATOMS, 23, (12, 8), None),
        (ATOMS, 23, (8, 4), 15),
        (ATOMS, 23, (20,), None),
        (ATOMS, 23, (12,), 15),
    ],
)
@pytest.mark.parametrize("round", [0, 5])
def test_cells_are_what_a_second_implementation_draws(schedule, n, sizes, sample, round):
    cells = schedule.draw_cells(range(n), SEED, round, sizes, sample)
    assert list(cells) == expected(schedule, n, round, sizes, sample)


@pytest.mark.parametrize(
    ("schedule", "sample", "lasting"),
    [(RANDOM, None, False), (FIXED, None, True), (CROSSED, None, False), (ATOMS, None, True), (ATOMS, 12, False),
     (FIXED, 12, False), (RANDOM, 12, False)],
)  # fmt: skip
def test_cells_last_for_fixed_groups_and_for_atoms_without_a_sample(schedule, sample, lasting):
    assert schedule.lasting(sample) is lasting


def test_connected_fixed_groups_cannot_be_sampled_into_cells():
    with pytest.raises(UsageError, match=r"^2 fixed groupings connect the clients, so a sample cannot be divided"):
        FIXED.draw_cells(range(24), SEED, 0, (6, 6), 12)


@pytest.mark.parametrize("round", range(6))
def test_atoms_drawn_before_give_the_same_round(round):
    atoms = ATOMS.all_atoms(range(23), SEED)
    assert ATOMS.sampled_atoms(atoms, SEED, round) == ATOMS.atoms(range(23), SEED, round)
    chosen = ATOMS.sampled_atoms(atoms, SEED, round, 15)
    assert chosen == ATOMS.atoms(range(23), SEED, round, 15)
    assert len(chosen) == 6
    assert ATOMS.regrouped(chosen, SEED, round) == ATOMS.draw(range(23), SEED, round, 15)


def test_a_sample_takes_connected_groups_in_a_random_order_while_they_fit():
    grouping = ((0, 1, 2), (3, 4), (5,), (6, 7, 8, 9))
    for round in range(10):
        for sample in range(11):
            left, chosen = sample, set()
            for part in order(sorted(grouping), round, b"sample"):
                if len(part) <= left:
                    left -= len(part)
                    chosen.add(part)
            sampled = ONE_FIXED.sampled([grouping, grouping], SEED, round, sample)
            assert sampled == (tuple(group for group in grouping if group in chosen),) * 2


def test_components_are_the_classes_of_clients_that_groups_connect():
    """A path of pairs in the worst order, a group of one, and two groups that a third joins."""
    pairs = [((client, client + 1),) for client in (*range(0, 20, 2), *range(19, 0, -2))]
    assert components(pairs) == (tuple(range(21)),)
    joined = [((7,), (0, 3), (1, 5, 6)), ((3, 6), (2, 4))]
    assert components(joined) == ((0, 1, 3, 5, 6), (2, 4), (7,))


def test_the_clients_of_a_draw_are_those_of_its_first_grouping():
    assert Drawn((((5, 0), (3, 1)), ((0, 1),))).clients == (0, 1, 3, 5)


def test_a_draw_has_no_atoms_and_a_schedule_one_grouping_unless_named():
    assert Schedule(name="random", size=3) == Schedule(name="random", size=3, groupings=1, atom=0)
    assert (Drawn(((),)).atoms, Drawn(((),)).columns) == ((), ())


MOST = 2**32 - 1


def test_the_largest_schedule_and_the_smallest_atom():
    assert Schedule(name="random", size=MOST, groupings=MOST).size == MOST
    assert Schedule(name="atoms", size=2, atom=2).groups(2) == 1  # one grouping may consist of single atoms
    assert Schedule(name="atoms", size=4, groupings=2, atom=2).groups(8) == 2


@pytest.mark.parametrize("name", ["size", "groupings", "atom"])
def test_numbers_of_a_schedule_stay_below_2_to_the_32(name):
    fields = {"name": "atoms", "size": 4, "groupings": 1, "atom": 2, name: 2**32}
    with pytest.raises(UsageError, match=r"^size, groupings and atom: expected less than 2\^32, got Schedule"):
        Schedule(**fields)


@pytest.mark.parametrize("atom", [0, 1])
def test_an_atom_of_one_hides_nobody(atom):
    with pytest.raises(UsageError, match=f"^atom must be at least 2 to hide anybody, not {atom}$"):
        Schedule(name="atoms", size=4, atom=atom)


def test_a_seed_has_16_bytes_at_least():
    assert sorted(shuffled(range(5), bytes(16), 0, b"test")) == [0, 1, 2, 3, 4]
    with pytest.raises(UsageError, match=r"^a training seed of 15 bytes is too short; use 32$"):
        shuffled(range(5), bytes(15), 0, b"test")


def test_the_last_word_that_does_not_bias_a_draw_is_used():
    for bound in (3, 5, 10, 2**63 + 1):
        most = 2**64 // bound * bound  # words below it give every number equally often
        assert below(bound, iter([most - 1, 0])) == bound - 1
        assert below(bound, iter([most, 1])) == 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: RANDOM.groups(0), "^0 clients are too few for one group of 3$"),
        (lambda: RANDOM.groups(-1), "^n, the number of clients: expected a whole number of at least 0, got -1$"),
        (lambda: RANDOM.draw(range(9), SEED, 0, 0), "^0 clients are too few for one group of 3$"),
        (lambda: RANDOM.draw(range(9), SEED, 0, -1), "^sample: expected a whole number of at least 0, got -1$"),
        (lambda: FIXED.draw(range(9), SEED, 0, -1), "^sample: expected a whole number of at least 0, got -1$"),
        (lambda: RANDOM.draw_cells(range(9), SEED, 0, (0,)), "^sizes, each: expected a whole number of at least 1,"),
        (lambda: RANDOM.all_atoms(range(9), SEED), "^the schedule 'random' has no atoms; use 'atoms'$"),
        (lambda: shuffled(range(4), SEED, 0, b"test", -1), "^index: expected a whole number from 0 to"),
        (lambda: shuffled(7, SEED, 0, b"test"), "^items: expected a sequence, got int$"),
        (lambda: keep_whole_atoms([(0, 1)], [0], -1), "^least: expected a whole number of at least 0, got -1$"),
        (lambda: ATOMS.regrouped([(0, 1), ()], SEED, 0), "^atoms: expected groups with clients, got an empty one$"),
        (lambda: components([((0, 1), ())]), "^groupings: expected groups with clients, got an empty one$"),
    ],
)
def test_a_draw_refuses_impossible_numbers(call, says):
    with pytest.raises(UsageError, match=says):
        call()


def test_limits_of_zero_and_one_are_numbers_too():
    assert keep_whole_atoms([(0, 1), (2, 3)], [0], 0) == {0}
    assert FIXED.draw(range(9), SEED, 0, 0) == ((), ())
    assert RANDOM.draw_cells(range(9), SEED, 0, (1,)) == RANDOM.draw_cells(range(9), SEED, 0, (9,))
