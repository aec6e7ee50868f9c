"""Floats and integers to the ring of integers mod 2^32 and back, such that no honest sum can wrap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from secagg.errors import UsageError
from secagg.prg import Ring32

HALF_RING = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPoint:
    clients: int
    clip: float

    def __post_init__(self) -> None:
        if self.clients < 1 or not (math.isfinite(self.clip) and self.clip > 0):
            raise UsageError(f"no fixed point for {self.clients} values of ±{self.clip}")

    @property
    def frac_bits(self) -> int:
        total = self.clients * Fraction(self.clip)
        bits = 31 - math.floor(math.log2(total)) + 2
        while (
            self.clients
            * max(
                Fraction(round(Fraction(self.clip) * Fraction(2) ** bits)),
                Fraction(self.clip) * Fraction(2) ** bits,
            )
            >= HALF_RING
        ):
            bits -= 1
        return bits

    @property
    def scale(self) -> float:
        return 2.0**self.frac_bits

    def encode(
        self, update: npt.ArrayLike, *, weight: float = 1.0, out: Ring32 | None = None
    ) -> tuple[Ring32, int]:
        values = np.asarray(update, np.float64)
        if not np.isfinite(values).all():
            raise UsageError("the update has a NaN or an infinity")
        values = values * weight
        clipped = int(np.count_nonzero(np.abs(values) > self.clip))
        values = np.rint(np.clip(values, -self.clip, self.clip) * self.scale)
        encoded = values.astype(np.int64).astype(np.uint32)
        if out is not None:
            out[:] = encoded
            encoded = out
        return encoded, clipped

    def decode(
        self, total: Ring32, *, divisor: float = 1.0, out: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        values = (total.view(np.int32) / (self.scale * divisor)).astype(np.float32)
        if out is not None:
            out[:] = values
            return out
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    clients: int
    bound: int

    def __post_init__(self) -> None:
        if self.clients < 1 or self.bound < 0 or self.clients * self.bound >= HALF_RING:
            raise UsageError(f"{self.clients} integers of ±{self.bound} can wrap mod 2^32")

    def encode(
        self, update: npt.ArrayLike, *, weight: float = 1.0, out: Ring32 | None = None
    ) -> tuple[Ring32, int]:
        values: npt.NDArray[Any] = np.asarray(update)
        if values.dtype.kind not in "iu":
            raise UsageError(f"integers expected, not {values.dtype}")
        if weight != 1:
            raise UsageError("integers are summed as they are: weight must be 1")
        if values.size and (int(values.max()) > self.bound or int(values.min()) < -self.bound):
            raise UsageError(f"an integer is outside ±{self.bound}")
        encoded = values.astype(np.int64).astype(np.uint32)
        if out is not None:
            out[:] = encoded
            encoded = out
        return encoded, 0

    def decode(
        self, total: Ring32, *, divisor: float = 1.0, out: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.int64]:
        if divisor != 1:
            raise UsageError("integers are summed exactly: divisor must be 1")
        values = total.view(np.int32).astype(np.int64)
        if out is not None:
            out[:] = values
            return out
        return values


Encoding: TypeAlias = FixedPoint | Integers
