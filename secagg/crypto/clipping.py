"""Vectors of bounded norm, and noise for them: what differential privacy asks of an encoding.

A segment with noise is clipped to an L2 norm, counted in steps of the grid, and rounded toward zero, so that rounding
never lengthens it. The clip scales the whole segment and keeps its direction. Nothing about the values is an error
except one that is no number: a client that refuses to answer because of its values says something about them.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from secagg.arguments import real, whole
from secagg.crypto.arrays import Array
from secagg.crypto.fixedpoint import HALF_RING, Encoding, FixedPoint
from secagg.crypto.noise import MOST_SIGMA, discrete_gaussian
from secagg.errors import UsageError
from secagg.types import Entropy, Ring32

WRAP_BITS: Final = 40  # a sum wraps with probability below 2^-40
_MARGIN: Final = 1 - 2.0**-30  # of a clipped norm: more than all rounding errors of a float64 sum
_CHUNK: Final = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentNoise:
    """The noise of one segment: the L2 norm to which its values are clipped, and sigma in steps of the grid.

    >>> SegmentNoise(clip=1.0, sigma=1000).sigma
    1000
    """

    clip: float
    sigma: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", real("noise: clip", self.clip))
        object.__setattr__(self, "sigma", whole("noise: sigma", self.sigma, 1, MOST_SIGMA))
        if not self.clip >= sys.float_info.min:
            raise UsageError(f"noise: clip: expected a norm above 0, got {self.clip:g}")

    def steps(self, encoding: Encoding, weight: float) -> int:
        """The largest norm of an encoded segment, in steps of the grid. Integers have a step of 1 and no weight."""
        if not isinstance(encoding, FixedPoint):
            return math.floor(self.clip)
        return math.floor(Fraction(self.clip) * Fraction(weight) * Fraction(encoding.scale))  # audit: norm-in-steps

    def check_room(self, encoding: Encoding, heaviest: float, sums: int) -> None:
        """UsageError unless `sums` values, each of `encoding.clients` clients, stay in the ring but for 2^-40."""
        largest = encoding.clients * min(encoding.largest, self.steps(encoding, heaviest))
        deviations = math.sqrt(2 * math.log(2) * (WRAP_BITS + 1 + math.log2(sums)))  # of a sub-Gaussian sum, both tails
        most = (HALF_RING - 1 - largest) / (deviations * math.sqrt(encoding.clients))
        if self.sigma > most:  # audit: noise-fits-ring
            floats = isinstance(encoding, FixedPoint)
            other = ", or a larger clip of the segment (its grid is then coarser)" if floats else ""
            raise UsageError(
                f"noise: sigma {self.sigma} is too large: sums of {encoding.clients} clients would wrap with more than "
                f"probability 2^-{WRAP_BITS}; use at most {max(0, math.floor(most))}{other}"
            )

    def reach(self, encoding: Encoding, members: int) -> int:
        """What the sum of this many honest members does not exceed, but for 2^-40 per value and member."""
        spread = self.sigma * math.sqrt(members) * math.sqrt(2 * math.log(2) * (WRAP_BITS + 33))
        return min(HALF_RING - 1, members * encoding.largest + math.ceil(spread))


def draw_noise(parts: Sequence[tuple[int, int]], entropy: Entropy, threads: int | None = None) -> Ring32:
    """Noise modulo 2^32 for segments of (length, sigma), one after the other."""
    found = [discrete_gaussian(length, sigma, entropy=entropy, threads=threads) for length, sigma in parts]
    joined = found[0] if len(found) == 1 else np.concatenate(found)
    return joined.view(np.uint32)


def encode_clipped(values: Array, encoding: Encoding, weight: float, norm: int, out: Ring32) -> tuple[int, int]:
    """Encode a flat array with at most this norm; how many values its range clipped, and how many became zero."""
    factor, limit = 1.0, float(encoding.largest)
    if isinstance(encoding, FixedPoint):
        factor, limit = weight * encoding.scale, encoding.clip * encoding.scale
    if not (sys.float_info.min <= factor <= sys.float_info.max):
        raise UsageError(f"a weight is a positive number, not {weight}")
    peak = max(abs(float(values.max())), abs(float(values.min())))
    if not math.isfinite(peak):
        out[:] = 0
        raise UsageError("an update with a NaN or an infinity cannot be encoded")
    divisor, multiplier = _scaling(values, peak, factor, norm)
    clipped = vanished = 0
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK].astype(np.float64)
        scaled = part / divisor * multiplier  # audit: peak-divided-first
        clipped += int((np.abs(scaled) > limit).sum())
        code = np.trunc(np.clip(scaled, -limit, limit)).astype(np.int64)  # audit: rounded-toward-zero
        vanished += int(((code == 0) & (part != 0)).sum())
        out[start : start + _CHUNK] = code.astype(np.uint32)
    return clipped, vanished


def _scaling(values: Array, peak: float, factor: float, norm: int) -> tuple[float, float]:
    """By what the values are divided, then multiplied, so that their norm is at most `norm`: 1 and `factor` if it fits.

    Longer ones are divided by the largest value first. One factor for both could be subnormal and lose its digits.
    """
    if peak == 0:
        return 1.0, factor
    squares = 0.0
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK].astype(np.float64) / peak
        squares += float(part @ part)
    length, target = Fraction(math.sqrt(squares)), Fraction(norm) * Fraction(_MARGIN)
    fits = Fraction(peak) * Fraction(factor) * length <= target  # audit: norm-clipped
    return (1.0, factor) if fits else (peak, float(target / length))
