"""Field arithmetic in limbs agrees with Python's integers, above all where carries run furthest."""

import numpy as np
import numpy.typing as npt
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secagg.crypto.shamir import PRIME
from secagg.kernels import field257

EXTREMES = [0, 1, 92, 93, 2**26 - 1, 2**234, 2**256, PRIME - 94, PRIME - 2, PRIME - 1]
elements = st.one_of(st.sampled_from(EXTREMES), st.integers(0, PRIME - 1))
points = st.one_of(st.sampled_from([1, 2, 65534, 65535]), st.integers(1, 65535))


def packed(values: list[int]) -> npt.NDArray[np.uint8]:
    joined = bytearray().join(value.to_bytes(field257.BYTES, "little") for value in values)
    return np.frombuffer(joined, np.uint8).reshape(-1, field257.BYTES)


def numbers(values: npt.NDArray[np.uint8]) -> list[int]:
    return [int.from_bytes(value.tobytes(), "little") for value in values]


FULL = 2**26 - 1


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.one_of(st.sampled_from([0, FULL, FULL - 743, FULL - 744, 2**46]), st.integers(0, 2**46)),
        min_size=10,
        max_size=10,
    )
)
@example([FULL] * 9 + [FULL + (5 << 26)])  # what comes back to the bottom runs through to the top
@example([2**26 - 93] + [FULL] * 8 + [2**23 - 1])  # p itself
@example([2**26 - 94] + [FULL] * 8 + [2**23 - 1])  # p - 1
@example([FULL] * 9 + [2**23 - 1])  # 2^257 - 1
@example([FULL] * 10)
@example([2**46] * 10)
def test_pack_gives_the_representative_below_the_prime(loose: list[int]) -> None:
    value = sum(limb << 26 * i for i, limb in enumerate(loose)) % PRIME
    result = np.zeros(field257.BYTES, np.uint8)
    field257._pack(np.array(loose, np.int64), result)
    assert int.from_bytes(result.tobytes(), "little") == value


@settings(deadline=None, max_examples=100)
@given(st.lists(elements, min_size=1, max_size=30), st.lists(points, min_size=1, max_size=40))
@example([PRIME - 1] * 30, [65535] * 17)
@example([2**257 - 94], [1])
@example([PRIME - 1, 1], [1])
def test_evaluate_agrees_with_horner_in_integers(polynomial: list[int], at: list[int]) -> None:
    values = np.zeros((1, len(at), field257.BYTES), np.uint8)
    field257.evaluate(packed(polynomial)[None], np.array(at, np.int64), values)
    for x, value in zip(at, numbers(values[0]), strict=True):
        expected = 0
        for a in reversed(polynomial):
            expected = (expected * x + a) % PRIME
        assert value == expected


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(elements, elements), min_size=1, max_size=40))
@example([(PRIME - 1, PRIME - 1)] * 1000)
def test_dot_agrees_with_integers(terms: list[tuple[int, int]]) -> None:
    weights, shares = packed([a for a, _ in terms]), packed([b for _, b in terms])
    values = np.zeros((2, field257.BYTES), np.uint8)
    field257.dot(weights, np.array([shares, weights]), values)
    assert numbers(values) == [sum(a * b for a, b in terms) % PRIME, sum(a * a for a, _ in terms) % PRIME]


def test_dot_of_as_many_shares_as_there_are_indices() -> None:
    many = np.broadcast_to(packed([PRIME - 1]), (65535, field257.BYTES)).copy()
    many[:, :-1] = 255  # 2^256 - 1 + 2^256: the largest limbs there can be
    many[:, 0] = 162
    values = np.zeros((1, field257.BYTES), np.uint8)
    field257.dot(many, many[None], values)
    assert numbers(values) == [65535 * (PRIME - 1) ** 2 % PRIME]


@settings(deadline=None, max_examples=60)
@given(st.lists(points, min_size=1, max_size=40, unique=True))
@example(list(range(65535 - 39, 65536)))
def test_denominators_agree_with_integers(at: list[int]) -> None:
    values = np.zeros((len(at), field257.BYTES), np.uint8)
    field257.denominators(np.array(at, np.int64), values)
    for x, value in zip(at, numbers(values), strict=True):
        expected = x
        for other in at:
            expected = expected * (abs(other - x) or 1) % PRIME
        assert value == expected


def test_constants_belong_to_the_prime() -> None:
    assert pow(2, field257.BITS * field257.LIMBS, PRIME) == field257.FOLD
    assert pow(2, 257, PRIME) == field257.TOP_FOLD
    assert field257.BITS * (field257.LIMBS - 1) + field257.TOP_BITS == 257
