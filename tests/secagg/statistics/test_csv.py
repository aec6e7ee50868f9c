"""CSV files: read as they are meant, strictly, and with the line in every error."""

import csv
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import UsageError
from secagg.statistics import Categories, Count, CsvFormat, Histogram, Mean, Numbers, Present, site_update
from tests.secagg.statistics.common import terms_for

TERMS = terms_for(
    Mean(name="x", of=Numbers("x", -1000, 1000)),
    Histogram(name="sex", of=Categories("sex", ("f", "m", "NA"))),
    Count(name="n", of=Present("sex")),
    most_rows=100_000,
)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | st.floats(-2000, 2000), st.sampled_from(["f", "m", "d", "", "NA"]), TEXT), max_size=9
    ),
    st.sampled_from(",;\t|"),
    st.sampled_from(".,"),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.booleans(),
)
def test_a_file_means_the_same_as_the_arrays_in_it(
    rows: list[Any], delimiter: str, decimal: str, end: str, told: bool, quoted: bool
) -> None:
    quoting = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        with path.open("w", newline="", encoding="utf-8-sig" if told else "utf-8") as file:
            writer = csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting)
            writer.writerow(["note", " x ", "sex"])
            for x, sex, note in rows:
                writer.writerow([note, "na" if x is None else repr(x).replace(".", decimal), f" {sex} "])
        form = CsvFormat(delimiter=delimiter if told else None, decimal=decimal)
        made = site_update(TERMS, path if told else str(path), csv=form)
    arrays = {"x": [x for x, _, _ in rows], "sex": [sex or None for _, sex, _ in rows]}
    assert made.rows == len(rows)
    expected = site_update(TERMS, arrays).update
    for name in ("x.counts", "x.sums", "sex.counts"):
        assert made.update[name].tolist() == expected[name].tolist()
    missing = sum(sex in ("", "NA") for _, sex, _ in rows)
    assert made.update["n.counts"].tolist() == [len(rows) - missing, missing]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: expected the names of the columns, got an empty line"),
        ("y,sex\n1,f\n", "line 1: expected a column 'x', got y, sex"),
        ("X,sex\n1,f\n", "did you mean 'X'"),
        ("x,sex,x\n1,f,2\n", "expected a column 'x', got it 2 times"),
        ("x,sex\n1,f\n2\n", "line 3: expected 2 cells as in the first line, got 1"),
        ("x,sex\n1,f\n\n2,f,m\n", "line 4: expected 2 cells as in the first line, got 3"),
        ('x,sex\n1,"f\nf"\nold,f\n', "line 4, column 'x': expected a number, got a text of 3 characters"),
        ("x;sex\n1,5;f\n", "got one with a decimal comma; set decimal to ','"),
        ("x,sex\n1_000,f\n", "line 2, column 'x': expected a number"),
        ("x,sex\n\u0661,f\n", "line 2, column 'x': expected a number"),
        ("x,sex\n-inf,f\n", "got an infinity"),
        ('x,sex\n"1\n2",f\n', "line 2, column 'x': expected a number, got a text of 3 characters"),
        ("x,sex\n1e999,f\n", "line 2, column 'x': the number is too large"),
        ('x,sex\n1,"f\n', "line 2: expected cells of CSV"),
        ('x,"sex\n1,f\n', "line 1: expected a column 'sex'"),
        ('"x,sex\n1,f\n', "line 1: expected the names of the columns, got a quote that does not end"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        site_update(TERMS, path)
    assert str(refused.value).startswith(f"{path}: line ")
    assert problem in str(refused.value)
    assert "old" not in str(refused.value)


def test_bytes_of_another_encoding_are_refused_and_read_if_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes("x,sex,Größe\n1,f,2\n".encode("latin-1"))
    with pytest.raises(UsageError, match="expected text in utf-8-sig, got other bytes; give the encoding"):
        site_update(TERMS, path)
    assert site_update(TERMS, path, csv=CsvFormat(encoding="latin-1")).rows == 1


def test_what_counts_as_missing_can_be_told(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("x,sex\n-9,f\n3,?\n,m\n")
    made = site_update(TERMS, path, csv=CsvFormat(missing=("-9", "?")))
    assert made.update["x.counts"][:2].tolist() == [1, 2]
    assert made.update["sex.counts"].tolist() == [1, 1, 0, 0, 1]


@pytest.mark.parametrize("wrong", [{"delimiter": ""}, {"quote": "ab"}, {"decimal": "x"}, {"encoding": "no such"}])
def test_a_format_that_cannot_be_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))}: "):
        CsvFormat(**wrong)  # type: ignore[arg-type]


def test_a_large_file_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secagg.statistics.csvfile.ROWS_AT_ONCE", 500)
    path = tmp_path / "data.csv"
    peaks = []
    for rows in (1000, 40_000):
        path.write_text("x,sex\n" + "".join(f"{row % 100},f\n" for row in range(rows)))
        tracemalloc.start()
        assert site_update(TERMS, path).rows == rows
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
