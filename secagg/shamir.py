"""Shamir's t-of-n secret sharing (Shamir 1979) of 32-byte secrets over the prime field of 2^257 - 93."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from secagg.errors import UsageError
from secagg.prg import Entropy

PRIME = 2**257 - 93
SECRET_BYTES = 32
SHARE_BYTES = 33
MAX_INDEX = 65535


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Lagrange coefficients at 0 for one set of holders: what each secret's shares are weighted by."""

    indices: tuple[int, ...]
    values: tuple[int, ...]


def _check_indices(indices: Sequence[int]) -> tuple[int, ...]:
    checked = tuple(int(i) for i in indices)
    if not checked:
        raise UsageError("no share holders")
    if len(set(checked)) != len(checked):
        raise UsageError("share indices must be distinct")
    if min(checked) < 1 or max(checked) > MAX_INDEX:
        raise UsageError(f"share indices go from 1 to {MAX_INDEX}")
    return checked


def split(
    secrets: Sequence[bytes], threshold: int, indices: Sequence[int], entropy: Entropy = os.urandom
) -> npt.NDArray[np.uint8]:
    """Shares of every secret for every index, shape (secrets, indices, 33).

    Per secret, in order: one draw of 33 * (threshold - 1) bytes, cut into candidates of 33 bytes,
    little-endian, of which the low 257 bits count; a candidate >= p is skipped, and a further draw of 33 bytes
    is appended for each missing coefficient until there are threshold - 1. They are a_1, a_2, ...
    """
    points = _check_indices(indices)
    if not 1 <= threshold <= len(points):
        raise UsageError(f"threshold {threshold} with {len(points)} holders")
    shares = np.empty((len(secrets), len(points), SHARE_BYTES), np.uint8)
    for row, secret in zip(shares, secrets, strict=True):
        if len(secret) != SECRET_BYTES:
            raise UsageError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
        polynomial = [int.from_bytes(secret, "little"), *_coefficients(threshold - 1, entropy)]
        for x, share in zip(points, row, strict=True):
            value = 0
            for a in reversed(polynomial):
                value = (value * x + a) % PRIME
            share[:] = np.frombuffer(value.to_bytes(SHARE_BYTES, "little"), np.uint8)
    return shares


def _coefficients(count: int, entropy: Entropy) -> list[int]:
    stream = entropy(SHARE_BYTES * count)
    found: list[int] = []
    while True:
        for at in range(0, len(stream), SHARE_BYTES):
            candidate = int.from_bytes(stream[at : at + SHARE_BYTES], "little") & (2**257 - 1)
            if candidate < PRIME:
                found.append(candidate)
        if len(found) == count:
            return found
        stream = entropy(SHARE_BYTES)


def coefficients(indices: Sequence[int]) -> Coefficients:
    """Lagrange coefficients at 0 of the holders `indices`, once for all secrets that they hold shares of."""
    points = _check_indices(indices)
    values = []
    for i in points:
        above = below = 1
        for j in points:
            if j != i:
                above = above * j % PRIME
                below = below * (j - i) % PRIME
        values.append(above * pow(below, -1, PRIME) % PRIME)
    return Coefficients(points, tuple(values))


def combine(
    coefficients: Coefficients, shares: npt.NDArray[np.uint8] | Sequence[Sequence[bytes]]
) -> list[bytes | None]:
    """The secret of every row of shares; None where the shares do not belong together (value >= 2^256)."""
    secrets: list[bytes | None] = []
    for row in shares:
        total = 0
        for weight, share in zip(coefficients.values, row, strict=True):
            if len(share) != SHARE_BYTES:
                raise UsageError(f"a share has {SHARE_BYTES} bytes, not {len(share)}")
            value = int.from_bytes(bytes(share), "little")
            if value >= PRIME:
                raise UsageError("a share is not below the prime")
            total += weight * value
        total %= PRIME
        secrets.append(total.to_bytes(SECRET_BYTES, "little") if total < 2**256 else None)
    return secrets
