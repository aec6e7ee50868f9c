"""Results on a screen, as JSON and as CSV, and what suppression does to them."""

import csv
import io
import json
from typing import Any

import pytest

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
    Report,
    Sum,
    Variance,
)
from secagg.statistics.outcomes import SUPPRESSED
from secagg.statistics.report import aligned
from tests.secagg.statistics.common import report_of, terms_for

AGE, BINS, SEX = Numbers("age", 0, 120, step=1), Bins("age", (0, 18, 65)), Categories("sex", ("f", "m", "=1+1"))
EVERYTHING = (
    Count(name="n"),
    Count(name="aged", of=Present("age")),
    Sum(name="sum", of=AGE),
    Mean(name="mean", of=AGE),
    Variance(name="variance", of=AGE),
    Histogram(name="bins", of=BINS, suppress=2),
    Histogram(name="sex", of=SEX),
    Quantiles(name="quantiles", of=BINS, probabilities=(0.5, 0.99)),
    Contingency(name="table", rows=SEX, by=BINS, suppress=3),
    LeastSquares(name="fit", target=AGE, features=(Numbers("x", 0, 10, step=1),)),
)
DATA = [
    {"age": [10, 20, 30, 66, None], "sex": ["f", "f", "m", "f", ""], "x": [1, 2, 3, 4, 5]},
    {"age": [40, 50], "sex": ["m", "m"], "x": [2, 9]},
    {"age": [], "sex": [], "x": []},
]


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of(terms_for(*EVERYTHING), DATA)


def test_tables_are_plain_aligned_text(report: Report) -> None:
    text = report.text()
    assert text.startswith("simulation: 3 of 3 sites (site 0, site 1, site 2)\n")
    assert "mean (mean of age)\n  mean  36  exact\n  6 values used, 1 with a missing value, 0 clipped\n" in text
    table = text[text.index("table (contingency of sex by age)") :].splitlines()[1:6]
    assert len({len(line) for line in table}) == 1
    assert table[0].split() == ["below", "[0,", "18)", "[18,", "65]", "above", "missing"]
    assert "fit (least_squares of age on x)" in text
    assert text.endswith(SUPPRESSED)
    assert list(aligned([["a", "1"], ["bb", "22"]])) == ["a    1", "bb  22"]


def test_json_has_plain_types_and_the_same_numbers(report: Report) -> None:
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert found == report.to_json()
    assert [site["name"] for site in found["sites"]] == ["site 0", "site 1", "site 2"]
    assert found["missing"] == []
    statistics = found["statistics"]
    assert statistics.keys() == {one.name for one in EVERYTHING}
    assert statistics["mean"]["mean"] == {"value": 36, "error": 0}
    assert statistics["sum"]["resolution"] == 1
    assert statistics["aged"] == {"kind": "count", "columns": ["age"], "rows": 6, "missing": 1}
    assert statistics["table"]["about_suppression"] == SUPPRESSED
    assert [one["column"] for one in statistics["fit"]["coefficients"]] == ["(intercept)", "x"]


def test_csv_has_a_line_for_each_number_and_no_formulas(report: Report) -> None:
    lines = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert {line["statistic"] for line in lines} == {one.name for one in EVERYTHING}
    assert {line["sites"] for line in lines} == {"3"}
    [mean] = [line for line in lines if line["statistic"] == line["quantity"] == "mean"]
    assert (float(mean["value"]), float(mean["error"])) == (36, 0)
    assert not [cell for line in lines for cell in line.values() if cell.startswith("=")]
    assert [line["value"] for line in lines if line["statistic"] == "sex"] == ["3", "3", "0", "0", "1"]


def cells(report: Report, name: str) -> list[Any]:
    counts = report[name].counts
    return [count for row in counts for count in (row if isinstance(row, tuple) else (row,))]


def test_counts_below_the_limit_are_shown_nowhere_and_others_are(report: Report) -> None:
    plain = report_of(terms_for(Histogram(name="bins", of=BINS), Contingency(name="table", rows=SEX, by=BINS)), DATA)
    for name, limit in (("bins", 2), ("table", 3)):
        shown, all_of_them = cells(report, name), cells(plain, name)
        assert any(0 < count < limit for count in all_of_them)
        assert shown == [None if 0 < count < limit else count for count in all_of_them]
        assert report.to_json()["statistics"][name]["counts"] != plain.to_json()["statistics"][name]["counts"]
    assert "<2" in report.text()
    assert "<3" in report.text()
    assert "suppress" not in plain.to_json()["statistics"]["bins"]


def test_a_report_without_values_says_so() -> None:
    empty = report_of(terms_for(*EVERYTHING), [DATA[2]] * 3)
    assert empty["mean"]["mean"].value is None
    assert empty["variance"]["sd"].value is None
    assert empty["quantiles"][0.5].estimate is None
    assert empty["fit"].problem == "0 complete rows are too few for 2 coefficients"
    assert "mean  -  -" in empty.text()
    json.dumps(empty.to_json(), allow_nan=False)
    assert empty.to_csv().count("\n") > 10
