"""Building blocks at their limits: the last value that is allowed and the first that is not, types, and lengths."""

import hashlib
import math
import sys
from typing import Any

import numpy as np
import pytest

from secagg.crypto import FixedPoint, Integers, box, fixedpoint, hashing
from secagg.crypto.arrays import plain_array
from secagg.crypto.fixedpoint import FLOAT32_MAX, LEAST_CLIP, encode_floats
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
    with pytest.warns(RuntimeWarning, match=r"^secagg's SHA-256 kernel fails its self-test and is not used$"):
        assert hashing.has_kernel.__wrapped__() is False
    monkeypatch.setattr(
        hashing, "_two_by_kernel", lambda *pair: [hashlib.sha256(row.tobytes()).digest() for row in pair]
    )
    assert hashing.has_kernel.__wrapped__() is True
    monkeypatch.setattr(hashing, "_by_kernel", lambda label, rows: np.zeros((len(rows), 32), np.uint8))
    with pytest.warns(RuntimeWarning, match=r"^secagg's SHA-256 kernel fails its self-test and is not used$"):
        assert hashing.has_kernel.__wrapped__() is False
