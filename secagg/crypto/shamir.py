"""Shamir's t-of-n sharing (Shamir 1979) of 32-byte secrets over the prime field of p = 2^257 - 93.

The prime lies above 2^256, so that any 32 bytes, read as a little-endian integer, are one field element; a
share is the polynomial's value at its holder's index, 33 bytes, little-endian, below p. Shares carry no proof
that they fit together: whoever rebuilds a secret checks it against what its dealer committed to.

Splitting takes a time that depends on counts and indices, not on secrets and shares (`limbs`), except that a
candidate coefficient at or above p, once in 2^250 draws, costs another draw. So does rebuilding, but for the
test that shares are below p, which looks at more bytes of those near it. Lagrange coefficients are public and
computed in plain integers. Buffers that held secrets are not wiped: Python would keep copies anyway.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from secagg.crypto.prg import Entropy
from secagg.errors import UsageError

PRIME = 2**257 - 93
SECRET_BYTES = 32
SHARE_BYTES = 33
MAX_INDEX = 65535


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    """Lagrange coefficients at 0 for a set of holders, in their order: public, the same for all secrets."""

    indices: tuple[int, ...]
    weights: npt.NDArray[np.uint8] = field(repr=False)  # (holders, 33)


def split(
    secrets: Sequence[bytes], threshold: int, indices: Sequence[int], entropy: Entropy = os.urandom
) -> npt.NDArray[np.uint8]:
    """Shares of every secret for every index, shape (secrets, indices, 33); any `threshold` rebuild it.

    Secret s is a_0 of the polynomial a_0 + a_1 x + ... + a_{t-1} x^{t-1}. For each secret in turn, unless
    t = 1, the others come from one draw of 33 (t - 1) bytes: candidates of 33 bytes, little-endian, the top
    seven bits cleared. A candidate >= p is skipped; for each coefficient that is then missing, further draws
    of 33 bytes are made until one is below p. Those below p are a_1, a_2, ... in the order drawn. All values
    of the field are equally likely, 0 among them.
    """
    points = _checked_indices(indices)
    if not 1 <= threshold <= len(points):
        raise UsageError(f"a threshold of {threshold} makes no sense for {len(points)} holders")
    if any(len(secret) != SECRET_BYTES for secret in secrets):
        raise UsageError(f"a secret has {SECRET_BYTES} bytes")
    polynomials = np.zeros((len(secrets), threshold, SHARE_BYTES), np.uint8)
    for polynomial, secret in zip(polynomials, secrets, strict=True):
        polynomial[0, :SECRET_BYTES] = np.frombuffer(secret, np.uint8)
        polynomial[1:] = _draw(threshold - 1, entropy)
    shares = np.empty((len(secrets), len(points), SHARE_BYTES), np.uint8)
    from secagg.kernels import field257

    field257.evaluate(polynomials, np.array(points, np.int64), shares)
    return shares


def coefficients(indices: Sequence[int]) -> Coefficients:
    """What the share of each holder i is weighted by: the product of j / (j - i) over the other holders j."""
    points = _checked_indices(indices)
    denominators = np.empty((len(points), SHARE_BYTES), np.uint8)
    from secagg.kernels import field257

    field257.denominators(np.array(points, np.int64), denominators)
    below = [int.from_bytes(value.tobytes(), "little") for value in denominators]  # i times all |j - i|
    above = 1
    for j in points:
        above = above * j % PRIME
    weights = bytearray()
    for inverse, negative in zip(_inverses(below), _odd_ranks(points), strict=True):
        weight = above * inverse % PRIME
        weights += (PRIME - weight if negative else weight).to_bytes(SHARE_BYTES, "little")
    return Coefficients(points, np.frombuffer(weights, np.uint8).reshape(-1, SHARE_BYTES))


def combine(
    coefficients: Coefficients, shares: npt.NDArray[np.uint8] | Sequence[Sequence[bytes]]
) -> list[bytes | None]:
    """The secret of every row of shares, whose order is the coefficients' order of holders.

    None where the value is 2^256 or more: the shares do not belong together. Half of all wrong shares are not
    noticed here, so compare a rebuilt secret with its commitment.
    """
    rows = _share_array(shares, len(coefficients.indices))
    if not canonical(rows).all():  # audit: combined-shares-in-field
        raise UsageError("a share is not below the prime")
    values = np.empty((len(rows), SHARE_BYTES), np.uint8)
    from secagg.kernels import field257

    field257.dot(coefficients.weights, rows, values)
    return [value[:SECRET_BYTES].tobytes() if value[SECRET_BYTES] == 0 else None for value in values]


def canonical(shares: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which of the shares, 33 bytes each along the last axis, are below the prime: others are not shares."""
    if shares.dtype != np.uint8 or shares.ndim < 2 or shares.shape[-1] != SHARE_BYTES:
        raise UsageError(f"shares are rows of {SHARE_BYTES} uint8")
    below: npt.NDArray[np.bool_] = shares[..., -1] <= 1
    # p is a top byte of 1, thirty-one bytes of 255, and 163. One number in 2^17 passes the first line.
    near = (shares[..., -1] == 1) & (shares[..., -2] == 255) & (shares[..., -3] == 255)
    below[near] = ~((shares[near][:, 1:-1] == 255).all(axis=1) & (shares[near][:, 0] >= PRIME % 256))
    return below


def _draw(count: int, entropy: Entropy) -> npt.NDArray[np.uint8]:
    """`count` coefficients below p, as `split` describes."""
    kept = np.empty((0, SHARE_BYTES), np.uint8)
    need = count
    while need:
        stream = entropy(SHARE_BYTES * need)
        if len(stream) != SHARE_BYTES * need:
            raise UsageError("the source of randomness gave a wrong number of bytes")
        candidates = np.frombuffer(bytearray(stream), np.uint8).reshape(-1, SHARE_BYTES)
        candidates[:, -1] &= 1
        # audit: coefficients-uniform
        kept = np.concatenate([kept, candidates[canonical(candidates)]])
        need = min(1, count - len(kept))
    return kept


def _checked_indices(indices: Sequence[int]) -> tuple[int, ...]:
    points = tuple(operator.index(index) for index in indices)
    if not points:
        raise UsageError("no share holders")
    if min(points) < 1 or max(points) > MAX_INDEX:  # audit: holder-index-positive
        raise UsageError(f"a holder's index lies between 1 and {MAX_INDEX}: at 0 lies the secret itself")
    if len(set(points)) != len(points):  # audit: holder-indices-distinct
        raise UsageError("two holders have the same index")
    return points


def _share_array(
    shares: npt.NDArray[np.uint8] | Sequence[Sequence[bytes]], holders: int
) -> npt.NDArray[np.uint8]:
    if not isinstance(shares, np.ndarray):
        if any(len(row) != holders for row in shares):
            raise UsageError(f"each secret needs the shares of all {holders} holders")
        if any(len(share) != SHARE_BYTES for row in shares for share in row):
            raise UsageError(f"a share has {SHARE_BYTES} bytes")
        joined = bytearray().join(share for row in shares for share in row)
        return np.frombuffer(joined, np.uint8).reshape(-1, holders, SHARE_BYTES)
    if shares.dtype != np.uint8 or shares.ndim != 3 or shares.shape[1:] != (holders, SHARE_BYTES):
        raise UsageError(f"shares have the shape (secrets, {holders}, {SHARE_BYTES})")
    return np.array(shares, order="C")


def _inverses(values: list[int]) -> list[int]:
    """1 / v for every v, with one inversion for all of them (Montgomery 1987, section 10.3.1)."""
    products = list(accumulate(values, lambda product, value: product * value % PRIME, initial=1))
    rest = pow(products.pop(), -1, PRIME)
    inverses = []
    for value, before in zip(reversed(values), reversed(products), strict=True):
        inverses.append(rest * before % PRIME)
        rest = rest * value % PRIME
    return inverses[::-1]


def _odd_ranks(points: tuple[int, ...]) -> list[bool]:
    """For each index, whether an odd number of the others are smaller, and so j - i negative oddly often."""
    rank = {point: place for place, point in enumerate(sorted(points))}
    return [rank[point] % 2 == 1 for point in points]
