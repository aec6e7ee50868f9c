"""The row space of a 0/1 matrix, exactly, by elimination modulo a 61-bit prime.

What a server learns from group sums is the row space of the incidence matrix A of groups and clients.
Floating point cannot decide membership in it, and rational elimination is too slow beyond a few dozen
clients. So A is brought to reduced echelon form modulo a prime p. The result can differ from the rational one
only if p divides one particular nonzero minor of A; `draw_prime` explains why that does not happen.
`docs/exposure.md`, "Why a random prime", has the bound and the direction of an error.

Beside the echelon form, `RowSpace` keeps a few random vectors of the null space {z : Az = 0}. Under t random
combinations, column i of a null-space basis becomes (z_0[i], ..., z_{t-1}[i]). Dependent columns stay
dependent. Independent columns stay independent except with probability about 1/p, and such an error can only
close a group sum, never open one.

This module imports numba: import it inside functions, so that `import secagg` stays fast.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from secagg import labels
from secagg.exposure.schedules import uniform
from secagg.kernels import montgomery
from secagg.kernels.montgomery import Index, Words

PRIME_BITS = 61
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def is_prime(number: int) -> bool:
    """Miller-Rabin with twelve bases: exact for every number below 2^64 (Sorenson and Webster 2015)."""
    if number < 2:
        return False
    for prime in _WITNESSES:
        if number % prime == 0:
            return number == prime
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    for base in _WITNESSES:
        power = pow(base, (number - 1) >> twos, number)
        if power != 1 and all(pow(power, 1 << i, number) != number - 1 for i in range(twos)):
            return False
    return True


def draw_prime(words: Iterator[int]) -> int:
    """A uniformly random prime of exactly 61 bits.

    A nonzero minor of a 0/1 matrix with r rows of at most m ones is below m^(r/2) (Hadamard), so at most
    r·log2(m)/120 primes above 2^60 divide it, out of more than 2^54 such primes.
    """
    candidates = (word >> (64 - PRIME_BITS) | 1 << (PRIME_BITS - 1) | 1 for word in words)
    return next(filter(is_prime, candidates))


@dataclass(frozen=True, slots=True)
class Field:
    """The integers modulo a prime in Montgomery form: `one` represents 1, `inverse` is 1/prime mod 2^64."""

    key: bytes
    prime: np.uint64
    inverse: np.uint64
    one: np.uint64

    @classmethod
    @lru_cache(maxsize=256)  # the key is a public hash, the same for all members of a simulation
    def drawn_from(cls, key: bytes) -> Field:
        prime = draw_prime(uniform(hashlib.sha256(labels.AUDIT_PRIME + key).digest()))
        return cls(key, np.uint64(prime), np.uint64(pow(prime, -1, 2**64)), np.uint64(2**64 % prime))

    def random(self, rows: int, columns: int) -> Words:
        """Public random elements. Reducing 64 bits modulo a 61-bit prime has a bias of at most 1/8."""
        stream = hashlib.shake_256(labels.AUDIT_NULL_VECTORS + self.key).digest(8 * rows * columns)
        return np.frombuffer(stream, "<u8").astype(np.uint64).reshape(rows, columns) % self.prime


class RowSpace:
    """The span of the rows added so far, over n columns.

    `null` holds `depth` random vectors of its null space, enough to test that every `depth` columns of a
    null-space basis are independent (`anonymity.dependent`).
    """

    def __init__(self, n: int, field: Field, *, depth: int = 1) -> None:
        self.n = n
        self.field = field
        self.rank = 0
        self.null = field.random(depth, n)
        self.echelon: Words = np.zeros((min(n, 16), n), np.uint64)
        self.free: Index = np.arange(n, dtype=np.int64)
        self.pivots: Index = np.zeros(n, np.int64)
        self.place: Index = np.arange(n, dtype=np.int64)
        self._y: Words = np.zeros(n, np.uint64)
        self._ahead: Words = np.zeros_like(self.null)
        self._pivot = -1  # where the row that was considered last gets its pivot, among the free columns

    def consider(self, row: Iterable[int]) -> Words | None:
        """The null vectors after adding this row, or None if the row is already in the row space."""
        members = np.fromiter(row, np.int64)
        k, field = self.n - self.rank, self.field
        j = self._pivot = montgomery.reduce(self.echelon, k, self.place, members, self._y, field.one, field.prime)
        if j < 0:
            return None
        montgomery.project(
            self.echelon, self.rank, self.pivots, j, self.free[j], members, self._y[j], self.null,
            self._ahead, field.one, field.prime, field.inverse,
        )  # fmt: skip
        return self._ahead

    def accept(self) -> None:
        """Add the row that was considered last; it must be independent of the others."""
        assert self._pivot >= 0
        if self.rank == len(self.echelon):
            more = min(self.n, 2 * self.rank) - self.rank
            self.echelon = np.pad(self.echelon, ((0, more), (0, 0)))
        montgomery.eliminate(
            self.echelon, self.rank, self.n - self.rank, self.pivots, self.free, self.place, self._pivot, self._y,
            self.field.one, self.field.prime, self.field.inverse,
        )  # fmt: skip
        self.null, self._ahead = self._ahead, self.null
        self.rank += 1
        self._pivot = -1

    def add(self, row: Iterable[int]) -> bool:
        """Add a row; return whether it was independent of the others."""
        if self.consider(row) is None:
            return False
        self.accept()
        return True

    def exposed(self) -> frozenset[int]:
        """The columns whose unit vector lies in the row space: echelon rows that consist of their pivot."""
        sizes = montgomery.support_sizes(self.echelon, self.rank, self.n - self.rank)
        return frozenset(self.pivots[: self.rank][sizes == 1].tolist())

    def lightest(self, columns: Index) -> int:
        """The smallest support of an echelon row with its pivot in these columns; n + 1 if there is none."""
        sizes = montgomery.support_sizes(self.echelon, self.rank, self.n - self.rank)
        sizes = sizes[np.isin(self.pivots[: self.rank], columns)]
        return int(sizes.min(initial=self.n + 1))
