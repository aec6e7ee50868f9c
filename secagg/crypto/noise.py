"""Noise: the exact discrete Gaussian on the integers, from AES-128-CTR under a key of fresh entropy.

The samples depend on the key alone, not on the number of threads or the backend: each piece of a vector has its own
part of the stream. If AES-128 is a random function, each sample differs from the exact law by less than 2^-250 in
statistical distance (`kernels.gaussian`). The time of a sample depends on its value, so draw noise before anybody who
measures time knows that it is being drawn.
"""

import os
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.arguments import whole
from secagg.crypto.prg import MASK_KEY_BYTES, add_masks
from secagg.kernels.threads import spread, thread_count
from secagg.types import Entropy

Noise = npt.NDArray[np.int32]

MOST_SIGMA: Final = 2**26  # so that every sample fits in 32 bits
_PIECE: Final = 2**14  # samples that share a part of the stream
_APART: Final = 2**40  # words between two parts: a piece takes about 100,000
_WORDS: Final = 2**16  # words at hand, 256 KiB: two or three calls per piece, so that threads rarely meet in Python


def discrete_gaussian(length: int, sigma: int, *, entropy: Entropy = os.urandom, threads: int | None = None) -> Noise:
    """`length` independent integers x, each with probability proportional to exp(-x^2 / (2 sigma^2)).

    `entropy` gives the key of the stream and is for tests.

    >>> noise = discrete_gaussian(100_000, 20)
    >>> bool(abs(noise.mean()) < 1 and abs(noise.std() - 20) < 1)
    True
    """
    length = whole("length", length, 0, 2**31 - 1)
    return _samples(length, whole("sigma", sigma, 1, MOST_SIGMA), entropy(MASK_KEY_BYTES), thread_count(threads))


def _samples(length: int, sigma: int, key: bytes, threads: int, words: int = _WORDS) -> Noise:
    out = np.empty(length, np.int32)
    spread(lambda start, stop: _fill(out, start, stop, sigma, key, words), 0, length, step=_PIECE, threads=threads)
    return out


def _fill(out: Noise, start: int, stop: int, sigma: int, key: bytes, words: int) -> None:
    """The samples from `start`, a multiple of the piece, to `stop`."""
    for first in range(start, stop, _PIECE):
        _fill_piece(out[first : min(first + _PIECE, stop)], first // _PIECE, sigma, key, words)


def _fill_piece(out: Noise, piece: int, sigma: int, key: bytes, words: int) -> None:
    """One piece: when the words run out, those that are left move to the front and more of the stream follows."""
    from secagg.kernels import gaussian

    hand, left, done, read = np.empty(words, np.uint32), 0, 0, 0
    while done < len(out):
        hand[left:] = 0
        add_masks(hand[left:], [key], [1], offset=piece * _APART + read, threads=1)
        read += len(hand) - left
        before, (done, used) = done, gaussian.fill(out, done, hand, sigma, gaussian.THRESHOLDS)
        left = len(hand) - used
        if done == before and done < len(out):  # one sample takes more words than there are
            hand = np.concatenate([hand, np.empty(len(hand), np.uint32)])
        else:
            hand[:left] = hand[used:]
