"""What a statistic comes to: numbers with a bound on their error, in plain types for JSON and as rows for CSV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

Row = tuple[str, str, str, int | float | None, float | None, float | None]  # as `report.COLUMNS` names them

SUPPRESSED: Final = (
    "Small counts are left out of what this program prints and writes. They are opened all the same: whoever runs the "
    "hub has them. A count that is left out can be computed from totals that are known otherwise, so no totals are "
    "given here. Only noise bounds what counts say of one person."
)


@dataclass(frozen=True, slots=True)
class Value:
    """A number, and the most by which rounding can have moved it; None if there are too few values for it.

    `noise` is the standard deviation of the noise in it, in an agreement with noise. In about 19 of 20 cases, noise
    moved it by less than twice as much.

    >>> Value(54.3, 0.001).value
    54.3
    """

    value: float | None
    error: float | None = 0.0
    noise: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "error": self.error, **_noise(self.noise)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What all of them have: the name, the kind and the columns of the declaration.

    >>> Counted(name="n", kind="count", columns=(), rows=7, missing=None).to_json()
    {'kind': 'count', 'columns': [], 'rows': 7}
    """

    name: str
    kind: str
    columns: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """In plain types."""
        return {"kind": self.kind, "columns": list(self.columns), **self._fields()}

    def rows_of_csv(self) -> Iterator[Row]:
        """One row for each number: quantity, row, column, value, error, noise."""
        raise NotImplementedError

    def _fields(self) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Outcome):
    """The number of rows; with a column, of rows with a value in it (`rows`) and without (`missing`).

    >>> list(Counted(name="n", kind="count", columns=("age",), rows=7, missing=2).rows_of_csv())
    [('rows', '', '', 7, 0.0, None), ('missing', '', '', 2, 0.0, None)]
    """

    rows: int
    missing: int | None
    noise: float | None = None

    def rows_of_csv(self) -> Iterator[Row]:
        missing = () if self.missing is None else (("missing", self.missing),)
        yield from ((what, "", "", count, 0.0, self.noise) for what, count in (("rows", self.rows), *missing))

    def _fields(self) -> dict[str, Any]:
        missing = {} if self.missing is None else {"missing": self.missing}
        return {"rows": self.rows, **missing, **_noise(self.noise)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments(Outcome):
    """Sum, mean, variance or standard deviation, of the values after clipping.

    `used` values are in it; `missing` ones are not; `clipped` ones count with the bound that they crossed. `resolution`
    is the step to which values were rounded; `rounded` of them were not multiples of it.

    >>> Moments(name="age", kind="mean", columns=("age",), used=3, missing=1, clipped=0, rounded=0, resolution=1.0,
    ...         values={"mean": Value(41.0)})["mean"].value
    41.0
    """

    used: int
    missing: int
    clipped: int
    rounded: int
    resolution: float
    values: dict[str, Value]
    noise: float | None = None  # of the counts

    def __getitem__(self, quantity: str) -> Value:
        return self.values[quantity]

    def rows_of_csv(self) -> Iterator[Row]:
        yield from ((what, "", "", found.value, found.error, found.noise) for what, found in self.values.items())
        names = ("used", "missing", "clipped", "rounded")
        yield from ((what, "", "", getattr(self, what), 0.0, self.noise) for what in names)
        yield "resolution", "", "", self.resolution, 0.0, None

    def _fields(self) -> dict[str, Any]:
        counts = {what: getattr(self, what) for what in ("used", "missing", "clipped", "rounded", "resolution")}
        return {**{what: found.to_json() for what, found in self.values.items()}, **counts, **_noise(self.noise)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts(Outcome):
    """Counts of cells of one column. A count is None if it is from 1 to `suppress` - 1.

    >>> Counts(name="sex", kind="histogram", columns=("sex",), labels=("f", "m"), counts=(12, None), suppress=5)["f"]
    12
    """

    labels: tuple[str, ...]
    counts: tuple[int | None, ...]
    suppress: int = 0
    noise: float | None = None

    def __getitem__(self, label: str) -> int | None:
        return dict(zip(self.labels, self.counts, strict=True))[label]

    def rows_of_csv(self) -> Iterator[Row]:
        for label, count in zip(self.labels, self.counts, strict=True):
            yield "count", label, "", count, None if count is None else 0.0, self.noise

    def _fields(self) -> dict[str, Any]:
        counts = {"labels": list(self.labels), "counts": list(self.counts)}
        return {**counts, **_suppressed(self.suppress), **_noise(self.noise)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCounts(Outcome):
    """Counts of pairs of cells of two columns, row by row. A count is None if it is from 1 to `suppress` - 1.

    >>> CrossCounts(name="t", kind="contingency", columns=("a", "b"), labels=(("x", "y"), ("u",)),
    ...             counts=((3,), (4,)))["y", "u"]
    4
    """

    labels: tuple[tuple[str, ...], tuple[str, ...]]
    counts: tuple[tuple[int | None, ...], ...]
    suppress: int = 0
    noise: float | None = None

    def __getitem__(self, cell: tuple[str, str]) -> int | None:
        rows, columns = self.labels
        return self.counts[rows.index(cell[0])][columns.index(cell[1])]

    def rows_of_csv(self) -> Iterator[Row]:
        for label, row in zip(self.labels[0], self.counts, strict=True):
            for other, count in zip(self.labels[1], row, strict=True):
                yield "count", label, other, count, None if count is None else 0.0, self.noise

    def _fields(self) -> dict[str, Any]:
        counts = [list(row) for row in self.counts]
        labels = {"row_labels": list(self.labels[0]), "column_labels": list(self.labels[1])}
        return {**labels, "counts": counts, **_suppressed(self.suppress), **_noise(self.noise)}


@dataclass(frozen=True, slots=True)
class Quantile:
    """The smallest value that at least this part of all values does not exceed lies from `low` to `high`.

    `low` or `high` is None if it lies outside the edges; `estimate` is then None too. Otherwise the estimate takes
    values to be spread evenly within the bin, and errs by at most the bin's width.

    >>> Quantile(0.5, 40.0, 45.0, 42.5).high
    45.0
    """

    probability: float
    low: float | None
    high: float | None
    estimate: float | None

    def to_json(self) -> dict[str, Any]:
        return {"probability": self.probability, "low": self.low, "high": self.high, "estimate": self.estimate}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileList(Outcome):
    """Quantiles from a histogram of `used` values.

    >>> QuantileList(name="q", kind="quantiles", columns=("age",), used=9, missing=0,
    ...              quantiles=(Quantile(0.5, 40.0, 45.0, 42.5),))[0.5].estimate
    42.5
    """

    used: int
    missing: int
    quantiles: tuple[Quantile, ...]
    noise: float | None = None  # of each count of the histogram

    def __getitem__(self, probability: float) -> Quantile:
        return {one.probability: one for one in self.quantiles}[probability]

    def rows_of_csv(self) -> Iterator[Row]:
        for one in self.quantiles:
            width = None if one.low is None or one.high is None else one.high - one.low
            yield "quantile", repr(one.probability), "", one.estimate, width, None
            yield "quantile, from", repr(one.probability), "", one.low, 0.0, None
            yield "quantile, to", repr(one.probability), "", one.high, 0.0, None
        for what, count in (("used", self.used), ("missing", self.missing)):
            yield what, "", "", count, 0.0, self.noise

    def _fields(self) -> dict[str, Any]:
        quantiles = [one.to_json() for one in self.quantiles]
        return {"used": self.used, "missing": self.missing, "quantiles": quantiles, **_noise(self.noise)}


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One coefficient; `error` bounds what rounding can have moved it by, `standard_error` is the statistical one.

    >>> Coefficient("height", 0.9, 1e-6, 0.05).column
    'height'
    """

    column: str
    value: float
    error: float
    standard_error: float | None
    noise: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "column": self.column,
            "value": self.value,
            "error": self.error,
            "standard_error": self.standard_error,
            **_noise(self.noise),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(Outcome):
    """Least squares: coefficients, R squared and the residuals' standard deviation, over the complete rows.

    If the columns cannot be told apart, there are no coefficients, and `problem` says why.

    >>> Fit(name="fit", kind="least_squares", columns=("a", "b"), used=1, missing=0, clipped=0, rounded=0,
    ...     coefficients=(), problem="too few rows").coefficients
    ()
    """

    used: int
    missing: int
    clipped: int
    rounded: int
    coefficients: tuple[Coefficient, ...]
    r_squared: float | None = None
    residual_sd: float | None = None
    degrees_of_freedom: int = 0
    problem: str = ""

    def __getitem__(self, column: str) -> Coefficient:
        return {one.column: one for one in self.coefficients}[column]

    def rows_of_csv(self) -> Iterator[Row]:
        for one in self.coefficients:
            yield "coefficient", one.column, "", one.value, one.error, one.noise
            yield "standard error", one.column, "", one.standard_error, None, None
        for what in ("r_squared", "residual_sd", "degrees_of_freedom", "used", "missing", "clipped", "rounded"):
            yield what, "", "", getattr(self, what), None, None

    def _fields(self) -> dict[str, Any]:
        names = ("used", "missing", "clipped", "rounded", "r_squared", "residual_sd", "degrees_of_freedom", "problem")
        found = [one.to_json() for one in self.coefficients]
        return {"coefficients": found, **{name: getattr(self, name) for name in names}}


def _noise(noise: float | None) -> dict[str, Any]:
    return {} if noise is None else {"noise": noise}


def _suppressed(suppress: int) -> dict[str, Any]:
    return {"suppress": suppress, "about_suppression": SUPPRESSED} if suppress else {}
