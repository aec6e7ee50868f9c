"""Columns, their codes and the limbs of sums at their limits: the last value that is taken, the first that is not."""

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from secagg import UsageError
from secagg.agreement.statistics.columns import (
    Bins,
    Categories,
    Grid,
    Numbers,
    Present,
    decimal,
    short,
)
from secagg.agreement.statistics.limbs import Entry, limb_bits

MOST_TEXT, MOST_CELLS, MOST_NUMBER, MOST_STEPS = 200, 2**16 - 1, 2.0**100, 2**40


def refused(problem: str) -> Any:
    return pytest.raises(UsageError, match=f"^{re.escape(problem)}$")


# --- columns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [Present, lambda c: Numbers(c, 0, 1), lambda c: Bins(c, (0, 1)), lambda c: Categories(c, ("a",))]
)
def test_the_name_of_a_column_is_a_short_printable_text(make: Any) -> None:
    for fine in ("a", "a b", "x" * MOST_TEXT):
        assert make(fine).column == fine
    for wrong in ("", "x" * (MOST_TEXT + 1), "a\n", "a\tb"):
        with refused("column: expected 1 to 200 printable characters, got str"):
            make(wrong)
    with refused("column: expected 1 to 200 printable characters, got int"):
        make(5)
    for wrong in (" a", "a ", " "):
        with refused(f"column: expected no blanks at the ends, got {wrong!r}"):
            make(wrong)


def test_a_category_is_a_short_printable_text_too() -> None:
    assert Categories("x", ("y" * 200,)).labels == ("y" * 200, "other", "missing")
    with refused("categories of column 'x': expected 1 to 200 printable characters, got str"):
        Categories("x", ("a", "y" * 201))
    with refused("categories of column 'x': expected no blanks at the ends, got 'b '"):
        Categories("x", ("a", "b "))


def test_what_a_column_of_presence_counts() -> None:
    assert Present("age").labels == ("present", "missing")


@pytest.mark.parametrize("field", ["low", "high", "step"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "1", True, None])
def test_bounds_and_step_are_finite_numbers(field: str, wrong: Any) -> None:
    given: dict[str, Any] = {"low": 0, "high": 2, "step": 1} | {field: wrong}
    if field == "step" and wrong is None:
        assert Numbers("x", **given).steps is None
        return
    with pytest.raises(UsageError, match=f"^{field} of column 'x': expected a finite number"):
        Numbers("x", **given)


def test_bounds_and_step_are_kept_as_floats_without_a_negative_zero() -> None:
    found = Numbers("x", -0.0, 2, 1)
    assert [type(value) for value in (found.low, found.high, found.step)] == [float] * 3
    assert repr(found.low) == "0.0"
    assert repr(Bins("x", (-0.0, 1)).edges) == "(0.0, 1.0)"


def test_a_range_is_as_wide_as_floats_can_tell() -> None:
    least = 1 / MOST_NUMBER
    assert Numbers("x", 0, least).high == least
    for low, high in ((0.0, least / 2), (0.0, np.nextafter(least, 0))):
        with pytest.raises(UsageError, match=r"^column 'x': expected a wider range than .*; use a smaller unit$"):
            Numbers("x", low, high)
    for low, high in ((1, 1), (2, 1)):
        with refused(f"column 'x': expected low < high, got {low} and {high}"):
            Numbers("x", low, high)


def test_numbers_have_at_most_a_hundred_bits_on_both_sides() -> None:
    beyond = float(np.nextafter(MOST_NUMBER, np.inf))
    assert Bins("x", (-MOST_NUMBER, 0, MOST_NUMBER)).edges[0] == -MOST_NUMBER
    for low, high in ((-beyond, 0.0), (0.0, beyond)):
        told = f"expected numbers from -2^100 to 2^100, got {low:g} and {high:g}; use a larger unit"
        with refused(f"column 'x': {told}"):
            Numbers("x", low, high)
        with refused(f"edges of column 'x': {told}"):
            Bins("x", (low, high))


def test_a_step_divides_the_range_as_people_wrote_it() -> None:
    assert Numbers("x", 0, 1, step=1).steps == 1
    assert Numbers("x", 0.1, 0.4, step=0.1).steps == 3
    assert Numbers("x", 0, MOST_STEPS, step=1).steps == MOST_STEPS
    for wrong in (0, -1, 1.5, 2):
        with refused(f"step of column 'x': expected more than 0 and at most high - low, got {wrong:g}"):
            Numbers("x", 0, 1, step=wrong)
    with refused("step of column 'x': expected high - low to be a multiple of the step, got 2.5 steps"):
        Numbers("x", 0, 1, step=0.4)
    with refused(f"step of column 'x': expected at most {MOST_STEPS} steps from low to high, got {MOST_STEPS + 1}"):
        Numbers("x", 0, MOST_STEPS + 1, step=1)


def test_bins_share_the_range_evenly_and_have_two_edges_at_least() -> None:
    thirds = Bins.even("x", 0.1, 0.4, 3)
    assert thirds.edges == (0.1, 0.2, 0.3, 0.4)
    assert thirds.labels == ("below", "[0.1, 0.2)", "[0.2, 0.3)", "[0.3, 0.4]", "above", "missing")
    for wrong in (0, -1, MOST_CELLS, True, 1.0):
        with refused(f"bins of column 'x': expected 1 to 65534, got {wrong!r}"):
            Bins.even("x", 0, 1, wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^column 'x': expected low < high"):
        Bins.even("x", 1, 0, 4)
    for edges in ((), (1,), (1, 1), (1, 2, 2), (2, 1), range(MOST_CELLS + 1)):
        with refused("edges of column 'x': expected 2 to 65535 numbers, each larger than the one before"):
            Bins("x", edges)  # type: ignore[arg-type]


def test_as_many_bins_as_fit() -> None:
    assert Bins("x", tuple(range(MOST_CELLS))).edges[-1] == MOST_CELLS - 1
    assert len(Bins.even("x", 0, 1, MOST_CELLS - 1).edges) == MOST_CELLS


def test_a_value_is_in_the_bin_that_its_label_says() -> None:
    bins = Bins("x", (0, 1, 3))
    places = {
        -1.0: "below",
        0.0: "[0, 1)",
        0.5: "[0, 1)",
        1.0: "[1, 3]",
        3.0: "[1, 3]",
        3.5: "above",
        np.inf: "above",
        -np.inf: "below",
        np.nan: "missing",
    }
    codes = bins.codes(np.array(list(places)))
    assert codes.dtype == np.int64
    assert [bins.labels[code] for code in codes] == list(places.values())


def test_as_many_categories_as_fit_and_each_once() -> None:
    assert len(Categories("x", tuple(map(str, range(MOST_CELLS)))).labels) == MOST_CELLS + 2
    for wrong in ((), ("a", "a"), tuple(map(str, range(MOST_CELLS + 1)))):
        with refused(f"categories of column 'x': expected 1 to 65535 different texts, got {len(wrong)}"):
            Categories("x", wrong)
    codes = Categories("sex", ("f", "m")).codes(["m", "f", "other", None, "missing"])
    assert codes.tolist() == [1, 0, 2, 3, 2]
    assert codes.dtype == np.int64


def test_categories_are_kept_as_a_tuple_of_texts() -> None:
    assert Categories("x", ["a", "b"]).categories == ("a", "b")  # type: ignore[arg-type]
    with refused("categories of column 'x': expected a collection of str, got str"):
        Categories("x", "ab")  # type: ignore[arg-type]
    with refused("categories of column 'x', each: expected str, got int"):
        Categories("x", ("a", 3))  # type: ignore[arg-type]


def test_a_grid_maps_codes_to_numbers_without_rounding() -> None:
    grid = Grid(Numbers("x", 0.1, 0.4, step=0.1), 3)
    assert (grid.low, grid.step, grid.value(2)) == (Fraction(1, 10), Fraction(1, 10), Fraction(3, 10))
    assert grid.fuzz == Fraction(0.4) / 2**50
    assert grid.half == Fraction(1, 20) + grid.fuzz
    assert Grid(Numbers("x", -8, 1), 9).fuzz == Fraction(8, 2**50)
    codes, clipped, rounded = grid.codes(np.array([0.1, 0.2, 0.30000000000000004, 0.4, 0.26, 0.0, 9.0]))
    assert codes.tolist() == [0, 1, 2, 3, 2, 0, 3]
    assert clipped.tolist() == [False] * 5 + [True] * 2
    assert rounded.tolist() == [False] * 4 + [True] + [False] * 2


@pytest.mark.parametrize(
    ("low", "high", "steps", "is_exact"),
    [
        (0, 10, 10, True),
        (0, 10, 20, False),  # halves
        (0.5, 2.5, 2, False),  # whole steps from a half
        (2.0**52 - 1, 2.0**52, 1, False),  # as far out as floats have no halves
        (2.0**52 - 2, 2.0**52 - 1, 1, True),
        (1 - 2.0**52, 2 - 2.0**52, 1, True),
        (-(2.0**52), 1 - 2.0**52, 1, False),
    ],
)
def test_only_whole_numbers_are_compared_exactly(low: float, high: float, steps: int, is_exact: bool) -> None:
    grid = Grid(Numbers("x", low, high), steps)
    assert grid.slack == (0 if is_exact else grid.fuzz)


def test_a_number_next_to_a_whole_one_counts_as_rounded() -> None:
    whole, parts = Grid(Numbers("x", 0, 8), 8), Grid(Numbers("x", 0, 8), 16)
    near = np.array([3.0, np.nextafter(3.0, 4), 3 + 2.0**-49, 3 + 2.0**-47])
    assert whole.codes(near)[2].tolist() == [False, True, True, True]
    assert parts.fuzz == Fraction(1, 2**47)
    assert parts.codes(np.array([3.0, 3 + 2.0**-48, 3 + 1.5 * 2.0**-48]))[2].tolist() == [False, False, True]


def test_numbers_are_written_as_people_do() -> None:
    assert [short(value) for value in (3.0, -3.0, 0.5, 1e15, 1e15 - 1, -1e15)] == [
        *("3", "-3", "0.5", "1000000000000000.0", "999999999999999", "-1000000000000000.0"),
    ]
    assert decimal(0.1) == Fraction(1, 10)


# --- limbs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 2, 3, 8, 1000, 2**30 - 1, 2**30, 715827883, 2**31 - 1, 2**31])
def test_a_limb_has_the_most_bits_that_do_not_wrap(clients: int) -> None:
    bits = limb_bits(clients)
    assert clients * (2**bits - 1) < 2**31 <= clients * (2 ** (bits + 1) - 1)


def test_a_number_takes_one_place_as_long_as_its_sum_fits() -> None:
    last = (2**31 - 1) // 3
    one, two = Entry("x", (2,), last, 3), Entry("x", (2,), last + 1, 3)
    assert (one.limbs, one.segment.shape, one.segment.bound) == (1, (2,), last)
    assert (two.bits, two.limbs, two.segment.shape, two.segment.bound) == (29, 2, (2, 2), 2**29 - 1)
    assert two.split([5 + 2**29, 7]).tolist() == [[5, 1], [7, 0]]
    assert two.join([[10, 2], [7, 0]]) == [10 + 2 * 2**29, 7]
    assert one.split([last, 0]).tolist() == [last, 0]
    assert Entry("x", (1,), 2**28 - 1, 8).limbs == 1
    assert Entry("x", (1,), 2**28, 8).limbs == 2
    assert Entry("x", (1,), 2**58 - 1, 3).limbs == 2
    assert Entry("x", (1,), 2**58, 3).limbs == 3
    assert Entry("x", (1,), 5, 2**31).limbs == 3  # a limb has a bit at least
