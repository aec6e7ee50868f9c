"""The rows that a rule works on, and the few things that rules ask of them.

This is where input is looked after, once for all rules: shape and type, and values that are not finite.
Looking for those beforehand would cost a full reading of the matrix, as much as a median, so every method
below notices them on its way and raises `NotFiniteError`. The caller (`rule.py`) then finds out which rows
they are in, and starts again without them. No method ever returns a value that came from such a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust.kernels.threads import spread

Matrix = NDArray[np.float32]
Vector = NDArray[np.float32]
Weights = NDArray[np.float64]
Indices = NDArray[np.int64]


class NotFiniteError(Exception):
    """A row holds NaN or infinity. Never leaves the package: the rule is run again without such rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a rule made of the rows: a vector and, where the rule has them, the weights or rows it chose."""

    vector: Vector
    weights: Weights | None = None  # of each row in the vector, for rules that add up weighted rows
    accepted: Indices | None = None  # the rows that entered the vector, for rules that choose among them
    converged: bool = True  # False if an iteration used up its steps before it was within its tolerance


class Rows:
    """Some rows of a float32 matrix, in order. Positions below count within these rows, from 0."""

    def __init__(
        self, matrix: Matrix, *, labels: Indices | None = None, given: int | None = None, ignored: int = 0
    ) -> None:
        self._matrix = matrix
        self._numbers = np.arange(len(matrix), dtype=np.int64)  # which rows of the matrix
        self.labels = self._numbers if labels is None else labels  # what the caller calls them
        self.given = len(matrix) if given is None else given  # how many there were before any was ignored
        self.ignored = ignored  # how many were left out because they are not finite
        self._distances: NDArray[np.float64] | None = None
        self._known_finite = False  # once a method has read every row and found nothing wrong

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def width(self) -> int:
        """Length of a row."""
        return int(self._matrix.shape[1])

    # The kernels are imported where they are used: numba takes longer to import than all of this package,
    # and planning, tolerance and attacks by name need none of it.

    def middle_mean(self, low: int, high: int) -> Vector:
        """For every column, the mean of the values of rank low..high-1, counted from the smallest."""
        from robust.kernels import order

        return _finite(order.middle_mean(self._matrix, self._numbers, low, high))

    def mean_around_median(self, keep: int) -> Vector:
        """For every column, the mean of the `keep` values nearest the median; of two as near, the lower."""
        from robust.kernels import order

        return _finite(order.mean_around_median(self._matrix, self._numbers, keep))

    def squared_distances(self) -> NDArray[np.float64]:
        """Squared Euclidean distances between all rows, computed once."""
        from robust.kernels import distances

        if self._distances is None:
            found = distances.squared_distances(self._matrix, self._numbers)
            self._all_finite(found.diagonal())
            found.setflags(write=False)
            self._distances = found
        return self._distances

    def squared_distances_to(self, point: Vector) -> NDArray[np.float64]:
        """Squared Euclidean distance of every row from a vector."""
        from robust.kernels import distances

        return self._all_finite(distances.squared_distances_to(self._matrix, self._numbers, _readonly(point)))

    def squared_norms(self) -> NDArray[np.float64]:
        """Squared Euclidean norm of every row."""
        return self.squared_distances_to(np.zeros(self.width, dtype=np.float32))

    def products(self, point: Vector) -> NDArray[np.float64]:
        """Inner product of every row with a vector."""
        from robust.kernels import distances

        return self._all_finite(distances.products(self._matrix, self._numbers, _readonly(point)))

    def combined(self, weights: Weights) -> Vector:
        """The sum of the rows times their weights, added up in double precision."""
        from robust.kernels import distances

        return _finite(distances.weighted_sum(self._matrix, self._numbers, weights))

    def mixed(self, weights: Weights) -> Matrix:
        """One weighted sum of the rows for every row of `weights`."""
        from robust.kernels import distances

        return _finite(distances.weighted_sums(self._matrix, self._numbers, weights))

    def scaled(self, factors: Weights) -> Matrix:
        """A copy of the rows, each times its factor."""
        result = np.empty((len(self), self.width), dtype=np.float32)

        def work(_: int, start: int, stop: int) -> None:
            for number, factor, row in zip(self._numbers, factors, result, strict=True):
                # Below the least normal float32, which huge rows need, a factor would lose its digits.
                exact = 0 < abs(factor) < np.finfo(np.float32).tiny
                np.multiply(
                    self._matrix[number, start:stop],
                    factor if exact else np.float32(factor),
                    out=row[start:stop],
                    dtype=np.float64 if exact else np.float32,
                    casting="same_kind",
                )

        spread(work, self.width, 1 << 16)
        return self._checked(result)

    def row(self, i: int) -> Vector:
        """A copy of one row."""
        return self._checked(self._matrix[self._numbers[i]].copy())

    def array(self) -> Matrix:
        """A copy of the rows as a matrix, for rules written in plain numpy."""
        return self._checked(self._matrix[self._numbers])

    def position(self, label: int) -> int:
        """Where the row that the caller calls `label` is among these rows."""
        must_be_among(self.given, label)
        found = np.flatnonzero(self.labels == label)
        if not len(found):
            raise ValueError(f"row {label} was asked for, but it is not finite")
        return int(found[0])

    def subset(self, chosen: Indices) -> Rows:
        """Only some of these rows."""
        return self._only(chosen, self.ignored)

    def finite(self) -> Rows:
        """Those of the rows that hold neither NaN nor infinity; the others count as ignored."""
        from robust.kernels import distances

        origin = _readonly(np.zeros(self.width, dtype=np.float32))
        norms = distances.squared_distances_to(self._matrix, self._numbers, origin)
        kept = np.flatnonzero(np.isfinite(norms))
        return self._only(kept, self.ignored + len(self) - len(kept))

    def _only(self, chosen: Indices, ignored: int) -> Rows:
        part = Rows(self._matrix, labels=self.labels[chosen], given=self.given, ignored=ignored)
        part._numbers = self._numbers[chosen]
        part._known_finite = self._known_finite
        return part

    def pick(self, i: int) -> Outcome:
        """The outcome of a rule that returns one row."""
        weights = np.zeros(len(self))
        weights[i] = 1.0
        return Outcome(self.row(i), weights, np.array([i], dtype=np.int64))

    def average(self, chosen: Indices) -> Outcome:
        """The outcome of a rule that averages some rows."""
        weights = np.zeros(len(self))
        weights[chosen] = 1.0 / len(chosen)
        return Outcome(self.subset(chosen).combined(weights[chosen]), weights, chosen)

    def weigh(self, weights: Weights) -> Outcome:
        """The outcome of a rule that adds up weighted rows."""
        return Outcome(self.combined(weights), weights)

    def _all_finite(self, of_each_row: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums over whole rows: even a zero times infinity shows in them, as NaN."""
        if not np.isfinite(of_each_row).all():
            raise NotFiniteError
        self._known_finite = True
        return of_each_row

    def _checked(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._known_finite and not np.isfinite(values).all():
            raise NotFiniteError
        return values


def as_matrix(updates: ArrayLike) -> Matrix:
    """The updates as a float32 matrix that cannot be written to; a copy only if they are something else.

    Other real types are rounded to float32; what does not fit becomes infinite, and its row is ignored.
    """
    array = np.asarray(updates)
    if array.ndim != 2:
        raise ValueError(f"updates must be a matrix, one row each; got {array.ndim} dimensions")
    if 0 in array.shape:
        raise ValueError(f"updates are empty: {array.shape[0]} rows of length {array.shape[1]}")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"updates must be real numbers, not {array.dtype}")
    with np.errstate(over="ignore"):
        array = np.require(array, dtype=np.float32, requirements=["C", "A"])
    return _readonly(array)


def must_be_among(n: int, label: int) -> None:
    """Refuse the number of a row that there is not among n."""
    if not 0 <= label < n:
        raise ValueError(f"row {label} was asked for, but there are {n} rows")


def as_vector(values: ArrayLike, width: int, name: str) -> Vector:
    """A parameter that must be a finite vector of the rows' length."""
    vector = np.require(values, dtype=np.float32, requirements=["C", "A"])
    if vector.shape != (width,):
        raise ValueError(f"{name} must be a vector of length {width}, got shape {vector.shape}")
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} holds NaN or infinity")
    return vector


def _readonly(array: NDArray[np.float32]) -> NDArray[np.float32]:
    view = array.view()
    view.setflags(write=False)
    return view


def _finite(values: NDArray[np.float32] | None) -> NDArray[np.float32]:
    if values is None:
        raise NotFiniteError
    return values
