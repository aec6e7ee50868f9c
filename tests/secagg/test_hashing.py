"""Many short hashes at once: the kernel and hashlib give the same bytes, and a broken kernel is not used."""

import os
from collections.abc import Callable, Iterator
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import UsageError, reference
from secagg.crypto import hashing, keys, prg
from secagg.crypto.hashing import KERNEL_ROWS, sha256_each
from secagg.kernels import jit, sha
from secagg.protocol import dealing, transcript
from secagg.types import Bytes

has_instructions = jit.target_features() >= sha.FEATURES
needs_instructions = pytest.mark.skipif(not has_instructions, reason="this processor has no SHA instructions")
PATHS = [hashing._by_hashlib, pytest.param(hashing._by_kernel, marks=needs_instructions), sha256_each]
Path = Callable[[bytes, Bytes], Bytes]


@pytest.fixture
def _asked_again() -> Iterator[None]:
    """What this processor can do is remembered; here it is asked before and after."""
    hashing.has_kernel.cache_clear()
    yield
    hashing.has_kernel.cache_clear()


def random_rows(count: int, width: int) -> Bytes:
    return np.frombuffer(os.urandom(count * width), np.uint8).reshape(count, width)


def one_by_one(label: bytes, rows: Bytes) -> list[bytes]:
    return [sha256(label + row.tobytes()).digest() for row in rows]


def listed(digests: Bytes) -> list[bytes]:
    assert digests.shape == (len(digests), 32)
    return [row.tobytes() for row in digests]


@pytest.mark.parametrize("path", PATHS)
@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200), st.integers(0, 150), st.integers(0, 3 * KERNEL_ROWS))
def test_every_row_is_hashed_under_the_label(path: Path, label: bytes, width: int, count: int) -> None:
    rows = random_rows(count, width)
    assert listed(path(label, rows)) == one_by_one(label, rows)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", [*range(52, 68), *range(116, 132), 1, 1000])
def test_padding_is_the_standards_around_every_edge_of_a_block(path: Path, length: int) -> None:
    for start in {0, length // 2, length - 1}:
        label, rows = os.urandom(start), random_rows(3, length - start)
        assert listed(path(label, rows)) == one_by_one(label, rows)


@pytest.mark.parametrize("path", PATHS)
def test_the_standards_example(path: Path) -> None:
    (digest,) = listed(path(b"a", np.frombuffer(b"bc", np.uint8).reshape(1, 2)))  # FIPS 180-4: "abc"
    assert digest.hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("path", PATHS)
def test_rows_may_be_part_of_a_larger_array_writable_or_not(path: Path) -> None:
    rows = random_rows(40, 70).copy()[::2, 3:50]
    expected = one_by_one(b"label", rows)
    assert listed(path(b"label", rows)) == expected
    rows.flags.writeable = False
    assert listed(path(b"label", rows)) == expected


@needs_instructions
def test_the_kernel_is_compiled_for_one_kind_of_array() -> None:
    for rows in (random_rows(3, 5), random_rows(3, 5).copy(), random_rows(6, 5)[::2]):
        hashing._by_kernel(b"", rows)
    assert len(sha.hash_rows.signatures) == 1  # type: ignore[attr-defined]


@needs_instructions
@pytest.mark.usefixtures("_asked_again")
def test_many_rows_go_through_the_kernel_and_few_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    kernel = hashing._by_kernel
    monkeypatch.setattr(hashing, "_by_kernel", lambda *args: calls.append(args) or kernel(*args))
    assert hashing.has_kernel()
    calls.clear()
    sha256_each(b"", random_rows(KERNEL_ROWS - 1, 8))
    assert calls == []
    sha256_each(b"", random_rows(KERNEL_ROWS, 8))
    assert len(calls) == 1


@pytest.mark.usefixtures("_asked_again")
def test_a_processor_without_the_instructions_uses_hashlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "target_features", lambda: frozenset({"sse4.1"}))
    monkeypatch.setattr(hashing, "_by_kernel", None)
    assert not hashing.has_kernel()
    rows = random_rows(KERNEL_ROWS, 8)
    assert listed(sha256_each(b"x", rows)) == one_by_one(b"x", rows)


@needs_instructions
@pytest.mark.usefixtures("_asked_again")
def test_a_kernel_that_fails_its_self_test_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_by_kernel", lambda label, rows: np.zeros((len(rows), 32), np.uint8))
    rows = random_rows(KERNEL_ROWS, 8)
    with pytest.warns(RuntimeWarning, match="self-test"):
        assert listed(sha256_each(b"x", rows)) == one_by_one(b"x", rows)
    monkeypatch.undo()
    hashing.has_kernel.cache_clear()
    monkeypatch.setattr(hashing, "_two_by_kernel", lambda first, second: [bytes(32), bytes(32)])
    with pytest.warns(RuntimeWarning, match="self-test"):
        assert not hashing.has_kernel()


# --- long vectors -------------------------------------------------------------------------------------------


@needs_instructions
@pytest.mark.parametrize("length", [0, 1, *range(52, 68), *range(116, 132), 1000, 2**16 + 3])
def test_two_messages_at_once_are_hashed_as_each(length: int) -> None:
    first, second = random_rows(2, length)
    expected = [sha256(first.tobytes()).digest(), sha256(second.tobytes()).digest()]
    assert hashing._two_by_kernel(first, second) == expected
    assert hashing._two_by_kernel(second.copy(), first.copy()) == expected[::-1]
    assert len(sha.hash_two.signatures) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("kernel", [pytest.param(True, marks=needs_instructions), False])
@pytest.mark.parametrize("threads", [1, 2, 3, None])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_every_vector_is_hashed(count: int, threads: int | None, kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "has_kernel", lambda: kernel)
    vectors = np.random.default_rng(count).integers(0, 2**32, (count, 100), np.uint32)
    expected = b"".join(sha256(vector.astype("<u4").tobytes()).digest() for vector in vectors)
    for least in (hashing._LONG_BYTES, 400, 0):
        monkeypatch.setattr(hashing, "_LONG_BYTES", least)
        assert hashing.row_hashes(vectors, threads) == expected
        assert hashing.row_hashes(np.asfortranarray(vectors), threads) == expected
        assert hashing.row_hashes(vectors[:, ::-1], threads) != expected or not count


@needs_instructions
def test_vectors_are_hashed_in_pairs_if_they_are_more_than_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = []
    kernel = hashing._two_by_kernel
    monkeypatch.setattr(hashing, "_two_by_kernel", lambda *two: pairs.append(two) or kernel(*two))
    monkeypatch.setattr(hashing, "has_kernel", lambda: True)
    monkeypatch.setattr(hashing, "_LONG_BYTES", 400)
    for count, threads, length, expected in ((5, 2, 100, 2), (2, 1, 100, 1), (2, 2, 100, 0), (5, 2, 99, 0)):
        pairs.clear()
        hashing.row_hashes(np.zeros((count, length), np.uint32), threads)
        assert len(pairs) == expected


# --- what is defined for one and computed for many ---------------------------------------------------------

COUNTS = pytest.mark.parametrize("count", [0, 1, 7, KERNEL_ROWS + 3])


@COUNTS
def test_hkdf_of_many_is_hkdf_of_each(count: int) -> None:
    secrets, infos = random_rows(count, 32), random_rows(count, 69)
    expected = [keys.hkdf(s.tobytes(), i.tobytes()) for s, i in zip(secrets, infos, strict=True)]
    assert listed(keys.hkdf_each(secrets, infos)) == expected


@pytest.mark.parametrize(("secrets", "infos"), [((3, 32), (2, 5)), ((3, 31), (3, 5)), ((3, 64), (3, 5))])
def test_hkdf_of_many_wants_one_secret_of_its_size_per_info(secrets: tuple, infos: tuple) -> None:
    with pytest.raises(UsageError, match="one secret"):
        keys.hkdf_each(random_rows(*secrets), random_rows(*infos))


@COUNTS
def test_the_mask_keys_of_many_pairs_are_those_of_each(count: int) -> None:
    agreed, plan_hash = random_rows(count, 32), os.urandom(32)
    pairs = np.random.default_rng(5).integers(0, 2**32, (count, 3), np.uint32)
    before = pairs.copy()
    found = prg.pairwise_keys(agreed, plan_hash, pairs)
    assert found.tobytes() == b"".join(
        reference.pairwise_key(secret.tobytes(), plan_hash, int(a), int(b), int(r))
        for secret, (a, b, r) in zip(agreed, pairs, strict=True)
    )
    assert np.array_equal(pairs, before)


@COUNTS
def test_the_hashes_of_many_shares_are_those_of_each(count: int) -> None:
    entries, plan_hash = random_rows(count, 65), os.urandom(32)
    ids = np.random.default_rng(6).integers(0, 2**32, (count, 3), np.uint32)
    assert listed(transcript.share_hashes(plan_hash, ids, entries)) == [
        reference.share_hash(plan_hash, *map(int, three), entry[:33].tobytes(), entry[33:].tobytes())
        for three, entry in zip(ids, entries, strict=True)
    ]


@COUNTS
@pytest.mark.parametrize("secrets", [1, 2, 11])
def test_the_nonces_of_many_pairs_are_those_of_each(count: int, secrets: int) -> None:
    nonces = random_rows(count, 32)
    assert listed(dealing.share_nonces(nonces, secrets)) == [
        reference.share_nonce(nonce.tobytes(), secret) for nonce in nonces for secret in range(secrets)
    ]
