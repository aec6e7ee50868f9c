"""Leverage: how much of one client's update the opened sums reveal, from 0 (nothing) to 1 (all of it).

The leverage of client i is the i-th diagonal entry of the projector on the row space of A·diag(w). If all updates were
independent with the same variance, what the server sees would explain this share of client i's variance. It is 1/m for
one grouping with equal weights, and rank/n on average.

Honest clients compare leverage with a limit and must agree on every machine. So it is computed by one fixed sequence of
IEEE 754 additions, multiplications, divisions and square roots, each rounded as the standard says: no BLAS, no
reordering, no fused multiply-add. A test checks that the Python interpreter gets the same bits from the same code.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from secagg.kernels.jit import kernel

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

LOST = 1e-10  # a remainder this small (squared, relative) may be only rounding error: no result
AGAIN = 1e-2  # below this, project again: once loses digits, twice is enough (Giraud et al. 2005)


@kernel
def remainder(basis: Matrix, r: int, row: Indices, weights: Vector, out: Vector) -> float:
    """Put the part of a weighted row outside the span of r orthonormal vectors into `out`, normalised.

    Returns its squared length relative to the row's.
    """
    n = out.shape[0]
    before, after = 0.0, 0.0
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
        if after >= AGAIN * before:
            break
    length = np.sqrt(after)
    if length > 0.0:
        for i in range(n):
            out[i] /= length
    return after / before


class Leverage:
    """The leverages under the rows added so far. The rows must be independent, as `RowSpace` finds them."""

    def __init__(self, weights: Vector) -> None:
        self.weights = weights
        self.lost = False
        self.rank = 0
        self._sum: Vector = np.zeros_like(weights)
        self._basis: Matrix = np.zeros((min(16, len(weights)), len(weights)))
        self._unit: Vector = np.zeros_like(weights)

    @property
    def values(self) -> Vector:
        """One number per client; all 1 (as if exposed) once a row was numerically dependent on the others."""
        return np.ones_like(self.weights) if self.lost else self._sum.copy()

    def consider(self, row: Iterable[int]) -> Vector:
        """The leverages after adding this row."""
        if self.lost or self._remainder(row) < LOST:
            return np.ones_like(self.weights)
        return self._sum + self._unit * self._unit

    def accept(self) -> None:
        """Add the row that was considered last."""
        if self.rank == len(self._basis):
            more = min(len(self.weights), 2 * self.rank) - self.rank
            self._basis = np.pad(self._basis, ((0, more), (0, 0)))
        self._basis[self.rank] = self._unit
        self._sum += self._unit * self._unit
        self.rank += 1

    def add(self, row: Iterable[int]) -> None:
        """Add a row without looking at the result first."""
        self.lost = self._remainder(row) < LOST or self.lost
        self.accept()

    def _remainder(self, row: Iterable[int]) -> float:
        return remainder(self._basis, self.rank, np.fromiter(row, np.int64), self.weights, self._unit)
