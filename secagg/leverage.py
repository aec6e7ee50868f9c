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
Matrix = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

LOST = 1e-10  # a remainder this small (squared, relative) may be rounding errors: nothing can be said
AGAIN = 1e-2  # below this, project a second time: once loses digits, twice is enough (Giraud et al. 2005)


@kernel
def remainder(projector: Matrix, row: Indices, weights: Vector, out: Vector) -> float:
    """Put the part of a weighted row outside the projector's range into `out`, normalised.

    Returns its squared length relative to the row's.
    """
    n = out.shape[0]
    before, after = 0.0, 0.0
    for i in range(n):
        out[i] = 0.0
    for i in row:
        out[i] = weights[i]
        before += weights[i] * weights[i]
    for i in row:
        for j in range(n):
            out[j] -= weights[i] * projector[i, j]
    for i in range(n):
        after += out[i] * out[i]
    if after < AGAIN * before:
        once = out.copy()
        after = 0.0
        for i in range(n):
            for j in range(n):
                out[j] -= once[i] * projector[i, j]
        for i in range(n):
            after += out[i] * out[i]
    length = np.sqrt(after)
    if length > 0.0:
        for i in range(n):
            out[i] /= length
    return after / before


@kernel
def extend(projector: Matrix, unit: Vector) -> None:
    """Add a direction orthogonal to the projector's range."""
    n = unit.shape[0]
    for i in range(n):
        for j in range(n):
            projector[i, j] += unit[i] * unit[j]


class Leverage:
    """The leverages under the rows added so far. Rows must be independent; `linear.RowSpace` knows."""

    def __init__(self, weights: Vector) -> None:
        self.weights = weights
        self.lost = False
        self._projector: Matrix = np.zeros((len(weights), len(weights)))
        self._unit: Vector = np.zeros(len(weights))

    @property
    def values(self) -> Vector:
        """One number per client; all 1 (as if exposed) once a row was too close to the others to tell."""
        return np.ones_like(self.weights) if self.lost else self._projector.diagonal().copy()

    def copy(self) -> Leverage:
        """An independent copy, to come back to."""
        other = Leverage(self.weights)
        other._projector, other.lost = self._projector.copy(), self.lost
        return other

    def consider(self, row: Iterable[int]) -> Vector:
        """The leverages as they would be with this row too."""
        left = remainder(self._projector, np.fromiter(row, np.int64), self.weights, self._unit)
        if self.lost or left < LOST:
            return np.ones_like(self.weights)
        return self._projector.diagonal() + self._unit * self._unit

    def accept(self) -> None:
        """Add the row that was considered last."""
        extend(self._projector, self._unit)

    def add(self, row: Iterable[int]) -> None:
        """Add a row, whatever it does."""
        left = remainder(self._projector, np.fromiter(row, np.int64), self.weights, self._unit)
        self.lost = self.lost or left < LOST
        extend(self._projector, self._unit)
