"""Numeric loops that need no special instructions: no policy, no checks, one pass over memory each."""

from __future__ import annotations

from typing import Any

import numpy as np

from secagg.compiled import kernel


@kernel
def add_streams(vector: Any, start: int, stop: int, streams: Any, signs: Any, first: int, count: int) -> None:
    """vector[start:stop] += sum of signs[first + g] * streams[g] for g < count, mod 2^32.

    Four streams go into one pass: the second-level cache, not arithmetic, bounds the sum.
    """
    part = vector[start:stop]
    length = part.shape[0]
    for g in range(0, count - 3, 4):
        a, b = streams[g, :length], streams[g + 1, :length]
        c, d = streams[g + 2, :length], streams[g + 3, :length]
        # -x is (x xor m) - m with m all ones, x itself with m zero: no branch in the loop
        m = np.uint32(-(signs[first + g] < 0))
        n = np.uint32(-(signs[first + g + 1] < 0))
        o = np.uint32(-(signs[first + g + 2] < 0))
        p = np.uint32(-(signs[first + g + 3] < 0))
        for i in range(length):
            part[i] += ((a[i] ^ m) - m) + ((b[i] ^ n) - n) + ((c[i] ^ o) - o) + ((d[i] ^ p) - p)
    for g in range(count // 4 * 4, count):
        a = streams[g, :length]
        m = np.uint32(-(signs[first + g] < 0))
        for i in range(length):
            part[i] += (a[i] ^ m) - m


@kernel
def encode(update: Any, factor: float, limit: float, encoded: Any) -> Any:
    """Round clip(update * factor, limit) to the nearest integer, ties to even, mod 2^32.

    Returns how many values were clipped and how many were not finite (what those became means nothing).
    """
    outside = 0
    infinite = 0
    for i in range(update.shape[0]):
        value = np.float64(update[i])
        infinite += not (abs(value) < np.inf)
        scaled = value * factor
        outside += not (abs(scaled) <= limit)
        encoded[i] = np.uint32(np.int32(np.rint(min(max(scaled, -limit), limit))))
    return outside - infinite, infinite


@kernel
def decode(total: Any, factor: float, values: Any) -> None:
    """Signed value * factor, a float64 product, rounded once more to float32."""
    for i in range(total.shape[0]):
        values[i] = np.float32(np.float64(np.int32(total[i])) * factor)
