"""Building blocks at their limits: the last value that is allowed and the first that is not, types, and lengths."""

import hashlib
import math
import sys
from typing import Any

import numpy as np
import pytest
from nacl.exceptions import CryptoError

from secagg.crypto import FixedPoint, Integers, box, fixedpoint, hashing, keys, shamir
from secagg.crypto.arrays import plain_array
from secagg.crypto.fixedpoint import FLOAT32_MAX, LEAST_CLIP, encode_floats
from secagg.crypto.keys import check_public_key, hkdf, hkdf_each
from secagg.errors import PeerError, UsageError

# --- arrays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("?", np.uint8),
        ("i1", np.int8),
        ("u1", np.uint8),
        ("i2", np.int16),
        ("u2", np.uint16),
        ("i4", np.int32),
        ("u8", np.uint64),
        ("f2", np.float32),
        ("f4", np.float32),
        ("f8", np.float64),
        ("longdouble", np.float64),
        (">i2", np.int16),
        (">u4", np.uint32),
        (">f4", np.float32),
        (">f8", np.float64),
        (">f2", np.float32),
    ],
)
def test_arrays_keep_their_type_in_native_order_unless_it_is_no_usual_one(given: str, plain: Any) -> None:
    found = plain_array(np.array([0, 1, 1], given), "values")
    assert found.dtype == np.dtype(plain)
    assert found.dtype.isnative
    assert found.tolist() == [0, 1, 1]


def test_an_array_that_is_plain_already_is_not_copied() -> None:
    for kind in (np.float32, np.float64, np.int8, np.int64):
        values = np.ones(3, kind)
        assert np.shares_memory(plain_array(values, "values"), values)


# --- boxes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [(0, 2**32 - 1), (2**32 - 1, 0)])
def test_boxes_are_between_any_two_ids(ends: tuple[int, int]) -> None:
    (key,) = box.box_keys([bytes(32)], b"run", [ends])
    sealed = box.seal(key, b"run", *ends, b"content", lambda count: bytes(count))
    assert len(sealed) == len(b"content") + box.BOX_OVERHEAD == 7 + 28
    assert sealed[:12] == bytes(12)
    assert box.unseal(key, b"run", *ends, sealed) == b"content"


@pytest.mark.parametrize(("ends", "which"), [((-1, 0), "sender"), ((2**32, 0), "sender"), ((0, 2**32), "receiver")])
def test_an_end_of_a_box_is_an_id(ends: tuple[int, int], which: str) -> None:
    says = f"^{which}: expected a whole number from 0 to 4294967295, got"
    for call in (
        lambda: box.box_keys([bytes(32)], b"run", [ends]),
        lambda: box.seal(bytes(32), b"run", *ends, b""),
        lambda: box.unseal(bytes(32), b"run", *ends, bytes(28)),
    ):
        with pytest.raises(UsageError, match=says):
            call()


@pytest.mark.parametrize("size", [0, 11, 12, 27, 28])
def test_bytes_that_are_no_box_do_not_open(size: int) -> None:
    with pytest.raises(PeerError, match=r"^the box from client 7 does not open$") as refused:
        box.unseal(bytes(32), b"run", 7, 8, bytes(size))
    assert refused.value.culprit == 7


@pytest.mark.parametrize(
    ("agreed", "ends", "says"),
    [
        ([bytes(32)], [(1, 2), (2, 1)], r"^expected one agreed secret of 32 bytes per pair, got 1 secrets$"),
        ([bytes(31)], [(1, 2)], r"^expected one agreed secret of 32 bytes per pair, got 1 secrets$"),
        ([bytes(32), bytes(33)], [(1, 2), (2, 1)], r"^expected one agreed secret of 32 bytes per pair"),
        ([bytes(32)], [(1, 2, 3)], r"^ends: expected pairs \(sender, receiver\)$"),
        ([bytes(32)], [(1,)], r"^ends: expected pairs \(sender, receiver\)$"),
    ],
)
def test_every_pair_has_a_secret(agreed: Any, ends: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        box.box_keys(agreed, b"run", ends)


def test_no_boxes_have_no_keys() -> None:
    assert box.box_keys([], b"run", []) == []


# --- fixed point -------------------------------------------------------------------------------------------------


def test_the_smallest_and_the_largest_clip() -> None:
    assert LEAST_CLIP == 2.0**-64
    assert FixedPoint(clients=1, clip=LEAST_CLIP).frac_bits == 94
    assert FixedPoint(clients=1, clip=FLOAT32_MAX).clip == FLOAT32_MAX
    assert FixedPoint(clients=2, clip=FLOAT32_MAX / 2).clients == 2
    for clients, clip in ((1, math.nextafter(LEAST_CLIP, 0)), (1, math.nextafter(FLOAT32_MAX, math.inf))):
        with pytest.raises(UsageError, match=f"^{clients} values of ±.* do not fit float32"):
            FixedPoint(clients=clients, clip=clip)


@pytest.mark.parametrize("kind", [lambda n: FixedPoint(clients=n, clip=1.0), lambda n: Integers(clients=n, bound=3)])
def test_a_sum_has_one_client_at_least(kind: Any) -> None:
    assert kind(1).clients == 1
    assert type(kind(np.int64(3)).clients) is int
    with pytest.raises(UsageError, match=r"^clients: expected a whole number of at least 1, got 0$"):
        kind(0)


def test_integers_have_a_bound_from_zero_on() -> None:
    assert Integers(clients=5, bound=0).encode([0, 0])[0].tolist() == [0, 0]
    assert type(Integers(clients=5, bound=np.int32(2)).bound) is int  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^bound: expected a whole number of at least 0, got -1$"):
        Integers(clients=5, bound=-1)


@pytest.mark.parametrize("bits", range(-12, 40))
@pytest.mark.parametrize("clients", [1, 2, 3, 1000, 2**20])
def test_a_power_of_two_has_the_scale_that_just_does_not_wrap(bits: int, clients: int) -> None:
    """clients · clip · scale < 2^31: for a clip of 2^-b and n clients, the largest k with n < 2^(31 + b - k)."""
    scale = 31 + bits - clients.bit_length()
    assert FixedPoint(clients=clients, clip=2.0**-bits).frac_bits == scale


def test_a_value_that_rounds_up_to_the_limit_takes_a_coarser_scale() -> None:
    for clients, clip, bits in ((1, 2.0**31 - 0.25, -1), (1, 2.0**31 - 1.0, 0), (1, 2.0**30, 0), (1, 2.0**31, -1)):
        assert FixedPoint(clients=clients, clip=clip).frac_bits == bits


UNIT = FixedPoint(clients=4, clip=1.0)  # a scale of 2^28
COARSE = FixedPoint(clients=1, clip=2.0**40)  # a scale of 2^-10
TOTAL = np.array([3, 2**32 - 5], np.uint32)


def test_a_divisor_is_refused_if_it_or_its_product_or_the_inverse_is_not_normal() -> None:
    tiny, huge = sys.float_info.min, sys.float_info.max
    for encoding, divisor in ((UNIT, 2.0**994), (UNIT, tiny), (COARSE, 2.0**-1012), (COARSE, 2.0**1023)):
        factor = 1 / (divisor * encoding.scale)
        assert encoding.decode(TOTAL, divisor=divisor).tolist() == [3 * factor, -5 * factor]
    wrong = [
        (UNIT, tiny / 2),  # not normal itself
        (COARSE, 2.0**-1013),  # the product is 2^-1023
        (UNIT, 2.0**995),  # the product is 2^1023, its inverse 2^-1023
        (UNIT, 1.5 * 2.0**995),
        (UNIT, huge),
        (UNIT, 0.0),
        (UNIT, -1.0),
    ]
    for encoding, divisor in wrong:
        with pytest.raises(UsageError, match=r"^a divisor is a positive number, not"):
            encoding.decode(TOTAL, divisor=divisor)


def test_a_weight_is_refused_if_it_or_its_product_is_not_normal() -> None:
    tiny, huge = sys.float_info.min, sys.float_info.max
    for encoding, weight in ((UNIT, tiny), (UNIT, huge / 2**28), (COARSE, huge), (COARSE, tiny * 2**10)):
        assert encoding.encode(np.zeros(2), weight=weight)[0].tolist() == [0, 0]
    for encoding, weight in ((UNIT, tiny / 2), (UNIT, huge / 2**27), (COARSE, tiny * 2**9), (UNIT, 0.0)):
        with pytest.raises(UsageError, match=r"^a weight is a positive number, not"):
            encoding.encode(np.zeros(2), weight=weight)


def test_what_encoding_counts() -> None:
    out = np.empty(5, np.uint32)
    values = np.array([2.0, -3.0, 2.0**-40, 0.0, 0.5])
    assert encode_floats(UNIT, values, 1.0, out) == (2, 1, 1)
    assert out.view(np.int32).tolist() == [2**28, -(2**28), 0, 0, 2**27]
    assert encode_floats(UNIT, np.zeros(0), 1.0, out[:0]) == (0, 0, 0)


def test_encoding_and_decoding_change_nothing_of_what_they_read() -> None:
    values, total = np.array([0.5, -0.25]), TOTAL.copy()
    read = fixedpoint._checked_vector(values, "an update")
    assert not read.flags.writeable
    assert values.flags.writeable
    UNIT.encode(values)
    UNIT.decode(total)
    assert (values.tolist(), total.tolist()) == ([0.5, -0.25], TOTAL.tolist())


# --- hashes ------------------------------------------------------------------------------------------------------


def expected(vectors: Any) -> bytes:
    return b"".join(hashlib.sha256(row.astype("<u4").tobytes()).digest() for row in vectors)


@pytest.mark.parametrize("rows", range(6))
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_hashes_of_rows_have_their_places_in_whatever_order_threads_finish(
    rows: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backwards(work: Any, start: int, stop: int, *, step: int, threads: int) -> None:
        assert threads > 1
        for at in reversed(range(start, stop, step)):
            work(at, min(at + step, stop))

    monkeypatch.setattr(hashing, "_LONG_BYTES", 8)
    monkeypatch.setattr(hashing, "spread", backwards)
    vectors = np.arange(3 * rows, dtype=np.uint32).reshape(rows, 3) * np.uint32(0x01020304)
    assert hashing.row_hashes(vectors, threads) == expected(vectors)
    assert hashing.row_hashes(vectors[:, :1], threads) == expected(vectors[:, :1])  # short rows need no threads
    assert hashing.row_hashes(vectors[:, ::2], threads) == expected(vectors[:, ::2])


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 40])
@pytest.mark.parametrize("width", [0, 1, 60])
def test_hashes_of_few_and_many_short_rows_are_those_of_hashlib(rows: int, width: int) -> None:
    table = np.arange(rows * width, dtype=np.uint32).astype(np.uint8).reshape(rows, width)
    found = hashing.sha256_each(b"label", table)
    assert found.shape == (rows, 32)
    assert [row.tobytes() for row in found] == [hashlib.sha256(b"label" + row.tobytes()).digest() for row in table]


def test_a_processor_without_the_instructions_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from secagg.kernels import jit, sha

    has = hashing.has_kernel()
    monkeypatch.setattr(jit, "target_features", lambda: frozenset())
    assert hashing.has_kernel.__wrapped__() is False
    if has:
        monkeypatch.setattr(jit, "target_features", lambda: sha.FEATURES)
        assert hashing.has_kernel.__wrapped__() is True


def test_a_kernel_that_fails_its_test_is_told_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from secagg.kernels import jit, sha

    monkeypatch.setattr(jit, "target_features", lambda: sha.FEATURES)
    wrong = [bytes(32), bytes(32)]
    monkeypatch.setattr(hashing, "_two_by_kernel", lambda first, second: wrong)
    monkeypatch.setattr(hashing, "_by_kernel", hashing._by_hashlib)
    with pytest.warns(RuntimeWarning, match=r"^secagg's SHA-256 kernel fails its self-test and is not used$") as told:
        assert hashing.has_kernel.__wrapped__() is False
    assert [one.filename for one in told] == [__file__]  # whoever asked
    monkeypatch.setattr(
        hashing, "_two_by_kernel", lambda *pair: [hashlib.sha256(row.tobytes()).digest() for row in pair]
    )
    assert hashing.has_kernel.__wrapped__() is True
    monkeypatch.setattr(hashing, "_by_kernel", lambda label, rows: np.zeros((len(rows), 32), np.uint8))
    with pytest.warns(RuntimeWarning, match=r"^secagg's SHA-256 kernel fails its self-test and is not used$"):
        assert hashing.has_kernel.__wrapped__() is False


# --- keys --------------------------------------------------------------------------------------------------------


def test_a_public_key_is_below_the_prime_of_its_field() -> None:
    prime = 2**255 - 19
    for value in (2, 9, prime - 2):
        key = value.to_bytes(32, "little")
        assert check_public_key(key) == key
    for value, says in ((prime - 1, "low-order"), (0, "low-order"), (1, "low-order"), (prime, "non-canonical")):
        with pytest.raises(PeerError, match=f"^{says} X25519 key$"):
            check_public_key(value.to_bytes(32, "little"))


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 33])
def test_many_keys_are_those_that_are_derived_one_by_one(rows: int) -> None:
    secrets = np.arange(32 * rows, dtype=np.uint32).astype(np.uint8).reshape(rows, 32)
    infos = np.arange(21 * rows, dtype=np.uint32).astype(np.uint8).reshape(rows, 21)
    found = hkdf_each(secrets, infos)
    assert found.shape == (rows, 32)
    derived = [hkdf(secret.tobytes(), info.tobytes()) for secret, info in zip(secrets, infos, strict=True)]
    assert [key.tobytes() for key in found] == derived


def test_a_derived_key_has_1_to_32_bytes() -> None:
    whole = hkdf(b"secret", b"info")
    assert len(whole) == 32
    assert [hkdf(b"secret", b"info", length) for length in (1, 16, 32)] == [whole[:1], whole[:16], whole]
    for length in (0, 33):
        with pytest.raises(UsageError, match=f"^length: expected a whole number from 1 to 32, got {length}$"):
            hkdf(b"secret", b"info", length)


def test_an_agreement_that_the_library_refuses_is_the_peers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: bytes) -> bytes:
        raise CryptoError("all zero")

    key = keys.AgreementKey.generate(lambda count: bytes(range(count)))
    assert key.public == keys.AgreementKey.from_private(bytes(range(32))).public
    monkeypatch.setattr(keys, "crypto_scalarmult", refuse)
    with pytest.raises(PeerError, match=r"^X25519 agreement failed$"):
        key.agree(key.public)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_an_identity_has_two_keys_of_32_bytes(size: int) -> None:
    for halves, which in (((bytes(size), bytes(32)), "private"), ((bytes(32), bytes(size)), "public")):
        with pytest.raises(UsageError, match=f"^an Ed25519 {which} key: expected 32 bytes, got {size}$"):
            keys.Identity(*halves)


def test_a_signature_is_accepted_or_not() -> None:
    identity = keys.Identity.from_private(bytes(32))
    signature = identity.sign(b"message")
    assert keys._accepts(identity.public, signature, b"message") is True
    for public, signed, message in (
        (identity.public, signature, b"another"),
        (identity.public, signature[:-1], b"message"),
        (identity.public[:-1], signature, b"message"),
        (identity.public + b"x", signature, b"message"),
        (identity.public, signature + b"m", b"essage"),
    ):
        assert keys._accepts(public, signed, message) is False


def test_the_signatures_that_test_the_library_have_their_lengths() -> None:
    keys._check_library.__wrapped__()
    assert [accepted for _, accepted, _, _ in keys._RULE] == [True, False, False, False]
    assert {(len(public), len(signature)) for _, _, public, signature in keys._RULE} == {(64, 128)}


# --- shares ------------------------------------------------------------------------------------------------------


def test_a_share_has_an_index_a_threshold_and_33_bytes() -> None:
    share = shamir.Share(65535, 65535, bytes(33))
    assert repr(share) == "Share(index=65535, threshold=65535)"
    assert shamir.Share(1, 1, bytes(33)).index == 1
    for fields, says in (
        ((0, 1, bytes(33)), "^index of a share: expected a whole number from 1 to 65535, got 0$"),
        ((65536, 1, bytes(33)), "^index of a share: expected a whole number from 1 to 65535, got 65536$"),
        ((1, 0, bytes(33)), "^threshold of a share: expected a whole number from 1 to 65535, got 0$"),
        ((1, 65536, bytes(33)), "^threshold of a share: expected a whole number from 1 to 65535, got 65536$"),
        ((1, 1, bytes(32)), "^value of a share: expected 33 bytes, got 32$"),
    ):
        with pytest.raises(UsageError, match=says):
            shamir.Share(*fields)


def test_a_secret_is_split_among_1_to_65535_holders() -> None:
    shares = shamir.split(bytes(range(32)), 1, 1)
    assert [(share.index, share.threshold, share.value) for share in shares] == [(1, 1, bytes(range(32)) + b"\0")]
    shares = shamir.split(bytes(32), 2, 4)
    assert [(share.index, share.threshold) for share in shares] == [(1, 2), (2, 2), (3, 2), (4, 2)]
    for holders in (0, 65536):
        with pytest.raises(UsageError, match=f"^holders: expected a whole number from 1 to 65535, got {holders}$"):
            shamir.split(bytes(32), 1, holders)


def test_which_numbers_near_the_prime_are_shares() -> None:
    """Every byte on its own decides: the prime is 01 FF...FF A3 in big-endian digits."""
    prime = 2**257 - 93
    values = [prime - 1, prime, prime + 1, 2**257 - 1, 2**257, 2**256, 0]
    values += [prime - 2 ** (8 * place) for place in range(33)] + [2**257 - 1 - 2 ** (8 * place) for place in range(32)]
    table = np.frombuffer(b"".join(value.to_bytes(33, "little") for value in values), np.uint8).reshape(-1, 33)
    assert shamir.canonical(table).tolist() == [value < prime for value in values]
    assert shamir.canonical(table.reshape(8, -1, 33)).tolist() == [
        [value < prime for value in values[at : at + 9]] for at in range(0, 72, 9)
    ]
    wrong: Any
    for wrong in (table.astype(np.int16), table[0], table[:, :32]):
        with pytest.raises(UsageError, match=r"^shares are rows of 33 uint8$"):
            shamir.canonical(wrong)
