"""Leverage: how much of one client's update the opened rows reveal, from 0 (nothing) to 1 (all of it).

The leverage of client i is the i-th diagonal entry of the projector on the row space of A·diag(w). If all
updates were independent with the same variance, a share `leverage` of client i's variance would be explained
by what the server sees. 1/m for one grouping with equal weights; rank/n on average.

Honest clients compare leverage with a limit and must never disagree, whatever machine they run on. So it is
computed by one fixed sequence of IEEE 754 additions, multiplications, divisions and square roots, each
rounded correctly by the standard: no BLAS, no reordering, no fused multiply-add. The same code run by the
Python interpreter gives the same bits (a test holds it to that).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from secagg.compiled import kernel

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

LOST = 1e-20  # a remainder this small (squared, relative) drowns in rounding errors: nothing can be said


@kernel
def orthogonal_remainder(basis: Vector, r: int, row: Indices, weights: Vector, out: Vector) -> float:
    """What is left of a weighted row after projecting out r orthonormal vectors, normalised, in `out`.

    Returns its squared length relative to the row's. Gram-Schmidt, twice: once loses digits when little is
    left, twice is enough (Giraud, Langou and Rozloznik 2005).
    """
    n = out.shape[0]
    before = 0.0
    for i in range(n):
        out[i] = 0.0
    for i in row:
        out[i] = weights[i]
        before += weights[i] * weights[i]
    for sweep in range(2):
        for q in range(r):
            vector = basis[q]
            inner = 0.0
            if sweep == 0:
                for i in row:
                    inner += vector[i] * weights[i]
            else:
                for i in range(n):
                    inner += vector[i] * out[i]
            if inner != 0.0:
                for i in range(n):
                    out[i] -= inner * vector[i]
    after = 0.0
    for i in range(n):
        after += out[i] * out[i]
    length = np.sqrt(after)
    if length > 0.0:
        for i in range(n):
            out[i] /= length
    return after / before


class Leverage:
    """The leverages under the rows added so far. Rows must be independent; `linear.RowSpace` knows."""

    def __init__(self, weights: Vector) -> None:
        self.weights = weights
        self.values: Vector = np.zeros(len(weights))
        self.rank = 0
        self.lost = False  # true once a row was too close to the others for floating point to tell apart
        self._basis: Vector = np.zeros((min(16, len(weights)), len(weights)))
        self._next: Vector = np.zeros(len(weights))
        self._ahead: Vector = np.zeros(len(weights))
        self._ahead_lost = False

    def copy(self) -> Leverage:
        """An independent copy, to come back to."""
        other = object.__new__(Leverage)
        for name, value in self.__dict__.items():
            setattr(other, name, value.copy() if isinstance(value, np.ndarray) else value)
        return other

    def consider(self, row: Iterable[int]) -> Vector:
        """The leverages as they would be with this row too."""
        members = np.fromiter(row, np.int64)
        left = orthogonal_remainder(self._basis, self.rank, members, self.weights, self._next)
        self._ahead_lost = self.lost or left < LOST
        self._ahead = np.ones_like(self.values) if self._ahead_lost else self.values + self._next * self._next
        return self._ahead

    def accept(self) -> None:
        """Add the row that was considered last."""
        if self.rank == len(self._basis):
            grown = np.zeros((min(len(self.values), 2 * self.rank), len(self.values)))
            grown[: self.rank] = self._basis
            self._basis = grown
        self._basis[self.rank] = self._next
        self.values = self._ahead
        self.lost = self._ahead_lost
        self.rank += 1

    def add(self, row: Iterable[int]) -> None:
        self.consider(row)
        self.accept()
