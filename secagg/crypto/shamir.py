"""Shamir's t-of-n sharing (Shamir 1979) of 32-byte secrets over the prime field of p = 2^257 - 93.

The prime is above 2^256, so any 32 bytes, read as a little-endian integer, are one field element. A share is
the value of the polynomial at its holder's index: 33 bytes, little-endian, below p. Shares carry no proof
that they belong together. Compare a rebuilt secret with a commitment of its dealer.

The time of splitting and combining depends on counts and indices, not on secrets and shares (`kernels.field257`), with
two exceptions: a candidate coefficient of p or more, one in 2^250, costs another draw, and the comparison with p reads
more bytes of shares near p. Buffers that held secrets are not wiped: Python would keep copies anyway.
"""

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from secagg.arguments import drawn, each, raw, whole
from secagg.errors import UsageError
from secagg.types import Bytes, Entropy

PRIME = 2**257 - 93
SECRET_BYTES = 32
SHARE_BYTES = 33
MAX_INDEX = 65535


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """One holder's share of a secret. Index and threshold are public, the value is not.

    >>> split(bytes(32), threshold=2, holders=3)[0]
    Share(index=1, threshold=2)
    """

    index: int
    threshold: int
    value: bytes = field(repr=False)

    def __post_init__(self) -> None:
        whole("index of a share", self.index, 1, MAX_INDEX)
        whole("threshold of a share", self.threshold, 1, MAX_INDEX)
        raw("value of a share", self.value, SHARE_BYTES)


def split(secret: bytes, threshold: int, holders: int, entropy: Entropy = os.urandom) -> list[Share]:
    """Split 32 bytes into shares with the indices 1 to `holders`. Any `threshold` of them give the secret.

    >>> secret = os.urandom(32)
    >>> shares = split(secret, threshold=3, holders=5)
    >>> combine(shares[2:]) == secret
    True
    """
    places = range(1, whole("holders", holders, 1, MAX_INDEX) + 1)
    (values,) = split_each([raw("secret", secret)], threshold, places, entropy)
    return [Share(index, threshold, value.tobytes()) for index, value in enumerate(values, start=1)]


def combine(shares: Sequence[Share]) -> bytes:
    """The secret that at least `threshold` shares come from. A wrong share may give a wrong secret.

    >>> combine(split(bytes(32), threshold=3, holders=5)[:2])
    Traceback (most recent call last):
    secagg.errors.UsageError: expected at least 3 shares, got 2
    """
    shares = each("shares", shares, Share)
    thresholds = {share.threshold for share in shares}
    if len(thresholds) != 1:
        raise UsageError(f"expected shares with one threshold, got {sorted(thresholds)}")
    if len(shares) < max(thresholds):
        raise UsageError(f"expected at least {max(thresholds)} shares, got {len(shares)}")
    weights = coefficients([share.index for share in shares])
    (secret,) = combine_each(weights, [[share.value for share in shares]])
    if secret is None:
        raise UsageError("these shares do not come from one secret")
    return secret


def split_each(
    secrets: Sequence[bytes], threshold: int, indices: Sequence[int], entropy: Entropy = os.urandom
) -> Bytes:
    """Shares of every secret for every index, shape (secrets, indices, 33).

    The secret is a_0 of a_0 + a_1 x + ... + a_{t-1} x^{t-1}. For each secret in turn, unless t = 1, the other
    coefficients come from one draw of 33 (t - 1) bytes: candidates of 33 bytes, little-endian, with the top seven bits
    cleared. Candidates of p or more are skipped; for each missing coefficient, 33 bytes are drawn until they are below
    p. The candidates below p are a_1, a_2, ... in the order drawn. All field elements are equally likely, 0 included.
    """
    points = _checked_indices(indices)
    threshold = whole("threshold", threshold, 1, len(points))
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


def coefficients(indices: Sequence[int]) -> Bytes:
    """Lagrange coefficients at 0, 33 bytes for each index i: the product of j / (j - i) over the other indices j.

    They are public, the same for all secrets, and computed in plain integers.
    """
    points = _checked_indices(indices)
    denominators = np.empty((len(points), SHARE_BYTES), np.uint8)
    from secagg.kernels import field257

    field257.denominators(np.array(points, np.int64), denominators)
    below = [int.from_bytes(value.tobytes(), "little") for value in denominators]  # i times all |j - i|
    above = reduce(_times, points)
    rank = {point: place for place, point in enumerate(sorted(points))}  # so many of the factors j - i are negative
    weights = bytearray()
    for point, inverse in zip(points, _inverses(below), strict=True):
        weights += ((-1) ** rank[point] * above * inverse % PRIME).to_bytes(SHARE_BYTES, "little")
    return np.frombuffer(weights, np.uint8).reshape(-1, SHARE_BYTES)


def combine_each(coefficients: Bytes, shares: Bytes | Sequence[Sequence[bytes]]) -> list[bytes | None]:
    """The secret of every row of shares, which are in the order of the coefficients' holders.

    None where the value is 2^256 or more. This finds only half of all wrong shares: compare with a commitment.
    """
    rows = _share_array(shares, len(coefficients))
    if not canonical(rows).all():  # audit: combined-shares-in-field
        raise UsageError("a share is not below the prime")
    values = np.empty((len(rows), SHARE_BYTES), np.uint8)
    from secagg.kernels import field257

    field257.dot(coefficients, rows, values)
    return [value[:SECRET_BYTES].tobytes() if value[SECRET_BYTES] == 0 else None for value in values]


def canonical(shares: Bytes) -> npt.NDArray[np.bool_]:
    """Which values, 33 bytes each along the last axis, are below the prime. Other values are not shares."""
    if shares.dtype != np.uint8 or shares.ndim < 2 or shares.shape[-1] != SHARE_BYTES:
        raise UsageError(f"shares are rows of {SHARE_BYTES} uint8")
    below: npt.NDArray[np.bool_] = shares[..., -1] <= 1
    # p has a top byte of 1, thirty-one bytes of 255, and 163. One number in 2^17 passes the first line.
    near = (shares[..., -1] == 1) & (shares[..., -2] == 255) & (shares[..., -3] == 255)
    below[near] = ~((shares[near][:, 1:-1] == 255).all(axis=1) & (shares[near][:, 0] >= PRIME % 256))
    return below


def _draw(count: int, entropy: Entropy) -> Bytes:
    """`count` coefficients below p, drawn as `split_each` describes."""
    kept = np.empty((0, SHARE_BYTES), np.uint8)
    need = count
    while need:
        stream = drawn(entropy, SHARE_BYTES * need)
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
        raise UsageError(f"a holder's index is 1 to {MAX_INDEX}: the value at 0 is the secret")
    if len(set(points)) != len(points):  # audit: holder-indices-distinct
        raise UsageError("two shares have the same index")
    return points


def _share_array(shares: Bytes | Sequence[Sequence[bytes]], holders: int) -> Bytes:
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


def _times(a: int, b: int) -> int:
    return a * b % PRIME


def _inverses(values: list[int]) -> list[int]:
    """1 / v for every v, with one inversion for all of them (Montgomery 1987, section 10.3.1)."""
    products = list(accumulate(values, _times, initial=1))
    rest = pow(products.pop(), -1, PRIME)
    inverses = []
    for value, before in zip(reversed(values), reversed(products), strict=True):
        inverses.append(rest * before % PRIME)
        rest = rest * value % PRIME
    return inverses[::-1]
