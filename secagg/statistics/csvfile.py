"""Reading a CSV file, strictly, in one pass and with bounded memory. Every error names the line, none the cell's text.

The text of a cell is private data: it must not end up in a log.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from secagg.agreement.statistics.columns import Floats, Mask
from secagg.errors import UsageError
from secagg.statistics.chunk import ROWS_AT_ONCE, Chunk, not_found

MISSING: Final = ("", "NA", "N/A", "NaN", "null", "None")
_DELIMITERS: Final = (",", ";", "\t", "|")
_POINT: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMBER: Final = re.compile(_POINT)
_NUMBERS: Final = re.compile(rf"(?:{_POINT})?(?:\n(?:{_POINT})?)*")  # or empty cells, one in each line
_NUMBER_WITH_COMMA: Final = re.compile(r"[+-]?(?:[0-9]+,?[0-9]*|,[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """How a CSV file is written. The first line names the columns.

    `delimiter` None: the one of comma, semicolon, tab and bar with which the first line has all declared columns.
    `missing` lists the texts that stand for a missing value, in upper or lower case; a declared category is never
    missing.

    >>> CsvFormat(delimiter=";", decimal=",").decimal
    ','
    """

    delimiter: str | None = None
    quote: str = '"'
    decimal: str = "."
    missing: tuple[str, ...] = MISSING
    encoding: str = "utf-8-sig"

    def __post_init__(self) -> None:
        for name, value in (("delimiter", self.delimiter), ("quote", self.quote)):
            if value is not None and (not isinstance(value, str) or len(value) != 1 or value in "\r\n"):
                raise UsageError(f"{name}: expected one character, got {value!r}")
        if self.decimal not in (".", ","):
            raise UsageError(f"decimal: expected '.' or ',', got {self.decimal!r}")
        try:
            "".encode(self.encoding)
        except (LookupError, TypeError):
            raise UsageError(f"encoding: unknown encoding {self.encoding!r}") from None


class CsvChunk(Chunk):
    """Some lines of a file: the cells of the declared columns, without blanks at their ends."""

    def __init__(self, path: Path, cells: Mapping[str, Sequence[str]], lines: Sequence[int], form: CsvFormat) -> None:
        super().__init__(len(lines))
        self._path, self._cells, self._lines, self._form = path, cells, lines, form
        self._missing = frozenset(text.casefold() for text in (*form.missing, ""))

    def _read_present(self, column: str) -> Mask:
        missing = self._missing
        return np.array([cell.casefold() not in missing for cell in self._cells[column]], bool)

    def _read_texts(self, column: str, known: Collection[str]) -> list[str | None]:
        missing = self._missing
        return [cell if cell in known or cell.casefold() not in missing else None for cell in self._cells[column]]

    def _read_numbers(self, column: str) -> Floats:
        cells = self._cells[column]
        values = self._all_numbers(cells)
        return self._one_by_one(column, cells) if values is None else values

    def _all_numbers(self, cells: Sequence[str]) -> Floats | None:
        """The common case, fast: numbers with a decimal point, and empty cells. None for anything else."""
        if self._form.decimal != "." or any(map(_NUMBER.fullmatch, self._missing)):
            return None
        if not _NUMBERS.fullmatch("\n".join(cells)):
            return None
        try:
            values = np.array([float(cell) if cell else math.nan for cell in cells])
        except ValueError:  # a cell of several lines
            return None
        return None if np.isinf(values).any() else values

    def _one_by_one(self, column: str, cells: Sequence[str]) -> Floats:
        comma = self._form.decimal == ","
        match = (_NUMBER_WITH_COMMA if comma else _NUMBER).fullmatch
        missing, values = self._missing, np.empty(self.rows)
        for place, cell in enumerate(cells):
            if cell.casefold() in missing:  # first: -9 may stand for a missing value
                values[place] = math.nan
            elif match(cell):
                values[place] = float(cell.replace(",", ".") if comma else cell)
            else:
                problem = _hint(cell, comma)  # audit: error-hides-cells
                raise UsageError(f"{self.where(place)}, column {column!r}: expected a number, {problem}")
        if np.isinf(values).any():
            place = int(np.argmax(np.isinf(values)))
            raise UsageError(f"{self.where(place)}, column {column!r}: the number is too large for a float")
        return values

    def where(self, place: int) -> str:
        return f"{self._path}: line {self._lines[place]}"


def _hint(cell: str, comma: bool) -> str:
    """Why a cell is not a number, without its text."""
    if (_NUMBER if comma else _NUMBER_WITH_COMMA).fullmatch(cell):
        return f"got one with a decimal {'point' if comma else 'comma'}; set decimal to {'.' if comma else ','!r}"
    if cell.casefold().strip("+-") in ("inf", "infinity"):
        return "got an infinity; correct the cell or empty it"
    return f"got a text of {len(cell)} characters; correct the cell, or list the text as missing"


def read_csv(path: Path, columns: Collection[str], form: CsvFormat) -> Iterator[Chunk]:
    """The declared columns of a file, some thousand lines at a time."""
    try:
        with path.open(newline="", encoding=form.encoding, errors="strict") as file:
            for cells, lines in _blocks(file, columns, form):
                yield CsvChunk(path, cells, lines, form)
    except UnicodeError:
        raise UsageError(f"{path}: expected text in {form.encoding}, got other bytes; give the encoding") from None
    except UsageError as bad:
        raise UsageError(f"{path}: {bad}") from None


def _blocks(file: Any, columns: Collection[str], form: CsvFormat) -> Iterator[tuple[dict[str, list[str]], list[int]]]:
    """The cells of the declared columns in some thousand records, and the line of each."""
    first = file.readline()
    if not first.strip():
        raise UsageError("line 1: expected the names of the columns, got an empty line")
    delimiter, names = _header(first, columns, form)
    places = {column: names.index(column) for column in columns}
    reader = csv.reader(file, delimiter=delimiter, quotechar=form.quote, strict=True)
    records = _records(reader, len(names))
    while block := list(islice(records, ROWS_AT_ONCE)):
        lines = [line for line, _ in block]
        cells = {column: [record[place].strip() for _, record in block] for column, place in places.items()}
        yield cells, lines


def _records(reader: Any, width: int) -> Iterator[tuple[int, list[str]]]:
    """Each record with the number of its first line. The first line of the file is not the reader's."""
    while True:
        line = reader.line_num + 2
        try:
            record = next(reader, None)
        except csv.Error as bad:
            raise UsageError(f"line {line}: expected cells of CSV: {bad}") from None
        if record is None:
            return
        if not record:
            continue
        if len(record) != width:
            raise UsageError(f"line {line}: expected {width} cells as in the first line, got {len(record)}")
        yield line, record


def _header(line: str, columns: Collection[str], form: CsvFormat) -> tuple[str, list[str]]:
    """The delimiter, and the names in the first line; UsageError if a declared column is not there exactly once."""
    tried: list[tuple[str, list[str]]] = []
    for delimiter in _DELIMITERS if form.delimiter is None else (form.delimiter,):
        try:
            [names] = csv.reader([line], delimiter=delimiter, quotechar=form.quote, strict=True)
        except csv.Error:
            continue
        tried.append((delimiter, [name.strip() for name in names]))
    if not tried:
        raise UsageError("line 1: expected the names of the columns, got a quote that does not end before a delimiter")
    delimiter, names = max(tried, key=lambda one: (len(set(columns).intersection(one[1])), len(one[1])))
    for column in sorted(columns):
        if names.count(column) != 1:
            came = f"got it {names.count(column)} times" if column in names else not_found(column, names)
            raise UsageError(f"line 1: expected a column {column!r}, {came}")
    return delimiter, names
