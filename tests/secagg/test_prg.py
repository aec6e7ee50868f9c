"""All backends give AES-128-CTR, word for word, whatever the lengths, offsets, keys, signs and threads."""

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secagg.crypto import prg
from secagg.errors import UsageError
from secagg.kernels import aes
from secagg.kernels import threads as parallel

HERE = prg.available_backends()
KEYS = [bytes([7 * i % 256, i, *range(14)]) for i in range(40)]


@pytest.fixture(params=prg.BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param not in HERE:
        pytest.skip(f"this processor has no {request.param}")
    with prg.use_backend(request.param):
        yield request.param


def stream(key: bytes, offset: int, length: int) -> prg.Ring32:
    """One keystream, block by block: the counter in front of AES, and nothing clever."""
    first, last = offset // 4, (offset + length + 3) // 4
    aes = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    blocks = b"".join(aes.update(block.to_bytes(16, "big")) for block in range(first, last))
    return np.frombuffer(blocks, "<u4")[offset % 4 :][:length].astype(np.uint32)


def masked(vector: prg.Ring32, keys: Sequence[bytes], signs: Sequence[int], offset: int) -> prg.Ring32:
    total = vector.copy()
    for key, sign in zip(keys, signs, strict=True):
        total += np.uint32(sign % 2**32) * stream(key, offset, len(vector))
    return total


def test_masks_have_published_answers(backend: str) -> None:
    # Counter blocks 0, 1 and 2 under the zero key: AESAVS, and test cases 1 and 2 of McGrew and Viega's GCM.
    published = "66e94bd4ef8a2c3b884cfa59ca342b2e58e2fccefa7e3061367f1d57a4e7455a0388dace60b6a392f328c2b971b2fe78"
    assert prg.mask(bytes(16), 12).astype("<u4").tobytes().hex() == published
    # AESAVS, KeySbox and VarKey for 128 bits: counter block 0 under other keys.
    for key, block in {
        "10a58869d74be5a374cf867cfb473859": "6d251e6944b051e04eaa6fb4dbf78465",
        "caea65cdbb75e9169ecd22ebe6e54675": "6e29201190152df4ee058139def610bb",
        "80000000000000000000000000000000": "0edd33d3c621e546455bd8ba1418bec8",
        "ffffffffffffffffffffffffffffffff": "a1f6258c877d5fcd8964484538bfc92c",
    }.items():
        assert prg.mask(bytes.fromhex(key), 4).astype("<u4").tobytes().hex() == block


def test_the_oracle_of_these_tests_passes_sp_800_38a() -> None:
    # NIST SP 800-38A, F.5.1 (CTR-AES128.Encrypt): what `stream` does, with the standard's initial counter.
    aes = Cipher(algorithms.AES(bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")), modes.ECB()).encryptor()
    first = int.from_bytes(bytes(range(0xF0, 0x100)), "big")
    keystream = b"".join(aes.update((first + i).to_bytes(16, "big")) for i in range(4))
    plaintext = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    assert bytes(a ^ b for a, b in zip(keystream, plaintext, strict=True)).hex() == (
        "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
        "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee"
    )


@pytest.mark.parametrize("backend", HERE)
@settings(deadline=None, max_examples=80)
@given(
    length=st.one_of(st.integers(0, 40), st.integers(0, 3000)),
    offset=st.one_of(
        st.integers(0, 5000),
        st.integers(0, prg.MAX_WORDS - 3000),
        st.sampled_from([2**34, 2**42, 2**50, 2**58]).flatmap(lambda edge: st.integers(edge - 3000, edge)),
    ),
    signs=st.lists(st.sampled_from([1, -1]), max_size=9),
    seed=st.binary(min_size=16, max_size=16),
    shift=st.integers(0, 7),
)
@example(length=1024, offset=0, signs=[1], seed=bytes(16), shift=0)
@example(length=3000, offset=prg.MAX_WORDS - 3000, signs=[-1], seed=bytes(16), shift=1)
def test_add_masks_agrees_with_aes_in_counter_mode(
    backend: str, length: int, offset: int, signs: list[int], seed: bytes, shift: int
) -> None:
    keys = [bytes(b ^ i for b in seed) for i in range(len(signs))]
    memory = np.arange(length + 16, dtype=np.uint32) * np.uint32(2654435761)
    vector = memory[shift : shift + length]  # at any word's address, and with neighbours to leave alone
    expected = memory.copy()
    expected[shift : shift + length] = masked(vector, keys, signs, offset)
    with prg.use_backend(backend):
        prg.add_masks(vector, keys, signs, offset=offset)
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("offset", [0, 1, 1021, 2**42 - 70_001])
@pytest.mark.parametrize("threads", [None, 1, 2, 5])
def test_threads_and_tiles_change_nothing(backend: str, offset: int, threads: int | None) -> None:
    keys, signs = KEYS[:11], [1, -1] * 5 + [1]
    vector = np.arange(200_003, dtype=np.uint32)
    expected = vector.copy()
    for key, sign in zip(keys, signs, strict=True):
        cipher = Cipher(algorithms.AES(key), modes.CTR((offset // 4).to_bytes(16, "big"))).encryptor()
        words = np.frombuffer(cipher.update(bytes(4 * (len(vector) + 4))), "<u4")
        expected += np.uint32(sign % 2**32) * words[offset % 4 :][: len(vector)].astype(np.uint32)
    prg.add_masks(vector, keys, signs, offset=offset, threads=threads)
    np.testing.assert_array_equal(vector, expected)


def test_masking_in_parts_is_masking_at_once(backend: str) -> None:
    whole = np.zeros(10_000, np.uint32)
    prg.add_masks(whole, KEYS, [1] * len(KEYS))
    parts = np.zeros(10_000, np.uint32)
    for start, stop in ((0, 1), (1, 1030), (1030, 7777), (7777, 10_000)):
        prg.add_masks(parts[start:stop], KEYS, [1] * len(KEYS), offset=start)
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize("offset", [np.uint64(2**61 + 1001), np.uint8(250), np.int32(2**31 - 1)], ids=repr)
def test_an_offset_may_be_any_kind_of_integer(backend: str, offset: np.integer) -> None:
    vector = np.zeros(3000, np.uint32)
    prg.add_masks(vector, KEYS[:1], [1], offset=offset)  # type: ignore[arg-type]
    np.testing.assert_array_equal(vector, stream(KEYS[0], int(offset), 3000))


@pytest.mark.parametrize(("words", "keys", "used"), [(900, 4000, 1), (3000, 4000, 3), (3000, 40, 1)])
def test_no_thread_is_started_for_nothing(
    backend: str, words: int, keys: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, real = [], parallel._start
    monkeypatch.setattr(parallel, "_start", lambda work: begun.append(work) or real(work))
    prg.add_masks(np.zeros(words, np.uint32), np.zeros((keys, 16), np.uint8), [1] * keys, threads=9)
    assert len(begun) + 1 == used


@pytest.mark.parametrize("count", [aes.KEPT, aes.KEPT + 1, 2 * aes.KEPT + 7])
@pytest.mark.parametrize("threads", [1, 3])
def test_more_keys_than_a_thread_keeps_schedules_of(backend: str, count: int, threads: int) -> None:
    keys = np.arange(4 * count, dtype=np.uint32).view(np.uint8).reshape(-1, 16)
    expected = np.zeros(5000, np.uint32)
    for key in keys:
        cipher = Cipher(algorithms.AES(key.tobytes()), modes.CTR(bytes(16))).encryptor()
        expected += np.frombuffer(cipher.update(bytes(4 * len(expected))), "<u4")
    vector = np.zeros(5000, np.uint32)
    prg.add_masks(vector, keys, np.ones(count, np.int64), threads=threads)
    np.testing.assert_array_equal(vector, expected)


def test_keys_may_be_rows_of_an_array(backend: str) -> None:
    table = np.frombuffer(b"".join(KEYS), np.uint8).reshape(-1, 16)
    signs = np.array([1, -1] * 20)
    by_list, by_array = np.zeros(1500, np.uint32), np.zeros(1500, np.uint32)
    prg.add_masks(by_list, KEYS, list(signs))
    prg.add_masks(by_array, table, signs)
    np.testing.assert_array_equal(by_array, by_list)
    every_other = np.zeros(1500, np.uint32)
    prg.add_masks(every_other, table[::2], signs[::2])
    np.testing.assert_array_equal(every_other, masked(np.zeros(1500, np.uint32), KEYS[::2], [1] * 20, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": [bytes(15)]}, "16 bytes"),
        ({"keys": [bytes(17)]}, "16 bytes"),
        ({"keys": np.zeros((1, 15), np.uint8)}, "16 columns"),
        ({"keys": np.zeros((1, 16), np.int8)}, "16 columns"),
        ({"keys": np.zeros(16, np.uint8)}, "16 columns"),
        ({"signs": [0]}, r"\+1 or -1"),
        ({"signs": [2]}, r"\+1 or -1"),
        ({"signs": [1.5]}, r"\+1 or -1"),
        ({"signs": [2**32 + 1]}, r"\+1 or -1"),
        ({"signs": np.array([3])}, r"\+1 or -1"),
        ({"signs": np.array([[1]])}, r"\+1 or -1"),
        ({"signs": [[1]]}, r"\+1 or -1"),
        ({"signs": np.array([1j])}, r"\+1 or -1"),
        ({"signs": [1, 1]}, "1 keys but 2 signs"),
        ({"signs": []}, "1 keys but 0 signs"),
        ({"offset": -1}, "offset: expected a whole number from 0 to"),
        ({"offset": 1.0}, "offset: expected a whole number"),
        ({"offset": np.float32(3)}, "offset: expected a whole number"),
        ({"offset": prg.MAX_WORDS - 7}, "offset: expected a whole number from 0 to"),
        ({"threads": 0}, "at least 1"),
        ({"vector": np.zeros(8, np.int32)}, "uint32 vector"),
        ({"vector": np.zeros(8, ">u4")}, "uint32 vector"),
        ({"vector": np.zeros((2, 4), np.uint32)}, "uint32 vector"),
        ({"vector": np.zeros(16, np.uint32)[::2]}, "uint32 vector"),
        ({"vector": np.frombuffer(bytes(32), np.uint32)}, "uint32 vector"),
        ({"vector": np.frombuffer(bytearray(33), np.uint8)[1:].view(np.uint32)}, "uint32 vector"),
    ],
)
def test_add_masks_refuses(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"vector": np.zeros(8, np.uint32), "keys": [bytes(16)], "signs": [1]} | change
    with pytest.raises(UsageError, match=message):
        prg.add_masks(**arguments)
    assert not arguments["vector"].any()


def test_a_mask_of_negative_length_is_refused() -> None:
    with pytest.raises(UsageError, match="length: expected a whole number"):
        prg.mask(bytes(16), -1)


def test_a_backend_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HERE:
        monkeypatch.setenv(prg.ENVIRONMENT, name)
        assert prg.backend() == name
        with prg.use_backend("openssl"):
            assert prg.backend() == "openssl"
        assert prg.backend() == name
    monkeypatch.delenv(prg.ENVIRONMENT)
    assert prg.backend() == HERE[0]
    assert HERE[-1] == "openssl"


def test_an_unknown_backend_is_refused_and_the_known_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(UsageError, match=f"no backend 'rc4'; choose one of {', '.join(prg.BACKENDS)}"),
        prg.use_backend("rc4"),
    ):
        pass
    monkeypatch.setenv(prg.ENVIRONMENT, "rc4")
    with pytest.raises(UsageError, match="openssl"):
        prg.mask(bytes(16), 4)


@pytest.mark.skipif(HERE == ("openssl",), reason="no kernel to break")
def test_a_kernel_that_errs_in_one_word_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    real = aes.add_masks

    def wrong(keys: Any, signs: Any, vector: Any, *rest: Any) -> None:
        real(keys, signs, vector, *rest)
        vector[-1] ^= 1

    monkeypatch.setattr(aes, "add_masks", wrong)
    with pytest.warns(RuntimeWarning, match="self-test"):
        assert not prg._works.__wrapped__(HERE[0])


def test_openssl_that_fails_its_self_test_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prg, "_stream", lambda key, offset, length: np.zeros(length, np.uint32))
    with pytest.raises(prg.SecAggError, match="no masks"):
        prg._works.__wrapped__("openssl")


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout.strip()


def test_importing_prg_does_not_import_numba() -> None:
    assert (
        run("import sys; from secagg.crypto import fixedpoint, prg, shamir; print('numba' in sys.modules)") == "False"
    )


def test_a_processor_without_aes_takes_openssl_and_gives_the_same_words() -> None:
    # numba told to compile for the plainest processor: the AES instructions may not even be generated
    code = "from secagg.crypto import prg; print(prg.available_backends(), prg.mask(b'k' * 16, 5000).sum())"
    generic = run(code, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert generic == f"('openssl',) {prg.mask(b'k' * 16, 5000).sum()}"


@pytest.mark.skipif("vaes" not in HERE, reason="needs VAES to take it away")
def test_a_processor_without_vaes_takes_aesni() -> None:
    features = ",".join(f"+{name}" for name in ("aes", "sse4.1", "sse4.2", "ssse3", "sse3", "sse2", "sse"))
    code = "from secagg.crypto import prg; print(prg.backend(), prg.mask(b'k' * 16, 5000).sum())"
    older = run(code, NUMBA_CPU_NAME="westmere", NUMBA_CPU_FEATURES=features)
    assert older == f"aesni {prg.mask(b'k' * 16, 5000).sum()}"


ANNOUNCED = """
from secagg.crypto import prg
from secagg.kernels.jit import announce
with announce(print):
    prg.backend()
"""


def test_compiled_code_is_kept_for_the_next_process_and_waiting_is_announced(tmp_path: Any) -> None:
    first = run(ANNOUNCED, NUMBA_CACHE_DIR=str(tmp_path))
    again = run(ANNOUNCED, NUMBA_CACHE_DIR=str(tmp_path))
    assert first.split()[0] in {"secagg.kernels.aes.add_masks", "secagg.kernels.vectors.add_streams"}
    assert again == ""


def test_a_cache_is_not_shared_between_different_processors(tmp_path: Any) -> None:
    settings = {"NUMBA_CACHE_DIR": str(tmp_path), prg.ENVIRONMENT: "openssl"}
    assert run(ANNOUNCED, **settings) == "secagg.kernels.vectors.add_streams"
    settings |= {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert run(ANNOUNCED, **settings) == "secagg.kernels.vectors.add_streams"


def test_masks_are_made_where_no_cache_can_be_written() -> None:
    code = """
from numba.core import caching
def refuse(self): raise OSError("read-only")
caching._CacheLocator.ensure_cache_path = refuse
from secagg.crypto import prg
print(prg.mask(b"k" * 16, 5000).sum())
"""
    assert run(code, SECAGG_BACKEND="openssl") == str(prg.mask(b"k" * 16, 5000).sum())


def _sum_in_child(count: int) -> int:
    vector = np.zeros(count, np.uint32)
    prg.add_masks(vector, KEYS, [1] * len(KEYS), threads=2)
    return int(vector.sum())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_processes_and_concurrent_threads_may_all_use_threads(backend: str) -> None:
    count = 60_000
    expected = _sum_in_child(count)
    results: list[int] = []
    callers = [threading.Thread(target=lambda: results.append(_sum_in_child(count))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [expected] * 4
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_sum_in_child, [count] * 3) == [expected] * 3


def oddities(left: npt.NDArray[np.uint32], right: npt.NDArray[np.uint32]) -> list[str]:
    """What two streams have in common beyond chance: bits that agree, words that rise and fall together."""
    found = []
    bits = np.unpackbits((left ^ right).view(np.uint8).reshape(-1, 4), axis=1)
    for place, ones in enumerate(bits.sum(axis=0)):
        if abs(ones - len(left) / 2) > 5 * np.sqrt(len(left) / 4):
            found.append(f"bit {place} of the words agrees too rarely or too often")
    a, b = (stream / 2**32 - 0.5 for stream in (left, right))
    for lag in range(-8, 9):  # words of the same blocks and of the two before and after
        correlation = 12 * np.mean(a[max(lag, 0) : len(a) + min(lag, 0)] * b[max(-lag, 0) : len(b) - max(lag, 0)])
        if abs(correlation) > 5 / np.sqrt(len(a)):
            found.append(f"words {lag} apart are correlated")
    return found


def test_masks_of_neighbouring_keys_are_independent(backend: str) -> None:
    keys = [i.to_bytes(16, "little") for i in range(12)] + [(1 << i).to_bytes(16, "big") for i in range(8, 128, 10)]
    streams = [prg.mask(key, 20_000) for key in keys]
    for i, left in enumerate(streams):
        assert not oddities(left[20:], left[:-20]), f"stream {i} and itself, some blocks later"
        for j, right in enumerate(streams[:i]):
            assert not oddities(left, right), f"streams {i} and {j}"


def test_the_test_of_independence_finds_dependence() -> None:
    mask = prg.mask(bytes(16), 20_000)
    assert oddities(mask, mask)
    assert oddities(mask[4:], np.where(np.arange(len(mask) - 4) % 20, mask[:-4], mask[4:]))  # one word in 20
    assert oddities(mask[3:], mask[:-3])  # the same stream, three words early
    assert oddities(mask[:-3], mask[3:])  # and late
