"""Every result is within its stated bound of exact rational arithmetic on the pooled data."""

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import UsageError
from secagg.statistics import (
    Bins,
    Categories,
    Contingency,
    Count,
    Histogram,
    Mean,
    Numbers,
    Present,
    Quantiles,
    Sum,
    Variance,
)
from tests.secagg.statistics.common import report_of, terms_for

MISSING = st.sampled_from([None, math.nan])


def sites(values: st.SearchStrategy[Any], count: int = 3) -> st.SearchStrategy[list[list[Any]]]:
    return st.lists(st.lists(values | MISSING, max_size=12), min_size=count, max_size=count)


def pooled(data: list[list[Any]]) -> list[float]:
    return [value for rows in data for value in rows if value is not None and not math.isnan(value)]


def clipped(data: list[list[Any]], low: float, high: float) -> list[Fraction]:
    return [Fraction(min(max(value, low), high)) for value in pooled(data)]


@st.composite
def numbers(draw: st.DrawFn) -> Numbers:
    """Bounds of any size and place; every second time a decimal step."""
    if draw(st.booleans()):
        step = draw(st.sampled_from([1, 0.01, 0.25, 3, 1e-6]))
        first, steps = draw(st.integers(-1000, 1000)), draw(st.integers(1, 10_000))
        low, high = first * Fraction(repr(step)), (first + steps) * Fraction(repr(step))
        return Numbers("x", float(low), float(high), step)
    low = draw(st.floats(-1e9, 1e9))
    width = draw(st.floats(1e-3, 1e9))
    return Numbers("x", low, low + width)


@settings(deadline=None)
@given(st.data(), numbers(), st.sampled_from([1, 2, 4]))
def test_sum_mean_and_variance_are_within_their_bounds(data: st.DataObject, of: Numbers, limbs: int) -> None:
    width = of.high - of.low
    values = data.draw(sites(st.floats(of.low - width / 5, of.high + width / 5)))
    asked = [kind(name=kind.kind, of=of, limbs=limbs) for kind in (Sum, Mean, Variance)]
    if of.steps is not None and 1000 * of.steps**2 * 3 >= 2**31 and limbs == 1:
        with pytest.raises(UsageError, match="do not fit"):
            terms_for(*asked)
        return
    terms = terms_for(*asked)
    report = report_of(terms, [{"x": rows} for rows in values])
    exact, count = clipped(values, of.low, of.high), len(pooled(values))
    outside = sum(not of.low <= value <= of.high for value in pooled(values))
    missing = sum(map(len, values)) - count
    for kind in ("sum", "mean", "variance"):
        found = report[kind]
        assert (found.used, found.missing, found.clipped) == (count, missing, outside)
    total = report["sum"]["sum"]
    assert abs(Fraction(total.value) - sum(exact)) <= Fraction(total.error)
    if not count:
        assert report["mean"]["mean"].value is None
        return
    mean = report["mean"]["mean"]
    assert abs(Fraction(mean.value) - sum(exact) / count) <= Fraction(mean.error)
    if count < 2:
        assert report["variance"]["variance"].value is None
        return
    spread = sum((value - sum(exact) / count) ** 2 for value in exact) / (count - 1)
    variance, sd = report["variance"]["variance"], report["variance"]["sd"]
    assert abs(Fraction(variance.value) - spread) <= Fraction(variance.error)
    low, high = Fraction(max(sd.value - sd.error, 0)), Fraction(sd.value) + Fraction(sd.error)
    assert low**2 <= spread <= high**2
    assert variance.value >= 0


@settings(deadline=None)
@given(sites(st.integers(-50, 200)))
def test_whole_numbers_and_amounts_with_a_step_are_exact(values: list[list[Any]]) -> None:
    age, cents = Numbers("age", -60, 210, step=1), Numbers("paid", -0.6, 2.1, step=0.01)
    terms = terms_for(Sum(name="age", of=age), Sum(name="paid", of=cents), Variance(name="var", of=age))
    data = [{"age": rows, "paid": [None if v is None else v / 100 for v in rows]} for rows in values]
    report = report_of(terms, data)
    total = int(sum(pooled(values)))
    assert report["age"]["sum"].value == total
    assert report["age"]["sum"].error == 0
    assert report["age"].rounded == report["paid"].rounded == 0
    assert report["paid"]["sum"].value == total / 100  # the decimal number, rounded once
    if len(pooled(values)) > 1 and len(set(pooled(values))) == 1:
        assert report["var"]["variance"].value == 0


@settings(deadline=None)
@given(sites(st.floats(-10, 30)), st.sampled_from([(0.0, 1.0, 7.5, 20.0), (0.0, 20.0)]))
def test_histograms_and_quantiles_count_what_pooled_data_has(values: list[list[Any]], edges: tuple[float, ...]) -> None:
    parts = (0.01, 0.25, 0.5, 0.9)
    asked = (Histogram(name="h", of=Bins("x", edges)), Quantiles(name="q", of=Bins("x", edges), probabilities=parts))
    report = report_of(terms_for(*asked), [{"x": rows} for rows in values])
    data = sorted(pooled(values))
    assert report["h"]["below"] == sum(value < edges[0] for value in data)
    assert report["h"]["above"] == sum(value > edges[-1] for value in data)
    assert report["h"]["missing"] == sum(map(len, values)) - len(data)
    inside = [value for value in data if edges[0] <= value <= edges[-1]]
    for place, label in enumerate(report["h"].labels[1:-2]):
        last = place == len(edges) - 2
        in_bin = [v for v in inside if edges[place] <= v and (v <= edges[-1] if last else v < edges[place + 1])]
        assert report["h"][label] == len(in_bin)
    for part in parts:
        found = report["q"][part]
        if not data:
            assert found.estimate is None
            continue
        truth = data[math.ceil(Fraction(repr(part)) * len(data)) - 1]
        assert found.low is None or found.low <= truth
        assert found.high is None or truth <= found.high
        if edges[0] <= truth <= edges[-1]:
            assert found.low <= found.estimate <= found.high


@settings(deadline=None)
@given(sites(st.sampled_from(["f", "m", "x", " f ", "", "d"])), st.data())
def test_tables_count_pairs_with_what_is_other_and_missing(values: list[list[Any]], data: st.DataObject) -> None:
    cells = st.floats(-1, 3) | MISSING
    ages = [data.draw(st.lists(cells, min_size=len(rows), max_size=len(rows))) for rows in values]
    sexes = [[None if isinstance(cell, float) else cell for cell in rows] for rows in values]
    sex, age = Categories("sex", ("f", "m")), Bins("age", (0, 1, 2))
    terms = terms_for(Contingency(name="t", rows=sex, by=age), Histogram(name="h", of=sex))
    report = report_of(terms, [{"sex": a, "age": b} for a, b in zip(sexes, ages, strict=True)])

    def place(sex: str | None) -> str:
        text = (sex or "").strip()
        return "missing" if not text else text if text in "fm" else "other"

    def bin_of(age: float | None) -> str:
        if age is None or math.isnan(age):
            return "missing"
        return "below" if age < 0 else "above" if age > 2 else "[0, 1)" if age < 1 else "[1, 2]"

    pairs = [(place(a), bin_of(b)) for x, y in zip(sexes, ages, strict=True) for a, b in zip(x, y, strict=True)]
    for row in report["t"].labels[0]:
        assert report["h"][row] == sum(pair[0] == row for pair in pairs)
        for column in report["t"].labels[1]:
            assert report["t"][row, column] == pairs.count((row, column))


@settings(deadline=None)
@given(sites(st.floats(0, 1)))
def test_missing_values_are_counted_and_never_summed(values: list[list[Any]]) -> None:
    terms = terms_for(Count(name="n"), Count(name="x", of=Present("x")), Sum(name="s", of=Numbers("x", 0, 1)))
    report = report_of(terms, [{"x": rows} for rows in values])
    rows = sum(map(len, values))
    assert report["n"].rows == rows
    assert (report["x"].rows, report["x"].missing) == (len(pooled(values)), rows - len(pooled(values)))
    assert report["s"].used + report["s"].missing == rows
