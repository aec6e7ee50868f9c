"""Vectors with parts of their own: each segment has a name, a shape, and a clip (floats) or a bound (integers)."""

import math
from dataclasses import dataclass
from operator import index

from secagg.errors import UsageError

MOST_LENGTH = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of a vector. Give exactly one of `clip` (floats in fixed point) and `bound` (exact integers).

    >>> Segment(name="weights", shape=(3, 4), clip=1.0).length
    12
    """

    shape: tuple[int, ...]
    name: str = ""
    clip: float | None = None
    bound: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise UsageError(f"a segment's name must be text, got {type(self.name).__name__}")
        try:
            object.__setattr__(self, "shape", tuple(index(side) for side in self.shape))
        except TypeError:
            raise UsageError(
                f"segment {self.name!r}: shape must be a tuple of whole numbers, got {self.shape!r}"
            ) from None
        if not all(side >= 1 for side in self.shape) or self.length > MOST_LENGTH:
            raise UsageError(f"segment {self.name!r}: expected 1 to {MOST_LENGTH} values, got shape {self.shape}")
        if (self.clip is None) == (self.bound is None):
            raise UsageError(f"segment {self.name!r}: give either clip (for floats) or bound (for integers)")
        if self.clip is not None and not (isinstance(self.clip, int | float) and math.isfinite(self.clip)):
            raise UsageError(f"segment {self.name!r}: clip must be a finite number, got {self.clip!r}")

    @property
    def length(self) -> int:
        return math.prod(self.shape)
