"""Averages under additively homomorphic encryption (Aono et al. 2017), with python-paillier and packed values.

All clients have one secret key, which the server must not have. A client encrypts its update, the server multiplies
ciphertexts, which adds what is inside, and any client can decrypt the sum. One client that colludes with the server is
enough to decrypt every single update. Needs `phe` (extra `oracles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY_BITS = 3072  # about as strong as AES-128
SLOT_BYTES = 5  # a value of 32 bits, and room for the sum of 256 clients
FRACTION = 30


def slots(public: Any) -> int:
    """Values in one ciphertext."""
    return int(public.n.bit_length() - 1) // (8 * SLOT_BYTES)


def ciphertext_bytes(public: Any) -> int:
    return -(-int(public.nsquare.bit_length()) // 8)


def pack(update: NDArray[np.float32], per: int) -> list[int]:
    """Values in [-1, 1], moved to 0 and above, as integers of `per` values each."""
    whole = np.rint((np.clip(update, -1, 1) + 1.0) * 2.0**FRACTION).astype("<u8")
    padded = np.zeros(-(-len(whole) // per) * per, "<u8")
    padded[: len(whole)] = whole
    rows = np.ascontiguousarray(padded.view(np.uint8).reshape(-1, 8)[:, :SLOT_BYTES]).reshape(-1, per * SLOT_BYTES)
    return [int.from_bytes(row.tobytes(), "little") for row in rows]


def unpack(packed: Sequence[int], per: int, length: int, clients: int) -> NDArray[np.float64]:
    """The mean of the clients' values from the packed sums."""
    raw = b"".join(number.to_bytes(per * SLOT_BYTES, "little") for number in packed)
    wide = np.zeros((len(raw) // SLOT_BYTES, 8), np.uint8)
    wide[:, :SLOT_BYTES] = np.frombuffer(raw, np.uint8).reshape(-1, SLOT_BYTES)
    totals = wide.reshape(-1).view("<u8")[:length]
    return totals / 2.0**FRACTION / clients - 1.0


def encrypt(public: Any, update: NDArray[np.float32]) -> list[int]:
    """A client's ciphertexts."""
    return [public.raw_encrypt(number) for number in pack(update, slots(public))]


def add(public: Any, ciphertexts: Sequence[Sequence[int]]) -> list[int]:
    """What the server does: the product of ciphertexts is a ciphertext of the sum."""
    totals = list(ciphertexts[0])
    for more in ciphertexts[1:]:
        totals = [one * other % public.nsquare for one, other in zip(totals, more, strict=True)]
    return totals


def decrypt(private: Any, totals: Sequence[int], length: int, clients: int) -> NDArray[np.float64]:
    """What every client can do with the sum, and with any single update."""
    numbers = [private.raw_decrypt(total) for total in totals]
    return unpack(numbers, slots(private.public_key), length, clients)
