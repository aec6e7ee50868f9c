"""The two forms of the section `statistics`, bytes and file: exactly what stands in them, and each refusal."""

import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from secagg import UsageError, WireError
from secagg.agreement.statistics.noise import read_noise, statistics_noise
from secagg.agreement.statistics.section import STATISTICS
from secagg.codec import from_bytes, to_bytes
from secagg.crypto.noise import MOST_SIGMA
from secagg.statistics import (
    Bins,
    Categories,
    Contingency,
    Count,
    Histogram,
    LeastSquares,
    Mean,
    Numbers,
    Present,
    Quantiles,
    Statistics,
    Sum,
    Variance,
)

AGE = Numbers("age", 0, 120, step=1)
SEX = Categories("sex", ("f", "m"))
X = Numbers("x", -1, 1)
TEXT = """\
[statistics]
most_rows = 1000
min_sites = 3

[statistics.patients]
kind = "count"

[statistics."with age"]
kind = "count"
column = "age"
min_sites = 4

[statistics.s]
kind = "sum"
column = "x"
low = -1.0
high = 1.0

[statistics.m]
kind = "mean"
column = "age"
low = 0.0
high = 120.0
step = 1.0
limbs = 3

[statistics.v]
kind = "variance"
column = "age"
low = 0.0
high = 120.0
step = 1.0

[statistics.h]
kind = "histogram"
column = "sex"
categories = ["f", "m"]
suppress = 5

[statistics.q]
kind = "quantiles"
column = "x"
edges = [0.0, 0.5, 1.0]
probabilities = [0.1]

[statistics.t]
kind = "contingency"
rows = { column = "sex", categories = ["f", "m"] }
columns = { column = "x", edges = [0.0, 1.0] }
suppress = 1

[statistics.f]
kind = "least_squares"
features = [
    { column = "x", low = -1.0, high = 1.0 },
]
target = { column = "age", low = 0.0, high = 120.0, step = 1.0 }

[statistics.g]
kind = "least_squares"
features = [
    { column = "x", low = -1.0, high = 1.0 },
]
target = { column = "age", low = 0.0, high = 120.0, step = 1.0 }
intercept = false
min_sites = 1
limbs = 2"""
ALL = Statistics(
    most_rows=1000,
    min_sites=3,
    asked=(
        Count(name="patients"),
        Count(name="with age", of=Present("age"), min_sites=4),
        Sum(name="s", of=X),
        Mean(name="m", of=AGE, limbs=3),
        Variance(name="v", of=AGE),
        Histogram(name="h", of=SEX, suppress=5),
        Quantiles(name="q", of=Bins("x", (0, 0.5, 1)), probabilities=(0.1,)),
        Contingency(name="t", rows=SEX, by=Bins("x", (0, 1)), suppress=1),
        LeastSquares(name="f", target=AGE, features=(X,)),
        LeastSquares(name="g", target=AGE, features=(X,), intercept=False, limbs=2, min_sites=1),
    ),
)


def test_the_file_has_these_lines() -> None:
    assert "\n".join(STATISTICS.lines(ALL)) == TEXT
    assert STATISTICS.read(tomllib.loads(TEXT)["statistics"]) == ALL
    least = Statistics(most_rows=5, asked=(Count(name="a-b_C9"),))
    assert list(STATISTICS.lines(least)) == [
        "[statistics]",
        "most_rows = 5",
        "",
        "[statistics.a-b_C9]",
        'kind = "count"',
    ]


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def test_the_bytes_are_those_of_the_document() -> None:
    """Kind, form and intercept are one byte each; what a kind does not have is 0 (docs/statistics.md)."""
    assert (STATISTICS.number, STATISTICS.version, STATISTICS.name) == (2, 1, "statistics")
    asked = Statistics(most_rows=7, min_sites=2, asked=(Histogram(name="h", of=SEX, suppress=5, min_sites=4),))
    column = bytes([3]) + number(3, 4) + b"sex" + number(0, 4) + number(2, 4)
    column += number(1, 4) + b"f" + number(1, 4) + b"m"
    statistic = number(1, 4) + b"h" + bytes([4]) + number(4, 4) + number(5, 4) + bytes([0, 0]) + number(0, 4)
    statistic += number(1, 4) + column
    assert to_bytes(STATISTICS.layout, STATISTICS.flat(asked)) == number(7, 4) + number(2, 4) + number(1, 4) + statistic


def test_every_kind_comes_back_from_bytes() -> None:
    assert STATISTICS.build(from_bytes(STATISTICS.layout, to_bytes(STATISTICS.layout, STATISTICS.flat(ALL)))) == ALL


def changed(place: int, change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    flat = STATISTICS.flat(ALL)
    asked = [dict(one) for one in flat["asked"]]
    asked[place] |= change(asked[place])
    return {**flat, "asked": tuple(asked)}


COLUMN = {"form": 1, "column": b"z", "numbers": (0.0, 1.0), "categories": ()}


@pytest.mark.parametrize(
    ("place", "change", "problem"),
    [
        (0, {"kind": 8}, "unknown kind (8) of a statistic"),
        (0, {"kind": 255}, "unknown kind (255) of a statistic"),
        (0, {"intercept": 2}, "unknown kind (0) of a statistic"),
        (2, {"columns": ()}, "expected 1 column(s) of a statistic, got 0"),
        (2, {"columns": (COLUMN, COLUMN)}, "expected 1 column(s) of a statistic, got 2"),
        (1, {"columns": (COLUMN, COLUMN)}, "expected 1 column(s) of a statistic, got 2"),
        (7, {"columns": (COLUMN,)}, "expected 2 column(s) of a statistic, got 1"),
        (7, {"columns": (COLUMN,) * 3}, "expected 2 column(s) of a statistic, got 3"),
        (2, {"columns": ({**COLUMN, "form": 4},)}, "unknown form (4) of a column"),
        (
            2,
            {"columns": ({**COLUMN, "numbers": (0.0,)},)},
            "expected low, high and perhaps step of a column, got 1 numbers",
        ),
        (
            2,
            {"columns": ({**COLUMN, "numbers": (0.0, 1.0, 1.0, 1.0)},)},
            "expected low, high and perhaps step of a column, got 4 numbers",
        ),
        (
            2,
            {"columns": ({**COLUMN, "numbers": (1.0, 0.0)},)},
            "section statistics cannot be kept: column 'z': expected low < high, got 1 and 0",
        ),
        (8, {"columns": ()}, "section statistics cannot be kept: tuple index out of range"),
        (
            2,
            {"columns": ({**COLUMN, "form": 0},)},
            "section statistics cannot be kept: statistics.s.column: expected Numbers, got Present",
        ),
    ],
)
def test_bytes_that_mean_nothing_are_refused(place: int, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(WireError, match=f"^{re.escape(problem)}$"):
        STATISTICS.build(changed(place, lambda _: change))


# --- the file --------------------------------------------------------------------------------------------------------


def read(**tables: Any) -> Statistics:
    found: Statistics = STATISTICS.read({"most_rows": 1000, **tables})
    return found


def test_a_file_may_say_less() -> None:
    bins = read(x={"kind": "histogram", "column": "a", "low": 0, "high": 1, "bins": 4}).asked[0]
    assert bins == Histogram(name="x", of=Bins("a", (0, 0.25, 0.5, 0.75, 1)))
    fit = {"target": {"column": "y", "low": 0, "high": 1}, "features": [{"column": "a", "low": 0, "high": 1}]}
    assert read(x={"kind": "least_squares", **fit}).asked[0] == LeastSquares(
        name="x", target=Numbers("y", 0, 1), features=(Numbers("a", 0, 1),)
    )
    assert read(x={"kind": "least_squares", **fit, "intercept": False}).asked[0].intercept is False  # type: ignore[attr-defined]
    quantiles = read(x={"kind": "quantiles", "column": "a", "edges": [0, 1]}).asked[0]
    assert quantiles == Quantiles(name="x", of=Bins("a", (0, 1)))
    assert read(x={"kind": "count", "min_sites": 3}, min_sites=2).asked[0].min_sites == 3


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([], "statistics: expected a table [statistics.NAME] for each, got []"),
        ({"most_rows": 5, "x": 3}, "statistics.x: expected a table [statistics.x], got 3"),
        ({"most_rows": 5}, "statistics: expected 1 to 1000 of them with different names, got 0"),
    ],
)
def test_a_section_is_a_table_of_tables(values: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(problem)}$"):
        STATISTICS.read(values)


CELLS = "expected one of edges, categories, or bins with low and high"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"kind": "mean", "column": "a", "low": 0, "high": 1, "limbs": 5}, "x.limbs: expected 0 to 4, got 5"),
        ({"kind": "histogram", "column": "a", "edges": [0, 1], "suppress": -1}, "x.suppress: expected 0 to"),
        ({"kind": "histogram", "column": "a", "edges": [0, 1], "low": 0}, f"x: {CELLS}"),
        ({"kind": "histogram", "column": "a", "edges": [0, 1], "high": 0}, f"x: {CELLS}"),
        ({"kind": "histogram", "column": "a", "categories": ["a"], "high": 0}, f"x: {CELLS}"),
        ({"kind": "histogram", "column": "a", "edges": [0, 1], "bins": 2, "low": 0, "high": 1}, f"x: {CELLS}"),
        (
            {"kind": "histogram", "column": "a", "edges": [0, True]},
            "x.edges: expected a list of numbers, got [0, True]",
        ),
        ({"kind": "histogram", "column": "a", "edges": 5}, "x.edges: expected a list of numbers, got 5"),
        ({"kind": "histogram", "column": "a", "edges": [0, "1"]}, "x.edges: expected a list of numbers, got [0, '1']"),
        ({"kind": "histogram", "column": "a", "categories": "ab"}, "x.categories: expected a list of texts, got 'ab'"),
        (
            {"kind": "least_squares", "features": {}, "target": {}},
            "x.features: expected a list of tables, one for each column, got {}",
        ),
        (
            {"kind": "least_squares", "features": [3], "target": {}},
            "x.features[0]: expected a table [statistics.x.features[0]], got 3",
        ),
        (
            {"kind": "least_squares", "features": [], "intercept": 1},
            "x.intercept: expected true or false, got 1",
        ),
        (
            {"kind": "least_squares", "features": []},
            "x.target: expected a table with column, but the key is missing",
        ),
        ({"kind": "count", "column": 3}, "x.column: expected text, got 3"),
    ],
)
def test_a_mistake_in_the_file_is_named(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(f'statistics.{problem}')}"):
        read(x=table)


# --- noise ---------------------------------------------------------------------------------------------------------


def test_a_multiplier_counts_in_norms_of_what_a_site_may_send() -> None:
    """Cells share the rows. A value of a column of numbers may be used, clipped and rounded: it counts three times."""
    asked = Statistics(
        most_rows=100,
        asked=(
            Count(name="n"),
            Histogram(name="h", of=SEX),
            Contingency(name="t", rows=SEX, by=SEX),
            Mean(name="m", of=AGE, limbs=1),
            LeastSquares(name="f", target=Numbers("y", 0, 4, step=1), features=(Numbers("z", 0, 4, step=1),), limbs=1),
        ),
    )
    found = statistics_noise(asked, 10, {"n": 2, "h": 1, "t": 1, "m": 0.5, "f": 0.001})
    rows, counts = 101.0, float(int(100 * 3**0.5) + 1)
    assert [(one.clip, one.sigma) for one in found.segments] == [
        (rows, 202),  # n
        (rows, 101),  # h: four cells, as many as the counts of a column of numbers
        (rows, 101),  # t
        (counts, 87),  # m, used, missing, clipped, rounded
        (12001.0, 6001),
        (counts, 1),  # f
        (float(int(400 * 2**0.5) + 1), 1),
        (float(int(1600 * 3**0.5) + 1), 3),
    ]
    assert found.colluders == 0
    assert statistics_noise(asked, 10, 1.0, colluders=2).colluders == 2


def test_a_multiplier_is_a_positive_number_for_every_statistic() -> None:
    asked = Statistics(most_rows=100, asked=(Count(name="n"), Count(name="m")))
    for wrong in (0, -1.5):
        with pytest.raises(UsageError, match=f"^noise.multiplier of n: expected a number above 0, got {wrong:g}$"):
            statistics_noise(asked, 10, wrong)
    with pytest.raises(UsageError, match=r"^noise.multiplier of n: expected a finite number"):
        statistics_noise(asked, 10, {"n": float("nan"), "m": 1})
    for names in (("n",), ("n", "m", "o")):
        with pytest.raises(UsageError, match=r"noise.multiplier"):
            statistics_noise(asked, 10, dict.fromkeys(names, 1.0))
    last = Statistics(most_rows=2**20 - 1, asked=(Count(name="n"),))
    factor = MOST_SIGMA / 2**20
    assert statistics_noise(last, 10, factor).segments[0].sigma == MOST_SIGMA
    with pytest.raises(UsageError, match=f"^noise: n.counts needs a sigma of {MOST_SIGMA + 1}; use larger steps or"):
        statistics_noise(last, 10, (MOST_SIGMA + 1) / 2**20)


@pytest.mark.parametrize("given", [None, "1", True, {"n": True}, {"n": "1"}, [1]])
def test_the_file_has_numbers_as_multipliers(given: Any) -> None:
    asked = Statistics(most_rows=100, asked=(Count(name="n"),))
    with pytest.raises(
        UsageError, match=r"^noise.multiplier: expected a number, or a table with one for each statistic"
    ):
        read_noise({"multiplier": given, "colluders": 1}, asked, 10)
    for fine in (2, 2.0, {"n": 2}):
        found = read_noise({"multiplier": fine, "colluders": 3}, asked, 10)
        assert found == statistics_noise(asked, 10, 2.0, colluders=3)
