"""What anonymity is computed exactly, what within a budget, and which clients a decision names."""

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secagg.exposure import Policy, anonymity, audit
from secagg.exposure.anonymity import (
    atom_bound,
    bounds,
    decidable,
    dependent,
    steps,
    transversal_bound,
    transversal_guarantee,
)
from secagg.exposure.audit import Anonymity
from secagg.exposure.rowspace import Field, RowSpace
from tests.secagg import rational

FIELD = Field.drawn_from(b"a test")


def span(n: int, rows: Any, depth: int = 6) -> RowSpace:
    space = RowSpace(n, FIELD, depth=depth)
    for row in rows:
        space.add(row)
    return space


def test_the_steps_of_a_decision() -> None:
    """All sets of t - 3 columns, each against all columns, with t - 1 products for each pair."""
    assert [steps(10, t) for t in (1, 2, 3, 4, 5, 6)] == [10, 10, 20, 300, 1800, 6000]


def test_what_is_decided_exactly() -> None:
    assert decidable(10**6, 4)
    assert not decidable(10**6, 5)
    assert decidable(368, 5)  # 99,401,216 products
    assert not decidable(369, 5)  # 100,214,496


def test_a_decision_may_use_the_whole_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anonymity, "DECISION_BUDGET", steps(50, 5))
    assert decidable(50, 5)
    monkeypatch.setattr(anonymity, "DECISION_BUDGET", steps(50, 5) - 1)
    assert not decidable(50, 5)


def asked(monkeypatch: pytest.MonkeyPatch, n: int, depth: int = 6) -> tuple[list[int], tuple[int, int]]:
    """Which t a report computes for three groupings of n columns, and its bounds if it finds nothing."""
    found: list[int] = []
    space: Any = SimpleNamespace(null=np.zeros((depth, n), np.uint64), lightest=lambda columns: n)

    def nothing(space: Any, null: Any, t: int) -> tuple[int, ...]:
        assert null.shape == (depth, n)
        found.append(t)
        return ()

    monkeypatch.setattr(anonymity, "dependent", nothing)
    return found, bounds(space, {(g, 0): tuple(range(n)) for g in range(3)})


def test_a_report_computes_what_takes_five_million_products_and_always_up_to_four(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert asked(monkeypatch, 136) == ([2, 3, 4, 5], (5, 136))  # 4,993,920 products for t = 5
    assert asked(monkeypatch, 137) == ([2, 3, 4], (4, 137))  # 5,105,168
    assert asked(monkeypatch, 1300) == ([2, 3, 4], (4, 1300))  # 5,070,000 for t = 4
    assert asked(monkeypatch, 20) == ([2, 3, 4, 5, 6, 7], (7, 20))
    assert asked(monkeypatch, 5) == ([2, 3, 4, 5], (5, 5))


def test_a_report_ends_at_the_first_t_that_is_too_expensive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones are cheap again: there are few sets of nearly all columns."""
    monkeypatch.setattr(anonymity, "REPORT_BUDGET", steps(12, 12))
    assert steps(12, 6) < steps(12, 12) < steps(12, 7)
    assert asked(monkeypatch, 12, depth=12) == ([2, 3, 4, 5, 6], (6, 12))
    monkeypatch.setattr(anonymity, "REPORT_BUDGET", steps(12, 6))
    assert asked(monkeypatch, 12, depth=12) == ([2, 3, 4, 5, 6], (6, 12))
    monkeypatch.setattr(anonymity, "REPORT_BUDGET", steps(12, 6) - 1)
    assert asked(monkeypatch, 12, depth=12) == ([2, 3, 4, 5], (5, 12))


@pytest.mark.parametrize(
    ("clients", "expected"),
    [(1, (1, 1)), (2, (2, 2)), (6, (6, 6)), (7, (7, 7)), (8, (7, 8)), (12, (7, 12))],
)
def test_a_report_about_three_groupings_is_exact_up_to_seven(clients: int, expected: tuple[int, int]) -> None:
    groupings = [(tuple(range(clients)),)] * 3
    policy = Policy(mode="report-even-if-exposed")
    found = audit(groupings, range(clients), policy, plan_hash=b"").anonymity
    assert found == Anonymity(*expected, "computed")


def test_nothing_is_dependent_among_no_columns_and_for_t_of_one() -> None:
    space = span(4, [(0, 1, 2, 3)])
    for t in (0, 1):
        assert dependent(space, space.null, t) == ()
    for t in range(2, 7):
        assert dependent(space, space.null[:, :0], t) == ()


def test_the_first_exposed_client_is_named() -> None:
    space = span(5, [(1,), (3,), (0, 2, 4)])
    for t in range(2, 6):
        assert dependent(space, space.null, t) == (1,)


@pytest.mark.parametrize("pair", [(0, 1), (2, 5), (4, 5)])
def test_the_clients_of_the_smallest_combination_are_named(pair: tuple[int, int]) -> None:
    rest = tuple(i for i in range(6) if i not in pair)
    space = span(6, [pair, rest])
    assert dependent(space, space.null, 2) == ()
    assert dependent(space, space.null, 3) == pair
    found = dependent(space, space.null, 4)  # perhaps with another
    assert set(pair) <= set(found)
    assert len(found) < 4


def test_a_combination_of_t_clients_is_allowed() -> None:
    space = span(9, [(0, 1, 2), (3, 4, 5, 6, 7, 8)])
    assert dependent(space, space.null, 3) == ()
    assert dependent(space, space.null, 4) == (0, 1, 2)


@pytest.mark.parametrize(
    ("row", "atoms", "missing", "bound"),
    [
        ((0, 1, 2, 3), [(0, 1), (2, 3), (4, 5)], (), 2),
        ((0, 1, 2), [(0, 1), (2, 3), (4, 5)], (3,), 1),
        ((0, 1, 2, 3, 4), [(0, 1), (2, 3, 4)], (), 2),
        ((0, 1, 2, 3), [(0, 1), (2, 5)], (), 0),  # as many clients as two atoms have, but others
        ((0, 1, 2, 3), [(0, 1), (1, 2), (3,)], (), 0),  # atoms overlap
        ((0, 1, 2), [(0, 1), (2, 3)], (), 0),  # half an atom
        ((0, 1), [(2, 3)], (), 0),
        ((), [(2, 3)], (), 0),
        ((0, 1), [], (), 0),
    ],
)
def test_only_a_row_of_whole_atoms_has_the_bound_of_its_smallest(
    row: Any, atoms: Any, missing: Any, bound: int
) -> None:
    assert atom_bound(row, atoms, missing) == bound


# --- the schedule's own proof ------------------------------------------------------------------------------------


def test_the_guarantee_of_crossing_groups() -> None:
    """min(m, 2(m - R + 1)) if the number of groups has no prime factor below m, and none for impossible designs."""
    for m in range(2, 8):
        for c in (7, 11, 49, 77):
            for groupings in range(1, m + 1):
                assert transversal_guarantee(m, c, groupings) == min(m, 2 * (m - groupings + 1))
    for m, c, groupings in ((3, 5, 0), (4, 2, 0), (3, 5, 4), (5, 3, 4), (3, 5, -1)):
        assert transversal_guarantee(m, c, groupings) == 0


@pytest.mark.parametrize(
    ("m", "c", "groupings"),
    [(m, c, r) for m in range(2, 8) for c in (2, 4, 6, 8, 12) for r in range(1, min(m, c) + 1)],
)
def test_the_guarantee_with_small_prime_factors(m: int, c: int, groupings: int) -> None:
    """By hand from the proof: the classes in which an order d vanishes, and the period that the orders share."""
    nonzero = {}
    for d in (d for d in range(2, c + 1) if c % d == 0):
        residues = sorted((sum(a % d == residue for a in range(m)) for residue in range(d)), reverse=True)
        nonzero[d] = m - sum(residues[: min(groupings, d) - 1])
    least = [m]
    for most in nonzero.values():
        orders = [d for d in nonzero if nonzero[d] <= most]
        period = next(p for p in range(1, c + 1) if all(p % d == 0 for d in orders))
        least.append(2 * (c // period) * most)
    assert transversal_guarantee(m, c, groupings) == min(least)


def crossed(columns: Any, groupings: int) -> list[Any]:
    """Client (a, b) is in group b + r·a of grouping r."""
    c, found = len(columns[0]), []
    for r in range(groupings):
        groups: list[set[int]] = [set() for _ in range(c)]
        for a, column in enumerate(columns):
            for b, client in enumerate(column):
                groups[(b + r * a) % c].add(client)
        found.append(tuple(tuple(sorted(group)) for group in groups))
    return found


def test_the_bound_of_crossing_groups_falls_with_every_missing_client() -> None:
    columns = [tuple(range(5 * a, 5 * a + 5)) for a in range(4)]
    rows = crossed(columns, 3)
    assert [transversal_bound(rows, columns, missing) for missing in (0, 1, 3, 4, 5, 9)] == [4, 3, 1, 0, 0, 0]
    assert transversal_bound(rows[:1], columns, 0) == 4
    assert transversal_bound([rows[1]], columns, 0) == 0  # not in its place
    assert transversal_bound([rows[0], rows[2]], columns, 0) == 0
    assert transversal_bound([((0, 1, 2),)], [(0, 1, 2)], 0) == 0
    assert transversal_bound([((0,), (1,), (2,))], [(0, 1, 2)], 0) == 1  # a single class: every group is a client


@pytest.mark.parametrize(
    "columns", [[(0, 1), (0, 2)], [(0, 1), (2,), (3, 4, 5)], [(0, 1), (2, 3, 4)], [(0, 1, 5), (2,)]]
)
def test_columns_with_a_client_twice_or_of_different_lengths_prove_nothing(columns: Any) -> None:
    groups = tuple(tuple(sorted({column[k] for column in columns if k < len(column)})) for k in range(len(columns[0])))
    assert transversal_bound([groups], columns, 0) == 0


# --- minimum cuts ------------------------------------------------------------------------------------------------


def lightest_cut(edges: Any) -> int:
    """The weight of the lightest cut, by trying all of them."""
    vertices = range(len(edges))
    sides = [side for size in range(1, len(edges)) for side in combinations(vertices, size)]
    return min(int(sum(edges[u, v] for u in side for v in vertices if v not in side)) for side in sides)


def groups_of(edges: Any, half: int) -> dict[tuple[int, int], tuple[int, ...]]:
    """Two groupings with this graph: vertex 0 is the ground, the next ones are groups of the first grouping.

    Every client is an edge, from its group in the first grouping to its group in the second.
    """
    rows: dict[tuple[int, int], list[int]] = {}
    clients = 0
    for u, v in combinations(range(len(edges)), 2):
        for _ in range(int(edges[u, v])):
            for vertex in (u, v):
                if vertex:
                    rows.setdefault((0 if vertex <= half else 1, vertex), []).append(clients)
            clients += 1
    return {row: tuple(members) for row, members in rows.items()}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("grounded", [False, True])
def test_two_clusters_of_groups_have_the_lightest_cut_that_trying_all_finds(seed: int, grounded: bool) -> None:
    """Groups of one cluster share many clients, and groups of the two clusters few: no single group is the least."""
    rng = np.random.default_rng(seed)
    half = int(rng.integers(2, 5))
    edges = np.zeros((2 * half + 1, 2 * half + 1), np.int64)
    cluster = rng.permutation(np.arange(2 * half + 1) % 2)
    cluster[[1, half + 1]], cluster[[2, half + 2]] = 0, 1
    inside = int(rng.choice([3, 40]))
    for u in range(1, half + 1):
        for v in range(half + 1, 2 * half + 1):
            close = cluster[u] == cluster[v]
            edges[u, v] = rng.integers(1, inside + 1) if close else rng.random() < 0.3
    edges[1, half + 2] = 1  # connected
    if grounded:
        edges[0, 1:] = rng.integers(0, 3, 2 * half)
        edges[0, 1] += 1
    edges += edges.T
    rows = groups_of(edges, half)
    columns = sorted({client for members in rows.values() for client in members})
    expected = lightest_cut(edges if grounded else edges[1:, 1:])
    assert anonymity.by_minimum_cut(rows, columns) == expected


@pytest.mark.parametrize("seed", range(30))
def test_anonymity_of_two_groupings_is_that_of_the_lightest_known_combination(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    rows = {}
    for g in range(int(rng.integers(1, 3))):
        labels = rng.integers(0, 3, n)
        for k in sorted(set(labels.tolist())):
            if rng.random() < 0.8:
                rows[g + 3, k] = tuple(np.flatnonzero(labels == k).tolist())
    for columns, part in anonymity._components(rows):
        found = anonymity.by_minimum_cut(part, sorted(columns))
        assert found == rational.lightest(part.values(), sorted(columns))


def test_only_rows_of_one_or_two_groupings_have_a_graph() -> None:
    assert anonymity.by_minimum_cut({}, []) is None
    assert anonymity.by_minimum_cut({(0, 0): (0, 1, 2)}, [0, 1, 2]) == 3
    assert anonymity.by_minimum_cut({(0, 0): (0, 1, 2)}, [0, 1, 2, 3]) == 3  # 3 is in no opened group
    assert anonymity.by_minimum_cut({(0, 0): tuple(range(500))}, range(500)) == 500
    assert anonymity.by_minimum_cut({(4, 0): (0, 1, 2), (7, 0): (0, 1, 2)}, [0, 1, 2]) == 3
    assert anonymity.by_minimum_cut({(g, 0): (0, 1, 2) for g in range(3)}, [0, 1, 2]) is None
