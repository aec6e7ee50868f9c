"""A 16-byte key to a stream of uint32, by AES-128 in counter mode; and many such masks added to a vector.

NIST SP 800-38A, section 6.5: the initial counter block is all zero, the counter 128 bits, big-endian; the
keystream is read as little-endian words. Nothing else in secagg makes a mask. Three backends give the same
words: `vaes` and `aesni` make the keystream in registers (`aes_kernels`), `openssl` takes it from the
cryptography package. The fastest that this processor has, and that agrees with OpenSSL on a self-test when
first used, is taken; the environment variable SECAGG_BACKEND or `use_backend` forces one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.errors import SecAggError, UsageError
from secagg.kernels.threads import spread, thread_count, together

Ring32: TypeAlias = npt.NDArray[np.uint32]
Entropy: TypeAlias = Callable[[int], bytes]

KEY_BYTES = 16
MAX_WORDS = 2**62  # of one stream: far beyond any vector, and no counter overflows 64 bits below it
BACKENDS = ("vaes", "aesni", "openssl")  # fastest first
ENVIRONMENT = "SECAGG_BACKEND"

_PAGE = 1024  # words: no piece that a thread takes is shorter
_LEAST_WORK = 2**19  # words of keystream (2 MiB) below which another thread costs more than it gives
_CHUNK = 32768  # words that OpenSSL makes at a time: long enough to hide a call, short enough for the cache
_GROUP = 4  # streams that are added in one pass

_forced: ContextVar[str | None] = ContextVar("secagg_backend", default=None)


def expand(key: bytes, length: int) -> Ring32:
    """The first `length` words of the key's stream."""
    if length < 0:
        raise UsageError(f"a mask cannot have {length} words")
    mask = np.zeros(length, np.uint32)
    add_masks(mask, [key], [1])
    return mask


def add_masks(
    vector: Ring32,
    keys: Sequence[bytes] | npt.NDArray[np.uint8],
    signs: Sequence[int] | npt.NDArray[np.integer],
    *,
    offset: int = 0,
    threads: int | None = None,
) -> None:
    """Add (sign +1) or subtract (sign -1) every key's stream, in place, mod 2^32, on all cores unless told.

    `vector[i]` meets word `offset + i` of each stream, so a vector may be masked in parts. `keys` may be an
    array of shape (count, 16). The vector is read and written once, however many keys there are.
    """
    if vector.dtype != np.uint32 or vector.ndim != 1 or not vector.flags.carray:
        raise UsageError("masks are added to a writable, contiguous, aligned uint32 vector")
    if not isinstance(offset, (int, np.integer)):
        raise UsageError(f"an offset is a whole number, not {type(offset).__name__}")
    offset = int(offset)  # kernels compute in 64 bits with a sign
    if not 0 <= offset <= MAX_WORDS - len(vector):
        raise UsageError(f"offset {offset} is outside the stream")
    key_bytes, directions = _key_array(keys), _sign_array(signs)
    if len(directions) != len(key_bytes):
        raise UsageError(f"{len(key_bytes)} keys but {len(directions)} signs")
    chosen = backend()
    workers = thread_count(threads)
    if len(vector) == 0 or len(key_bytes) == 0:
        return
    _add_masks(chosen, vector, key_bytes, directions, offset, workers)


def _key_array(keys: Sequence[bytes] | npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    if isinstance(keys, np.ndarray):
        if keys.dtype != np.uint8 or keys.ndim != 2 or keys.shape[1] != KEY_BYTES:
            raise UsageError(f"keys are an array of uint8 with {KEY_BYTES} columns")
        return np.array(keys, order="C")
    if {*map(len, keys)} - {KEY_BYTES}:
        raise UsageError(f"a mask key has {KEY_BYTES} bytes")
    return np.frombuffer(bytearray().join(keys), np.uint8).reshape(-1, KEY_BYTES)


def _sign_array(signs: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    if isinstance(signs, np.ndarray):
        right = signs.ndim == 1 and signs.dtype.kind in "iu" and bool((np.abs(signs) == 1).all())
    else:
        try:
            right = {*signs} <= {1, -1}
        except TypeError:  # not even numbers
            right = False
    if not right:
        raise UsageError("a sign is +1 or -1")
    return np.array(signs, np.int64)


def _add_masks(
    chosen: str,
    vector: Ring32,
    keys: npt.NDArray[np.uint8],
    signs: npt.NDArray[np.int64],
    offset: int,
    workers: int,
) -> None:
    """With checked arguments, on as many threads as are worth starting."""
    pages = -(-len(vector) // _PAGE)
    workers = max(1, min(workers, pages, len(vector) * len(keys) // _LEAST_WORK))
    if chosen == "openssl":

        def work(start: int, stop: int) -> None:
            _add_openssl(vector[start - offset : stop - offset], keys, signs, start)

        piece = -(-len(vector) // workers)  # one a thread: setting a key up costs as much as 35 kB of stream
        spread(work, offset, offset + len(vector), step=-(-piece // _PAGE) * _PAGE, threads=workers)
    else:
        from secagg.kernels import aes

        taken, lanes = np.array([offset], np.int64), aes.LANES[chosen]
        together(lambda: aes.add_masks(keys, signs, vector, offset, taken, workers, lanes), workers)


def _add_openssl(
    vector: Ring32, keys: npt.NDArray[np.uint8], signs: npt.NDArray[np.int64], offset: int
) -> None:
    """The words from `offset` on, four streams at a time while they are in the cache.

    OpenSSL encrypts the vector itself, not zeros, and the sum takes it out again by xor: so the vector comes
    from memory while OpenSSL is busy with AES, and is in the cache when it is added to.
    """
    from secagg.kernels import vectors

    block, skip = divmod(offset, 4)
    counter = modes.CTR(block.to_bytes(16, "big"))
    ciphers = [Cipher(algorithms.AES(key.tobytes()), counter).encryptor() for key in keys]
    if skip:
        for cipher in ciphers:
            cipher.update(bytes(4 * skip))
    plain = vector.view(np.uint8).data
    chunk = -(-len(vector) // max(1, round(len(vector) / _CHUNK)))  # equal ones: a short last one costs calls
    covered = np.empty((min(_GROUP, len(keys)), chunk), np.uint32)
    rows = [row.view(np.uint8).data for row in covered]
    for start in range(0, len(vector), chunk):
        stop = min(start + chunk, len(vector))
        source = plain[4 * start : 4 * stop]
        if len(source) < len(rows[0]):  # the last chunk
            rows = [row[: len(source)] for row in rows]
        for first in range(0, len(ciphers), _GROUP):
            group = ciphers[first : first + _GROUP]
            for cipher, row in zip(group, rows, strict=False):
                cipher.update_into(source, row)
            vectors.add_streams(vector, start, stop, covered, signs, first, len(group))


def backend() -> str:
    """The backend that `add_masks` uses here and now. The first call may wait for a compilation."""
    forced = _forced.get() or os.environ.get(ENVIRONMENT)
    if not forced:
        return next(name for name in BACKENDS if _works(name))
    if forced not in BACKENDS or not _works(forced):
        raise UsageError(f"no backend {forced!r} here; available: {', '.join(available_backends())}")
    return forced


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Force a backend inside this context, over SECAGG_BACKEND."""
    token = _forced.set(name)
    try:
        backend()
        yield
    finally:
        _forced.reset(token)


def available_backends() -> tuple[str, ...]:
    """Backends that this processor has and that pass their self-test, fastest first."""
    return tuple(name for name in BACKENDS if _works(name))


def prepare(on_compile: Callable[[str], None] | None = None) -> str:
    """Choose the backend now, and call `on_compile` with a function's name if that waits for a compilation.

    Everything else that secagg compiles can be announced in the same way with `compiled.announce`.
    """
    from secagg.kernels.jit import announce

    with announce(on_compile) if on_compile else nullcontext():
        return backend()


@cache
def _works(name: str) -> bool:
    """Whether this processor can run the backend, and the backend gives the words that OpenSSL gives."""
    if name != "openssl":
        from secagg.kernels import aes
        from secagg.kernels.jit import target_features

        if not target_features() >= aes.FEATURES[name]:
            return False
    keys = np.arange(3 * KEY_BYTES, dtype=np.uint8).reshape(3, KEY_BYTES) * np.uint8(37)
    signs = np.array([1, -1, 1], np.int64)
    for offset, length in _SELF_TEST:
        vector, expected = np.zeros(length, np.uint32), np.zeros(length, np.uint32)
        _add_masks(name, vector, keys, signs, offset, 1)
        for key, sign in zip(keys, signs, strict=True):
            expected += sign.astype(np.uint32) * _stream(key.tobytes(), offset, length)
        if not np.array_equal(vector, expected):
            if name == "openssl":
                raise SecAggError("AES-128-CTR fails its self-test: no masks can be made on this machine")
            warnings.warn(f"secagg's {name} kernel fails its self-test and is not used", RuntimeWarning, 2)
            return False
    return True


# First word and length: inside one page; several pages and both edges; the same with edges of five and three
# words; past 2^32 blocks, and across 2^40, where the kernels' tables change.
_SELF_TEST = ((0, 4), (1021, 4103), (32768 - 5, 2050), (2**34 + 3, 1100), (2**42 - 1500, 3000))


def _stream(key: bytes, offset: int, length: int) -> Ring32:
    """One stream by the shortest path: what all backends are tested against."""
    block, skip = divmod(offset, 4)
    cipher = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(16, "big"))).encryptor()
    return np.frombuffer(cipher.update(bytes(4 * (skip + length))), "<u4")[skip:].astype(np.uint32)
