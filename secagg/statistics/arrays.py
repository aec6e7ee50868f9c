"""A site's data in memory: a dict of arrays, or a data frame of pandas or polars, neither of which is imported."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.agreement.statistics.columns import Floats, Mask, short
from secagg.errors import UsageError
from secagg.statistics.chunk import ROWS_AT_ONCE, Chunk, not_found

_MISSING_TYPES = ("NAType", "NaTType")  # of pandas


class ArrayChunk(Chunk):
    """Some rows of arrays."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], start: int, rows: int) -> None:
        super().__init__(rows)
        self._arrays, self._start = arrays, start

    def _part(self, column: str) -> npt.NDArray[Any]:
        return self._arrays[column][self._start : self._start + self.rows]

    def where(self, place: int) -> str:
        return f"row {self._start + place}"

    def _read_present(self, column: str) -> Mask:
        values = self._part(column)
        if values.dtype.kind in "iub":
            return np.ones(len(values), bool)
        if values.dtype.kind == "f":
            return np.asarray(~np.isnan(values), bool)
        return np.array([not _missing(value) for value in values.tolist()], bool)

    def _read_numbers(self, column: str) -> Floats:
        values = self._part(column)
        if values.dtype.kind in "iubf":
            numbers = values.astype(np.float64)
        elif values.dtype.kind == "O":
            numbers = np.array([self._number(value, column, place) for place, value in enumerate(values.tolist())])
        else:
            raise UsageError(f"column {column!r}: expected numbers, got an array of {values.dtype}")
        if np.isinf(numbers).any():
            place = int(np.argmax(np.isinf(numbers)))
            raise UsageError(f"{self.where(place)}, column {column!r}: expected a finite number, got an infinity")
        return numbers.astype(np.float64, copy=False)

    def _number(self, value: object, column: str, place: int) -> float:
        if _missing(value):
            return math.nan
        if isinstance(value, Real) or hasattr(value, "as_tuple"):  # a Decimal is no Real
            return float(value)  # type: ignore[arg-type]
        kind = type(value).__name__
        raise UsageError(f"{self.where(place)}, column {column!r}: expected a number, got a value of type {kind}")

    def _read_texts(self, column: str, known: Collection[str]) -> list[str | None]:
        values = self._part(column)
        if values.dtype.kind not in "OUTiubf":
            raise UsageError(f"column {column!r}: expected texts, got an array of {values.dtype}")
        return [None if _missing(value) else _text(value) for value in values.tolist()]


def _missing(value: object) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip()) or type(value).__name__ in _MISSING_TYPES


def _text(value: object) -> str:
    """A value as a CSV file has it; a whole number without its point, as a column with missing values gives it."""
    return short(value) if isinstance(value, float) and math.isfinite(value) else str(value).strip()


def read_arrays(data: Any, columns: Collection[str]) -> Iterator[Chunk]:
    """The declared columns of a dict of arrays or of a data frame, some thousand rows at a time."""
    names = list(data.keys() if isinstance(data, Mapping) else data.columns)
    arrays = {column: _array(data, column, names) for column in sorted(columns)}
    lengths = {column: len(array) for column, array in arrays.items()}
    if not lengths:
        lengths = {str(names[0]): len(data[names[0]])} if names else {"": 0}
    if len(set(lengths.values())) > 1:
        raise UsageError(f"expected columns of one length, got {lengths}")
    rows = next(iter(lengths.values()))
    for start in range(0, rows, ROWS_AT_ONCE):
        yield ArrayChunk(arrays, start, min(ROWS_AT_ONCE, rows - start))


def _array(data: Any, column: str, names: list[Any]) -> npt.NDArray[Any]:
    if names.count(column) != 1:
        raise UsageError(f"expected a column {column!r} once, {not_found(column, [str(name) for name in names])}")
    values = data[column]
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ma.MaskedArray):
        mask, values = np.ma.getmaskarray(values), values.data.astype(object)
        values[mask] = None
    array = np.asarray(values)
    if array.dtype.kind == "U" and not isinstance(values, np.ndarray):
        array = np.asarray(values, object)  # otherwise numbers among texts, and NaN, would be texts
    if array.ndim != 1:
        raise UsageError(f"column {column!r}: expected one value for each row, got {array.ndim} dimensions")
    return array
