"""Masks at their limits: offsets up to 2^62 words, refusals one by one, pieces and groups, backends that fail."""

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg import reference
from secagg.crypto import prg
from secagg.crypto.prg import add_masks, available_backends, backend, mask, pairwise_keys, pairwise_sign, use_backend
from secagg.errors import SecAggError, UsageError

KEYS = [bytes(range(k, k + 16)) for k in (0, 7, 40, 100, 200)]


def stream(key: bytes, offset: int, length: int) -> Any:
    """Words of AES-128 in counter mode, block by block: every block has its own counter."""
    first, last = offset // 4, -(-(offset + length) // 4)
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    blocks = b"".join(cipher.update(block.to_bytes(16, "big")) for block in range(first, last))
    return np.frombuffer(blocks, "<u4")[offset - 4 * first :][:length].astype(np.uint32)


def summed(offset: int, length: int, signs: list[int]) -> list[int]:
    total = np.arange(length, dtype=np.uint32)
    for key, sign in zip(KEYS, signs, strict=False):
        total = total + stream(key, offset, length) if sign > 0 else total - stream(key, offset, length)
    return [int(word) for word in total]


# --- keys --------------------------------------------------------------------------------------------------------


def test_keys_of_pairs_are_those_of_the_reference_in_either_order() -> None:
    agreed = [bytes([k]) * 32 for k in range(5)]
    pairs = [(5, 3, 1), (2, 9, 0), (9, 2, 0), (7, 1, 4), (0, 2**32 - 1, 2)]
    secrets = np.frombuffer(b"".join(agreed), np.uint8).reshape(-1, 32)
    given = np.array(pairs, np.uint32)
    found = pairwise_keys(secrets, b"p" * 32, given)
    assert found.shape == (5, 16)
    assert [key.tobytes() for key in found] == [
        reference.pairwise_key(secret, b"p" * 32, *pair) for secret, pair in zip(agreed, pairs, strict=True)
    ]
    swapped = pairwise_keys(secrets, b"p" * 32, given[:, [1, 0, 2]])
    assert (found == swapped).all()
    assert given.tolist() == [list(pair) for pair in pairs]  # not changed
    assert prg.self_key(bytes(32), b"p" * 32, 7, 3) == reference.self_key(bytes(32), b"p" * 32, 7, 3)


def test_the_masks_of_a_pair_cancel() -> None:
    assert (pairwise_sign(1, 2), pairwise_sign(2, 1), pairwise_sign(0, 2**32 - 1)) == (1, -1, 1)


# --- limits ------------------------------------------------------------------------------------------------------


def test_a_mask_has_up_to_2_to_the_31_words_less_one() -> None:
    assert mask(KEYS[0], 0).tolist() == []
    assert mask(KEYS[0], 9).tolist() == stream(KEYS[0], 0, 9).tolist()
    for length in (-1, 2**31):
        with pytest.raises(UsageError, match=f"^length: expected a whole number from 0 to 2147483647, got {length}$"):
            mask(KEYS[0], length)


@pytest.mark.parametrize("name", available_backends())
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 5, 1023, 2**34 - 2, 2**42 - 3, 2**62 - 11])
def test_words_from_any_offset_up_to_the_last(name: str, offset: int) -> None:
    vector = np.arange(11, dtype=np.uint32)
    with use_backend(name):
        add_masks(vector, KEYS[:3], [1, -1, 1], offset=offset)
    assert vector.tolist() == summed(offset, 11, [1, -1, 1])


def test_no_word_is_beyond_2_to_the_62() -> None:
    for offset in (-1, 2**62 - 10):
        with pytest.raises(UsageError, match=f"^offset: expected a whole number from 0 to {2**62 - 11}, got {offset}$"):
            add_masks(np.zeros(11, np.uint32), KEYS[:1], [1], offset=offset)


@pytest.mark.parametrize(
    "vector",
    [
        [1, 2],
        np.zeros(4, np.int32),
        np.zeros((2, 2), np.uint32),
        np.zeros(8, np.uint32)[::2],
        np.frombuffer(bytes(16), np.uint32),
        np.zeros(17, np.uint8)[1:].view(np.uint32),
    ],
    ids=["list", "signed", "table", "strided", "read-only", "unaligned"],
)
def test_masks_are_added_to_a_plain_vector_only(vector: Any) -> None:
    with pytest.raises(UsageError, match=r"^masks are added to a writable, contiguous, aligned uint32 vector$"):
        add_masks(vector, KEYS[:1], [1])


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (np.zeros((1, 16), np.int8), r"^keys are an array of uint8 with 16 columns$"),
        (np.zeros(16, np.uint8), r"^keys are an array of uint8 with 16 columns$"),
        (np.zeros((1, 15), np.uint8), r"^keys are an array of uint8 with 16 columns$"),
        (np.zeros((1, 1, 16), np.uint8), r"^keys are an array of uint8 with 16 columns$"),
        ([bytes(15)], r"^a mask key has 16 bytes$"),
        ([bytes(17)], r"^a mask key has 16 bytes$"),
        ([bytes(16), bytes(15)], r"^a mask key has 16 bytes$"),
        (["text"], r"^keys, each: expected bytes, got str$"),
        ([bytes(16), bytes(16)], r"^2 keys but 1 signs$"),
        ([], r"^0 keys but 1 signs$"),
    ],
)
def test_keys_have_16_bytes_and_a_sign_each(keys: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        add_masks(np.zeros(3, np.uint32), keys, [1])


@pytest.mark.parametrize(
    "signs", [[0], [2], [-2], [1.5], [[1]], 1, None, np.array([2]), np.array([0]), np.array([1.0]), np.array([[1]]),
              np.array([3], np.uint8)]
)  # fmt: skip
def test_a_sign_is_plus_or_minus_one(signs: Any) -> None:
    with pytest.raises(UsageError, match=r"^a sign is \+1 or -1$"):
        add_masks(np.zeros(3, np.uint32), KEYS[:1], signs)


@pytest.mark.parametrize(
    ("signs", "plain"),
    [((1, -1), [1, -1]), (np.array([-1, 1], np.int8), [-1, 1]), (np.array([1, 1], np.uint8), [1, 1]),
     (iter([-1, -1]), [-1, -1])],
)  # fmt: skip
def test_signs_are_any_numbers_that_are_plus_or_minus_one(signs: Any, plain: list[int]) -> None:
    vector = np.arange(6, dtype=np.uint32)
    add_masks(vector, np.frombuffer(KEYS[0] + KEYS[1], np.uint8).reshape(2, 16), signs)
    assert vector.tolist() == summed(0, 6, plain)


def test_arguments_are_checked_even_if_there_is_nothing_to_do() -> None:
    empty, vector = np.zeros(0, np.uint32), np.ones(3, np.uint32)
    for name in ("openssl", backend()):
        with use_backend(name):
            add_masks(empty, KEYS[:1], [1])
            add_masks(vector, [], [])
    assert vector.tolist() == [1, 1, 1]
    with pytest.raises(UsageError, match=r"^threads: expected a whole number of at least 1, got 0$"):
        add_masks(empty, [], [], threads=0)


# --- pieces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 7, 8, 9, 15, 16, 17, 40])
@pytest.mark.parametrize("count", range(1, 6))
def test_openssl_adds_streams_in_groups_and_chunks(length: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prg, "_CHUNK", 8)
    monkeypatch.setattr(prg, "_GROUP", 2)
    signs = [1, -1, -1, 1, -1][:count]
    for offset in (0, 5):
        vector = np.arange(length, dtype=np.uint32)
        with use_backend("openssl"):
            add_masks(vector, KEYS[:count], signs, offset=offset)
        assert vector.tolist() == summed(offset, length, signs)


@pytest.mark.parametrize("name", available_backends())
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_a_vector_without_gaps(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prg, "_LEAST_WORK", 64)
    length = 5 * 1024 + 7
    vector = np.arange(length, dtype=np.uint32)
    with use_backend(name):
        add_masks(vector, KEYS[:2], [1, -1], offset=3, threads=threads)
    assert vector.tolist() == summed(3, length, [1, -1])


def workers(length: int, keys: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """On how many threads OpenSSL works, and how long a piece is."""
    found: list[tuple[int, int]] = []

    def note(work: Any, start: int, stop: int, *, step: int, threads: int) -> None:
        assert (start, stop) == (10, 10 + length)
        found.append((threads, step))

    monkeypatch.setattr(prg, "spread", note)
    zeros = np.zeros((keys, 16), np.uint8)
    prg._add_masks("openssl", np.zeros(length, np.uint32), zeros, np.ones(keys, np.int64), 10, threads)
    return found[0]


def test_a_thread_is_used_for_every_half_million_words_and_takes_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    assert workers(100, 1, 8, monkeypatch) == (1, 1024)
    assert workers(2**18, 3, 8, monkeypatch) == (1, 2**18)
    assert workers(2**18, 4, 8, monkeypatch) == (2, 2**17)
    assert workers(2**18, 40, 8, monkeypatch) == (8, 2**15)
    assert workers(2**18 + 1, 40, 3, monkeypatch) == (3, 86 * 1024)
    assert workers(2048, 5000, 8, monkeypatch) == (2, 1024)  # no piece is shorter than a page


# --- backends ----------------------------------------------------------------------------------------------------


def test_the_fastest_backend_that_works_is_used_unless_another_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECAGG_BACKEND", raising=False)
    assert prg.BACKENDS == ("vaes", "aesni", "openssl")
    monkeypatch.setattr(prg, "_works", lambda name: name != "vaes")
    assert available_backends() == ("aesni", "openssl")
    assert backend() == "aesni"
    monkeypatch.setenv("SECAGG_BACKEND", "openssl")
    assert backend() == "openssl"
    with use_backend("aesni"):  # takes precedence
        assert backend() == "aesni"
    assert backend() == "openssl"
    for name in ("vaes", "rot13"):
        monkeypatch.setenv("SECAGG_BACKEND", name)
        with pytest.raises(UsageError, match=f"^no backend '{name}' here; available: aesni, openssl$"):
            backend()
    with (
        pytest.raises(UsageError, match=r"^no backend 'rot13'; choose one of vaes, aesni, openssl$"),
        use_backend("rot13"),
    ):
        pass
    monkeypatch.delenv("SECAGG_BACKEND")
    with pytest.raises(UsageError, match=r"^no backend 'vaes' here"), use_backend("vaes"):
        pass
    assert backend() == "aesni"  # what failed is not forced any more


def test_a_backend_without_its_instructions_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from secagg.kernels import jit

    monkeypatch.setattr(jit, "target_features", lambda: frozenset())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert prg._works.__wrapped__("vaes") is False
        assert prg._works.__wrapped__("aesni") is False
        assert prg._works.__wrapped__("openssl") is True


def test_a_backend_that_makes_one_wrong_word_is_told_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from secagg.kernels import aes, jit

    exact = {name: features for name, features in aes.FEATURES.items() if name == "aesni"}
    monkeypatch.setattr(jit, "target_features", lambda: exact["aesni"])
    tested: list[tuple[int, int]] = []

    def simple(chosen: str, vector: Any, keys: Any, signs: Any, offset: int, threads: int) -> None:
        """Right except for one word of the last case."""
        assert threads == 1
        tested.append((offset, len(vector)))
        for key, sign in zip(keys, signs, strict=True):
            vector += np.uint32(sign % 2**32) * stream(key.tobytes(), offset, len(vector))
        if wrong.at == len(tested):
            vector[-1] += np.uint32(1)

    wrong = SimpleNamespace(at=0)
    monkeypatch.setattr(prg, "_add_masks", simple)
    assert prg._works.__wrapped__("aesni") is True
    assert tested == list(prg._SELF_TEST)
    for at in range(1, len(prg._SELF_TEST) + 1):
        tested.clear()
        wrong.at = at
        with pytest.warns(RuntimeWarning, match=r"^secagg's aesni kernel fails its self-test and is not used$") as told:
            assert prg._works.__wrapped__("aesni") is False
        assert [one.filename for one in told] == [__file__]  # whoever asked
        tested.clear()
        with pytest.raises(SecAggError, match=r"^AES-128-CTR fails its self-test: no masks can be made on this"):
            prg._works.__wrapped__("openssl")


def test_the_self_test_reaches_both_edges_of_pages_and_large_counters() -> None:
    """Inside a page, over several pages, past 2^32 blocks, and across 2^40 blocks, where tables change."""
    cases = [(offset, offset + length) for offset, length in prg._SELF_TEST]
    assert any(stop <= 1024 for _, stop in cases)
    assert any(start % 1024 and stop % 1024 and stop // 1024 - start // 1024 >= 3 for start, stop in cases)
    assert any(start >= 4 * 2**32 for start, _ in cases)
    assert any(start < 4 * 2**40 < stop for start, stop in cases)


def test_one_stream_in_the_simplest_way() -> None:
    for offset in (0, 1, 6, 2**42 - 2):
        assert prg._stream(KEYS[1], offset, 9).tolist() == stream(KEYS[1], offset, 9).tolist()
