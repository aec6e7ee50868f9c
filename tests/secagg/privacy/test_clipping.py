"""Clipping to a norm and the room for noise: exact codes of small updates, and limits computed a second time."""

import math
import re
import sys
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

from secagg.crypto import FixedPoint, Integers
from secagg.crypto.clipping import SegmentNoise, draw_noise, encode_clipped
from secagg.crypto.noise import discrete_gaussian
from secagg.errors import UsageError

NO_LIMIT = 2**40  # a norm that no update here has
FLOATS = FixedPoint(clients=4, clip=1.0)  # 2^28 steps for 1.0


def coded(values: Any, encoding: Any = FLOATS, weight: float = 1.0, norm: int = NO_LIMIT) -> tuple[list[int], int, int]:
    """The signed codes, and how many values were clipped and vanished."""
    array = np.array(values)
    out = np.full(len(array), 7, np.uint32)
    clipped, vanished = encode_clipped(array, encoding, weight, norm, out)
    return out.view(np.int32).tolist(), clipped, vanished


def test_values_are_counted_in_steps_toward_zero() -> None:
    assert coded([0.5, -0.25, 1.5 * 2**-28, -1.5 * 2**-28]) == ([2**27, -(2**26), 1, -1], 0, 0)
    assert coded([0.5, -0.25], weight=0.5) == ([2**26, -(2**25)], 0, 0)
    assert coded([3, -4, 0], Integers(clients=4, bound=5)) == ([3, -4, 0], 0, 0)


def test_values_beyond_the_range_are_clipped_and_those_at_it_are_not() -> None:
    assert coded([2.0, -3.0, 1.0, -1.0]) == ([2**28, -(2**28)] * 2, 2, 0)
    assert coded([0.5, 0.75, -0.75], weight=2.0) == ([2**28, 2**28, -(2**28)], 2, 0)
    assert coded([9, -6, 5, -5], Integers(clients=4, bound=5)) == ([5, -5, 5, -5], 2, 0)


def test_values_that_become_zero_are_counted_and_zeros_are_not() -> None:
    assert coded([0.0, -0.0, 2.0**-29, -(2.0**-29), 2.0**-28]) == ([0, 0, 0, 0, 1], 0, 2)
    assert coded([0.0, 0.0]) == ([0, 0], 0, 0)


def test_a_long_update_is_shortened_to_its_norm_less_a_2_to_the_30th() -> None:
    wide = FixedPoint(clients=1, clip=1.75)  # 2^30 steps for 1.0
    norm = 3 * 2**29
    assert coded([1e9], wide, norm=norm) == ([norm - 2], 0, 0)  # norm (1 - 2^-30) = norm - 1.5
    assert coded([-1e300], wide, norm=norm) == ([2 - norm], 0, 0)
    assert coded([3.0, -4.0], norm=50_000) == ([29_999, -39_999], 0, 0)
    assert coded([30, 40], Integers(clients=4, bound=1000), norm=25) == ([14, 19], 0, 0)
    assert coded([30, 40], Integers(clients=4, bound=1000), norm=51) == ([30, 40], 0, 0)


def test_updates_of_several_pieces_have_one_norm_and_one_count() -> None:
    """65,536 values are taken at a time; here are two of these pieces and three values more."""
    length = 2**17 + 3
    values = np.zeros(length)
    at = [0, 65_535, 65_536, 131_071, 131_072, length - 1]
    values[at] = [3.0, -3.0, 3.0, 2.0**-29, -3.0, 2.0**-29]
    codes, clipped, vanished = coded(values)
    assert (clipped, vanished) == (4, 2)
    nonzero = {place: code for place, code in enumerate(codes) if code}
    assert nonzero == {0: 2**28, 65_535: -(2**28), 65_536: 2**28, 131_072: -(2**28)}
    codes, clipped, vanished = coded(values, norm=2000)  # four values of equal size share the norm: 1000 each
    nonzero = {place: code for place, code in enumerate(codes) if code}
    assert nonzero == {0: 999, 65_535: -999, 65_536: 999, 131_072: -999}
    assert (clipped, vanished) == (0, 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_no_number_leaves_zeros_behind(bad: float) -> None:
    out = np.full(3, 7, np.uint32)
    with pytest.raises(UsageError, match=r"^an update with a NaN or an infinity cannot be encoded$"):
        encode_clipped(np.array([1.0, bad, 2.0]), FLOATS, 1.0, NO_LIMIT, out)
    assert out.tolist() == [0, 0, 0]


def test_weights_are_positive_and_their_product_with_the_scale_is_normal() -> None:
    for weight in (sys.float_info.min / 2**28, sys.float_info.max / 2**28):
        assert coded([0.0, 0.0], weight=weight) == ([0, 0], 0, 0)
    for weight in (0.0, -1.0, math.nan, math.inf, sys.float_info.min / 2**29, sys.float_info.max / 2**27):
        with pytest.raises(UsageError, match=r"^a weight is a positive number, not"):
            coded([0.0, 0.0], weight=weight)


def test_the_norm_of_noise_is_a_normal_number_above_zero() -> None:
    assert SegmentNoise(clip=sys.float_info.min, sigma=1).clip == sys.float_info.min
    for clip in (0.0, -1.0, sys.float_info.min / 2):
        with pytest.raises(UsageError, match=r"^noise: clip: expected a norm above 0"):
            SegmentNoise(clip=clip, sigma=1)
    assert SegmentNoise(clip=1, sigma=2**26).sigma == 2**26
    for sigma in (0, 2**26 + 1):
        with pytest.raises(UsageError, match=f"^noise: sigma: expected a whole number from 1 to {2**26}, got {sigma}$"):
            SegmentNoise(clip=1.0, sigma=sigma)


def test_a_norm_in_steps_has_the_weight_in_it_for_floats_only() -> None:
    noise = SegmentNoise(clip=2.75, sigma=1)
    assert noise.steps(FLOATS, 3.0) == 33 * 2**26
    assert noise.steps(FLOATS, 2.0**-29) == 1
    assert noise.steps(Integers(clients=4, bound=5), 3.0) == 2


def most_sigma(clients: int, largest: int, sums: int) -> int:
    """The largest sigma for which a sub-Gaussian sum leaves the ring in one of `sums` with at most 2^-40.

    2 sums exp(-x^2 / (2 n sigma^2)) <= 2^-40, where x is the room that the values leave.
    """
    with localcontext() as context:
        context.prec = 50
        room = Decimal(2**31 - 1 - clients * largest)
        exponent = (Decimal(2).ln() * 41 + Decimal(sums).ln()) * 2 * clients
        return int(room / exponent.sqrt())


@pytest.mark.parametrize("sums", [1, 1000])
def test_the_largest_sigma_is_the_one_that_the_tail_bound_allows(sums: int) -> None:
    """Three hundred rooms, so that one unit more or less of it shows in some."""
    noise = SegmentNoise(clip=1e9, sigma=2**26)
    for bound in range(1, 300):
        with pytest.raises(UsageError, match=f"sigma {2**26} is too large: sums of 25 clients") as refused:
            noise.check_room(Integers(clients=25, bound=bound), 1.0, sums)
        (told,) = re.findall(r"use at most (\d+)$", str(refused.value))
        assert int(told) == most_sigma(25, bound, sums)
        SegmentNoise(clip=1e9, sigma=int(told)).check_room(Integers(clients=25, bound=bound), 1.0, sums)


def test_the_room_is_that_of_the_norm_if_it_is_smaller_than_the_range() -> None:
    encoding = FixedPoint(clients=100, clip=1.0)
    for clip, heaviest in ((0.5, 1.0), (0.25, 2.0), (7.0, 1.0)):
        largest = min(round(encoding.scale), math.floor(clip * heaviest * encoding.scale))
        with pytest.raises(
            UsageError, match=r"or a larger clip of the segment \(its grid is then coarser\)$"
        ) as refused:
            SegmentNoise(clip=clip, sigma=2**26).check_room(encoding, heaviest, 8)
        assert f"use at most {max(0, most_sigma(100, largest, 8))}," in str(refused.value)


@pytest.mark.parametrize("members", [1, 7, 1000])
def test_honest_sums_reach_their_values_and_the_spread_of_their_noise(members: int) -> None:
    """The tail bound with 2^-40 for each of up to 2^32 values and both tails: 2 ln 2 (40 + 33)."""
    encoding = Integers(clients=1000, bound=1000)
    with localcontext() as context:
        context.prec = 50
        spread = 900 * (Decimal(2).ln() * 2 * 73 * members).sqrt()
        expected = members * 1000 + math.ceil(spread)
    assert SegmentNoise(clip=1.0, sigma=900).reach(encoding, members) == expected
    assert SegmentNoise(clip=1.0, sigma=2**26).reach(encoding, 1000) == 2**31 - 1  # no sum is beyond the ring


def test_each_segment_has_noise_of_its_own_sigma_one_after_the_other() -> None:
    def entropy(count: int) -> bytes:
        keys.append(bytes([len(keys)]) * count)
        return keys[-1]

    keys: list[bytes] = []
    found = draw_noise([(5, 100), (3, 7)], entropy)
    assert found.dtype == np.uint32
    parts = [discrete_gaussian(5, 100, entropy=lambda _: keys[0]), discrete_gaussian(3, 7, entropy=lambda _: keys[1])]
    assert found.view(np.int32).tolist() == [*parts[0].tolist(), *parts[1].tolist()]
    assert draw_noise([(5, 100)], lambda _: keys[0]).tolist() == found[:5].tolist()
