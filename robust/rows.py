"""The rows that a rule works on, and the operations that rules use on them.

This module checks the input for all rules: shape, type, and values that are not finite. A search for such
values in advance would read the whole matrix, which costs as much as a median. Instead, every method below
detects them while it works and raises `NotFiniteError`. The caller (`rule.py`) then finds the rows that
contain them and runs the rule again without these rows. No method returns a value from such a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust.kernels import Doubles, Indices, Matrix, Vector
from robust.kernels.threads import spread

Weights = Doubles


class RowsError(ValueError):
    """These rows cannot be aggregated: too few of them are left for the rule, or none is finite.

    `rule` names the rule or step whose own rows they are. If the function of a rule "mine" called krum on rows that it
    made, that is an error in "mine", and `rule` is "mine: krum".

    >>> import robust
    >>> robust.krum([[1.0], [2.0]], f=1)
    Traceback (most recent call last):
    robust.rows.RowsError: krum needs n > 2f + 2: got n=2, f=1
    """

    def __init__(self, message: str, *, rule: str | None = None) -> None:
        super().__init__(message)
        self.rule = rule


class NotFiniteError(Exception):
    """A row contains NaN or infinity. `rule.py` catches this and runs the rule without such rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a rule returns: a vector and, where the rule has them, the weights or the chosen rows.

    >>> import numpy as np, robust
    >>> robust.Outcome(np.zeros(2, dtype="float32"), accepted=np.array([0, 3])).converged
    True
    """

    vector: Vector
    weights: Weights | None = None  # one per row, for rules that return a weighted sum
    accepted: Indices | None = None  # the rows in the result, for rules that choose rows
    converged: bool = True  # False if an iteration ended before it was within its tolerance


class Rows:
    """Some rows of a float32 matrix, in order. The methods count positions among these rows, from 0.

    >>> import numpy as np, robust
    >>> rows = robust.Rows(np.array([[3, 4], [0, 1]], dtype="float32"))
    >>> rows.squared_norms()
    array([25.,  1.])
    """

    def __init__(
        self, matrix: Matrix, *, labels: Indices | None = None, given: int | None = None, ignored: int = 0
    ) -> None:
        self._matrix = matrix
        self._numbers = np.arange(len(matrix), dtype=np.int64)  # which rows of the matrix
        self.labels = self._numbers if labels is None else labels  # the caller's row numbers
        self.given = len(matrix) if given is None else given  # number of rows before any was ignored
        self.ignored = ignored  # number of rows left out because they are not finite
        self._distances: Doubles | None = None
        self._known_finite = False  # True once a method has read every row and all were finite

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def width(self) -> int:
        """Length of a row."""
        return int(self._matrix.shape[1])

    # The kernels are imported where they are used: importing numba takes longer than importing the rest of
    # the package, and `tolerance` and the registries do not need it.

    def middle_mean(self, low: int, high: int) -> Vector:
        """For every column, the mean of the values of rank low..high-1, counted from the smallest."""
        from robust.kernels import order

        return _finite(order.middle_mean(self._matrix, self._numbers, low, high))

    def mean_around_median(self, keep: int) -> Vector:
        """For every column, the mean of the `keep` values nearest the median; ties go to the lower value."""
        from robust.kernels import order

        return _finite(order.mean_around_median(self._matrix, self._numbers, keep))

    def squared_distances(self) -> Doubles:
        """Squared Euclidean distances between all rows, computed once."""
        from robust.kernels import distances

        if self._distances is None:
            found = distances.squared_distances(self._matrix, self._numbers)
            self._all_finite(found.diagonal())
            found.setflags(write=False)
            self._distances = found
        return self._distances

    def squared_distances_to(self, point: Vector) -> Doubles:
        """Squared Euclidean distance of every row from a vector."""
        from robust.kernels import distances

        return self._all_finite(distances.squared_distances_to(self._matrix, self._numbers, _readonly(point)))

    def squared_norms(self) -> Doubles:
        """Squared Euclidean norm of every row."""
        return self.squared_distances_to(np.zeros(self.width, dtype=np.float32))

    def products(self, point: Vector) -> Doubles:
        """Inner product of every row with a vector."""
        from robust.kernels import distances

        return self._all_finite(distances.products(self._matrix, self._numbers, _readonly(point)))

    def combined(self, weights: Weights) -> Vector:
        """The weighted sum of the rows, added up in double precision."""
        from robust.kernels import distances

        return _finite(distances.weighted_sum(self._matrix, self._numbers, weights))

    def mixed(self, weights: Weights) -> Matrix:
        """One weighted sum of the rows for every row of `weights`."""
        from robust.kernels import distances

        return _finite(distances.weighted_sums(self._matrix, self._numbers, weights))

    def scaled(self, factors: Weights) -> Matrix:
        """A copy of the rows, each multiplied by its factor."""
        result = np.empty((len(self), self.width), dtype=np.float32)

        def work(_: int, start: int, stop: int) -> None:
            for number, factor, row in zip(self._numbers, factors, result, strict=True):
                # Huge rows need factors below the least normal float32, where float32 has few digits.
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

    def columns(self, chosen: Indices) -> Matrix:
        """A copy of some coordinates of all rows."""
        return self._checked(self._matrix[np.ix_(self._numbers, chosen)])

    def row(self, i: int) -> Vector:
        """A copy of one row."""
        return self._checked(self._matrix[self._numbers[i]].copy())

    def array(self) -> Matrix:
        """A copy of the rows as a matrix, for rules written in plain numpy."""
        return self._checked(self._matrix[self._numbers])

    def position(self, label: int) -> int:
        """The position of the row with the caller's row number `label`."""
        must_be_among(self.given, label)
        found = np.flatnonzero(self.labels == label)
        if not len(found):
            raise ValueError(f"row {label} was requested, but it contains NaN or infinity")
        return int(found[0])

    def subset(self, chosen: Indices) -> Rows:
        """Only some of these rows."""
        return self._only(chosen, self.ignored)

    def finite(self) -> Rows:
        """The rows without NaN and infinity; the others count as ignored."""
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

    def _all_finite(self, of_each_row: Doubles) -> Doubles:
        """Check one sum per row: NaN or infinity anywhere in a row makes its sum NaN or infinite."""
        if not np.isfinite(of_each_row).all():
            raise NotFiniteError
        self._known_finite = True
        return of_each_row

    def _checked(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._known_finite and not np.isfinite(values).all():
            raise NotFiniteError
        return values


def as_matrix(updates: ArrayLike) -> Matrix:
    """The updates as a read-only float32 matrix, without a copy if they are one already.

    Other real types are rounded to float32. A value that does not fit becomes infinite: its row is ignored. Tensors of
    torch may be of any real type, on any device, and part of a graph, also as a list of rows.
    """
    array = as_array(updates, "updates")
    if array.ndim != 2:
        raise ValueError(f"updates must be a matrix with one row per update; got {array.ndim} dimensions")
    if 0 in array.shape:
        raise ValueError(f"updates must not be empty; got {array.shape[0]} rows of length {array.shape[1]}")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"updates must be real numbers; got {array.dtype}")
    with np.errstate(over="ignore"):
        array = np.require(array, dtype=np.float32, requirements=["C", "A"])
    return _readonly(array)


def as_array(values: Any, name: str) -> NDArray[Any]:
    """What numpy makes of values in which tensors of torch may occur; the caller checks the shape and the type."""
    plain = _plain(values, name)
    try:
        return np.asarray(plain)
    except ValueError as error:
        raise ValueError(f"{name} must be numbers in lists of equal length: {error}") from None


def _plain(values: Any, name: str) -> Any:
    """A tensor of torch as an array, also in lists, without its graph and in a type that numpy has; else as it is."""
    if isinstance(values, list | tuple):
        inside = set(map(type, values))  # a long list of numbers is not walked in Python
        nested = any(issubclass(kind, list | tuple) or hasattr(kind, "detach") for kind in inside)
        return [_plain(one, name) for one in values] if nested else values
    if not hasattr(values, "detach"):
        return values
    if getattr(values, "is_meta", False):
        raise TypeError(f"{name} must be real numbers; got a tensor on the device meta, which has no values")
    tensor = values.detach().cpu()
    try:
        tensor = tensor.resolve_conj().resolve_neg()
        return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    except (TypeError, RuntimeError):
        dense = "strided" in str(values.layout)
        got = f"a tensor of {values.dtype}" + ("" if dense else f" in the layout {values.layout}")
        change = "dequantize()" if values.is_quantized else "float()" if dense else "to_dense()"
        if values.is_nested:
            got, change = f"a nested tensor of {values.dtype}", "to_padded_tensor(0.0)"
        raise TypeError(f"{name} must be real numbers in a form that numpy has; got {got}: call .{change}") from None


def must_be_among(n: int, label: int) -> None:
    """Refuse a row number that is not one of n rows."""
    if not 0 <= label < n:
        raise ValueError(f"row {label} was requested, but rows are numbered 0 to {n - 1}")


def as_vector(values: ArrayLike, width: int, name: str) -> Vector:
    """Check a parameter that must be a finite vector of the length of a row."""
    array = as_array(values, name)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be a vector of real numbers; got {array.dtype}")
    with np.errstate(over="ignore"):
        vector = np.require(array, dtype=np.float32, requirements=["C", "A"])
    if vector.shape != (width,):
        raise ValueError(f"{name} must be a vector of length {width}, got shape {vector.shape}")
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} contains NaN or infinity")
    return vector


def _readonly(array: NDArray[np.float32]) -> NDArray[np.float32]:
    view = array.view()
    view.setflags(write=False)
    return view


def _finite(values: NDArray[np.float32] | None) -> NDArray[np.float32]:
    if values is None:
        raise NotFiniteError
    return values
