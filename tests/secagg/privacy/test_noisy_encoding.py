"""Updates with noise: clipped to a norm in steps of the grid, rounded toward zero, and room for noise in the ring."""

import math
import os
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from secagg.crypto import Segment, SegmentNoise, Segments
from secagg.errors import UsageError
from tests.secagg.drbg import Drbg


def floats(clip: float, norm: float, sigma: int = 10, clients: int = 4, length: int = 5) -> Segments:
    noise = (SegmentNoise(clip=norm, sigma=sigma),)
    return Segments(clients=clients, segments=(Segment(shape=(length,), clip=clip),), noise=noise)


def signed(encoded: np.ndarray) -> list[int]:
    return encoded.view(np.int32).tolist()


def squares(values: list[int]) -> int:
    return sum(value * value for value in values)


@settings(deadline=None, max_examples=100)
@given(
    update=arrays.arrays(
        st.sampled_from([np.float32, np.float64]),
        st.integers(1, 40),
        elements=st.floats(-(2.0**100), 2.0**100, width=32),
    ),
    clip=st.sampled_from([1.0, 0.3, 1000.0]),
    norm=st.floats(2.0**-20, 2.0**20),
    weight=st.floats(0.01, 100.0),
)
def test_no_update_is_longer_than_its_norm_in_steps(update: Any, clip: float, norm: float, weight: float) -> None:
    encoding = floats(clip, norm, length=len(update))
    encoded, _ = encoding.encode(update, weight=weight)
    (steps,) = encoding.norms(weight)
    assert steps <= Fraction(norm) * Fraction(weight) * Fraction(encoding.encodings[0].scale)  # type: ignore[union-attr]
    assert squares(signed(encoded)) <= steps**2


@settings(deadline=None, max_examples=100)
@given(
    update=arrays.arrays(np.float64, st.integers(1, 1000), elements=st.floats(allow_nan=False, allow_infinity=False)),
    clip=st.sampled_from([2.0**-24, 2.0**-10, 1.0, 2.0**20]),
    bits=st.integers(0, 24),
)
@example(update=np.full(1000, 4.522879354818793e307), clip=2.0**-24, bits=24)
@example(update=np.full(1000, 5e-324), clip=2.0**-24, bits=20)
def test_no_huge_or_tiny_values_are_longer_than_their_norm(update: Any, clip: float, bits: int) -> None:
    encoding = floats(clip, clip * 2.0**-bits, length=len(update))
    values = signed(encoding.encode(update)[0])
    assert squares(values) <= encoding.norms(1.0)[0] ** 2


@settings(deadline=None, max_examples=100)
@given(
    update=arrays.arrays(st.sampled_from([np.int64, np.int32, np.uint8]), st.integers(1, 40)),
    norm=st.integers(1, 10**6),
)
def test_no_integers_are_longer_than_their_norm(update: Any, norm: int) -> None:
    segment = Segment(shape=update.shape, bound=1000)
    noise = (SegmentNoise(clip=norm + 0.5, sigma=3),)
    encoding = Segments(clients=5, segments=(segment,), noise=noise)
    values = signed(encoding.encode(update)[0])
    assert encoding.norms(7.0) == (norm,)  # integers have no weight
    assert squares(values) <= norm**2
    assert all(abs(value) <= 1000 for value in values)
    assert all(value * int(given) >= 0 for value, given in zip(values, update, strict=True))


def test_a_short_update_is_rounded_toward_zero_and_otherwise_unchanged() -> None:
    encoding = floats(1.0, 4.0)
    scale = encoding.encodings[0].scale  # type: ignore[union-attr]
    values = np.array([0.9, -0.9, 2.6, -2.6, 0.0]) / scale
    encoded, losses = encoding.encode(values)
    assert signed(encoded) == [0, 0, 2, -2, 0]
    assert (losses.vanished, losses.clipped) == (2, 0)


def test_a_long_update_keeps_its_direction() -> None:
    values = np.array([3.0, -4.0, 0.0, 12.0, 0.0])
    encoding = floats(16.0, 1.0)
    found = np.array(signed(encoding.encode(values)[0]), float)
    (steps,) = encoding.norms(1.0)
    assert np.allclose(found / steps, values / 13, atol=1e-6)
    assert np.linalg.norm(found) > 0.999999 * steps


def test_values_never_decide_whether_a_client_answers() -> None:
    """Tiny and huge values are no errors with noise; something that is no number still is."""
    encoding = floats(1.0, 1.0)
    assert signed(encoding.encode(np.full(5, 1e-30))[0]) == [0] * 5
    encoding.encode(np.full(5, 1e300))
    with pytest.raises(UsageError, match="NaN"):
        encoding.encode(np.array([0.0, math.nan, 0, 0, 0]))


def test_noise_has_a_part_of_its_own_for_each_segment() -> None:
    parts = (Segment(name="a", shape=(20_000,), clip=1.0), Segment(name="b", shape=(20_000,), bound=100))
    noise = (SegmentNoise(clip=1.0, sigma=1000), SegmentNoise(clip=5.0, sigma=3))
    encoding = Segments(clients=4, segments=parts, noise=noise)
    found = encoding.draw_noise(Drbg(b"noise")).view(np.int32).astype(float)
    assert abs(found[:20_000].std() / 1000 - 1) < 0.03
    assert abs(found[20_000:].std() / 3 - 1) < 0.03
    assert not np.array_equal(encoding.draw_noise(os.urandom), encoding.draw_noise(os.urandom))


@settings(max_examples=100, deadline=None)
@given(clients=st.integers(1, 300), clip=st.floats(0.1, 100), norm=st.floats(0.1, 100), sums=st.integers(1, 10**12))
def test_the_largest_sigma_that_has_room_is_told_and_fits(clients: int, clip: float, norm: float, sums: int) -> None:
    encoding = floats(clip, norm, clients=clients).encodings[0]
    try:
        SegmentNoise(clip=norm, sigma=2**26).check_room(encoding, 1.0, sums)
        most = 2**26
    except UsageError as told:
        most = int(str(told).split("use at most ")[1].split(",")[0])
    steps = SegmentNoise(clip=norm, sigma=1).steps(encoding, 1.0)
    room = 2**31 - 1 - clients * min(encoding.largest, steps)
    if most:
        SegmentNoise(clip=norm, sigma=most).check_room(encoding, 1.0, sums)
        wrapped = math.log2(2 * sums) - room**2 / (2 * clients * most**2) / math.log(2)  # both tails, all sums
        assert wrapped <= -40 + 1e-6
    if most < 2**26 - 1:
        with pytest.raises(UsageError, match="would wrap"):
            SegmentNoise(clip=norm, sigma=most + 1).check_room(encoding, 1.0, sums)


def test_honest_noisy_sums_are_within_reach() -> None:
    encoding = floats(1.0, 1.0, sigma=100_000, clients=6, length=20_000)
    total = np.zeros(20_000, np.uint32)
    for name in range(6):
        total += encoding.draw_noise(Drbg(bytes([name])))
    assert np.abs(total.view(np.int32)).max() <= encoding.reach(6)[0] - 6 * encoding.encodings[0].largest


@pytest.mark.parametrize(
    ("clip", "sigma"), [(0.0, 1), (-1.0, 1), (math.inf, 1), (1.0, 0), (1.0, 2**26 + 1), (1.0, 1.5)]
)
def test_noise_has_a_positive_clip_and_a_whole_sigma(clip: float, sigma: int) -> None:
    with pytest.raises(UsageError, match="noise: "):
        SegmentNoise(clip=clip, sigma=sigma)


def test_every_segment_has_noise_or_none() -> None:
    parts = (Segment(name="a", shape=(2,), clip=1.0), Segment(name="b", shape=(2,), bound=100))
    with pytest.raises(UsageError, match="one clip and sigma for each of 2 segments, got 1"):
        Segments(clients=4, segments=parts, noise=(SegmentNoise(clip=1.0, sigma=1),))
