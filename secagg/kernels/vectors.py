"""Numeric loops without special instructions: no policy, no checks, one pass over memory each."""

from typing import Any

import numpy as np

from secagg.kernels.jit import kernel


@kernel
def _flip(sign: int) -> Any:
    """A mask m such that (x xor m) - m is sign * x: all ones for -1, zero for +1."""
    return np.uint32(-(sign < 0))


@kernel
def add_streams(vector: Any, start: int, stop: int, covered: Any, signs: Any, first: int, count: int) -> None:
    """Add one to four keystreams to vector[start:stop], each times its sign, mod 2^32.

    covered[g] is vector[start:stop] xor keystream g, whose sign is signs[first + g]. One pass adds them all:
    the second-level cache, not arithmetic, is the bottleneck.
    """
    part = vector[start:stop]
    length = part.shape[0]
    a, b = covered[0, :length], covered[min(1, count - 1), :length]
    c, d = covered[min(2, count - 1), :length], covered[count - 1, :length]
    m, n = _flip(signs[first]), _flip(signs[first + min(1, count - 1)])
    o, p = _flip(signs[first + min(2, count - 1)]), _flip(signs[first + count - 1])
    if count == 4:
        for i in range(length):
            x = part[i]
            part[i] = x + ((a[i] ^ x ^ m) - m) + ((b[i] ^ x ^ n) - n) + ((c[i] ^ x ^ o) - o) + ((d[i] ^ x ^ p) - p)
    elif count == 3:
        for i in range(length):
            x = part[i]
            part[i] = x + ((a[i] ^ x ^ m) - m) + ((b[i] ^ x ^ n) - n) + ((c[i] ^ x ^ o) - o)
    elif count == 2:
        for i in range(length):
            x = part[i]
            part[i] = x + ((a[i] ^ x ^ m) - m) + ((b[i] ^ x ^ n) - n)
    else:
        for i in range(length):
            x = part[i]
            part[i] = x + ((a[i] ^ x ^ m) - m)


@kernel
def encode(update: Any, factor: float, limit: float, encoded: Any) -> Any:
    """Round clip(update * factor, limit) to the nearest integer, ties to even, mod 2^32.

    `limit` is more than a half, so that exactly the values of at most a half become zero. Returns how many values were
    clipped, how many became zero, how many were zero, and how many were not finite (the codes of those mean nothing).
    The usual update has none of the last two kinds, so they are counted only where there may be some.
    """
    outside = 0
    small = 0
    for i in range(update.shape[0]):
        scaled = np.float64(update[i]) * factor
        size = abs(scaled)
        outside += not (size <= limit)
        small += bool(size <= 0.5)
        encoded[i] = np.uint32(np.int32(np.rint(min(max(scaled, -limit), limit))))
    infinite = 0
    if outside:
        for i in range(update.shape[0]):
            infinite += not (abs(update[i]) < np.inf)
    zeros = 0
    if small:
        for i in range(update.shape[0]):
            zeros += update[i] == 0
    return outside - infinite, small - zeros, zeros, infinite


@kernel
def decode(total: Any, factor: float, values: Any) -> None:
    """Signed value * factor as a float64 product, rounded to the type of `values`."""
    for i in range(total.shape[0]):
        values[i] = np.float64(np.int32(total[i])) * factor


@kernel
def survey(total: Any, weights: Any, chunk: int, sums: Any) -> Any:
    """The smallest and the largest signed value, or 0; `sums` gets, for each chunk, its values times the weights."""
    lowest, highest = np.int32(0), np.int32(0)
    for c in range(sums.shape[0]):
        found = np.int64(0)
        for i in range(c * chunk, min((c + 1) * chunk, total.shape[0])):
            value = np.int32(total[i])
            lowest, highest = min(lowest, value), max(highest, value)
            found += np.int64(value) * np.int64(weights[i])
        sums[c] = found
    return lowest, highest
