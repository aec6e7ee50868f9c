"""Encoding agrees with exact fractions, no honest sum can wrap, and what cannot be encoded is refused."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from secagg.crypto.fixedpoint import HALF_RING, LEAST_CLIP, FixedPoint, Integers
from secagg.errors import UsageError

clients = st.one_of(st.integers(1, 2000), st.integers(1, 2**30))
clips = st.one_of(st.floats(1e-6, 1e6), st.floats(LEAST_CLIP, 2.0**90), st.integers(-60, 60).map(lambda e: 2.0**e))
encodings = st.builds(FixedPoint, clients=clients, clip=clips)


def code(encoding: FixedPoint, value: float, weight: float) -> int:
    """One coordinate by the definition, exactly: the product is a float64, everything after it a fraction."""
    clip = Fraction(encoding.clip)
    weighted = value * weight
    exact = math.copysign(1, weighted) * clip if math.isinf(weighted) else Fraction(weighted)
    return round(min(max(exact, -clip), clip) * Fraction(2) ** encoding.frac_bits) % 2**32


@settings(deadline=None, max_examples=200)
@given(clients, clips)
@example(1000, 2147483.5 / 2**20)  # rounding up at the clip would wrap although clip itself does not
@example(7, 306783378.4 / 2**20)  # and here rounding down would hide that it does
@example(2**30, 1.0)
def test_the_scale_is_the_largest_power_of_two_that_cannot_wrap(clients: int, clip: float) -> None:
    encoding = FixedPoint(clients=clients, clip=clip)

    def wraps(bits: int) -> bool:
        largest = Fraction(clip) * Fraction(2) ** bits
        return clients * max(largest, Fraction(round(largest))) >= HALF_RING

    assert not wraps(encoding.frac_bits)
    assert wraps(encoding.frac_bits + 1)
    assert encoding.scale == 2.0**encoding.frac_bits


@settings(deadline=None, max_examples=100)
@given(encodings)
def test_the_sum_of_values_at_the_clip_does_not_wrap(encoding: FixedPoint) -> None:
    encoded, clipped = encoding.encode(np.array([encoding.clip, -encoding.clip, 1e38, -1e38]))
    largest = int(encoded[0])
    assert clipped == 2
    assert 0 < largest * encoding.clients < HALF_RING
    assert encoded.tolist() == [largest, 2**32 - largest] * 2
    total = (encoded * np.uint64(encoding.clients) % np.uint64(2**32)).astype(np.uint32)
    decoded = encoding.decode(total, divisor=encoding.clients)
    error = 1 / encoding.scale + encoding.clip * 2.0**-23
    assert np.all(np.abs(decoded[:2].astype(np.float64) - [encoding.clip, -encoding.clip]) <= error)


@settings(deadline=None, max_examples=300)
@given(encodings, st.sampled_from([np.float32, np.float64]), st.one_of(st.just(1.0), st.floats(1e-3, 1e3)), st.data())
def test_encode_agrees_with_exact_fractions(
    encoding: FixedPoint, dtype: type[np.floating[Any]], weight: float, data: st.DataObject
) -> None:
    width = 32 if dtype is np.float32 else 64
    step = 1 / encoding.scale
    assume(dtype is np.float64 or encoding.clip < 1e30)
    near = st.builds(lambda k, half: (k + half / 2) * step, st.integers(-(2**20), 2**20), st.integers(0, 1))
    values = st.one_of(
        st.floats(-2 * encoding.clip, 2 * encoding.clip).map(float),
        st.sampled_from([0.0, -0.0, encoding.clip, -encoding.clip]),
        near,  # ties
        st.floats(allow_nan=False, allow_infinity=False, width=width),
    ).map(lambda value: dtype(value) if abs(value) < 3e38 else dtype(0))
    update = np.array(data.draw(st.lists(values, max_size=40)), dtype)
    encoded, clipped = encoding.encode(update, weight=weight)
    assert encoded.tolist() == [code(encoding, float(value), weight) for value in update]
    assert clipped == sum(abs(float(value) * weight) > encoding.clip for value in update)


def test_a_product_that_leaves_the_floats_is_clipped_not_refused() -> None:
    encoding = FixedPoint(clients=3, clip=1.0)
    encoded, clipped = encoding.encode(np.array([1e308, -1e308, 0.5]), weight=1e10)
    assert clipped == 3
    assert encoded.view(np.int32).tolist() == [int(encoding.scale), -int(encoding.scale), int(encoding.scale)]


@settings(deadline=None, max_examples=100)
@given(
    encodings,
    arrays.arrays(np.uint32, st.integers(0, 50)),
    st.one_of(st.just(1.0), st.floats(1e-3, 1e6), st.integers(1, 1000)),
)
def test_decode_is_one_product_in_float64(encoding: FixedPoint, total: Any, divisor: float) -> None:
    decoded = encoding.decode(total, divisor=divisor)
    assert decoded.dtype == np.float64
    signed = [word - 2**32 if word >= HALF_RING else word for word in total.tolist()]
    assert decoded.tolist() == [value * (1 / (divisor * encoding.scale)) for value in signed]
    rounded = encoding.decode(total, divisor=divisor, out=np.empty(len(total), np.float32))
    assert rounded.tolist() == decoded.astype(np.float32).tolist()


@settings(deadline=None)
@given(arrays.arrays(np.float32, 20, elements=st.floats(-1, 1, width=32)), st.integers(1, 500))
def test_decoding_the_code_of_one_client_errs_by_half_a_step(update: Any, count: int) -> None:
    encoding = FixedPoint(clients=count, clip=1.0)
    encoded, clipped = encoding.encode(update)
    assert clipped == 0
    error = np.abs(encoding.decode(encoded).astype(np.float64) - update)
    assert np.all(error <= 0.5 / encoding.scale + np.abs(update) * 2.0**-24)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("at", [0, 7, 299_999])
def test_nan_and_infinity_are_refused_wherever_they_are(bad: float, dtype: Any, at: int) -> None:
    update = np.ones(300_000, dtype)
    update[at] = bad
    out = np.full(len(update), 7, np.uint32)
    with pytest.raises(UsageError, match="NaN or an infinity"):
        FixedPoint(clients=3, clip=2.0).encode(update, out=out)
    assert not out.any(), "a refused update must not leave a code behind"


@pytest.mark.parametrize("length", [0, 1, 131_072, 400_001])
def test_long_vectors_are_encoded_and_decoded_as_short_ones(length: int) -> None:
    encoding = FixedPoint(clients=10, clip=1.0)
    update = np.sin(np.arange(length, dtype=np.float64)).astype(np.float32) * np.float32(1.1)
    encoded, clipped = encoding.encode(update, weight=0.95)
    expected = np.rint(np.clip(update.astype(np.float64) * 0.95, -1, 1) * encoding.scale)
    np.testing.assert_array_equal(encoded.view(np.int32), expected)
    assert clipped == np.count_nonzero(np.abs(update.astype(np.float64) * 0.95) > 1)
    np.testing.assert_array_equal(encoding.decode(encoded, divisor=3), expected * (1 / (3 * encoding.scale)))


def test_out_is_used_and_input_may_be_read_only_or_strided() -> None:
    encoding = FixedPoint(clients=2, clip=4.0)
    update = np.arange(-3, 3, dtype=np.float32)
    out = np.empty(6, np.uint32)
    encoded, _ = encoding.encode(update, out=out)
    assert encoded is out
    frozen = update.copy()
    frozen.flags.writeable = False
    assert encoding.encode(frozen)[0].tolist() == out.tolist()
    assert encoding.encode(np.repeat(update, 2)[::2])[0].tolist() == out.tolist()
    assert encoding.encode(update.tolist())[0].tolist() == out.tolist()
    values = np.empty(6, np.float32)
    assert encoding.decode(out, out=values) is values
    assert values.tolist() == update.tolist()
    assert update.flags.writeable
    assert out.flags.writeable


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": 0, "clip": 1.0}, "clients: expected a whole number"),
        ({"clients": -1, "clip": 1.0}, "clients: expected a whole number"),
        ({"clients": 2.0, "clip": 1.0}, "clients: expected a whole number"),
        ({"clients": 3, "clip": 0.0}, "do not fit"),
        ({"clients": 3, "clip": -1.0}, "do not fit"),
        ({"clients": 3, "clip": math.nan}, "finite"),
        ({"clients": 3, "clip": math.inf}, "finite"),
        ({"clients": 3, "clip": LEAST_CLIP / 2}, "do not fit"),
        ({"clients": 3, "clip": 2e38}, "do not fit"),
        ({"clients": 2**31, "clip": 1.0}, "no bit"),
    ],
)
def test_a_fixed_point_that_cannot_work_cannot_be_built(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FixedPoint(**arguments)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf, 1e300, 1e-320])
def test_weights_and_divisors_must_be_ordinary_positive_numbers(weight: float) -> None:
    encoding = FixedPoint(clients=3, clip=2.0**-40)
    with pytest.raises(UsageError, match="weight"):
        encoding.encode(np.zeros(3), weight=weight)
    with pytest.raises(UsageError, match="divisor"):
        encoding.decode(np.zeros(3, np.uint32), divisor=weight)


@pytest.mark.parametrize(
    "update", [np.zeros(3, np.int64), np.zeros(3, np.float16), np.zeros(3, ">f4"), np.zeros(3, complex), ["a"], [None]]
)
def test_fixed_point_refuses_what_is_not_float(update: Any) -> None:
    with pytest.raises(UsageError, match="float32 or float64"):
        FixedPoint(clients=3, clip=1.0).encode(update)


@pytest.mark.parametrize("encoding", [FixedPoint(clients=3, clip=1.0), Integers(clients=3, bound=5)])
def test_shapes_and_targets_are_checked(encoding: FixedPoint | Integers) -> None:
    update = np.zeros(4, np.float32 if isinstance(encoding, FixedPoint) else np.int32)
    total = np.zeros(4, np.uint32)
    for wrong in (update.reshape(2, 2), update.reshape(4, 1), update[0]):
        with pytest.raises(UsageError, match="vector"):
            encoding.encode(wrong)
    with pytest.raises(UsageError, match="vector"):
        encoding.decode(total.reshape(2, 2))
    for wrong_total in (total.astype(np.int32), total.astype(np.uint64), [1, 2]):
        with pytest.raises(UsageError, match="uint32"):
            encoding.decode(wrong_total)  # type: ignore[arg-type]
    read_only = np.zeros(4, np.uint32)
    read_only.flags.writeable = False
    for out in (np.zeros(3, np.uint32), np.zeros(4, np.int32), np.zeros(8, np.uint32)[::2], read_only):
        with pytest.raises(UsageError, match="out must be"):
            encoding.encode(update, out=out)
    with pytest.raises(UsageError, match="out must be"):
        encoding.decode(total, out=np.zeros(4, np.int32))  # type: ignore[arg-type]


INTEGER_TYPES = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 1000), st.integers(0, 10**6), st.sampled_from(INTEGER_TYPES), st.data())
def test_integers_of_any_width_are_exact_or_refused(count: int, bound: int, dtype: Any, data: st.DataObject) -> None:
    encoding = Integers(clients=count, bound=bound)
    update = data.draw(arrays.arrays(dtype, st.integers(0, 20)))
    if all(-bound <= int(value) <= bound for value in update):
        encoded, clipped = encoding.encode(update)
        assert clipped == 0
        decoded = encoding.decode(encoded)
        assert decoded.dtype == np.int64
        assert decoded.tolist() == update.tolist()
    else:
        out = np.ones(len(update), np.uint32)
        with pytest.raises(UsageError, match="outside"):
            encoding.encode(update, out=out)
        assert not out.any()


@pytest.mark.parametrize("value", [2**31, 2**32, 2**32 + 1, 2**63, 2**64 - 1, -(2**63), 6, -6])
def test_integers_that_would_wrap_onto_allowed_ones_are_refused(value: int) -> None:
    update = np.array([0, value], np.uint64 if value > 0 else np.int64)
    with pytest.raises(UsageError, match="outside ±5"):
        Integers(clients=3, bound=5).encode(update)


def test_a_long_vector_of_integers_with_one_outlier_is_refused() -> None:
    update = np.zeros(400_000, np.int64)
    assert Integers(clients=3, bound=5).encode(update)[1] == 0
    update[-1] = 6
    with pytest.raises(UsageError, match="outside"):
        Integers(clients=3, bound=5).encode(update)


def test_the_sum_of_integers_at_the_bound_is_exact() -> None:
    encoding = Integers(clients=3, bound=(HALF_RING - 1) // 3)
    encoded, _ = encoding.encode([encoding.bound, -encoding.bound])
    total = encoded + encoded + encoded
    assert encoding.decode(total).tolist() == [3 * encoding.bound, -3 * encoding.bound]
    with pytest.raises(UsageError, match="could wrap"):
        Integers(clients=3, bound=encoding.bound + 1)


@pytest.mark.parametrize("bound", [-1, 1.0, 2**31])
def test_bounds_that_cannot_work_are_refused(bound: Any) -> None:
    with pytest.raises(UsageError, match="could wrap" if bound == 2**31 else "bound: expected a whole number"):
        Integers(clients=1, bound=bound)


def test_integers_take_no_weights_and_no_floats() -> None:
    encoding = Integers(clients=3, bound=5)
    with pytest.raises(UsageError, match="weight 1"):
        encoding.encode([1], weight=2.0)
    with pytest.raises(UsageError, match="divisor 1"):
        encoding.decode(np.zeros(1, np.uint32), divisor=2.0)
    for update in ([1.0], [True], [2**70], ["1"]):
        with pytest.raises(UsageError, match="integers are expected"):
            encoding.encode(update)  # type: ignore[arg-type]
