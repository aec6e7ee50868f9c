"""Anonymity T: computed, proved by a schedule, or read off a graph, it is the truth or a bound on it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.exposure import anonymity
from secagg.exposure.anonymity import atom_bound, bounds, decidable, dependent, transversal_bound, transversal_guarantee
from secagg.exposure.rowspace import Field, RowSpace
from secagg.exposure.schedules import Schedule
from tests.secagg import rational

FIELD = Field.drawn_from(b"a test")
SEED = bytes(range(32))


def span(n: int, rows, depth: int = anonymity.REPORT_DEPTH) -> RowSpace:
    space = RowSpace(n, FIELD, depth=depth)
    for row in rows:
        space.add(row)
    return space


@st.composite
def groupings(draw: st.DrawFn, least: int = 1, most: int = 4) -> tuple[int, dict[tuple[int, int], tuple[int, ...]]]:
    """Rows of a few partitions of up to 9 columns, some of them closed."""
    n = draw(st.integers(2, 9))
    rows = {}
    for g in range(draw(st.integers(least, most))):
        labels = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
        for k in set(labels):
            rows[g, k] = tuple(i for i in range(n) if labels[i] == k)
    kept = draw(st.sets(st.sampled_from(sorted(rows)), min_size=1))
    return n, {row: rows[row] for row in sorted(kept)}


@settings(deadline=None, max_examples=300)
@given(groupings())
def test_bounds_hold_the_truth_and_meet_up_to_seven(case):
    n, rows = case
    lower, upper = bounds(span(n, rows.values()), rows)
    truth = rational.lightest(rows.values(), range(n))
    assert lower <= truth <= upper
    if truth <= 7:
        assert lower == truth == upper


@settings(deadline=None, max_examples=300)
@given(groupings(), st.integers(2, 7))
def test_dependent_columns_exist_exactly_if_a_smaller_combination_is_known(case, t):
    n, rows = case
    space = span(n, rows.values())
    found = dependent(space, space.null, t)
    truth = rational.lightest(rows.values(), range(n))
    assert bool(found) == (truth < t)
    if found:  # and they are the clients of a combination that the server can compute
        outside = [i for i in range(n) if i not in found]
        assert rational.rank(rows.values(), outside) < rational.rank(rows.values(), range(n))


@settings(deadline=None, max_examples=300)
@given(groupings(most=2))
def test_anonymity_of_two_groupings_is_the_edge_connectivity_of_their_graph(case):
    _, rows = case
    for columns, part in anonymity._components(rows):
        assert anonymity.by_minimum_cut(part, sorted(columns)) == rational.lightest(part.values(), sorted(columns))


def test_three_groupings_have_no_graph():
    rows = {(g, 0): (0, 1, 2) for g in range(3)}
    assert anonymity.by_minimum_cut(rows, (0, 1, 2)) is None


def test_without_dropouts_two_equal_groupings_expose_nobody():
    for first in [next(iter(rational.partitions(range(6), size))) for size in (2, 3)]:
        for second in rational.partitions(range(6), len(first[0])):
            assert not rational.exposed([*first, *second], range(6))


DESIGNS = [(m, c, R) for m in range(2, 8) for c in range(2, 13) if m * c <= 30 for R in range(1, min(m, c) + 1)]


@pytest.mark.parametrize(("m", "c", "R"), DESIGNS)
def test_transversal_keeps_its_guarantee(m, c, R, monkeypatch):
    monkeypatch.setattr(anonymity, "REPORT_BUDGET", 10**7)
    draw = Schedule(name="transversal", size=m, groupings=R).draw(range(m * c), SEED, 0)
    rows = {(g, k): group for g, grouping in enumerate(draw) for k, group in enumerate(grouping)}
    lower, upper = bounds(span(m * c, rows.values()), rows)
    guarantee = transversal_guarantee(m, c, R)
    assert 2 <= guarantee <= upper
    assert guarantee <= lower or lower != upper
    if min(d for d in range(2, c + 1) if c % d == 0) >= m:
        assert guarantee == min(m, 2 * (m - R + 1)) == lower == upper


def test_a_small_prime_factor_breaks_the_simple_bound_but_not_the_general_one():
    draw = Schedule(name="transversal", size=5, groupings=3).draw(range(30), SEED, 0)
    rows = {(g, k): group for g, grouping in enumerate(draw) for k, group in enumerate(grouping)}
    assert min(5, 2 * (5 - 3 + 1)) == 5
    assert bounds(span(30, rows.values()), rows) == (4, 4)
    assert transversal_guarantee(5, 6, 3) == 4


def test_the_guarantee_of_transversal_covers_only_its_own_groups():
    schedule = Schedule(name="transversal", size=5, groupings=3)
    draw, columns = schedule.draw(range(36), SEED, 1), schedule.columns(range(36), SEED, 1)
    assert transversal_bound(draw, columns, 0) == 5
    assert transversal_bound(draw, columns, 2) == 3
    assert transversal_bound(draw, columns, 9) == 0
    assert transversal_bound(draw[::-1], columns, 0) == 0
    assert transversal_bound(draw, columns[::-1], 0) == 0
    assert transversal_bound(draw, columns[:-1], 0) == 0
    assert transversal_bound(draw, [*columns[:-1], columns[0]], 0) == 0
    assert transversal_bound(draw, [*columns[:-1], columns[-1][:-1]], 0) == 0
    a, b, *others = draw[2]
    swapped = ((a[0], *b[1:]), (b[0], *a[1:]), *others)
    assert transversal_bound((*draw[:2], swapped), columns, 0) == 0
    assert transversal_guarantee(3, 7, 4) == transversal_guarantee(5, 3, 4) == 0


@settings(deadline=None, max_examples=100)
@given(st.sets(st.integers(0, 34), max_size=3))
def test_each_dropout_lowers_the_guarantee_by_at_most_one(dropouts):
    draw = Schedule(name="transversal", size=5, groupings=3).draw(range(35), SEED, 0)
    column = {client: at for at, client in enumerate(sorted(set(range(35)) - dropouts))}
    rows = {
        (g, k): tuple(column[client] for client in group if client not in dropouts)
        for g, grouping in enumerate(draw)
        for k, group in enumerate(grouping)
    }
    lower, _ = bounds(span(len(column), rows.values()), rows)
    assert lower >= 5 - len(dropouts)


def test_an_atom_bound_is_the_smallest_surviving_atom_of_a_group_of_whole_atoms():
    atoms = [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    assert atom_bound((0, 1, 2, 3, 4, 5), atoms, ()) == 3
    assert atom_bound((0, 1, 2, 4, 5), atoms, {3}) == 2
    assert atom_bound((0, 1, 2), atoms, {3, 4, 5}) == 3
    assert atom_bound((0, 1, 2, 4, 5), atoms, ()) == 0  # client 3 is alive and elsewhere
    assert atom_bound((0, 1, 2, 9), atoms, ()) == 0
    assert atom_bound((), atoms, ()) == 0


@settings(deadline=None, max_examples=40)
@given(st.sets(st.integers(0, 11), max_size=7), st.integers(0, 50))
def test_atoms_keep_their_guarantee_under_any_dropouts(dropouts, round):
    schedule = Schedule(name="atoms", size=6, groupings=3, atom=3)
    atoms = schedule.atoms(range(12), SEED, round)
    draw = schedule.draw(range(12), SEED, round)
    rows = [tuple(i for i in group if i not in dropouts) for grouping in draw for group in grouping]
    rows = [row for row in rows if row]
    columns = sorted(set(range(12)) - dropouts)
    guarantee = min((atom_bound(row, atoms, dropouts) for row in rows), default=0)
    left = [len(set(atom) - dropouts) for atom in atoms if set(atom) - dropouts]
    assert guarantee == min(left, default=0)
    if rows:
        assert rational.lightest(rows, columns, most=3) >= guarantee


def test_the_cost_of_an_exact_answer_decides_whether_there_is_one():
    assert decidable(1000, 4)
    assert decidable(60, 6)
    assert not decidable(1000, 6)
    assert decidable(anonymity.DECISION_DEPTH, anonymity.DECISION_DEPTH)
    assert not any(decidable(n, t) for t in range(anonymity.DECISION_DEPTH + 2, 200) for n in range(t, 400))
