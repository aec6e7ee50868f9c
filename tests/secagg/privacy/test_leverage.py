"""Leverage among colluders: exact fractions, and every set of colluders tried."""

import math
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.exposure import Schedule
from secagg.privacy import Kernel, excess, kernel, leverage
from secagg.privacy.leverage import _kernel_projector, component
from secagg.privacy.smoothing import _basis
from secagg.types import Group, Grouping


def exact(groupings: list[Grouping], client: int, colluders: Group) -> float:
    """The definition: the diagonal of the projector on the rows without the colluders' columns."""
    everybody = sorted({v for grouping in groupings for group in grouping for v in group} - set(colluders))
    rows = np.array([[float(v in group) for v in everybody] for grouping in groupings for group in grouping])
    return float((np.linalg.pinv(rows) @ rows)[everybody.index(client), everybody.index(client)])


@st.composite
def several(draw: st.DrawFn) -> tuple[list[Grouping], int]:
    n, count = draw(st.integers(3, 9)), draw(st.integers(1, 4))
    groupings = []
    for _ in range(count):
        order, size = draw(st.permutations(range(n))), draw(st.integers(2, n))
        groupings.append(tuple(tuple(order[a : a + size]) for a in range(0, n, size)))
    return groupings, n


@settings(max_examples=150, deadline=None)
@given(drawn=several(), data=st.data())
def test_the_leverage_is_the_worst_over_all_sets_of_colluders(
    drawn: tuple[list[Grouping], int], data: st.DataObject
) -> None:
    groupings, n = drawn
    client, k = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, 2))
    others = [v for v in range(n) if v != client]
    worst = max(exact(groupings, client, set) for size in range(k + 1) for set in combinations(others, size))
    assert worst - 1e-9 <= leverage(groupings, client, k) <= worst + 1e-6


@settings(deadline=None)
@given(size=st.integers(2, 30), colluders=st.integers(0, 40))
def test_one_group_costs_one_over_its_honest_members(size: int, colluders: int) -> None:
    expected = Fraction(1, size - colluders) if size > colluders else Fraction(1)
    assert leverage([(tuple(range(size)), tuple(range(size, size + 3)))], 0, colluders) == expected


def test_more_than_two_colluders_among_several_groupings_leave_the_own_noise() -> None:
    groupings = Schedule(name="fixed", size=4, groupings=2).draw(range(64), bytes(32), round=0)
    assert leverage(groupings, 0, 2) < 1
    assert leverage(groupings, 0, 3) == 1


def test_the_mean_bounds_no_client() -> None:
    """n = 18, m = 3, R = 2: rank / n is 0.61, and some client has far more."""
    worst = 0.0
    for seed in range(40):
        groupings = Schedule(name="fixed", size=3, groupings=2).draw(range(18), bytes([seed] * 32), round=0)
        worst = max(worst, *(float(leverage(groupings, v, 0)) for v in range(18)))
    assert worst > 0.8


def test_only_the_groups_that_hang_together_count() -> None:
    groupings = [((0, 1), (2, 3), (4, 5, 6)), ((0, 2), (1, 3), (4, 5, 6))]
    assert component(groupings, 0) == (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    assert component(groupings, 5) == (((4, 5, 6),),)
    assert leverage(groupings, 5, 1) == Fraction(1, 2)


@settings(max_examples=60, deadline=None)
@given(drawn=several(), data=st.data())
def test_short_vectors_of_the_kernel_exist_whoever_colludes(
    drawn: tuple[list[Grouping], int], data: st.DataObject
) -> None:
    """As many independent vectors as the lattice has dimensions, zero at the colluders, none longer than promised."""
    groupings, n = drawn
    client, k = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, 2))
    colluders = data.draw(st.sets(st.integers(0, n - 1).filter(lambda v: v != client), max_size=k))
    found = kernel(groupings, client, k)
    assert found is not None
    clients = sorted({v for part in component(groupings, client) for group in part for v in group})
    rows = [[int(v in group) for v in clients] for part in component(groupings, client) for group in part]
    rows += [[int(v == w) for v in clients] for w in colluders if w in clients]
    basis = _basis(rows)
    assert len(basis) <= found.rank
    if basis:  # the shortest independent vectors, by enumeration in a small box
        lattice = np.array(basis)
        box = np.array(np.meshgrid(*[[-1, 0, 1]] * min(len(basis), 7))).reshape(min(len(basis), 7), -1).T
        vectors = box @ lattice[: box.shape[1]]
        vectors = vectors[np.argsort((vectors**2).sum(axis=1))]
        chosen: list[np.ndarray] = []
        for vector in vectors[1:]:
            if np.linalg.matrix_rank(np.array([*chosen, vector])) > len(chosen):
                chosen.append(vector)
            if len(chosen) == box.shape[1]:
                break
        assert max((v**2).sum() for v in chosen) <= max(
            found.square, max((row**2).sum() for row in lattice[7:]) if len(basis) > 7 else 0
        )


def test_colluders_make_the_shortest_vectors_longer() -> None:
    """Three groupings of nine: the only vector that is zero at client 4 has norm sqrt(48), others have sqrt(12)."""
    groupings: list[Grouping] = [
        ((2, 7, 5), (0, 4, 1), (3, 6, 8)), ((2, 8, 4), (3, 0, 5), (7, 1, 6)), ((2, 1, 3), (4, 7, 8), (6, 5, 0))
    ]  # fmt: skip
    free, one = kernel(groupings, 0, 0), kernel(groupings, 0, 1)
    rows = [[int(v in group) for v in range(9)] for grouping in groupings for group in grouping]
    (only,) = _basis([*rows, [int(v == 4) for v in range(9)]])
    assert sum(x * x for x in only) == 48
    assert free is not None
    assert one is not None
    assert free.square < 48 <= one.square


def test_two_groupings_have_cycles_through_all_their_groups() -> None:
    ring: list[Grouping] = [((0, 1), (2, 3), (4, 5)), ((1, 2), (3, 4), (5, 0))]
    assert kernel(ring, 0, 0) == Kernel(5, 6)
    (cycle,) = _basis([[int(v in group) for v in range(6)] for grouping in ring for group in grouping])
    assert sum(x * x for x in cycle) == 6


def test_a_computed_leverage_is_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[Grouping] = [((0, 1), (2, 3)), ((0, 2), (1, 3))]
    assert Fraction(3, 4) + Fraction(1, 10**10) < leverage(pairs, 0, 0) < Fraction(3, 4) + Fraction(1, 10**7)
    monkeypatch.setitem(leverage.__globals__, "_searched", lambda *_: 0.75 - 1e-15)  # a little too low
    assert leverage(pairs, 0, 0) > Fraction(3, 4)


def test_a_computed_leverage_does_not_depend_on_the_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charges are compared: what one machine computes, another one must find again."""
    honest, drawn = _kernel_projector, np.random.default_rng(1)

    def elsewhere(*given: Any) -> Any:
        exact = honest(*given)
        return exact + 1e-14 * drawn.standard_normal(exact.shape)

    every = [Schedule(name="random", size=3, groupings=2).draw(range(9), bytes(32), round=t) for t in range(20)]
    here = [leverage(groupings, v, k) for groupings in every for v in (0, 4) for k in (0, 1)]
    monkeypatch.setitem(leverage.__globals__, "_kernel_projector", elsewhere)
    assert here == [leverage(groupings, v, k) for groupings in every for v in (0, 4) for k in (0, 1)]


def test_what_the_grid_adds_does_not_depend_on_the_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [(Kernel(rank, square), sigma) for rank in (1, 5, 8) for square in (2, 4, 6) for sigma in (2, 3, 5, 40)]
    here = [excess(lattice, sigma, 1000) for lattice, sigma in every]
    for name in ("exp", "log1p"):
        exact = getattr(math, name)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(math, name, lambda x, exact=exact: math.nextafter(exact(x), math.inf))
            assert here == [excess(lattice, sigma, 1000) for lattice, sigma in every]


def test_a_component_too_large_for_elimination_has_no_kernel() -> None:
    groupings = Schedule(name="random", size=10, groupings=3).draw(range(120), bytes(32), round=0)
    assert kernel(groupings, 0, 0) is None


@pytest.mark.parametrize("groupings", [1, 2])
def test_sigma_of_two_and_a_fifth_times_the_longest_vector_is_enough_for_two_million(groupings: int) -> None:
    drawn = Schedule(name="fixed", size=3, groupings=groupings).draw(range(60), bytes(32), round=0)
    found = kernel(drawn, 0, 2)
    assert found is not None
    assert excess(found, int(2.2 * found.square**0.5) + 1, 2_156_490) < 1e-5
