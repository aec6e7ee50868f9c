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

    Returns how many values were clipped, how many others became zero, and how many were not finite (the codes of
    those mean nothing).
    """
    outside = 0
    vanished = 0
    infinite = 0
    for i in range(update.shape[0]):
        value = np.float64(update[i])
        infinite += not (abs(value) < np.inf)
        scaled = value * factor
        outside += not (abs(scaled) <= limit)
        code = np.rint(min(max(scaled, -limit), limit))
        vanished += (code == 0) & (value != 0)
        encoded[i] = np.uint32(np.int32(code))
    return outside - infinite, vanished, infinite


@kernel
def decode(total: Any, factor: float, values: Any) -> None:
    """Signed value * factor as a float64 product, rounded to the type of `values`."""
    for i in range(total.shape[0]):
        values[i] = np.float64(np.int32(total[i])) * factor


@kernel
def project(total: Any, weights: Any, chunk: int, sums: Any) -> None:
    """The signed values times their weights, summed for each chunk of values."""
    for c in range(sums.shape[0]):
        found = np.int64(0)
        for i in range(c * chunk, min((c + 1) * chunk, total.shape[0])):
            found += np.int64(np.int32(total[i])) * np.int64(weights[i])
        sums[c] = found
