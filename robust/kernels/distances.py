"""Distances between rows, distances and products with one vector, and weighted sums of rows.

All arithmetic on float32 values is in double precision. Squares cannot overflow (the largest is 1e77), and a
row is not finite exactly when its distance to itself is not zero. Distances are sums of squared differences.
The Gram trick (norms minus products) would lose every digit on rows that share an offset (10 +- 0.01) or
beside a row of 1e30. Rows are widened to doubles in blocks, so that a block is read once and stays in cache.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from robust.kernels import Doubles, Indices, Matrix, Vector
from robust.kernels.jit import compiled
from robust.kernels.threads import spread

STRIP = 1024  # columns of a single weighted sum at a time
WIDEST = 512  # columns in a block, at most
BLOCK_BYTES = 1 << 19  # of widened rows: half of the second-level cache
PIECE_BYTES = 1 << 21  # of the matrix, for one thread at a time
PARTIAL_BYTES = 1 << 25  # of partial sums of distances, all pieces together

_MATRIX = "Array(float32, 2, 'C', readonly=True)"
_ROWS_AND_POINT = f"{_MATRIX}, int64[::1], Array(float32, 1, 'C', readonly=True)"
_ANY_ORDER = frozenset({"contract", "reassoc"})
_AS_WRITTEN = frozenset({"contract"})


def squared_distances(matrix: Matrix, rows: Indices) -> Doubles:
    """Squared Euclidean distances between the rows; NaN on the diagonal where a row is not finite."""
    n, width = len(rows), matrix.shape[1]
    pieces = min(max(1, PARTIAL_BYTES // (8 * n * n)), -(-4 * n * width // PIECE_BYTES))
    block = _block(n)
    step = -(-width // (pieces * block)) * block
    parts = np.zeros((-(-width // step), n, n))

    def work(number: int, start: int, stop: int) -> None:
        add_distances(matrix, rows, start, stop, block, parts[number])

    spread(work, width, step)
    upper = np.triu(parts.sum(axis=0))
    found: Doubles = upper + np.triu(upper, 1).T
    return found


def squared_distances_to(matrix: Matrix, rows: Indices, point: Vector) -> Doubles:
    """Squared distance of each row from one vector; NaN or infinity where a row is not finite."""
    return _per_row(add_distances_to, matrix, rows, point)


def products(matrix: Matrix, rows: Indices, point: Vector) -> Doubles:
    """Inner product of each row with one vector."""
    return _per_row(add_products, matrix, rows, point)


def weighted_sum(matrix: Matrix, rows: Indices, weights: Doubles) -> Vector | None:
    """The sum of the rows times their weights; None if a value is not finite."""
    n, width = len(rows), matrix.shape[1]
    result = np.empty(width, dtype=np.float32)
    step = max(1, PIECE_BYTES // (4 * n * STRIP)) * STRIP
    finite = np.ones(-(-width // step), dtype=np.bool_)
    spare = -n % 4  # the kernel takes four rows at a time: pad with a row of weight zero
    numbers = np.concatenate([rows, np.repeat(rows[:1], spare)])
    factors = np.concatenate([weights, np.zeros(spare)])

    def work(number: int, start: int, stop: int) -> None:
        finite[number] = sum_rows(matrix, numbers, factors, start, stop, result)

    spread(work, width, step)
    return result if finite.all() else None


def weighted_sums(matrix: Matrix, rows: Indices, weights: Doubles) -> Matrix | None:
    """One weighted sum of the rows for each row of `weights`; None if a value is not finite."""
    n, width = len(rows), matrix.shape[1]
    result = np.empty((len(weights), width), dtype=np.float32)
    block = _block(n)
    step = max(1, PIECE_BYTES // (4 * n * block)) * block
    finite = np.ones(-(-width // step), dtype=np.bool_)
    padded = np.zeros((len(weights) + len(weights) % 2, n + -n % 4))
    padded[: len(weights), :n] = weights

    def work(number: int, start: int, stop: int) -> None:
        finite[number] = mix_rows(matrix, rows, padded, start, stop, block, result)

    spread(work, width, step)
    return result if finite.all() else None


def _per_row(add: Callable[..., None], matrix: Matrix, rows: Indices, point: Vector) -> Doubles:
    n, width = len(rows), matrix.shape[1]
    step = max(WIDEST, PIECE_BYTES // (4 * n))
    parts = np.zeros((-(-width // step), n))

    def work(number: int, start: int, stop: int) -> None:
        add(matrix, rows, point, start, stop, parts[number])

    spread(work, width, step)
    found: Doubles = parts.sum(axis=0)
    return found


def _round_into(sums: Doubles, result: Vector) -> bool:
    """Store sums as float32, and return whether all are finite (x * 0 is NaN if x is not)."""
    check = 0.0
    for k in range(sums.size):
        result[k] = sums[k]
        check += sums[k] * 0.0
    return not np.isnan(check)


round_into: Any = njit(_round_into, error_model="numpy", fastmath=set(_ANY_ORDER))


def _block(n: int) -> int:
    return max(16, min(WIDEST, BLOCK_BYTES // (8 * n) // 16 * 16))


@compiled(f"void({_MATRIX}, int64[::1], int64, int64, int64, float64[:, ::1])", fastmath=_ANY_ORDER)
def add_distances(matrix: Matrix, rows: Indices, start: int, stop: int, block: int, totals: Doubles) -> None:
    """Add the squared distances over columns start..stop-1 to the upper triangle of `totals`.

    Compares three rows with three at a time: nine sums and six rows fill sixteen vector registers.
    """
    n = rows.size
    wide = np.zeros(((n + 2) // 3 * 3, block), dtype=np.float64)
    sums = np.zeros((wide.shape[0], wide.shape[0]), dtype=np.float64)
    for column in range(start, stop, block):
        width = min(block, stop - column)
        for i in range(n):
            source, into = matrix[rows[i], column : column + width], wide[i, :width]
            for k in range(width):
                into[k] = source[k]
        for i in range(0, n, 3):
            a, b, c = wide[i, :width], wide[i + 1, :width], wide[i + 2, :width]
            for j in range(i, n, 3):
                x, y, z = wide[j, :width], wide[j + 1, :width], wide[j + 2, :width]
                ax = ay = az = bx = by = bz = cx = cy = cz = 0.0
                for k in range(width):
                    ax += (a[k] - x[k]) * (a[k] - x[k])
                    ay += (a[k] - y[k]) * (a[k] - y[k])
                    az += (a[k] - z[k]) * (a[k] - z[k])
                    bx += (b[k] - x[k]) * (b[k] - x[k])
                    by += (b[k] - y[k]) * (b[k] - y[k])
                    bz += (b[k] - z[k]) * (b[k] - z[k])
                    cx += (c[k] - x[k]) * (c[k] - x[k])
                    cy += (c[k] - y[k]) * (c[k] - y[k])
                    cz += (c[k] - z[k]) * (c[k] - z[k])
                sums[i, j] += ax
                sums[i, j + 1] += ay
                sums[i, j + 2] += az
                sums[i + 1, j] += bx
                sums[i + 1, j + 1] += by
                sums[i + 1, j + 2] += bz
                sums[i + 2, j] += cx
                sums[i + 2, j + 1] += cy
                sums[i + 2, j + 2] += cz
    totals += sums[:n, :n]


@compiled(f"void({_ROWS_AND_POINT}, int64, int64, float64[::1])", fastmath=_ANY_ORDER)
def add_distances_to(matrix: Matrix, rows: Indices, point: Vector, start: int, stop: int, totals: Doubles) -> None:
    """Add the squared distances from `point` over columns start..stop-1."""
    other = point[start:stop]
    for i in range(rows.size):
        row = matrix[rows[i], start:stop]
        total = 0.0
        for k in range(stop - start):
            difference = np.float64(row[k]) - np.float64(other[k])
            total += difference * difference
        totals[i] += total


@compiled(f"void({_ROWS_AND_POINT}, int64, int64, float64[::1])", fastmath=_ANY_ORDER)
def add_products(matrix: Matrix, rows: Indices, point: Vector, start: int, stop: int, totals: Doubles) -> None:
    """Add the inner products with `point` over columns start..stop-1."""
    other = point[start:stop]
    for i in range(rows.size):
        row = matrix[rows[i], start:stop]
        total = 0.0
        for k in range(stop - start):
            total += np.float64(row[k]) * np.float64(other[k])
        totals[i] += total


@compiled(f"boolean({_MATRIX}, int64[::1], float64[::1], int64, int64, float32[::1])", fastmath=_AS_WRITTEN)
def sum_rows(matrix: Matrix, rows: Indices, weights: Doubles, start: int, stop: int, result: Vector) -> bool:
    """Columns start..stop-1 of one weighted sum of a multiple of four rows."""
    strip = np.empty(STRIP, dtype=np.float64)
    finite = True
    for column in range(start, stop, STRIP):
        width = min(STRIP, stop - column)
        sums = strip[:width]
        sums[:] = 0.0
        for i in range(0, rows.size, 4):
            a = matrix[rows[i], column : column + width]
            b = matrix[rows[i + 1], column : column + width]
            c = matrix[rows[i + 2], column : column + width]
            d = matrix[rows[i + 3], column : column + width]
            p, q, s, t = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            for k in range(width):
                sums[k] += (p * a[k] + q * b[k]) + (s * c[k] + t * d[k])
        finite &= round_into(sums, result[column : column + width])
    return finite


@compiled(
    f"boolean({_MATRIX}, int64[::1], float64[:, ::1], int64, int64, int64, float32[:, ::1])", fastmath=_AS_WRITTEN
)
def mix_rows(
    matrix: Matrix, rows: Indices, weights: Doubles, start: int, stop: int, block: int, result: Vector
) -> bool:
    """Columns start..stop-1 of every weighted sum, two sums and four rows at a time.

    The caller pads the weights with zeros to match.
    """
    n = rows.size
    wide = np.zeros((weights.shape[1], block), dtype=np.float64)
    strips = np.empty((2, block), dtype=np.float64)
    finite = True
    for column in range(start, stop, block):
        width = min(block, stop - column)
        for i in range(n):
            source, into = matrix[rows[i], column : column + width], wide[i, :width]
            for k in range(width):
                into[k] = source[k]
        for r in range(0, weights.shape[0], 2):
            one, two = weights[r], weights[r + 1]
            first, second = strips[0, :width], strips[1, :width]
            first[:] = 0.0
            second[:] = 0.0
            for i in range(0, n, 4):
                a, b, c, d = wide[i, :width], wide[i + 1, :width], wide[i + 2, :width], wide[i + 3, :width]
                p, q, s, t = one[i], one[i + 1], one[i + 2], one[i + 3]
                w, x, y, z = two[i], two[i + 1], two[i + 2], two[i + 3]
                for k in range(width):
                    first[k] += (p * a[k] + q * b[k]) + (s * c[k] + t * d[k])
                    second[k] += (w * a[k] + x * b[k]) + (y * c[k] + z * d[k])
            finite &= round_into(first, result[r, column : column + width])
            if r + 1 < result.shape[0]:
                finite &= round_into(second, result[r + 1, column : column + width])
    return finite
