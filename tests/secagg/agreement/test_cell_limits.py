"""Cells at their limits: which sizes there are, which are refused, and what is offered instead."""

import re
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from secagg import Schedule, UsageError
from secagg.agreement.cells import cell_sizes, check_cells, colluders_in_cell, even_sizes, threshold_in_cell
from secagg.agreement.thresholds import default_colluders, default_threshold


def grid(size: int, groupings: int = 1) -> Schedule:
    return Schedule(name="transversal", size=size, groupings=groupings)


def test_even_sizes_are_few_and_differ_by_one_at_most() -> None:
    for n in range(1, 25):
        for most in range(1, 27):
            sizes = even_sizes(n, most)
            assert sum(sizes) == n
            assert max(sizes) <= most
            assert (len(sizes) - 1) * most < n  # one cell fewer would not do
            assert all(a - b in (0, 1) for a, b in pairwise(sizes))
            assert sizes[0] - sizes[-1] in (0, 1)


@pytest.mark.parametrize(
    ("n", "most", "schedule", "sizes"),
    [
        (10, 0, Schedule(name="fixed", size=3), (9,)),
        (10, 10, Schedule(name="fixed", size=3), (9,)),
        (11, 11, grid(3), (9,)),  # one cell may leave out whom it must
        (12, 11, Schedule(name="fixed", size=3), (6, 6)),
        (12, 3, Schedule(name="random", size=3), (3, 3, 3, 3)),
        (15, 8, Schedule(name="fixed", size=3), (6, 6, 3)),
        (60, 30, grid(3, 3), (30, 30)),
        (60, 29, grid(3, 3), (15, 15, 15, 15)),  # 60 is no multiple of 27 or 24, and 15 is larger than 12
        (10, 9, grid(3), (9,)),  # a tenth may be left out
        (20, 9, grid(3), (9, 9)),
        (1, 0, Schedule(name="fixed", size=2), None),
    ],
)
def test_cells_have_whole_groups_and_leave_out_few(n: int, most: int, schedule: Schedule, sizes: Any) -> None:
    if sizes is None:
        with pytest.raises(UsageError, match="1 clients are too few for one group of 2"):
            cell_sizes(n, most, schedule)
    else:
        assert cell_sizes(n, most, schedule) == sizes


@pytest.mark.parametrize(
    ("n", "most", "schedule", "says"),
    [
        (0, 3, Schedule(name="fixed", size=2), "n: expected a whole number of at least 1, got 0"),
        (9, -1, Schedule(name="fixed", size=2), "most: expected a whole number of at least 0, got -1"),
        (9, 2, "fixed", "schedule: expected Schedule, got str"),
        (
            9,
            2,
            Schedule(name="fixed", size=3),
            "a cell of 2 clients has no room for a group of 3; raise cell to at least 3",
        ),
        (12, 8, Schedule(name="fixed", size=4, groupings=2), "one group of 4 among 4 clients is the same in all 2"),
        (60, 8, grid(3), "no cell of at most 8 clients fits transversal groups of 3; raise cell"),
        (
            21,
            9,
            grid(3),
            "transversal cells of 9 clients leave out 3 of 21 clients; use 27 clients, another group size or another "
            "cell size",
        ),
        (109, 49, grid(7), "transversal cells of 49 clients leave out 11 of 109 clients; use 147 clients"),
    ],
)
def test_cells_that_do_not_fit_are_refused_in_words(n: int, most: int, schedule: Any, says: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(says)}"):
        cell_sizes(n, most, schedule)


def test_numbers_of_cells_have_limits() -> None:
    for name, numbers in (("n", (0, 1)), ("most", (1, 0))):
        with pytest.raises(UsageError, match=f"^{name}: expected a whole number of at least 1, got 0$"):
            even_sizes(*numbers)
    with pytest.raises(UsageError, match=r"^cell: expected a whole number of at least 1, got 0$"):
        threshold_in_cell(0, 0)
    with pytest.raises(UsageError, match=r"^k: expected a whole number of at least 0, got -1$"):
        threshold_in_cell(3, -1)
    for cell in range(1, 9):
        for k in range(cell + 1):
            t = threshold_in_cell(cell, k)
            assert 2 * t > cell + k >= 2 * (t - 1)
    with pytest.raises(UsageError, match=r"^draws: expected a whole number, got 1.5$"):
        colluders_in_cell(10, 3, 5, 1.5)  # type: ignore[arg-type]


def test_a_probability_of_exactly_two_to_the_minus_forty_is_too_much() -> None:
    """One colluder among 2^40 members is in a random cell of one with probability 2^-40."""
    assert colluders_in_cell(2**40, 1, 1, draws=1) == 1
    assert colluders_in_cell(2**40 + 1, 1, 1, draws=1) == 0
    assert colluders_in_cell(2**40 + 1, 1, 1, draws=2) == 1


def test_where_all_but_a_few_collude_a_cell_surely_has_some() -> None:
    """Nine of ten collude: a cell of five has at least four of them."""
    assert colluders_in_cell(10, 9, 5, 1) == 5
    assert colluders_in_cell(10, 10, 5, 1) == 5
    assert colluders_in_cell(10, 0, 5, 1) == 0
    assert colluders_in_cell(2**45, 2**45 - 1, 3, 1) == 3
    assert colluders_in_cell(4, 3, 4, 1) == 3  # the cell is everybody


@pytest.mark.parametrize(
    ("members", "colluders", "size", "offer"),
    [
        (10, 1, 1, "use cells of at least 2 clients or assume at most 0 colluders"),
        (10, 3, 1, "use cells of at least 4 clients or assume at most 0 colluders"),
        (6, 5, 5, "use cells of at least 6 clients or assume at most 4 colluders"),
        (6, 6, 6, "assume at most 5 colluders"),
        (6, 6, 3, "assume at most 2 colluders"),
    ],
)
def test_a_cell_that_may_consist_of_colluders_is_refused_with_what_fits(
    members: int, colluders: int, size: int, offer: str
) -> None:
    says = (
        f"cells: among {members} members with {colluders} colluders, a cell of {size} may consist of them alone (the "
        f"probability is above 2^-40), so no threshold protects it; {offer}"
    )
    with pytest.raises(UsageError, match=f"^{re.escape(says)}$"):
        check_cells(members, colluders, (size,), 1, None)


def test_a_threshold_fits_every_size_of_a_cell() -> None:
    for sizes, threshold in (((6,), 4), ((6,), 6), ((5, 6), 5), ((6, 5), 4)):
        check_cells(60, 1, sizes, 1, threshold)
    for sizes, threshold, says in (
        ((6,), 3, "threshold: 3 does not fit cells of 6 clients, in which up to 1 may collude; expected 4 to 6 (None"),
        ((6,), 7, "threshold: 7 does not fit cells of 6 clients, in which up to 1 may collude; expected 4 to 6 (None"),
        (
            (6, 5),
            6,
            "threshold: 6 does not fit cells of 5 clients, in which up to 1 may collude; expected 4 to 5 (None",
        ),
    ):
        with pytest.raises(UsageError, match=f"^{re.escape(says)} chooses 4\\)$"):
            check_cells(60, 1, sizes, 1, threshold)


def test_defaults_are_for_rosters_of_any_size() -> None:
    assert [default_colluders(n) for n in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert [default_threshold(n, 0) for n in range(5)] == [1, 1, 2, 2, 3]
    for wrong in (default_colluders, partial(default_threshold, colluders=0)):
        with pytest.raises(UsageError, match=r"^n: expected a whole number of at least 0, got -1$"):
            wrong(-1)
    with pytest.raises(UsageError, match=r"^colluders: expected a whole number of at least 0, got -1$"):
        default_threshold(3, -1)
