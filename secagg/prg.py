"""A 16-byte key to a stream of uint32: AES-128 in counter mode, and adding many such masks to a vector.

NIST SP 800-38A, section 6.5, with an all-zero initial counter block and a big-endian 128-bit counter; the
keystream is read as little-endian uint32. Every backend gives the same bytes. No other generator makes a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.errors import UsageError

Ring32: TypeAlias = npt.NDArray[np.uint32]
Entropy: TypeAlias = Callable[[int], bytes]

KEY_BYTES = 16


def expand(key: bytes, length: int) -> Ring32:
    """The first `length` words of the key's stream."""
    if length < 0:
        raise UsageError(f"cannot expand to {length} words")
    mask = np.zeros(length, np.uint32)
    add_masks(mask, [key], [1])
    return mask


def add_masks(
    vector: Ring32,
    keys: Sequence[bytes] | npt.NDArray[np.uint8],
    signs: Sequence[int],
    *,
    offset: int = 0,
    threads: int | None = None,
) -> None:
    """Add (sign +1) or subtract (sign -1) the stream of every key, in place, mod 2^32.

    `vector[i]` meets word `offset + i` of each stream.
    """
    first_block, skip = divmod(offset, 4)
    for key, sign in zip(keys, signs, strict=True):
        counter = first_block.to_bytes(16, "big")
        cipher = Cipher(algorithms.AES(bytes(key)), modes.CTR(counter)).encryptor()
        stream = np.frombuffer(cipher.update(bytes(4 * (skip + len(vector)))), np.uint32)[skip:]
        if sign == 1:
            vector += stream
        elif sign == -1:
            vector -= stream
        else:
            raise UsageError(f"a sign is +1 or -1, not {sign}")


def available_backends() -> tuple[str, ...]:
    return ("openssl",)


def backend() -> str:
    return "openssl"


def prepare(on_compile: Callable[[str], None] | None = None) -> str:
    return backend()
