"""Masks: 16-byte keys from agreed secrets and seeds, a stream of uint32 per key, and sums of many streams.

SHARE, Appendix C.1; Bonawitz et al. 2017, section 4.1. A key comes from HKDF-SHA256, whose info binds the version, the
plan hash, the ids and the number of the grouping.

The stream is AES-128 in counter mode (NIST SP 800-38A, section 6.5): the first counter block is zero, the counter has
128 bits, big-endian, and the keystream is read as little-endian words. The backends `vaes` and `aesni` make it in
registers (`kernels.aes`), `openssl` takes it from the cryptography package. secagg uses the fastest one that passes a
self-test here, unless the environment variable SECAGG_BACKEND, or `use_backend`, forces another.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg import labels
from secagg.arguments import each, whole
from secagg.crypto.keys import hkdf, hkdf_each
from secagg.errors import SecAggError, UsageError
from secagg.kernels.threads import spread, thread_count, together
from secagg.types import Bytes, ClientId, Ring32, u32

Keys = Sequence[bytes] | Bytes
Signs = Sequence[int] | npt.NDArray[np.integer]

MASK_KEY_BYTES = 16
MAX_WORDS = 2**62  # of one stream: no counter below it needs more than 64 bits
BACKENDS = ("vaes", "aesni", "openssl")  # fastest first
ENVIRONMENT = "SECAGG_BACKEND"

_PAGE = 1024  # words: a thread takes no shorter piece
_LEAST_WORK = 2**19  # words of keystream (2 MiB) that make another thread worthwhile
_CHUNK = 32768  # words that OpenSSL makes per call: enough to hide the call's cost, and they fit in the cache
_GROUP = 4  # streams that are added in one pass

_forced: ContextVar[str | None] = ContextVar("secagg_backend", default=None)


def pairwise_keys(agreed: Bytes, plan_hash: bytes, pairs: npt.NDArray[np.uint32]) -> Bytes:
    """The keys of many pairs: one agreed secret and one (a, b, grouping) per row.

    a and b may be in either order, so both clients get the same key.
    """
    ids = np.array(pairs, "<u4", order="C")
    ids[:, :2].sort(axis=1)  # audit: pairwise-keys-same-from-both-sides
    opening = np.frombuffer(labels.PAIRWISE_MASK + plan_hash, np.uint8)  # audit: pairwise-keys-bind-plan
    # audit: pairwise-keys-bind-grouping
    infos = np.concatenate([np.broadcast_to(opening, (len(ids), len(opening))), ids.view(np.uint8)], axis=1)
    return hkdf_each(agreed, infos)[:, :MASK_KEY_BYTES]


def self_key(seed: bytes, plan_hash: bytes, owner: ClientId, grouping: int) -> bytes:
    """The key of a client's own mask for one grouping."""
    # audit: self-key-binds-plan self-key-binds-grouping
    return hkdf(seed, labels.SELF_MASK + plan_hash + u32(owner) + u32(grouping), MASK_KEY_BYTES)


def pairwise_sign(me: ClientId, peer: ClientId) -> int:
    """+1 for the lower id and -1 for the higher, so that the two masks cancel in the sum."""
    return 1 if me < peer else -1


def mask(key: bytes, length: int) -> Ring32:
    """The first `length` words of the key's stream. Never use one key for two vectors.

    >>> mask(bytes(16), 3)
    array([3561744742,  992774895, 1509575816], dtype=uint32)
    """
    words = np.zeros(whole("length", length, 0, 2**31 - 1), np.uint32)
    add_masks(words, [key], [1])
    return words


def add_masks(vector: Ring32, keys: Keys, signs: Signs, *, offset: int = 0, threads: int | None = None) -> None:
    """Add (sign +1) or subtract (sign -1) every key's stream, in place, modulo 2^32.

    `vector[i]` meets word `offset + i` of each stream, so a vector may be masked in parts. `keys` may be an array of
    shape (count, 16). All cores work, unless `threads` limits them, in one pass over the vector.

    >>> vector = np.array([1, 2, 3], np.uint32)
    >>> add_masks(vector, [bytes(16), bytes(range(16))], [1, -1])
    >>> add_masks(vector, [bytes(16), bytes(range(16))], [-1, 1])
    >>> vector
    array([1, 2, 3], dtype=uint32)
    """
    if not isinstance(vector, np.ndarray) or vector.dtype != np.uint32 or vector.ndim != 1 or not vector.flags.carray:
        raise UsageError("masks are added to a writable, contiguous, aligned uint32 vector")
    offset = whole("offset", offset, 0, MAX_WORDS - len(vector))  # kernels use signed 64-bit numbers
    key_bytes, directions = _key_array(keys), _sign_array(signs)
    if len(directions) != len(key_bytes):
        raise UsageError(f"{len(key_bytes)} keys but {len(directions)} signs")
    chosen, workers = backend(), thread_count(threads)
    if len(vector) and len(key_bytes):
        _add_masks(chosen, vector, key_bytes, directions, offset, workers)


def _key_array(keys: Keys) -> Bytes:
    if isinstance(keys, np.ndarray):
        if keys.dtype != np.uint8 or keys.ndim != 2 or keys.shape[1] != MASK_KEY_BYTES:
            raise UsageError(f"keys are an array of uint8 with {MASK_KEY_BYTES} columns")
        return np.array(keys, order="C")
    keys = each("keys", keys, bytes)
    if {*map(len, keys)} - {MASK_KEY_BYTES}:
        raise UsageError(f"a mask key has {MASK_KEY_BYTES} bytes")
    return np.frombuffer(bytearray().join(keys), np.uint8).reshape(-1, MASK_KEY_BYTES)


def _sign_array(signs: Signs) -> npt.NDArray[np.int64]:
    if isinstance(signs, np.ndarray):
        valid = signs.ndim == 1 and signs.dtype.kind in "iu" and bool((np.abs(signs) == 1).all())
    else:
        try:
            signs = tuple(signs)
            valid = {*signs} <= {1, -1}
        except TypeError:  # no collection, or unhashable items, which are not numbers
            valid = False
    if not valid:
        raise UsageError("a sign is +1 or -1")
    return np.array(signs, np.int64)


def _add_masks(
    chosen: str, vector: Ring32, keys: Bytes, signs: npt.NDArray[np.int64], offset: int, workers: int
) -> None:
    """`add_masks` with checked arguments, on as many of the workers as the size justifies."""
    pages = -(-len(vector) // _PAGE)
    workers = max(1, min(workers, pages, len(vector) * len(keys) // _LEAST_WORK))
    if chosen == "openssl":
        step = -(-pages // workers) * _PAGE  # one piece per thread: a key's set-up costs as much as 35 kB of stream

        def work(start: int, stop: int) -> None:
            _add_openssl(vector[start - offset : stop - offset], keys, signs, start)

        spread(work, offset, offset + len(vector), step=step, threads=workers)
    else:
        from secagg.kernels import aes

        taken, lanes = np.array([offset], np.int64), aes.LANES[chosen]
        together(lambda: aes.add_masks(keys, signs, vector, offset, taken, workers, lanes), workers)


def _add_openssl(vector: Ring32, keys: Bytes, signs: npt.NDArray[np.int64], offset: int) -> None:
    """Add the streams from word `offset` on, four at a time while they are in the cache.

    OpenSSL encrypts the vector instead of zeros, and the addition removes it by xor: so AES brings it to the cache.
    """
    from secagg.kernels import vectors

    block, skip = divmod(offset, 4)
    counter = modes.CTR(block.to_bytes(16, "big"))
    ciphers = [Cipher(algorithms.AES(key.tobytes()), counter).encryptor() for key in keys]
    for cipher in ciphers:
        cipher.update(bytes(4 * skip))
    plain = vector.view(np.uint8).data
    chunk = -(-len(vector) // max(1, round(len(vector) / _CHUNK)))  # equal chunks: a short last one is slow
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
    """The backend that `add_masks` uses here and now. The first call may load or compile it.

    >>> backend() in BACKENDS
    True
    """
    forced = _forced.get() or os.environ.get(ENVIRONMENT)
    if not forced:
        return next(name for name in BACKENDS if _works(name))
    if forced not in BACKENDS or not _works(forced):
        raise UsageError(f"no backend {forced!r} here; available: {', '.join(available_backends())}")
    return forced


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Force a backend inside this context. It takes precedence over SECAGG_BACKEND.

    >>> with use_backend("openssl"):
    ...     backend()
    'openssl'
    """
    if name not in BACKENDS:
        raise UsageError(f"no backend {name!r}; choose one of {', '.join(BACKENDS)}")
    token = _forced.set(name)
    try:
        backend()
        yield
    finally:
        _forced.reset(token)


def available_backends() -> tuple[str, ...]:
    """Backends that this processor has and that pass their self-test, fastest first."""
    return tuple(name for name in BACKENDS if _works(name))


@cache
def _works(name: str) -> bool:
    """Whether this processor can run the backend, and the backend gives the same words as OpenSSL."""
    if name != "openssl":
        from secagg.kernels import aes
        from secagg.kernels.jit import target_features

        if not target_features() >= aes.FEATURES[name]:
            return False
    keys = np.arange(3 * MASK_KEY_BYTES, dtype=np.uint8).reshape(3, MASK_KEY_BYTES) * np.uint8(37)
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
# words; past 2^32 blocks; across 2^40 blocks, where the kernels' tables change.
_SELF_TEST = ((0, 4), (1021, 4103), (32768 - 5, 2050), (2**34 + 3, 1100), (2**42 - 1500, 3000))


def _stream(key: bytes, offset: int, length: int) -> Ring32:
    """One stream in the simplest way. The self-test compares every backend with it."""
    block, skip = divmod(offset, 4)
    cipher = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(16, "big"))).encryptor()
    return np.frombuffer(cipher.update(bytes(4 * (skip + length))), "<u4")[skip:].astype(np.uint32)
