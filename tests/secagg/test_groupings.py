"""Schedules: partitions that everyone can draw and nobody can steer."""

from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import UsageError
from secagg.exposure.schedules import Schedule, below, keep_whole_atoms, shuffled, uniform

SEED = bytes(range(32))


def clients_of(grouping):
    return sorted(client for group in grouping for client in group)


@st.composite
def drawable(draw: st.DrawFn) -> tuple[Schedule, list[int]]:
    """A schedule and a roster that it can be drawn for."""
    name = draw(st.sampled_from(["random", "fixed", "transversal", "atoms"]))
    atom = draw(st.integers(2, 4)) if name == "atoms" else 0
    size = atom * draw(st.integers(2, 4)) if atom else draw(st.integers(2, 9))
    groups = draw(st.integers(2, 9))
    extra = draw(st.integers(0, size - 1))
    most = min(size, groups) if name == "transversal" else 6
    schedule = Schedule(name=name, size=size, groupings=draw(st.integers(1, most)), atom=atom)
    n = size * groups + extra
    ids = draw(st.lists(st.integers(0, 2**32 - 1), min_size=n, max_size=n, unique=True))
    return schedule, sorted(ids)


@settings(deadline=None)
@given(drawable(), st.integers(0, 2**40))
def test_every_grouping_divides_the_same_clients_into_equal_groups(case, round):
    schedule, roster = case
    groupings = schedule.draw(roster, SEED, round)
    seated = clients_of(groupings[0])
    assert len(groupings) == schedule.groupings
    assert len(seated) == schedule.groups(len(roster)) * schedule.size
    assert len(roster) - len(seated) < schedule.size
    for grouping in groupings:
        assert all(len(group) == schedule.size and list(group) == sorted(group) for group in grouping)
        assert clients_of(grouping) == seated


@settings(deadline=None)
@given(drawable(), st.integers(0, 2**40), st.binary(min_size=32, max_size=32))
def test_a_draw_depends_on_the_roster_the_seed_and_the_round_alone(case, round, seed):
    schedule, roster = case
    assert schedule.draw(roster, seed, round) == schedule.draw(tuple(roster), seed, round)


@settings(deadline=None)
@given(drawable(), st.integers(0, 1000))
def test_fewer_groupings_are_the_first_of_more(case, round):
    schedule, roster = case
    first = Schedule(name=schedule.name, size=schedule.size, atom=schedule.atom)
    assert first.draw(roster, SEED, round) == schedule.draw(roster, SEED, round)[:1]


def test_draws_have_not_changed():
    draws = {
        "random": Schedule(name="random", size=3, groupings=2).draw(range(7), SEED, 4),
        "fixed": Schedule(name="fixed", size=3).draw(range(7), SEED, 4),
        "transversal": Schedule(name="transversal", size=2, groupings=2).draw(range(6), SEED, 4),
        "atoms": Schedule(name="atoms", size=4, groupings=2, atom=2).draw(range(9), SEED, 4),
    }
    assert draws == PINNED


PINNED = {
    "random": (((1, 4, 6), (2, 3, 5)), ((1, 4, 6), (2, 3, 5))),
    "fixed": (((3, 4, 6), (1, 2, 5)),),
    "transversal": (((1, 4), (2, 3), (0, 5)), ((1, 5), (3, 4), (0, 2))),
    "atoms": (((2, 4, 5, 8), (0, 3, 6, 7)), ((2, 4, 5, 8), (0, 3, 6, 7))),
}


def test_random_changes_with_the_round_and_the_seed():
    schedule = Schedule(name="random", size=3)
    draws = {schedule.draw(range(30), SEED, round) for round in range(50)}
    assert len(draws) == 50
    assert schedule.draw(range(30), SEED[::-1], 0) not in draws


def test_who_is_left_out_changes_with_the_round():
    schedule = Schedule(name="random", size=3)
    left_out = {
        frozenset(range(31)) - set(clients_of(schedule.draw(range(31), SEED, round)[0])) for round in range(200)
    }
    assert len(left_out) > 25


def test_fixed_is_the_same_in_every_round():
    schedule = Schedule(name="fixed", size=3, groupings=2)
    assert schedule.draw(range(31), SEED, 0) == schedule.draw(range(31), SEED, 7)
    first, second = schedule.draw(range(31), SEED, 0)
    assert first != second


@pytest.mark.parametrize("groupings", [1, 3])
def test_atoms_stay_together_in_every_grouping_of_every_round(groupings):
    schedule = Schedule(name="atoms", size=6, groupings=groupings, atom=3)
    together: dict[int, set[tuple[int, ...]]] = {}
    for round in range(40):
        atoms = schedule.atoms(range(40), SEED, round)
        assert {client for atom in atoms for client in atom} == set(
            clients_of(schedule.draw(range(40), SEED, round)[0])
        )
        for atom in atoms:
            assert len(atom) == 3
            for client in atom:
                together.setdefault(client, set()).add(atom)
            for grouping in schedule.draw(range(40), SEED, round):
                assert any(set(atom) <= set(group) for group in grouping)
    assert all(len(atoms) == 1 for atoms in together.values())
    assert len(together) == 39  # 13 atoms over the training, of which each round seats 12; one client fits in none


def test_atoms_meet_different_atoms():
    schedule = Schedule(name="atoms", size=6, groupings=10, atom=3)
    assert len(set(schedule.draw(range(60), SEED, 0))) == 10


@pytest.mark.parametrize(("size", "groups"), [(3, 5), (5, 5), (5, 7), (4, 25)])
def test_transversal_groups_share_at_most_one_client(size, groups):
    schedule = Schedule(name="transversal", size=size, groupings=size)
    groupings = schedule.draw(range(size * groups), SEED, 1)
    for one, other in combinations(groupings, 2):
        assert all(len(set(a) & set(b)) <= 1 for a in one for b in other)


def test_transversal_groups_hold_one_client_of_each_column():
    schedule = Schedule(name="transversal", size=4, groupings=3)
    columns = schedule.columns(range(31), SEED, 2)
    assert len(columns) == 4
    for grouping in schedule.draw(range(31), SEED, 2):
        assert all(len(set(group) & set(column)) == 1 for group in grouping for column in columns)


def test_only_transversal_has_columns_and_only_atoms_has_atoms():
    for schedule in (Schedule(name="random", size=4), Schedule(name="fixed", size=4)):
        assert schedule.columns(range(9), SEED, 0) == schedule.atoms(range(9), SEED, 0) == ()


def test_every_permutation_is_equally_likely():
    """Chi-square with 23 degrees of freedom; 49.7 is its quantile 0.999."""
    counts = dict.fromkeys(permutations(range(4)), 0)
    draws = 4800
    for round in range(draws):
        counts[tuple(shuffled(range(4), SEED, round, b"test"))] += 1
    expected = draws / 24
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 49.7


def test_words_that_would_bias_the_draw_are_rejected():
    assert below(3, iter([2**64 - 1, 5])) == 2  # 2^64 - 1 is one more than the last multiple of 3 allows
    assert below(2**63 + 1, iter([2**64 - 1, 2**63 + 1, 7])) == 7


def test_purposes_and_indices_draw_independently():
    draws = [shuffled(range(20), SEED, 3, purpose, index) for purpose in (b"a", b"b") for index in (0, 1)]
    draws.append(shuffled(range(20), SEED, None, b"a"))
    draws.append(shuffled(range(20), SEED, 0, b"a"))
    assert len({tuple(draw) for draw in draws}) == len(draws)


def test_the_stream_is_sha256_in_counter_mode():
    import hashlib

    words = uniform(b"key")
    stream = b"".join(next(words).to_bytes(8, "big") for _ in range(8))
    assert stream == b"".join(hashlib.sha256(b"key" + bytes(7) + bytes([i])).digest() for i in range(2))


def test_one_group_of_everyone_is_the_flat_sum():
    assert Schedule(name="random", size=5).draw(range(5), SEED, 0) == (((0, 1, 2, 3, 4),),)


def test_an_atom_with_too_few_survivors_leaves_completely():
    atoms = ((0, 1, 2), (3, 4, 5), (6, 7, 8))
    assert keep_whole_atoms(atoms, {0, 1, 2, 3, 5, 8}, 2) == {0, 1, 2, 3, 5}
    assert keep_whole_atoms(atoms, {0, 1, 2, 3, 5, 8}, 3) == {0, 1, 2}
    assert keep_whole_atoms((), {4, 5}, 3) == {4, 5}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "shuffle", "size": 3}, "random, fixed, transversal, atoms"),
        ({"name": "random", "size": 1}, "at least 2"),
        ({"name": "random", "size": 3.0}, "size: expected a whole number"),
        ({"name": "random", "size": True}, "size: expected a whole number"),
        ({"name": "random", "size": 3, "groupings": 0}, "groupings must be at least 1"),
        ({"name": "random", "size": 3, "atom": 3}, "only for the schedule 'atoms'"),
        ({"name": "atoms", "size": 6}, "atom must be at least 2"),
        ({"name": "atoms", "size": 7, "atom": 3}, "must be a multiple of atom 3"),
        ({"name": "atoms", "size": 3, "atom": 3, "groupings": 2}, "raise size to 6"),
        ({"name": "transversal", "size": 3, "groupings": 4}, "lower groupings or raise size"),
    ],
)
def test_invalid_schedules_are_refused(fields, says):
    with pytest.raises(UsageError, match=says):
        Schedule(**fields)


@pytest.mark.parametrize(
    ("fields", "n", "says"),
    [
        ({"name": "random", "size": 3}, 2, "too few for one group"),
        ({"name": "random", "size": 6, "groupings": 2}, 10, "set groupings=1 or lower size to 5"),
        ({"name": "transversal", "size": 12, "groupings": 6}, 60, "set groupings=5 or lower size to 10"),
    ],
)
def test_errors_about_impossible_schedules_suggest_a_possible_one(fields, n, says):
    with pytest.raises(UsageError, match=says):
        Schedule(**fields).check(n)


@pytest.mark.parametrize("roster", [[3, 2, 1], [1, 1, 2], [-1, 0, 1], [0, 1, 2**32], [0, 1, True]])
def test_a_roster_that_is_not_ascending_ids_is_refused(roster):
    with pytest.raises(UsageError):
        Schedule(name="random", size=3).draw(roster, SEED, 0)


@pytest.mark.parametrize(("seed", "round"), [(b"short", 0), (SEED, -1), (SEED, 2**63)])
def test_a_guessable_seed_or_an_impossible_round_is_refused(seed, round):
    with pytest.raises(UsageError):
        Schedule(name="random", size=3).draw(range(9), seed, round)
