"""What a site sends and what it is told before, from arrays and data frames."""

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from secagg import UsageError
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
    Variance,
    preview,
    site_update,
)
from secagg.statistics import chunk as chunks
from tests.secagg.statistics.common import terms_for

AGE = Numbers("age", 0, 120, step=1)


def test_a_site_is_told_what_is_clipped_missing_rounded_and_not_declared() -> None:
    terms = terms_for(
        Mean(name="age", of=AGE),
        Histogram(name="sex", of=Categories("sex", ("f", "m"))),
        Histogram(name="bins", of=Bins("age", (0, 18, 65))),
        LeastSquares(name="fit", target=AGE, features=(Numbers("x", 0, 1),)),
    )
    made = site_update(terms, {"age": [1.5, -3, 200, None], "sex": ["f", "d", "", None], "x": [0.5, None, 1, 7]})
    assert made.rows == 4
    assert made.warnings == (
        "age: 1 of 4 values missing in 'age'",
        "age: 2 of 3 values of 'age' outside of 0 to 120, clipped",
        "age: 1 of 3 values of 'age' are not multiples of 1, rounded",
        "sex: 2 of 4 values missing in 'sex'",
        "sex: 1 of 4 values of 'sex' are none of the declared categories, counted as other",
        "bins: 1 of 4 values missing in 'age'",
        "bins: 1 of 4 values of 'age' lie below the edges",
        "bins: 1 of 4 values of 'age' lie above the edges",
        "fit: 1 of 4 values missing in 'x'",
        "fit: 1 of 4 values missing in 'age'",
        "fit: 1 of 2 values of 'age' outside of 0 to 120, clipped",
        "fit: 1 of 2 values of 'age' are not multiples of 1, rounded",
        "fit: 2 of 4 rows left out, because a value is missing",
    )
    assert made.update["age.counts"].tolist() == [3, 1, 2, 1]
    assert made.update["fit.counts"].tolist() == [2, 2, 1, 1]
    assert "no rows" in site_update(terms, {"age": [], "sex": [], "x": []}).warnings[0]


def test_the_text_of_an_update_does_not_show_it() -> None:
    terms = terms_for(Count(name="n"))
    assert repr(site_update(terms, {"age": [1, 2]})) == "SiteUpdate()"


def test_more_rows_than_agreed_are_refused_and_as_many_are_not() -> None:
    terms = terms_for(Count(name="n"), most_rows=5)
    assert site_update(terms, {"x": range(5)}).update["n.counts"].tolist() == [5]
    with pytest.raises(UsageError, match="expected at most 5 rows"):
        site_update(terms, {"x": range(6)})


@pytest.mark.parametrize("rows_at_once", [1, 3, 1000])
def test_sums_do_not_depend_on_how_rows_are_taken(monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=(2, 50))
    features = (Numbers("a", -2, 2),)
    terms = terms_for(
        Variance(name="v", of=Numbers("a", -2, 2)),
        LeastSquares(name="fit", target=Numbers("b", -3, 3), features=features),
    )
    whole = site_update(terms, {"a": values[0], "b": values[1]}).update
    monkeypatch.setattr("secagg.statistics.arrays.ROWS_AT_ONCE", rows_at_once)
    mixed = generator.permutation(50)
    parts = site_update(terms, {"a": values[0][mixed], "b": values[1][mixed]}).update
    assert whole.keys() == parts.keys()
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)
    assert chunks.ROWS_AT_ONCE >= 1000


class Frame:
    """What a data frame of pandas offers, as far as it is used here."""

    class Column(list[Any]):
        def to_numpy(self) -> Any:
            return np.array(self, dtype=object)

    def __init__(self, **columns: Any) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> Any:
        return Frame.Column(self._columns[name])

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))


class NAType:
    """pandas.NA: it compares with nothing."""

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    def __eq__(self, other: object) -> Any:
        return self

    __ne__ = __eq__
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "data",
    [
        {"age": [30, 40, None], "sex": ["f", None, "m"]},
        {"age": np.array([30, 40, np.nan], np.float32), "sex": np.array(["f", "", "m"])},
        {"age": np.ma.masked_array([30, 40, 7], [False, False, True]), "sex": ["f", float("nan"), " m"]},
        {"age": [Decimal(30), 40.0, NAType()], "sex": ["f", NAType(), "m"]},
        Frame(age=[30, 40, NAType()], sex=["f", None, "m"], unused=[object()] * 3),
    ],
    ids=["lists", "arrays", "masked", "objects", "frame"],
)
def test_dicts_of_arrays_and_data_frames_mean_the_same(data: Any) -> None:
    terms = terms_for(
        Mean(name="age", of=AGE),
        Histogram(name="sex", of=Categories("sex", ("f", "m"))),
        Count(name="n", of=Present("sex")),
    )
    made = site_update(terms, data)
    assert made.update["age.counts"].tolist() == [2, 1, 0, 0]
    assert made.update["age.sums"].tolist() == [70]
    assert made.update["sex.counts"].tolist() == [1, 1, 0, 1]
    assert made.update["n.counts"].tolist() == [2, 1]


def test_numbers_in_a_column_of_categories_are_written_as_in_a_file() -> None:
    terms = terms_for(Histogram(name="code", of=Categories("code", ("1", "2", "True"))))
    for values in ([1, 2, 3], np.array([1.0, 2.0, 2.5]), np.array([1, 2, 7], np.uint8)):
        assert site_update(terms, {"code": values}).update["code.counts"].tolist() == [1, 1, 0, 1, 0]
    assert site_update(terms, {"code": np.array([True, False])}).update["code.counts"].tolist() == [0, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"Age": [1], "sex": ["f"]}, "expected a column 'age' once, got Age, sex; did you mean 'Age'"),
        ({"age": [1, 2], "sex": ["f"]}, "expected columns of one length"),
        ({"age": np.array(["old"]), "sex": ["f"]}, "column 'age': expected numbers"),
        ({"age": [1, "old"], "sex": ["f", "f"]}, "row 1, column 'age': expected a number"),
        (
            {"age": np.array([1, "old"], object), "sex": ["f", "f"]},
            "row 1, column 'age': expected a number, got .* str",
        ),
        ({"age": [1, np.inf], "sex": ["f", "f"]}, "row 1, column 'age': expected a finite number"),
        ({"age": [[1, 2]], "sex": ["f"]}, "column 'age': expected one value for each row, got 2 dimensions"),
        ({"age": [1], "sex": np.array([datetime.date(2020, 1, 1)], "M8[D]")}, "column 'sex': expected texts"),
        (np.array([1, 2]), "data: expected a path, a dict of arrays or a data frame, got ndarray"),
    ],
)
def test_other_data_is_refused_with_what_was_expected(data: Any, problem: str) -> None:
    terms = terms_for(Mean(name="age", of=AGE), Histogram(name="sex", of=Categories("sex", ("f", "m"))))
    with pytest.raises(UsageError, match=problem):
        site_update(terms, data)


def test_errors_do_not_show_data() -> None:
    terms = terms_for(Mean(name="age", of=AGE))
    with pytest.raises(UsageError) as refused:
        site_update(terms, {"age": np.array(["private"], object)})
    assert "private" not in str(refused.value)


def test_an_operator_sees_what_its_own_numbers_come_to() -> None:
    table = Contingency(name="t", rows=Categories("sex", ("f", "m")), by=Bins("age", (0, 18, 65)))
    terms = terms_for(Mean(name="age", of=AGE, min_sites=3), table, Count(name="n"))
    shown = preview(terms, site_update(terms, {"age": [10, 30], "sex": ["f", "m"]}))
    assert shown["age"]["mean"].value == 20  # type: ignore[index]
    assert shown["t"]["m", "[18, 65]"] == 1  # type: ignore[index]
