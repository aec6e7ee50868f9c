"""Floats and integers as numbers modulo 2^32, such that the sum of honest values cannot wrap.

An encoding exists only if the sum of `clients` encoded values, read as a signed number, stays within ±(2^31 - 1).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.arguments import real, whole
from secagg.crypto.arrays import check_source
from secagg.errors import UsageError
from secagg.kernels.threads import Result, cores, spread
from secagg.types import Ring32

Floats = npt.NDArray[np.floating[Any]]
Int64 = npt.NDArray[np.int64]

HALF_RING = 2**31
FLOAT32_MAX = float(np.finfo(np.float32).max)
LEAST_CLIP = 2.0**-64  # with any larger clip, the scale is a normal float

_PIECE = 2**17  # values that a thread takes at a time; another thread pays off from two pieces per thread on


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPoint:
    """Floats, clipped to ±clip, times a power of two, rounded to the nearest integer (ties to even).

    `clients` is the largest number of values in a sum. The scale is the largest power of two for which their
    sum cannot wrap: clients * round(clip * scale) < 2^31 and clients * clip * scale < 2^31.

    >>> encoding = FixedPoint(clients=3, clip=1.0)
    >>> encoded, clipped = encoding.encode([0.5, -0.25, 7.0])
    >>> encoding.decode(encoded + encoded), clipped
    (array([ 1. , -0.5,  2. ]), 1)
    """

    clients: int
    clip: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", whole("clients", self.clients, least=1))
        object.__setattr__(self, "clip", real("clip", self.clip))
        if not (self.clip >= LEAST_CLIP and self.clients * self.clip <= FLOAT32_MAX):
            raise UsageError(f"{self.clients} values of ±{self.clip} do not fit float32 (clip >= {LEAST_CLIP})")
        if round(self.clip * self.scale) < 1:
            raise UsageError(f"{self.clients} clients leave no bit for a value: 2^31 is the limit of a sum")

    @property
    def frac_bits(self) -> int:
        """log2 of the scale; negative if the step is larger than 1."""
        return _frac_bits(self.clients, float(self.clip))

    @property
    def scale(self) -> float:
        return 2.0**self.frac_bits

    @property
    def largest(self) -> int:
        """The largest magnitude of an encoded value."""
        return round(self.clip * self.scale)

    def encode(self, update: npt.ArrayLike, *, weight: float = 1.0, out: Ring32 | None = None) -> tuple[Ring32, int]:
        """The code of update * weight, and the number of clipped values, which is private to the caller.

        The arithmetic is in float64. NaN or infinity in the update is an error, and then `out` is all zero.
        """
        check_source(update, "an update")
        values = np.asarray(update)
        if values.dtype not in (np.float32, np.float64):
            raise UsageError(f"an update is float32 or float64, not {values.dtype}")
        values = _checked_vector(values, "an update")
        encoded = target(out, len(values), np.uint32)
        clipped, _, _ = encode_floats(self, values, weight, encoded)
        return encoded, clipped

    def decode(self, total: Ring32, *, divisor: float = 1.0, out: Floats | None = None) -> Floats:
        """The sum that a total encodes, or the mean if `divisor` is the sum of weights.

        This is the signed total, exact in float64, times the float64 nearest to 1 / (scale * divisor), rounded to
        float64: the same on every machine. `out` may also be float32, to which the values are then rounded.
        """
        total = checked_total(total)
        divisor = real("divisor", divisor)
        if not (_normal(divisor) and _normal(divisor * self.scale) and _normal(1 / (divisor * self.scale))):
            raise UsageError(f"a divisor is a positive number, not {divisor}")
        values = target(out, len(total), np.float32 if getattr(out, "dtype", None) == np.float32 else np.float64)
        from secagg.kernels import vectors

        factor = 1 / (divisor * self.scale)
        _spread(lambda a, b: vectors.decode(total[a:b], factor, values[a:b]), len(total))
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """Integers from -bound to bound, summed exactly: counts, histograms, votes.

    >>> encoding = Integers(clients=10, bound=5)
    >>> encoding.decode(encoding.encode([1, -5])[0] + encoding.encode([2, 3])[0])
    array([ 3, -2])
    """

    clients: int
    bound: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", whole("clients", self.clients, least=1))
        object.__setattr__(self, "bound", whole("bound", self.bound, least=0))
        # audit: integer-sum-never-wraps
        if self.clients * self.bound >= HALF_RING:
            raise UsageError(
                f"the sum of {self.clients} integers of ±{self.bound} could wrap mod 2^32; give floats, or smaller ones"
            )

    @property
    def largest(self) -> int:
        """The largest magnitude of an encoded value."""
        return self.bound

    def encode(self, update: npt.ArrayLike, *, weight: float = 1.0, out: Ring32 | None = None) -> tuple[Ring32, int]:
        """The code of integers of any width, and 0: an integer outside ±bound is an error."""
        check_source(update, "an update")
        values = np.asarray(update)
        if values.dtype.kind not in "iu":
            raise UsageError(f"integers are expected, not {values.dtype}")
        values = _checked_vector(values, "an update")
        if weight != 1:
            raise UsageError(f"integers are summed as they are: weight 1, not {weight}")
        encoded = target(out, len(values), np.uint32)

        def work(start: int, stop: int) -> bool:
            part = values[start:stop]
            np.copyto(encoded[start:stop], part, casting="unsafe")
            return int(part.max()) <= self.bound and int(part.min()) >= -self.bound

        # audit: integer-bound
        if not all(_spread(work, len(values))):
            encoded[:] = 0
            raise UsageError(f"an integer is outside ±{self.bound}")
        return encoded, 0

    def decode(self, total: Ring32, *, divisor: float = 1.0, out: Int64 | None = None) -> Int64:
        """The signed sum that a total encodes."""
        total = checked_total(total)
        if divisor != 1:
            raise UsageError(f"integers are summed exactly: divisor 1, not {divisor}")
        values = target(out, len(total), np.int64)
        np.copyto(values, total.view(np.int32))
        return values


Encoding = FixedPoint | Integers


def encode_floats(
    encoding: FixedPoint, values: npt.NDArray[Any], weight: float, encoded: Ring32
) -> tuple[int, int, int]:
    """Encode a vector of float32 or float64; how many values were clipped, how many became zero, how many were zero."""
    weight = real("weight", weight)
    if not (_normal(weight) and _normal(weight * encoding.scale)):
        raise UsageError(f"a weight is a positive number, not {weight}")
    from secagg.kernels import vectors

    values = _checked_vector(values, "an update")
    factor, limit = weight * encoding.scale, encoding.clip * encoding.scale

    counts: list[tuple[int, int, int, int]] = _spread(
        lambda a, b: vectors.encode(values[a:b], factor, limit, encoded[a:b]), len(values)
    )
    clipped, vanished, zeros, infinite = map(sum, zip(*counts, strict=True)) if counts else (0, 0, 0, 0)
    if infinite:  # audit: nonfinite-update-refused
        encoded[:] = 0
        raise UsageError("an update with a NaN or an infinity cannot be encoded")
    return clipped, vanished, zeros


@lru_cache(maxsize=64)
def _frac_bits(clients: int, clip: float) -> int:
    exact = Fraction(clip)
    bits = 32 - (clients * exact.numerator).bit_length() + exact.denominator.bit_length()  # one or two too many
    while True:
        largest = exact * Fraction(2) ** bits
        # audit: float-sum-never-wraps
        if clients * largest < HALF_RING and clients * round(largest) < HALF_RING:
            return bits
        bits -= 1


def _spread(work: Callable[[int, int], Result], length: int) -> list[Result]:
    return spread(work, 0, length, step=_PIECE, threads=max(1, min(cores(), length // (2 * _PIECE))))


def _checked_vector(values: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    if values.ndim != 1:
        raise UsageError(f"{what} is a vector, not an array of {values.ndim} dimensions")
    view = np.require(values, requirements=("C", "A")).view()
    view.flags.writeable = False  # always, so that numba compiles for one type of array
    return view


def checked_total(total: Ring32) -> Ring32:
    if not isinstance(total, np.ndarray) or total.dtype != np.uint32:
        raise UsageError("a total is an array of uint32")
    return _checked_vector(total, "a total")


def target(out: npt.NDArray[Any] | None, length: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
    if out is None:
        return np.empty(length, dtype)
    if not isinstance(out, np.ndarray) or out.dtype != dtype or out.shape != (length,) or not out.flags.carray:
        raise UsageError(f"out must be a contiguous, writable vector of {length} {np.dtype(dtype)}")
    return out


def _normal(value: float) -> bool:
    """Whether a number is a positive normal float: finite, and not so small that bits are lost."""
    return sys.float_info.min <= value <= sys.float_info.max
