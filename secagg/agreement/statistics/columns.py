"""What an agreement says of one column: numbers between bounds, bins, or categories.

A site turns every value of the column into a whole number, its code, and sums codes. So sums are exact, whatever the
order of the rows, and do not depend on floating-point arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.arguments import each, real
from secagg.errors import UsageError

MOST_TEXT: Final = 200  # characters of a name, a column or a category
MOST_CELLS: Final = 65535  # bins or categories of one column
MOST_NUMBER: Final = 2.0**100  # of a bound or an edge: products of what is computed from them stay finite
MOST_STEPS: Final = 2**40  # from `low` to `high`
OTHER, BELOW, ABOVE, MISSING = "other", "below", "above", "missing"

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Present:
    """A column of which only matters whether a value is missing.

    >>> Present("age").labels
    ('present', 'missing')
    """

    column: str

    def __post_init__(self) -> None:
        text("column", self.column)

    @property
    def labels(self) -> tuple[str, ...]:
        return "present", MISSING


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column of numbers from `low` to `high`. What lies outside is clipped to them, and counted.

    Values are rounded to multiples of `step`, counted from `low`. Give it if the values are such multiples, as whole
    numbers are (step 1) or amounts in cents (step 0.01): then sums of them are exact. Without it, the step follows from
    what fits into a sum: about a 2^-26th to a 2^-32th of the range.

    >>> Numbers("age", 0, 120, step=1).steps
    120
    """

    column: str
    low: float
    high: float
    step: float | None = None

    def __post_init__(self) -> None:
        text("column", self.column)
        for name in ("low", "high", "step"):
            if name != "step" or self.step is not None:
                object.__setattr__(self, name, real(f"{name} of column {self.column!r}", getattr(self, name)) + 0.0)
        if not self.low < self.high:
            raise UsageError(f"column {self.column!r}: expected low < high, got {self.low:g} and {self.high:g}")
        _check_size(f"column {self.column!r}", self.low, self.high)
        if self.high - self.low < 1 / MOST_NUMBER:
            raise UsageError(
                f"column {self.column!r}: expected a wider range than {self.low:g} to {self.high:g}; use a smaller unit"
            )
        if self.step is not None:
            self._check_step(self.step)

    def _check_step(self, step: float) -> None:
        where = f"step of column {self.column!r}"
        if step <= 0 or decimal(step) > self.range:
            raise UsageError(f"{where}: expected more than 0 and at most high - low, got {step:g}")
        count = self.range / decimal(step)
        if count.denominator != 1:
            raise UsageError(f"{where}: expected high - low to be a multiple of the step, got {float(count):g} steps")
        if count > MOST_STEPS:
            raise UsageError(f"{where}: expected at most {MOST_STEPS} steps from low to high, got {int(count)}")

    @property
    def range(self) -> Fraction:
        return decimal(self.high) - decimal(self.low)

    @property
    def steps(self) -> int | None:
        """The number of steps from `low` to `high`, if `step` is given."""
        return None if self.step is None else int(self.range / decimal(self.step))


@dataclass(frozen=True, slots=True)
class Bins:
    """A column of numbers in bins: each from an edge up to the next, without it; the last bin has its upper edge too.

    What lies outside the edges is counted as below and above.

    >>> Bins("age", (0, 18, 65)).labels
    ('below', '[0, 18)', '[18, 65]', 'above', 'missing')
    """

    column: str
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        text("column", self.column)
        where = f"edges of column {self.column!r}"
        edges = tuple(real(where, edge) + 0.0 for edge in each(where, self.edges, object))
        object.__setattr__(self, "edges", edges)
        if not 2 <= len(edges) <= MOST_CELLS or any(a >= b for a, b in pairwise(edges)):
            raise UsageError(f"{where}: expected 2 to {MOST_CELLS} numbers, each larger than the one before")
        _check_size(where, edges[0], edges[-1])

    @classmethod
    def even(cls, column: str, low: float, high: float, bins: int) -> Bins:
        """This many bins of equal width.

        >>> Bins.even("score", 0, 1, 4).edges
        (0.0, 0.25, 0.5, 0.75, 1.0)
        """
        if not isinstance(bins, int) or isinstance(bins, bool) or not 1 <= bins < MOST_CELLS:
            raise UsageError(f"bins of column {column!r}: expected 1 to {MOST_CELLS - 1}, got {bins!r}")
        whole = Numbers(column, low, high)
        start, width = decimal(whole.low), whole.range / bins
        return cls(column, tuple(float(start + width * place) for place in range(bins + 1)))

    @property
    def labels(self) -> tuple[str, ...]:
        ends = [")"] * (len(self.edges) - 2) + ["]"]
        named = (f"[{short(a)}, {short(b)}{end}" for (a, b), end in zip(pairwise(self.edges), ends, strict=True))
        return (BELOW, *named, ABOVE, MISSING)

    def codes(self, values: Floats) -> Codes:
        """The place of each value among `labels`; NaN is missing."""
        places = np.searchsorted(np.asarray(self.edges), values, side="right")
        places[values == self.edges[-1]] = len(self.edges) - 1
        places[np.isnan(values)] = len(self.edges) + 1
        return places.astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True)
class Categories:
    """A column of texts. Each category is counted; a text that is none of them is counted as other.

    >>> Categories("sex", ("f", "m")).labels
    ('f', 'm', 'other', 'missing')
    """

    column: str
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        text("column", self.column)
        where = f"categories of column {self.column!r}"
        object.__setattr__(self, "categories", each(where, self.categories, str))
        for category in self.categories:
            text(where, category)
        if not 1 <= len(self.categories) <= MOST_CELLS or len(set(self.categories)) < len(self.categories):
            raise UsageError(f"{where}: expected 1 to {MOST_CELLS} different texts, got {len(self.categories)}")

    @property
    def labels(self) -> tuple[str, ...]:
        return (*self.categories, OTHER, MISSING)

    def codes(self, values: Iterable[str | None]) -> Codes:
        """The place of each text among `labels`; None is missing."""
        places: dict[str | None, int] = {category: place for place, category in enumerate(self.categories)}
        places[None] = len(places) + 1
        other = len(self.categories)
        return np.array([places.get(value, other) for value in values], np.int64)


Cells = Bins | Categories
Column = Present | Numbers | Bins | Categories


@dataclass(frozen=True, slots=True)
class Grid:
    """The codes of a column of numbers: the multiples of a step from `low` to `high`.

    >>> import numpy as np
    >>> grid = Grid(Numbers("age", 0, 120, step=1), 120)
    >>> codes, clipped, rounded = grid.codes(np.array([34.0, 130.0, 7.2]))
    >>> codes, clipped, rounded, grid.value(34)
    (array([ 34, 120,   7]), array([False,  True, False]), array([False, False,  True]), Fraction(34, 1))
    """

    numbers: Numbers
    steps: int

    @property
    def low(self) -> Fraction:
        return decimal(self.numbers.low)

    @property
    def step(self) -> Fraction:
        return self.numbers.range / self.steps

    @property
    def fuzz(self) -> Fraction:
        """What floating-point arithmetic may add to the distance of a value from its code."""
        return Fraction(max(abs(self.numbers.low), abs(self.numbers.high))) / 2**50

    @property
    def slack(self) -> Fraction:
        """How far a value that counts as a multiple of the step may be from it: not at all for whole numbers."""
        return Fraction(0) if self._whole else self.fuzz

    @property
    def half(self) -> Fraction:
        """How far any other value may be from its code."""
        return self.step / 2 + self.fuzz

    @property
    def _whole(self) -> bool:
        ends = self.numbers.low, self.numbers.high, float(self.step)
        return self.step.denominator == 1 and all(end == int(end) and abs(end) < 2**52 for end in ends)

    def value(self, code: int | Fraction) -> Fraction:
        """The number that a code stands for."""
        return self.low + code * self.step

    def codes(self, values: Floats) -> tuple[Codes, Mask, Mask]:
        """The code of each value, none of them NaN; which were clipped, and which were rounded."""
        numbers = self.numbers
        inside = np.clip(values, numbers.low, numbers.high)
        clipped = inside != values
        exact = (inside - numbers.low) / float(self.step)
        nearest = np.clip(np.rint(exact), 0, self.steps)
        if self._whole:
            off = inside != numbers.low + nearest * float(self.step)
        else:
            off = np.abs(exact - nearest) * float(self.step) > float(self.slack) / 2
        return nearest.astype(np.int64), clipped, off


def _check_size(where: str, low: float, high: float) -> None:
    if max(-low, high) > MOST_NUMBER:
        raise UsageError(f"{where}: expected numbers from -2^100 to 2^100, got {low:g} and {high:g}; use a larger unit")


def decimal(value: float) -> Fraction:
    """The number that people wrote: 0.01 is a hundredth, not the float next to it."""
    return Fraction(repr(float(value)))


def short(value: float) -> str:
    """A number as people write it."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= MOST_TEXT or not value.isprintable():
        raise UsageError(f"{name}: expected 1 to {MOST_TEXT} printable characters, got {type(value).__name__}")
    if value != value.strip():
        raise UsageError(f"{name}: expected no blanks at the ends, got {value!r}")
