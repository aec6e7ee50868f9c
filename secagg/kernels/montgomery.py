"""Loops modulo a 61-bit prime: elimination, and the search for dependent columns. No policy.

Numbers are in Montgomery form (Montgomery 1985): a is stored as a·2^64 mod p, so that a product costs three
multiplications and no division. Sums and comparisons with zero work as usual.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from secagg.kernels.jit import intrinsic, kernel

Words = npt.NDArray[np.uint64]
Index = npt.NDArray[np.int64]


@intrinsic
def _wide(typing: Any, a: Any, b: Any) -> Any:
    """(high, low) words of the 128-bit product: one instruction that numba does not offer."""
    pair: Any = types.UniTuple

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        low = builder.trunc(product, ir.IntType(64))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))
        return context.make_tuple(builder, signature.return_type, (high, low))

    return pair(types.uint64, 2)(types.uint64, types.uint64), generate


@kernel
def mul(a: np.uint64, b: np.uint64, p: np.uint64, pinv: np.uint64) -> np.uint64:
    """Montgomery's a·b/2^64 mod p, for a, b < p < 2^63 and pinv = 1/p mod 2^64."""
    high: np.uint64
    carry: np.uint64
    high, low = _wide(a, b)
    carry, _ = _wide(low * pinv, p)
    return high - carry if high >= carry else high + p - carry


@kernel
def sub(a: np.uint64, b: np.uint64, p: np.uint64) -> np.uint64:
    return a - b if a >= b else a + p - b


@kernel
def inverse(a: np.uint64, one: np.uint64, p: np.uint64, pinv: np.uint64) -> np.uint64:
    """1/a as a^(p-2), by squaring; 0 for 0."""
    result, exponent = one, p - np.uint64(2)
    while exponent:
        if exponent & np.uint64(1):
            result = mul(result, a, p, pinv)
        a = mul(a, a, p, pinv)
        exponent >>= np.uint64(1)
    return result


@kernel
def _first_nonzero(column: Words, rows: int) -> int:
    for row in range(rows):
        if column[row]:
            return row
    return -1


@kernel
def reduce(C: Words, k: int, place: Index, row: Index, y: Words, one: np.uint64, p: np.uint64) -> int:
    """Write row minus its pivots' echelon rows to y (over the free columns); return its first nonzero."""
    y[:k] = 0
    for i in row:
        at = place[i]
        if at >= 0:
            y[at] = sub(y[at], p - one, p)
        else:
            echelon = C[-1 - at]
            for f in range(k):
                y[f] = sub(y[f], echelon[f], p)
    return _first_nonzero(y, k)


@kernel
def project(
    C: Words, r: int, pivots: Index, j: int, free_j: int, row: Index, yj: np.uint64, z: Words, out: Words,
    one: np.uint64, p: np.uint64, pinv: np.uint64,
) -> None:  # fmt: skip
    """Move every null vector in z along the null direction of free column j until row·z = 0."""
    scale = inverse(yj, one, p, pinv)
    for t in range(z.shape[0]):
        total = np.uint64(0)
        for i in row:
            total = sub(total, p - z[t, i], p) if z[t, i] else total
        step = mul(total, scale, p, pinv)
        out[t] = z[t]
        out[t, free_j] = sub(out[t, free_j], step, p)
        for q in range(r):
            if C[q, j]:
                i = pivots[q]
                out[t, i] = sub(out[t, i], p - mul(step, C[q, j], p, pinv), p) if step else out[t, i]


@kernel
def eliminate(
    C: Words, r: int, k: int, pivots: Index, free: Index, place: Index, j: int, y: Words,
    one: np.uint64, p: np.uint64, pinv: np.uint64,
) -> None:  # fmt: skip
    """Gauss-Jordan: make free column j the pivot of the new echelon row y / y_j."""
    scale = inverse(y[j], one, p, pinv)
    fresh = C[r]
    for f in range(k):
        fresh[f] = mul(y[f], scale, p, pinv)
    last = k - 1
    for q in range(r):
        echelon = C[q]
        factor = echelon[j]
        if factor:
            for f in range(k):
                echelon[f] = sub(echelon[f], mul(factor, fresh[f], p, pinv), p)
        echelon[j] = echelon[last]
    fresh[j] = fresh[last]
    pivots[r] = free[j]
    place[free[j]] = -1 - r
    if j != last:
        free[j] = free[last]
        place[free[j]] = j


@kernel
def support_sizes(C: Words, r: int, k: int) -> Index:
    """How many clients each echelon row combines; 1 means that its pivot is exposed."""
    sizes = np.ones(r, np.int64)
    for q in range(r):
        sizes[q] += np.count_nonzero(C[q, :k])
    return sizes


@kernel
def _parallel(
    z: Words, n: int, prefix: Words, ratio: Words, one: np.uint64, p: np.uint64, pinv: np.uint64
) -> tuple[int, int]:
    """Two parallel columns (or (i, i) for a zero column) of the 2 x n matrix in the first two rows of z."""
    for i in range(n):
        if z[0, i] == 0 and z[1, i] == 0:
            return i, i
    product = one
    for i in range(n):  # Montgomery's trick: one inversion for all the ratios z0/z1
        prefix[i] = product
        if z[1, i]:
            product = mul(product, z[1, i], p, pinv)
    product = inverse(product, one, p, pinv)
    for i in range(n - 1, -1, -1):
        if z[1, i]:
            ratio[i] = mul(z[0, i], mul(product, prefix[i], p, pinv), p, pinv)
            product = mul(product, z[1, i], p, pinv)
        else:
            ratio[i] = p  # the point at infinity: no ratio mod p equals p
    order = np.argsort(ratio[:n])
    for at in range(n - 1):
        if ratio[order[at]] == ratio[order[at + 1]]:
            return min(order[at], order[at + 1]), max(order[at], order[at + 1])
    return -1, -1


@kernel
def dependent(columns: Words, one: np.uint64, p: np.uint64, pinv: np.uint64) -> Index:
    """Dependent columns, at most as many as there are rows; all -1 if all such sets are independent.

    Walks all sets of (rows - 2) columns in order. Each level divides the later columns by one column. Then two columns
    are parallel exactly if they are dependent together with the columns divided by.
    """
    rows, n = columns.shape
    found = np.full(rows, -1, np.int64)
    levels = rows - 1
    stack = np.zeros((levels, rows, n), np.uint64)  # level l: the later columns after division, rows - l high
    count = np.zeros(levels, np.int64)
    chosen = np.full(levels, -1, np.int64)  # index within level l of the column to divide by next
    origin = np.zeros((levels, n), np.int64)
    prefix, ratio = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
    stack[0, :rows, :] = columns
    origin[0, :] = np.arange(n)
    count[0] = n
    level = 0
    while level >= 0:
        left = rows - level
        if left == 2:
            a, b = _parallel(stack[level], count[level], prefix, ratio, one, p, pinv)
            if a >= 0:
                for up in range(level):
                    found[up] = origin[up, chosen[up]]
                found[level] = origin[level, a]
                found[level + 1] = origin[level, b] if b != a else -1
                return found
            level -= 1
            continue
        chosen[level] += 1
        at = chosen[level]
        if at >= count[level]:
            chosen[level] = -1
            level -= 1
            continue
        lead = _first_nonzero(stack[level, :, at], left)
        if lead < 0:  # zero after division: dependent on the columns divided by before
            for up in range(level):
                found[up] = origin[up, chosen[up]]
            found[level] = origin[level, at]
            return found
        size = count[level + 1] = count[level] - at - 1
        out = 0
        for row in range(left):
            if row == lead:
                continue
            for i in range(size):
                cross = mul(stack[level, lead, at], stack[level, row, at + 1 + i], p, pinv)
                other = mul(stack[level, row, at], stack[level, lead, at + 1 + i], p, pinv)
                stack[level + 1, out, i] = sub(cross, other, p)
            out += 1
        origin[level + 1, :size] = origin[level, at + 1 : at + 1 + size]
        level += 1
    return found
