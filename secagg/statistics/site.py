"""What one site sends: the declared sums over its own rows, and what its operator should know before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from secagg.agreement.statistics.columns import Bins, Categories, Cells, Codes, Numbers, short
from secagg.agreement.statistics.kinds import (
    Contingency,
    Count,
    Frame,
    Histogram,
    LeastSquares,
    Quantiles,
    Statistic,
    Statistics,
)
from secagg.agreement.statistics.limbs import Int64
from secagg.agreement.terms import Terms
from secagg.arguments import instance
from secagg.errors import UsageError
from secagg.statistics.arrays import read_arrays
from secagg.statistics.chunk import Chunk
from secagg.statistics.csvfile import CsvFormat, read_csv
from secagg.statistics.products import Products


@dataclass(frozen=True, slots=True, eq=False)
class SiteUpdate:
    """A site's update, ready for `Client`; it is private until it is masked.

    `warnings` say what was clipped, missing or not declared. `rows` is the number of rows that were read.

    >>> import numpy as np
    >>> SiteUpdate({"n.counts": np.array([7])}, rows=7, warnings=())
    SiteUpdate()
    """

    update: Mapping[str, Int64] = field(repr=False)  # audit: repr-hides-site-update
    rows: int = field(repr=False)
    warnings: tuple[str, ...] = field(repr=False)


def declared(terms: Terms) -> Statistics:
    """The section `statistics` of these terms; UsageError if there is none."""
    statistics = instance("terms", terms, Terms).statistics
    if statistics is None:  # audit: statistics-undeclared
        raise UsageError("statistics: this agreement declares none; nothing can be asked")
    return statistics


def site_update(terms: Terms, data: Any, *, csv: CsvFormat | None = None) -> SiteUpdate:
    """The update of a site with this data: the path of a CSV file, a dict of arrays, or a data frame.

    The terms say what is computed; the data only says of which rows. Columns that are not declared are not read.

    >>> from secagg.simulation import make_agreement
    >>> from secagg.statistics import Mean, Numbers, Statistics
    >>> asked = Statistics(most_rows=100, asked=(Mean(name="age", of=Numbers("age", 0, 120, step=1)),))
    >>> agreement, _ = make_agreement(members=3, size=3, statistics=asked)
    >>> made = site_update(agreement.terms, {"age": [34, 51, None, 130]})
    >>> made.update["age.counts"], made.update["age.sums"]
    (array([3, 1, 1, 0]), array([205]))
    >>> made.warnings
    ("age: 1 of 4 values missing in 'age'", "age: 1 of 3 values of 'age' outside of 0 to 120, clipped")
    """
    statistics = declared(terms)
    frame = statistics.frame(terms.schedule.size)
    tallies = [_tally(one, frame) for one in statistics.asked]
    columns = {column.column for one in statistics.asked for column in one.columns}
    rows = 0
    for chunk in _chunks(data, columns, csv or CsvFormat()):
        rows += chunk.rows
        if rows > statistics.most_rows:  # audit: statistics-most-rows
            raise UsageError(
                f"expected at most {statistics.most_rows} rows of a site (statistics.most_rows), got more; nothing was "
                "sent"
            )
        for tally in tallies:
            tally.add(chunk)
    update: dict[str, Int64] = {}
    told = [] if rows else ["the data has no rows: all sums are 0"]
    for one, tally in zip(statistics.asked, tallies, strict=True):
        for entry, numbers in zip(one.entries(frame), tally.numbers(), strict=True):
            update[entry.name] = entry.split(numbers)
        told += [f"{one.name}: {note}" for note in tally.notes()]
    return SiteUpdate(update, rows, tuple(told))


def _chunks(data: Any, columns: set[str], form: CsvFormat) -> Iterator[Chunk]:
    if isinstance(data, str | PathLike):
        return read_csv(Path(data), columns, instance("csv", form, CsvFormat))
    if isinstance(data, Mapping) or (hasattr(data, "columns") and hasattr(data, "__getitem__")):
        return read_arrays(data, columns)
    raise UsageError(f"data: expected a path, a dict of arrays or a data frame, got {type(data).__name__}")


class _Tally:
    """The sums of one statistic, chunk by chunk."""

    def add(self, chunk: Chunk) -> None:
        raise NotImplementedError

    def numbers(self) -> list[list[int]]:
        """The numbers of each entry, in the order of `Statistic.entries`."""
        raise NotImplementedError

    def notes(self) -> Iterator[str]:
        """What the operator should know."""
        return iter(())


class _CountTally(_Tally):
    def __init__(self, one: Count) -> None:
        self._of, self._counts = one.of, [0] if one.of is None else [0, 0]

    def add(self, chunk: Chunk) -> None:
        present = chunk.rows if self._of is None else int(np.count_nonzero(chunk.present(self._of.column)))
        self._counts[0] += present
        if self._of is not None:
            self._counts[1] += chunk.rows - present

    def numbers(self) -> list[list[int]]:
        return [self._counts]


class _NumbersTally(_Tally):
    """Sums of the codes of numbers, and of their products: of one column, or of all columns of a regression.

    A row in which one of them is missing is left out.
    """

    def __init__(self, one: Any, frame: Frame) -> None:
        self._grids = one.grids(frame) if isinstance(one, LeastSquares) else (one.grid(frame),)
        self._degree = 2 if isinstance(one, LeastSquares) else one.degree
        self._products = Products(len(self._grids))
        self._counts = np.zeros(4, np.int64)  # COUNTS
        self._of_columns = np.zeros((len(self._grids), 3), np.int64)  # missing, clipped, rounded

    def add(self, chunk: Chunk) -> None:
        values = np.stack([chunk.numbers(grid.numbers.column) for grid in self._grids])
        missing = np.isnan(values)
        kept = values[:, ~missing.any(axis=0)]
        codes = np.empty(kept.shape, np.int64)
        clipped, rounded = np.zeros((2, kept.shape[1]), bool)
        for place, grid in enumerate(self._grids):
            codes[place], out, off = grid.codes(kept[place])
            self._of_columns[place] += (np.count_nonzero(missing[place]), np.count_nonzero(out), np.count_nonzero(off))
            clipped |= out
            rounded |= off
        used = kept.shape[1]
        self._counts += (used, chunk.rows - used, np.count_nonzero(clipped), np.count_nonzero(rounded))
        self._products.add(codes, squares=self._degree == 2)

    def numbers(self) -> list[list[int]]:
        products = [self._products.products()] if self._degree == 2 else []
        return [self._counts.tolist(), self._products.sums, *products]

    def notes(self) -> Iterator[str]:
        used, left_out = self._counts[:2].tolist()
        for grid, (missing, clipped, rounded) in zip(self._grids, self._of_columns.tolist(), strict=True):
            numbers: Numbers = grid.numbers
            name = repr(numbers.column)
            if missing:
                yield f"{missing} of {used + left_out} values missing in {name}"
            if clipped:
                bounds = f"{short(numbers.low)} to {short(numbers.high)}"
                yield f"{clipped} of {used} values of {name} outside of {bounds}, clipped"
            if rounded and numbers.step is not None:
                yield f"{rounded} of {used} values of {name} are not multiples of {short(numbers.step)}, rounded"
        if left_out and len(self._grids) > 1:
            yield f"{left_out} of {used + left_out} rows left out, because a value is missing"


class _CellsTally(_Tally):
    """Counts of the cells of one column, or of the pairs of cells of two."""

    def __init__(self, *axes: Cells) -> None:
        self._axes = axes
        self._counts = np.zeros([len(axis.labels) for axis in axes], np.int64)

    def add(self, chunk: Chunk) -> None:
        places = np.ravel_multi_index([_codes(axis, chunk) for axis in self._axes], self._counts.shape)
        self._counts += np.bincount(places, minlength=self._counts.size).reshape(self._counts.shape)

    def numbers(self) -> list[list[int]]:
        return [self._counts.ravel().tolist()]

    def notes(self) -> Iterator[str]:
        rows = int(self._counts.sum())
        for place, axis in enumerate(self._axes):
            found = self._counts.sum(axis=tuple(other for other in range(len(self._axes)) if other != place))
            counts = dict(zip(axis.labels[-2:], found[-2:].tolist(), strict=True))
            name = repr(axis.column)
            if isinstance(axis, Bins):
                counts = {"below": int(found[0]), **counts}
            missing = counts.pop("missing")
            if missing:
                yield f"{missing} of {rows} values missing in {name}"
            for label, count in counts.items():
                if count and label == "other":
                    yield f"{count} of {rows} values of {name} are none of the declared categories, counted as other"
                elif count:
                    yield f"{count} of {rows} values of {name} lie {label} the edges"


def _codes(axis: Cells, chunk: Chunk) -> Codes:
    if isinstance(axis, Categories):
        return axis.codes(chunk.texts(axis.column, frozenset(axis.categories)))
    return axis.codes(chunk.numbers(axis.column))


def _tally(one: Statistic, frame: Frame) -> _Tally:
    if isinstance(one, Count):
        return _CountTally(one)
    if isinstance(one, Histogram | Quantiles):
        return _CellsTally(one.of)
    if isinstance(one, Contingency):
        return _CellsTally(one.rows, one.by)
    return _NumbersTally(one, frame)
