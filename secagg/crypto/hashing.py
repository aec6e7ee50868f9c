"""SHA-256 of many rows: of short ones under one label, and of long vectors.

A run checks hundreds of thousands of short rows. hashlib's overhead of half a microsecond is several times the cost of
a short row. For many rows, a compiled kernel with the processor's SHA instructions avoids it. The kernel is tested
against hashlib before its first use. Some rows are secret (shares, agreed keys): neither path branches on the data or
uses it as an index. Long vectors are hashed by hashlib, which releases the global lock.
"""

import warnings
from functools import cache
from hashlib import sha256

import numpy as np

from secagg.kernels.threads import spread, thread_count
from secagg.types import Bytes, Ring32

KERNEL_ROWS = 16  # with fewer rows, hashlib is faster than a call of the kernel
_PARALLEL_BYTES = 2**19  # vectors from this size on are hashed in several threads


def sha256_each(label: bytes, rows: Bytes) -> Bytes:
    """SHA-256 of the label followed by each row: one digest of 32 bytes per row."""
    if len(rows) >= KERNEL_ROWS and has_kernel():
        return _by_kernel(label, rows)
    return _by_hashlib(label, rows)


def row_hashes(vectors: Ring32, threads: int | None = None) -> bytes:
    """SHA-256 of each row's bytes, one after the other. Long rows are hashed in parallel."""
    hashes = [b""] * len(vectors)

    def work(start: int, stop: int) -> None:
        for row in range(start, stop):
            data = np.ascontiguousarray(vectors[row], dtype="<u4").data
            hashes[row] = sha256(data).digest()

    workers = thread_count(threads) if vectors.shape[1] * 4 >= _PARALLEL_BYTES else 1
    if workers == 1:
        work(0, len(vectors))
    else:
        spread(work, 0, len(vectors), step=1, threads=workers)
    return b"".join(hashes)


def _by_hashlib(label: bytes, rows: Bytes) -> Bytes:
    text, width = rows.tobytes(), rows.shape[1]
    starts = range(0, len(rows) * width, width) if width else [0] * len(rows)
    digests = b"".join([sha256(label + text[start : start + width]).digest() for start in starts])
    return np.frombuffer(digests, np.uint8).reshape(-1, 32)


def _by_kernel(label: bytes, rows: Bytes) -> Bytes:
    from secagg.kernels import sha

    digests = np.empty((len(rows), 32), np.uint8)
    read_only = np.ascontiguousarray(rows).view()
    read_only.flags.writeable = False  # always, so that numba compiles the kernel for one type of array
    sha.hash_rows(np.frombuffer(label, np.uint8), read_only, digests)
    return digests


@cache
def has_kernel() -> bool:
    """Whether the kernel runs here and agrees with hashlib. Call this before a fork: it compiles the kernel."""
    from secagg.kernels import sha
    from secagg.kernels.jit import target_features

    if not target_features() >= sha.FEATURES:
        return False
    text = np.arange(240, dtype=np.uint8)
    for label, width in ((b"", 60), (b"short", 40), (b"longer" * 9, 16), (b"x" * 130, 48)):
        rows = text.reshape(-1, width)
        if not np.array_equal(_by_kernel(label, rows), _by_hashlib(label, rows)):
            warnings.warn("secagg's SHA-256 kernel fails its self-test and is not used", RuntimeWarning, 2)
            return False
    return True
