"""SHA-256 of many rows: of short ones under one label, and of long vectors.

A run checks hundreds of thousands of short rows. hashlib's overhead of half a microsecond is several times the cost of
a short row. For many rows, a compiled kernel with the processor's SHA instructions avoids it. The kernel is tested
against hashlib before its first use. Some rows are secret (shares, agreed keys): neither path branches on the data or
uses it as an index. Of long vectors, the kernel hashes two in little more time than hashlib needs for one.
"""

import warnings
from functools import cache
from hashlib import sha256

import numpy as np

from secagg.kernels.threads import spread, thread_count
from secagg.types import Bytes, Ring32

KERNEL_ROWS = 16  # with fewer rows, hashlib is faster than a call of the kernel
_LONG_BYTES = 2**19  # vectors from this size on are hashed in several threads, and by the kernel in pairs


def sha256_each(label: bytes, rows: Bytes) -> Bytes:
    """SHA-256 of the label followed by each row: one digest of 32 bytes per row."""
    if len(rows) >= KERNEL_ROWS and has_kernel():
        return _by_kernel(label, rows)
    return _by_hashlib(label, rows)


def row_hashes(vectors: Ring32, threads: int | None = None) -> bytes:
    """SHA-256 of each row's bytes, one after the other. Long rows are hashed in parallel."""
    hashes = [b""] * len(vectors)
    long = vectors.shape[1] * 4 >= _LONG_BYTES
    workers = thread_count(threads) if long else 1
    step = 2 if long and len(vectors) > workers and has_kernel() else 1

    def work(start: int, stop: int) -> None:
        for row in range(start, stop, step):
            rows = [np.ascontiguousarray(vector, "<u4").view(np.uint8) for vector in vectors[row : row + step]]
            hashes[row : row + len(rows)] = _two_by_kernel(*rows) if len(rows) == 2 else [sha256(rows[0].data).digest()]

    if workers == 1:
        work(0, len(vectors))
    else:
        spread(work, 0, len(vectors), step=step, threads=workers)
    return b"".join(hashes)


def _two_by_kernel(first: Bytes, second: Bytes) -> list[bytes]:
    from secagg.kernels import sha

    digests = np.empty((2, 32), np.uint8)
    sha.hash_two(_read_only(first), _read_only(second), digests)
    return [digest.tobytes() for digest in digests]


def _read_only(data: Bytes) -> Bytes:
    """A view that numba always takes for the same type of array, so that it compiles a kernel once."""
    view = data.view()
    view.flags.writeable = False
    return view


def _by_hashlib(label: bytes, rows: Bytes) -> Bytes:
    text, width = rows.tobytes(), rows.shape[1]
    starts = range(0, len(rows) * width, width) if width else [0] * len(rows)
    digests = b"".join([sha256(label + text[start : start + width]).digest() for start in starts])
    return np.frombuffer(digests, np.uint8).reshape(-1, 32)


def _by_kernel(label: bytes, rows: Bytes) -> Bytes:
    from secagg.kernels import sha

    digests = np.empty((len(rows), 32), np.uint8)
    sha.hash_rows(np.frombuffer(label, np.uint8), _read_only(np.ascontiguousarray(rows)), digests)
    return digests


@cache
def has_kernel() -> bool:
    """Whether the kernels run here and agree with hashlib. Call this before a fork: it compiles them."""
    from secagg.kernels import sha
    from secagg.kernels.jit import target_features

    if not target_features() >= sha.FEATURES:
        return False
    text = np.arange(240, dtype=np.uint8)
    for label, width in ((b"", 60), (b"short", 40), (b"longer" * 9, 16), (b"x" * 130, 48)):
        rows, pair = text.reshape(-1, width), text[: 4 * width].reshape(2, -1)
        same = _two_by_kernel(*pair) == [sha256(row.data).digest() for row in pair]
        if not same or not np.array_equal(_by_kernel(label, rows), _by_hashlib(label, rows)):
            warnings.warn("secagg's SHA-256 kernel fails its self-test and is not used", RuntimeWarning, 2)
            return False
    return True
