"""SHA-256 of many short rows under one label: where a run checks hundreds of thousands of hashes.

hashlib needs half a microsecond to begin and end a hash, several times what hashing a short row takes. For
many rows, and where the processor has SHA instructions, a kernel does without; both give the same bytes. The
kernel is chosen by the processor's features, and tested against hashlib when it is first used.

Some rows are secret (shares, agreed keys). Neither path branches on, or is indexed by, what it hashes.
"""

from __future__ import annotations

import warnings
from functools import cache
from hashlib import sha256

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]  # one row per item
MANY = 16  # rows from which the kernel is worth calling


def sha256_each(label: bytes, rows: Bytes) -> Bytes:
    """SHA-256 of the label followed by each row: one digest of 32 bytes per row."""
    if len(rows) >= MANY and _has_kernel():
        return _by_kernel(label, rows)
    return _by_hashlib(label, rows)


def prepare() -> None:
    """Load or compile the kernel, and test it, before forked processes would each do it for themselves."""
    _has_kernel()


def _by_hashlib(label: bytes, rows: Bytes) -> Bytes:
    text, width = rows.tobytes(), rows.shape[1]
    starts = range(0, len(rows) * width, width) if width else [0] * len(rows)
    digests = b"".join([sha256(label + text[start : start + width]).digest() for start in starts])
    return np.frombuffer(digests, np.uint8).reshape(-1, 32)


def _by_kernel(label: bytes, rows: Bytes) -> Bytes:
    from secagg.kernels import sha

    digests = np.empty((len(rows), 32), np.uint8)
    sha.hash_rows(np.frombuffer(label, np.uint8), _read_only(rows), digests)
    return digests


def _read_only(rows: Bytes) -> Bytes:
    """Always the same kind of array, so that the kernel is compiled once."""
    view = np.ascontiguousarray(rows).view()
    view.flags.writeable = False
    return view


@cache
def _has_kernel() -> bool:
    """Whether this processor has the instructions, and the kernel gives what hashlib gives."""
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
