"""The discrete Gaussian: it agrees with integers on any words, and with the exact law on many samples."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secagg.crypto import noise, prg
from secagg.crypto.noise import MOST_SIGMA, discrete_gaussian
from secagg.errors import UsageError
from secagg.kernels import gaussian
from tests.secagg.drbg import Drbg

TOPS = [int(row[0]) for row in gaussian.THRESHOLDS]
WHOLE = [sum(int(limb) << 32 * (7 - i) for i, limb in enumerate(row)) for row in gaussian.THRESHOLDS]


# --- the same algorithm with Python's integers -----------------------------------------------------------


class NoWordsError(Exception):
    """The words have run out."""


@dataclass
class Words:
    """A stream of words that ends."""

    words: Sequence[int]
    at: int = 0

    def take(self) -> int:
        if self.at == len(self.words):
            raise NoWordsError
        self.at += 1
        return self.words[self.at - 1]

    def below(self, n: int) -> int:
        """A uniform integer below n: words whose product falls into the last, incomplete part are thrown away."""
        while True:
            product = self.take() * n
            if product % 2**32 >= 2**32 % n:
                return product >> 32

    def pick(self) -> int:
        first = self.take()
        number = first << 224
        if first in TOPS:
            number += sum(self.take() << 32 * (6 - i) for i in range(7))
        return sum(number >= threshold for threshold in WHOLE)

    def trial(self, k: int, j: int, sigma: int) -> bool:
        number = 1
        while self.below(sigma) < j:
            found = self.below((2 * k + 2) * number)
            if found > 2 * k or (found == 2 * k and self.below(sigma) >= j):
                break
            number += 1
        return number % 2 == 1

    def sample(self, sigma: int) -> int:
        while True:
            k = self.pick()
            j, negative = divmod(self.below(2 * sigma), 2)
            if k == j == 0 and negative:
                continue
            if all(self.trial(k, j, sigma) for _ in range(k + 1)):
                return (-1) ** negative * (k * sigma + j)


def samples(words: Sequence[int], sigma: int) -> tuple[list[int], int]:
    """All samples that these words make, and the number of words that they take."""
    stream, found, used = Words(words), list[int](), 0
    with suppress(NoWordsError):
        while True:
            found.append(stream.sample(sigma))
            used = stream.at
    return found, used


word = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, *TOPS]))
sigmas = st.one_of(st.integers(1, 5), st.integers(1, MOST_SIGMA), st.sampled_from([2**25 + 1, MOST_SIGMA]))


@settings(deadline=None, max_examples=150)
@given(words=st.lists(word, max_size=60), sigma=sigmas)
@example(words=[2**32 - 1] * 40, sigma=MOST_SIGMA)
@example(words=[0] * 20, sigma=1)
def test_samples_agree_with_integers_on_any_words(words: list[int], sigma: int) -> None:
    expected, used = samples(words, sigma)
    out = np.empty(len(words) + 1, np.int32)
    done, took = gaussian.fill(out, 0, np.array(words, np.uint32), sigma, gaussian.THRESHOLDS)
    assert out[:done].tolist() == expected
    assert took == used


def exponential(x: Fraction) -> Fraction:
    """exp(-x) to 2^-600, by its series."""
    term, total, k = Fraction(1), Fraction(0), 0
    while abs(term) > Fraction(1, 2**600) or k < x:
        total += term
        k += 1
        term = -term * x / k
    return total


def test_the_thresholds_are_those_of_the_exact_law_to_2_to_the_minus_256() -> None:
    weights = [exponential(Fraction(k * k, 2)) for k in range(25)]
    for k, threshold in enumerate(WHOLE):
        exact = sum(weights[: k + 1], Fraction(0)) / sum(weights)
        assert abs(Fraction(threshold, 2**256) - exact) <= Fraction(1, 2**256)
    assert sum(weights[len(WHOLE) + 1 :], Fraction(0)) / sum(weights) < Fraction(1, 2**260)
    assert sorted(WHOLE) == WHOLE
    assert WHOLE[-1] < 2**256


def test_every_sample_fits_in_32_bits() -> None:
    assert (len(WHOLE) + 1) * MOST_SIGMA <= 2**31


# --- the stream ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [1, 2, 7, 100])
@pytest.mark.parametrize("sigma", [1, 1000])
def test_a_stream_that_runs_out_is_refilled_and_the_samples_stay_the_same(words: int, sigma: int) -> None:
    key = b"a key of 16 byte"
    whole = noise._samples(3000, sigma, key, 1)
    assert np.array_equal(noise._samples(3000, sigma, key, 1, words=words), whole)


def test_samples_depend_on_the_key_only_and_not_on_threads_or_backend() -> None:
    expected = discrete_gaussian(50_000, 77, entropy=Drbg(b"noise"), threads=1)
    assert np.array_equal(discrete_gaussian(50_000, 77, entropy=Drbg(b"noise"), threads=3), expected)
    assert np.array_equal(discrete_gaussian(20_000, 77, entropy=Drbg(b"noise")), expected[:20_000])
    for backend in prg.available_backends():
        with prg.use_backend(backend):
            assert np.array_equal(discrete_gaussian(50_000, 77, entropy=Drbg(b"noise")), expected)


def test_pieces_of_a_vector_and_calls_have_words_of_their_own() -> None:
    first = discrete_gaussian(2 * 2**14, 1000, entropy=Drbg(b"noise"))
    assert not np.array_equal(first[: 2**14], first[2**14 :])
    assert not np.array_equal(discrete_gaussian(100, 1000), discrete_gaussian(100, 1000))


def test_the_key_is_fresh_entropy_of_16_bytes() -> None:
    asked = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return bytes(count)

    discrete_gaussian(10, 3, entropy=entropy)
    assert asked == [16]


@pytest.mark.parametrize("sigma", [0, -1, 1.0, True, MOST_SIGMA + 1])
def test_sigma_is_a_whole_number_in_range(sigma: object) -> None:
    with pytest.raises(UsageError, match="sigma: expected a whole number from 1 to 67108864"):
        discrete_gaussian(1, sigma)  # type: ignore[arg-type]


def test_no_samples_are_an_empty_array() -> None:
    assert discrete_gaussian(0, 5).shape == (0,)


# --- the law ---------------------------------------------------------------------------------------------


def chi_square(counts: np.ndarray, sigma: float, total: int) -> float:
    """The standard score of chi-square against the exact law, over the whole support.

    Both tails, where fewer than ten samples are expected, are one cell each. Wilson and Hilferty 1931.
    """
    reach = len(counts) // 2
    weights = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * sigma**2))
    expected = weights / weights.sum() * total
    first = int(np.argmax(np.cumsum(expected) >= 10))
    cells = [slice(0, first + 1), *(slice(i, i + 1) for i in range(first + 1, 2 * reach - first))]
    cells.append(slice(2 * reach - first, None))
    statistic = sum((counts[c].sum() - expected[c].sum()) ** 2 / expected[c].sum() for c in cells)
    degrees = len(cells) - 1
    return float(((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees)))


def counted(sigma: int, total: int, name: bytes) -> np.ndarray:
    reach, entropy = 20 * sigma, Drbg(name)
    counts = np.zeros(2 * reach + 1, np.int64)
    for start in range(0, total, 2**22):
        found = discrete_gaussian(min(2**22, total - start), sigma, entropy=entropy)
        counts += np.bincount(found + reach, minlength=len(counts))
    return counts


@pytest.mark.parametrize("sigma", [1, 3, 20])
@pytest.mark.parametrize("total", [2_000_000, pytest.param(100_000_000, marks=pytest.mark.long)])
def test_samples_follow_the_exact_law_over_the_whole_support(sigma: int, total: int) -> None:
    counts = counted(sigma, total, b"law")
    assert counts.sum() == total
    assert -4 < chi_square(counts, sigma, total) < 4  # six in 100,000
    assert chi_square(counts, sigma * 1.01, total) > 6  # a wrong law is found


@pytest.mark.parametrize("total", [1_000_000, pytest.param(100_000_000, marks=pytest.mark.long)])
def test_samples_of_a_large_sigma_follow_the_exact_law(total: int) -> None:
    sigma, entropy = 100_000, Drbg(b"large")
    parts = [discrete_gaussian(min(2**22, total - a), sigma, entropy=entropy) for a in range(0, total, 2**22)]
    found = np.sort(np.concatenate(parts))
    some = found[:: total // 100_000]
    below = np.searchsorted(found, some, side="right") / total

    def distance(sigma: float) -> float:
        """Kolmogorov's. Up to x the exact law has the probability of the normal one up to x + 1/2, to 1e-11."""
        law = np.array([math.erf((x + 0.5) / (sigma * math.sqrt(2))) for x in some])
        return float(np.abs((1 + law) / 2 - below).max()) * math.sqrt(total)

    assert distance(sigma) < 1.95  # one in 1000; the entropy is fixed
    assert distance(sigma * 1.01) > 1.95  # a wrong law is found
