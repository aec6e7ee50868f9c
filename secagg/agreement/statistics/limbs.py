"""Whole numbers that are larger than the ring, in several places of a vector: their limbs.

A limb has as many bits as can be summed over the clients of a group without wrapping modulo 2^32. The sum of numbers is
put together from the sums of their limbs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.fixedpoint import HALF_RING
from secagg.crypto.segments import Segment
from secagg.errors import UsageError

MOST_LIMBS: Final = 4

Int64 = npt.NDArray[np.int64]


def limb_bits(clients: int) -> int:
    """The bits of a limb: the most for which `clients` limbs cannot wrap.

    >>> limb_bits(10)
    27
    """
    return ((HALF_RING - 1) // clients + 1).bit_length() - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """Whole numbers from 0 to `most` in an update: an array of this shape, or with limbs of one more dimension.

    >>> entry = Entry("age.sums", (1,), most=10**9, clients=10)
    >>> entry.limbs, entry.split([123456789]), entry.join(entry.split([123456789]) * 10)
    (2, array([[123456789,         0]]), [1234567890])
    """

    name: str
    shape: tuple[int, ...]
    most: int
    clients: int

    @property
    def bits(self) -> int:
        return limb_bits(self.clients)

    @property
    def limbs(self) -> int:
        """How many limbs the numbers need; 1 if they fit into the ring as they are."""
        if self.clients * self.most < HALF_RING:
            return 1
        return -(-self.most.bit_length() // max(self.bits, 1))

    @property
    def segment(self) -> Segment:
        """The part of the vector."""
        if self.limbs == 1:
            return Segment(name=self.name, shape=self.shape, bound=self.most)
        return Segment(name=self.name, shape=(*self.shape, self.limbs), bound=2**self.bits - 1)

    def split(self, numbers: Sequence[int]) -> Int64:
        """The numbers, one after the other, as the update has them."""
        for number in numbers:
            if not 0 <= number <= self.most:  # audit: statistics-number-range
                raise UsageError(f"{self.name}: a number is outside of 0 to {self.most}, which was agreed")
        if self.limbs == 1:
            return np.array(numbers, np.int64).reshape(self.shape)
        limb = 2**self.bits - 1
        parts = [[(number >> (self.bits * place)) & limb for place in range(self.limbs)] for number in numbers]
        return np.array(parts, np.int64).reshape(*self.shape, self.limbs)

    def join(self, sums: npt.ArrayLike) -> list[int]:
        """The sums of the numbers from the sums of what `split` gave."""
        rows: Iterable[list[int]] = np.asarray(sums).reshape(-1, self.limbs).tolist()
        return [sum(value << (self.bits * place) for place, value in enumerate(row)) for row in rows]
