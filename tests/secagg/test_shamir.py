"""Sharing over 2^257 - 93 agrees with plain integers, and everything that is not a share is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.crypto import shamir
from secagg.crypto.shamir import PRIME, SHARE_BYTES
from secagg.errors import UsageError
from tests.secagg.drbg import Drbg

SECRET = bytes(range(32))


def number(share: Any) -> int:
    return int.from_bytes(bytes(share), "little")


def packed(value: int) -> bytes:
    return value.to_bytes(SHARE_BYTES, "little")


def split_in_integers(secrets: list[bytes], threshold: int, indices: list[int], entropy: Drbg) -> list[list[int]]:
    """The scheme as `split` documents it, with nothing but integers."""
    shares = []
    for secret in secrets:
        polynomial = [number(secret)]
        drawn = entropy(SHARE_BYTES * (threshold - 1)) if threshold > 1 else b""
        candidates = [number(drawn[i : i + SHARE_BYTES]) % 2**257 for i in range(0, len(drawn), SHARE_BYTES)]
        polynomial += [value for value in candidates if value < PRIME]
        while len(polynomial) < threshold:
            value = number(entropy(SHARE_BYTES)) % 2**257
            polynomial += [value] * (value < PRIME)
        shares.append([sum(a * pow(x, k, PRIME) for k, a in enumerate(polynomial)) % PRIME for x in indices])
    return shares


indices_of = st.lists(st.integers(1, shamir.MAX_INDEX), min_size=1, max_size=40, unique=True)


def test_the_modulus_is_prime_and_holds_any_secret() -> None:
    assert PRIME > 2**256
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in range(2, 66):  # Miller and Rabin: a composite passes with probability below 4^-64
        power = pow(witness, odd, PRIME)
        assert power in (1, PRIME - 1) or any(pow(power, 2**k, PRIME) == PRIME - 1 for k in range(1, twos)), (
            f"{witness} proves that the modulus is composite"
        )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(min_size=32, max_size=32), max_size=4), indices_of, st.data())
def test_split_agrees_with_plain_integers(secrets: list[bytes], indices: list[int], data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, len(indices)))
    seed = data.draw(st.binary(max_size=4))
    shares = shamir.split_each(secrets, threshold, indices, Drbg(seed))
    expected = split_in_integers(secrets, threshold, indices, Drbg(seed))
    assert shares.shape == (len(secrets), len(indices), SHARE_BYTES)
    assert [[number(share) for share in row] for row in shares] == expected


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(min_size=32, max_size=32), max_size=4), indices_of, st.data())
def test_any_threshold_of_shares_rebuilds_the_secrets(
    secrets: list[bytes], indices: list[int], data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(1, len(indices)))
    shares = shamir.split_each(secrets, threshold, indices, Drbg(b"any"))
    holders = data.draw(st.permutations(range(len(indices))))[: data.draw(st.integers(threshold, len(indices)))]
    coefficients = shamir.coefficients([indices[h] for h in holders])
    assert shamir.combine_each(coefficients, shares[:, holders]) == secrets
    lists = [[share.tobytes() for share in row[holders]] for row in shares]
    assert shamir.combine_each(coefficients, lists) == secrets


def test_a_thousand_holders_at_the_largest_indices() -> None:
    indices = list(range(shamir.MAX_INDEX - 999, shamir.MAX_INDEX + 1))
    secrets = [bytes(32), b"\xff" * 32, SECRET]
    shares = shamir.split_each(secrets, 667, indices, Drbg(b"many"))
    coefficients = shamir.coefficients(indices[333:])
    assert shamir.combine_each(coefficients, shares[:, 333:]) == secrets
    expected = split_in_integers(secrets, 667, indices[5:7], Drbg(b"many"))
    assert [[number(share) for share in row] for row in shares[:, 5:7]] == expected


@settings(deadline=None, max_examples=40)
@given(indices_of)
def test_coefficients_agree_with_lagrange_in_plain_integers(indices: list[int]) -> None:
    coefficients = shamir.coefficients(indices)
    for i, weight in zip(indices, coefficients, strict=True):
        expected = 1
        for j in indices:
            if j != i:
                expected = expected * j * pow(j - i, -1, PRIME) % PRIME
        assert number(weight) == expected


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=9))
def test_combine_is_exact_for_any_shares_and_gives_none_above_32_bytes(values: list[int]) -> None:
    indices = list(range(1, len(values) + 1))
    coefficients = shamir.coefficients(indices)
    total = sum(number(w) * v for w, v in zip(coefficients, values, strict=True)) % PRIME
    expected = total.to_bytes(32, "little") if total < 2**256 else None
    assert shamir.combine_each(coefficients, [[packed(v) for v in values]]) == [expected]


@pytest.mark.parametrize("value", [2**256, 2**256 + 1, PRIME - 1])
def test_a_value_that_no_secret_has_gives_none(value: int) -> None:
    assert shamir.combine_each(shamir.coefficients([9]), [[packed(value)], [packed(2**256 - 1)]]) == [
        None,
        b"\xff" * 32,
    ]


def scripted(*draws: bytes) -> Any:
    """A source of randomness that gives these draws in turn, and checks how many bytes are wanted."""
    left = list(draws)

    def entropy(count: int) -> bytes:
        assert len(left[0]) == count
        return left.pop(0)

    return entropy


def test_one_share_less_than_the_threshold_fits_every_secret() -> None:
    share = shamir.split_each([SECRET], 2, [7, 8], Drbg(b"one"))[0, 0]
    for other in (0, 1, 2**256 - 1):
        slope = (number(share) - other) * pow(7, -1, PRIME) % PRIME
        again = shamir.split_each([other.to_bytes(32, "little")], 2, [7, 8], scripted(packed(slope)))
        assert again[0, 0].tobytes() == share.tobytes()


def test_coefficients_are_rejected_only_at_the_prime_and_above() -> None:
    for value in (PRIME - 1, 0, 1, 2**256, 2**257 - 2**200):
        shares = shamir.split_each([bytes(32)], 2, [1, 2], scripted(packed(value)))
        assert [number(share) for share in shares[0]] == [value, 2 * value % PRIME]
    for value in (PRIME, PRIME + 1, 2**257 - 1):
        entropy = scripted(packed(value), packed(value), packed(5))
        assert number(shamir.split_each([bytes(32)], 2, [1, 2], entropy)[0, 0]) == 5
    # in the middle of a longer draw: the later candidates move up, and one more is drawn for the last place
    entropy = scripted(packed(3) + packed(PRIME) + packed(4), packed(PRIME + 2), packed(9))
    assert number(shamir.split_each([bytes(32)], 4, [10, 2, 3, 4], entropy)[0, 0]) == 9430


def test_the_top_seven_bits_of_a_draw_do_not_count() -> None:
    entropy = scripted(packed(5 | 127 << 257))
    assert number(shamir.split_each([bytes(32)], 2, [1, 2], entropy)[0, 0]) == 5


def test_a_threshold_of_one_draws_nothing() -> None:
    shares = shamir.split_each([SECRET], 1, [3, 4], scripted())
    assert [share.tobytes() for share in shares[0]] == [SECRET + b"\0"] * 2


def test_coefficients_are_uniform() -> None:
    # with a_0 = 0 the share at 1 of a 2-of-2 sharing is the coefficient itself
    count = 20_000
    drawn = shamir.split_each([bytes(32)] * count, 2, [1, 2], Drbg(b"uniform"))[:, 0]
    digits = {"lowest byte": drawn[:, 0], "byte 17": drawn[:, 17], "byte 31": drawn[:, 31]}
    digits["top bit and seven below it"] = drawn[:, 32] << 7 | drawn[:, 31] >> 1
    for name, digit in digits.items():
        counts = np.bincount(digit, minlength=256)
        chi_square = float(((counts - count / 256) ** 2 / (count / 256)).sum())
        assert 255 - 5 * 22.6 < chi_square < 255 + 5 * 22.6, name  # 255 degrees of freedom: 255 ± 22.6


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 1, 2], "the value at 0 is the secret"),
        ([1, -2, 3], "1 to 65535"),
        ([1, 65536, 3], "1 to 65535"),
        ([1, 2, 1], "same index"),
        ([], "no share holders"),
    ],
)
def test_impossible_holders_are_refused(indices: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shamir.split_each([SECRET], 1, indices)
    with pytest.raises(UsageError, match=message):
        shamir.coefficients(indices)


@pytest.mark.parametrize("threshold", [0, -1, 4])
def test_impossible_thresholds_are_refused(threshold: int) -> None:
    with pytest.raises(UsageError, match="threshold"):
        shamir.split_each([SECRET], threshold, [1, 2, 3])


@pytest.mark.parametrize("length", [0, 31, 33])
def test_secrets_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(UsageError, match="32 bytes"):
        shamir.split_each([SECRET, bytes(length)], 2, [1, 2, 3])


@pytest.mark.parametrize("extra", [-1, 1])
def test_randomness_of_another_length_is_refused(extra: int) -> None:
    with pytest.raises(UsageError, match="entropy: expected 33 bytes, got"):
        shamir.split_each([SECRET], 2, [1, 2, 3], lambda count: bytes(count + extra))


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([[packed(1), packed(PRIME)]], "below the prime"),
        ([[packed(1), packed(2**257 - 1)]], "below the prime"),
        ([[packed(1), packed(2**257)]], "below the prime"),
        ([[packed(1), b"\xff" * 33]], "below the prime"),
        ([[packed(1), bytes(32)]], "33 bytes"),
        ([[packed(1), bytes(34)]], "33 bytes"),
        ([[bytes(32), bytes(34)]], "33 bytes"),
        ([[packed(1)]], "all 2 holders"),
        ([[packed(1)] * 3], "all 2 holders"),
        (np.zeros((1, 3, 33), np.uint8), "shape"),
        (np.zeros((1, 2, 32), np.uint8), "shape"),
        (np.zeros((2, 33), np.uint8), "shape"),
        (np.zeros((1, 2, 33), np.int8), "shape"),
    ],
)
def test_what_is_not_a_share_is_refused(shares: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shamir.combine_each(shamir.coefficients([1, 2]), shares)


def test_canonical_draws_the_line_at_the_prime() -> None:
    below = [0, 1, 2**256, PRIME - 1, PRIME - 256, 2**257 - 2**9, 2**257 - 2**248]
    above = [PRIME, PRIME + 1, 2**257 - 1, 2**257, 2**264 - 1, 2**258 + 5]
    values = np.frombuffer(b"".join(packed(v) for v in below + above), np.uint8).reshape(-1, SHARE_BYTES)
    assert shamir.canonical(values).tolist() == [True] * len(below) + [False] * len(above)
    assert shamir.canonical(values.reshape(1, -1, SHARE_BYTES)).shape == (1, len(values))
    with pytest.raises(UsageError, match="33 uint8"):
        shamir.canonical(values[:, 1:])
    with pytest.raises(UsageError, match="33 uint8"):
        shamir.canonical(values[0])


@given(st.integers(1, 8), st.data())
def test_one_secret_is_split_and_any_t_shares_give_it_back(threshold: int, data: st.DataObject) -> None:
    shares = shamir.split(SECRET, threshold, data.draw(st.integers(threshold, 12)), Drbg(b"simple"))
    chosen = data.draw(st.permutations(shares))[: data.draw(st.integers(threshold, len(shares)))]
    assert shamir.combine(chosen) == SECRET
    assert repr(shares[0].value) not in repr(shares[0])


def test_shares_that_cannot_give_a_secret_are_refused() -> None:
    shares, others = shamir.split(SECRET, 3, 5, Drbg(b"a")), shamir.split(SECRET, 2, 5, Drbg(b"b"))
    apart = shamir.Share(1, 1, packed(2**256))
    for wrong, message in (
        ([], "one threshold, got \\[\\]"),
        (shares[:2], "at least 3 shares, got 2"),
        ([*shares[:2], others[2]], "one threshold, got \\[2, 3\\]"),
        ([*shares[:3], shares[0]], "same index"),
        ([apart], "do not come from one secret"),
        ([shamir.Share(1, 1, packed(PRIME))], "below the prime"),
    ):
        with pytest.raises(UsageError, match=message):
            shamir.combine(wrong)
