"""Least squares: exact for the rounded values, within its bound for the values themselves, silent if undetermined."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.statistics import Fit, LeastSquares, Numbers
from secagg.statistics.least_squares import INTERCEPT, invert
from tests.secagg.statistics.common import report_of, terms_for

UNIT = (-4, 4)


def fitted(data: list[list[dict[str, Any]]], columns: list[Numbers], **more: Any) -> Fit:
    """The fit of the first column on the others; `data` has the rows of each site."""
    terms = terms_for(LeastSquares(name="fit", target=columns[0], features=tuple(columns[1:]), **more))
    names = [column.column for column in columns]
    fit: Fit = report_of(terms, [{name: [row[name] for row in rows] for name in names} for rows in data])["fit"]
    return fit


def exact(rows: list[dict[str, float]], names: list[str], intercept: bool) -> dict[str, Fraction]:
    """The solution of the normal equations in fractions, by elimination; no solution if they are singular."""
    X = [[Fraction(1)] * intercept + [Fraction(row[name]) for name in names[1:]] for row in rows]
    y = [Fraction(row[names[0]]) for row in rows]
    size = len(X[0])
    work = [
        [sum(row[i] * row[j] for row in X) for j in range(size)]
        + [sum(row[i] * t for row, t in zip(X, y, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        pivot = next((k for k in range(i, size) if work[k][i]), None)
        if pivot is None:
            return {}
        work[i], work[pivot] = work[pivot], work[i]
        work[i] = [value / work[i][i] for value in work[i]]
        for k in range(size):
            if k != i:
                work[k] = [a - work[k][i] * b for a, b in zip(work[k], work[i], strict=True)]
    found = [row[-1] for row in work]
    return dict(zip([INTERCEPT] * intercept + names[1:], found, strict=True))


ROWS = st.fixed_dictionaries(dict.fromkeys(("y", "a", "b"), st.floats(*UNIT)))


@settings(deadline=None)
@given(st.lists(st.lists(ROWS, max_size=8), min_size=3, max_size=3), st.booleans())
def test_coefficients_are_within_their_bounds_of_the_pooled_solution(data: list[Any], intercept: bool) -> None:
    fit = fitted(data, [Numbers(name, *UNIT) for name in ("y", "a", "b")], intercept=intercept)
    rows = [row for one in data for row in one]
    assert fit.used == len(rows)
    if fit.problem:
        assert fit.coefficients == ()
        return
    truth = exact(rows, ["y", "a", "b"], intercept)
    for name, value in truth.items():
        assert abs(Fraction(fit[name].value) - value) <= Fraction(fit[name].error)
    assert len(truth) == len(fit.coefficients) == 2 + intercept


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(*[st.integers(-20, 20)] * 3), max_size=8), min_size=3, max_size=3), st.booleans())
def test_whole_numbers_are_solved_exactly_and_collinear_columns_are_found(data: list[Any], intercept: bool) -> None:
    named = [[dict(zip(("y", "a", "b"), row, strict=True)) for row in rows] for rows in data]
    fit = fitted(named, [Numbers(name, -20, 20, step=1) for name in ("y", "a", "b")], intercept=intercept)
    rows = [row for one in named for row in one]
    truth = exact(rows, ["y", "a", "b"], intercept) if len(rows) >= 2 + intercept else {}
    assert bool(truth) == (not fit.problem)
    for name, value in truth.items():
        assert fit[name].value == float(value)


def test_a_fit_agrees_with_textbook_formulas() -> None:
    generator = np.random.default_rng(1)
    age, height = generator.uniform(20, 80, 300), generator.normal(170, 10, 300)
    weight = 0.9 * height - 0.1 * age - 80 + generator.normal(0, 5, 300)
    data = [
        [{"w": w, "age": a, "h": h} for w, a, h in zip(weight[s::3], age[s::3], height[s::3], strict=True)]
        for s in range(3)
    ]
    fit = fitted(data, [Numbers("w", 0, 300), Numbers("age", 0, 120), Numbers("h", 0, 250)])
    X = np.column_stack([np.ones(300), age, height])
    beta, *_ = np.linalg.lstsq(X, weight, rcond=None)
    residual = weight - X @ beta
    errors = np.sqrt(np.diag(np.linalg.inv(X.T @ X)) * (residual @ residual) / 297)
    for found, value, error in zip(fit.coefficients, beta, errors, strict=True):
        assert found.value == pytest.approx(value, rel=1e-6, abs=1e-5)
        assert found.standard_error == pytest.approx(error, rel=1e-6)
        assert found.error < 1e-3
    assert fit.degrees_of_freedom == 297
    assert fit.residual_sd == pytest.approx(math.sqrt(residual @ residual / 297), rel=1e-6)
    spread = weight - weight.mean()
    assert fit.r_squared == pytest.approx(1 - residual @ residual / (spread @ spread), rel=1e-6)


def test_as_many_rows_as_coefficients_have_no_standard_errors_and_fewer_no_coefficients() -> None:
    columns = [Numbers("y", 0, 9, 1), Numbers("a", 0, 9, 1)]
    fit = fitted([[{"y": 1, "a": 2}], [{"y": 3, "a": 3}], []], columns)
    assert [one.value for one in fit.coefficients] == [-3, 2]
    assert [one.standard_error for one in fit.coefficients] == [None, None]
    assert fit.residual_sd is None
    few = fitted([[{"y": 1, "a": 2}], [], []], columns)
    assert (few.coefficients, few.problem) == ((), "1 complete rows are too few for 2 coefficients")


def test_a_constant_column_and_a_sum_of_columns_are_named() -> None:
    generator = np.random.default_rng(2)
    table = generator.integers(0, 9, (30, 3))
    rows = [{"y": int(y), "a": int(a), "b": int(b), "c": int(a + b), "d": 4} for y, a, b in table]
    whole = {name: Numbers(name, 0, 20, step=1) for name in "yabcd"}
    fit = fitted([rows, [], []], [whole[name] for name in "yabc"])
    assert fit.coefficients == ()
    assert "column 'c' is a combination of 'a', 'b' and a constant" in fit.problem
    assert "column 'd' is constant" in fitted([rows, [], []], [whole["y"], whole["d"]]).problem
    assert fitted([rows, [], []], [whole["y"], whole["d"]], intercept=False).problem == ""
    assert "not determined" in fitted([rows, [], []], [whole[name] for name in "yacb"]).problem


def test_columns_that_rounding_cannot_tell_apart_get_no_coefficients() -> None:
    generator = np.random.default_rng(3)
    centimetres = generator.normal(170, 10, 200)
    rows = [{"y": float(generator.normal()), "cm": float(cm), "inch": float(cm / 2.54)} for cm in centimetres]
    fit = fitted([rows[:60], rows[60:], []], [Numbers("y", -9, 9), Numbers("cm", 0, 300), Numbers("inch", 0, 120)])
    assert fit.coefficients == ()
    assert "so close to a combination of the others" in fit.problem
    assert "no coefficients: column" in report_text(rows)


def report_text(rows: list[dict[str, float]]) -> str:
    columns = [Numbers("y", -9, 9), Numbers("cm", 0, 300), Numbers("inch", 0, 120)]
    terms = terms_for(LeastSquares(name="fit", target=columns[0], features=tuple(columns[1:])))
    return report_of(terms, [{name: [row[name] for row in rows] for name in ("y", "cm", "inch")}] * 3).text()


def test_rows_with_a_missing_value_are_left_out() -> None:
    rows = [{"y": 1, "a": 1}, {"y": None, "a": 5}, {"y": 3, "a": 2}, {"y": 9, "a": None}, {"y": 5, "a": 3}]
    fit = fitted([rows, [], []], [Numbers("y", 0, 9, 1), Numbers("a", 0, 9, 1)])
    assert (fit.used, fit.missing) == (3, 2)
    assert [one.value for one in fit.coefficients] == [-1, 2]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-5, 5), min_size=3, max_size=3), min_size=1, max_size=6))
def test_an_inverse_is_one_or_names_a_dependent_column(X: list[list[int]]) -> None:
    gram = [[Fraction(sum(row[i] * row[j] for row in X)) for j in range(3)] for i in range(3)]
    inverse, dependent = invert(gram)
    if inverse is None:
        assert np.linalg.matrix_rank(np.array(X)[:, : dependent + 1]) == dependent
        assert np.linalg.matrix_rank(np.array(X)[:, :dependent]) == dependent
        return
    product = [[sum(a * inverse[k][j] for k, a in enumerate(row)) for j in range(3)] for row in gram]
    assert product == [[int(i == j) for j in range(3)] for i in range(3)]
