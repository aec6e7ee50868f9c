"""Sealed shares: a box opens for one sender, one receiver and one plan, and otherwise not at all."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import reference
from secagg.crypto import box
from secagg.crypto.hashing import KERNEL_ROWS
from secagg.errors import PeerError, UsageError

AGREED, PLAN = bytes(range(32)), b"p" * 32
[KEY] = box.box_keys([AGREED], PLAN, [(1, 2)])


@given(st.binary(max_size=300))
def test_a_box_opens_for_its_receiver(content: bytes) -> None:
    sealed = box.seal(KEY, PLAN, 1, 2, content)
    assert len(sealed) == len(content) + box.BOX_OVERHEAD
    assert box.unseal(KEY, PLAN, 1, 2, sealed) == content


@pytest.mark.parametrize(
    ("agreed", "plan", "sender", "receiver"),
    [
        (bytes(32), PLAN, 1, 2),  # another pair's secret
        (AGREED, b"q" * 32, 1, 2),  # another run
        (AGREED, PLAN, 2, 1),  # reflected to its sender
        (AGREED, PLAN, 3, 2),
        (AGREED, PLAN, 1, 3),
    ],
)
def test_a_box_opens_nowhere_else(agreed: bytes, plan: bytes, sender: int, receiver: int) -> None:
    sealed = box.seal(KEY, PLAN, 1, 2, b"share")
    [key] = box.box_keys([agreed], plan, [(sender, receiver)])
    with pytest.raises(PeerError, match="does not open") as caught:
        box.unseal(key, plan, sender, receiver, sealed)
    assert caught.value.culprit == sender


@given(st.data())
def test_any_changed_bit_is_noticed(data: st.DataObject) -> None:
    sealed = bytearray(box.seal(KEY, PLAN, 1, 2, b"thirty-three bytes of share data"))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(PeerError):
        box.unseal(KEY, PLAN, 1, 2, bytes(sealed))


@given(st.binary(max_size=box.BOX_OVERHEAD))
def test_short_boxes_are_refused(sealed: bytes) -> None:
    with pytest.raises(PeerError):
        box.unseal(KEY, PLAN, 1, 2, sealed)


def test_the_same_content_is_never_sealed_alike() -> None:
    assert box.seal(KEY, PLAN, 1, 2, b"share") != box.seal(KEY, PLAN, 1, 2, b"share")


@pytest.mark.parametrize("count", [0, 1, KERNEL_ROWS - 1, KERNEL_ROWS, 40])
def test_the_keys_of_many_boxes_are_those_of_each(count: int) -> None:
    agreed, ends = [os.urandom(32) for _ in range(count)], [(i, 2 * i + 1) for i in range(count)]
    made = box.box_keys(agreed, PLAN, ends)
    assert len(made) == count
    for key, secret, (sender, receiver) in zip(made, agreed, ends, strict=True):
        address = reference.box_address(PLAN, sender, receiver)
        sealed = box.seal(key, PLAN, sender, receiver, b"share")
        assert reference.unseal(secret, address, sealed) == b"share"
        sealed = reference.seal(secret, address, b"share", os.urandom)
        assert box.unseal(key, PLAN, sender, receiver, sealed) == b"share"


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="32 bytes"):
        box.seal(bytes(size), PLAN, 1, 2, b"share")
    with pytest.raises(UsageError, match="32 bytes"):
        box.unseal(bytes(size), PLAN, 1, 2, bytes(50))


def test_every_box_has_an_agreed_secret() -> None:
    with pytest.raises(UsageError):
        box.box_keys([os.urandom(32)], PLAN, [(1, 2), (1, 3)])
