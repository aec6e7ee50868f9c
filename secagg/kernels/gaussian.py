"""The discrete Gaussian on the integers, from a stream of random words: Karney 2016, Algorithm D, with integers only.

With probability proportional to exp(-x^2 / (2 sigma^2)) for every integer x. Write |x| = k sigma + j, 0 <= j < sigma,
and y = j / sigma. Then the weight is exp(-k^2 / 2) times exp(-y (2k + y) / 2). So k is drawn from a table, j and the
sign uniformly, and the pair is accepted with the second factor, which is k + 1 trials of exp(-g), with
g = y (2k + y) / (2k + 2) <= 1. A trial (Canonne, Kamath and Steinke 2020, Algorithm 1) succeeds if the first of the
events of probability g, g / 2, g / 3, ... that does not happen has an odd number. Each event is made of comparisons
`below(n) < m` of uniform integers: no float, no rounding.

A sample is a function of the endless stream, however it is cut: when the words at hand run out, the sample that was
begun is given back and begins again with the same words, and more behind them. Its time depends on its value.
"""

from decimal import Decimal, localcontext
from typing import Any, Final

import numpy as np

from secagg.kernels.jit import kernel

LIMBS: Final = 8  # words of 32 bits in a threshold
_MOST_K: Final = 18  # a larger k has probability below 2^-260


def _thresholds() -> Any:
    """P(k' <= k), scaled to 2^256 and rounded, where k' has probability proportional to exp(-k'^2 / 2).

    Rounding errs by at most 2^-257 per threshold, and the cut after `_MOST_K` by less than 2^-260: together they change
    the law of k by less than 2^-252 in statistical distance. Accepted samples have 0.71 of the probability, so their
    law changes by less than 2^-250.
    """
    with localcontext() as context:
        context.prec = 120
        weights = [(-Decimal(k * k) / 2).exp() for k in range(2 * _MOST_K)]
        scaled = [
            int(sum(weights[: k + 1], Decimal()) / sum(weights, Decimal()) * 2**256 + Decimal("0.5"))
            for k in range(_MOST_K)
        ]
    return np.array([[one >> 32 * (LIMBS - 1 - i) & 0xFFFFFFFF for i in range(LIMBS)] for one in scaled], np.uint64)


THRESHOLDS: Final = _thresholds()


@kernel
def _tail(words: Any, at: int, k: int, thresholds: Any) -> Any:
    """Whether the number in the words from `at` on is below threshold k, whose first word ties. -1: no words left."""
    for limb in range(1, thresholds.shape[1]):
        if at + limb >= words.shape[0]:
            return -1
        word = np.uint64(words[at + limb])
        if word != thresholds[k, limb]:
            return int(word < thresholds[k, limb])
    return 0


@kernel
def _pick(words: Any, at: int, thresholds: Any) -> Any:
    """(k, the next place): k is -1 if there are too few words.

    One word decides, unless it ties with a threshold (2^-32): then the number has all `LIMBS` words, and uses them up.
    """
    word, k, used = np.uint64(words[at]), 0, 1
    while k < thresholds.shape[0]:
        if word < thresholds[k, 0]:
            break
        if word == thresholds[k, 0]:
            used = thresholds.shape[1]
            below = _tail(words, at, k, thresholds)
            if below < 0:
                return -1, at
            if below:
                break
        k += 1
    return k, at + used


@kernel
def _below(words: Any, at: int, n: Any) -> Any:
    """(a uniform integer below n, the next place): Lemire 2019. The place is -1 if there are too few words."""
    limit = words.shape[0]
    while at < limit:
        product = np.uint64(words[at]) * n
        at += 1
        low = product & np.uint64(0xFFFFFFFF)
        if low >= n or low >= (np.uint64(1 << 32) - n) % n:
            return product >> np.uint64(32), at
    return np.uint64(0), -1


@kernel
def _trial(words: Any, at: int, k: int, j: Any, sigma: Any) -> Any:
    """(whether an event of probability exp(-y (2k + y) / (2k + 2)), y = j / sigma, happened, the next place)."""
    always, choices = np.uint64(2 * k), np.uint64(2 * k + 2)
    number = np.uint64(1)
    while True:
        drawn, at = _below(words, at, sigma)
        if at < 0 or drawn >= j:
            break
        drawn, at = _below(words, at, choices * number)
        if at < 0 or drawn > always:
            break
        if drawn == always:
            drawn, at = _below(words, at, sigma)
            if at < 0 or drawn >= j:
                break
        number += np.uint64(1)
    return number & np.uint64(1), at


@kernel
def _sample(words: Any, at: int, sigma: Any, thresholds: Any) -> Any:
    """(one sample, the next place): a place of -1 says that there are too few words."""
    while at < words.shape[0]:
        k, at = _pick(words, at, thresholds)
        if k < 0:
            break
        drawn, at = _below(words, at, np.uint64(2) * sigma)
        if at < 0:
            break
        j, negative = drawn >> np.uint64(1), drawn & np.uint64(1)
        if negative and k == 0 and j == 0:  # zero has one sign
            continue
        accepted = np.uint64(1)
        for _ in range(k + 1):
            accepted, at = _trial(words, at, k, j, sigma)
            if at < 0:
                return 0, -1
            if not accepted:
                break
        if accepted:
            size = np.int64(k) * np.int64(sigma) + np.int64(j)
            return -size if negative else size, at
    return 0, -1


@kernel
def fill(out: Any, start: int, words: Any, sigma: int, thresholds: Any) -> Any:
    """Write samples to out[start:], int32, until it is full or the words run out.

    Returns the number of samples that are there and the number of words that they took.
    """
    at, wide = 0, np.uint64(sigma)
    for place in range(start, out.shape[0]):
        sample, after = _sample(words, at, wide, thresholds)
        if after < 0:
            return place, at
        out[place] = sample
        at = after
    return out.shape[0], at
