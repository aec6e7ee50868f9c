"""The loops under the masks: sums of streams agree with integers, and code is compiled for this processor."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.crypto import prg
from secagg.kernels import aes, jit, vectors
from secagg.kernels import threads as parallel


@settings(deadline=None, max_examples=60)
@given(
    signs=st.lists(st.sampled_from([1, -1]), min_size=1, max_size=4),
    before=st.integers(0, 3),
    start=st.integers(0, 50),
    length=st.integers(0, 100),
    seed=st.binary(min_size=16, max_size=16),
)
def test_add_streams_agrees_with_integers(signs: list[int], before: int, start: int, length: int, seed: bytes) -> None:
    words = prg.mask(seed, 200 * (len(signs) + 1))
    vector, streams = words[:200].copy(), words[200:].reshape(-1, 200).copy()
    expected = vector.tolist()
    for sign, stream in zip(signs, streams.tolist(), strict=True):
        for i in range(length):
            expected[start + i] = (expected[start + i] + sign * stream[i]) % 2**32
    streams[:, :length] ^= vector[start : start + length]  # as OpenSSL leaves them
    all_signs = np.array([0] * before + signs, np.int64)
    vectors.add_streams(vector, start, start + length, streams, all_signs, before, len(signs))
    assert vector.tolist() == expected


@pytest.mark.skipif(prg.available_backends() == ("openssl",), reason="no AES instructions here")
def test_the_key_schedule_and_every_byte_of_a_counter_reach_the_cipher() -> None:
    # one block under each key of one set bit, at counters that fill all eight bytes a counter may use
    for name in prg.available_backends()[:-1]:
        for bit in range(128):
            key = (1 << bit).to_bytes(16, "big")
            block = (0x0807060504030201 * (bit + 1) % (prg.MAX_WORDS // 4)) & ~0xFF | bit
            words = np.zeros(4, np.uint32)
            with prg.use_backend(name):
                prg.add_masks(words, [key], [1], offset=4 * block)
            aes = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
            assert words.astype("<u4").tobytes() == aes.update(block.to_bytes(16, "big"))


def test_a_kernel_asks_for_instructions_that_numba_may_use() -> None:
    features = jit.target_features()
    for name in ("vaes", "aesni"):
        assert (name in prg.available_backends()) == (features >= aes.FEATURES[name])


@settings(deadline=None)
@given(
    offset=st.one_of(st.integers(0, 5000), st.integers(2**42 - 5000, 2**42 + 5000)),
    length=st.integers(1, 300_000),
    keys=st.sampled_from([1, 3, 10, 100, 10_000]),
    threads=st.integers(1, 9),
)
def test_pieces_cover_every_word_once_and_never_cross_a_change_of_the_table(
    offset: int, length: int, keys: int, threads: int
) -> None:
    taken, stop, before = np.array([offset], np.int64), offset + length, offset
    while (piece := aes._take(taken, stop, keys, threads))[0] < stop:
        start, end = piece
        assert start == before < end <= stop
        assert end == stop or end % aes.PAGE == 0  # so that pages are cut at the ends only
        assert end - start <= aes.TILE
        assert start // 2**42 == (end - 1) // 2**42  # the table of two rounds changes every 2^40 blocks
        before = end
    assert before == stop


def _llvm(function: Any, *arguments: Any) -> list[str]:
    """What is compiled for these arguments."""
    function(*arguments)
    return [*function.inspect_llvm().values()]


def test_a_piece_is_taken_by_one_thread_only() -> None:
    """Many threads in a race for pages: as many as count in compiled code, without the GIL."""
    import numba

    take, page, many = aes._take, aes.PAGE, 10**9  # so many threads that pieces are pages

    @numba.njit(nogil=True)
    def count(taken: Any, stop: int, times: Any) -> None:
        start, end = take(taken, stop, 2**20, many)
        while start < end:
            times[start // page] += 1
            start, end = take(taken, stop, 2**20, many)

    (code,) = _llvm(numba.njit(take.py_func), np.zeros(1, np.int64), 1, 1, 1)  # type: ignore[attr-defined]
    assert "cmpxchg" in code  # on a busy machine the race below may be won by chance
    pages, threads = 200_000, 4
    for _ in range(5):
        taken, counts = np.zeros(1, np.int64), [np.zeros(pages, np.int64) for _ in range(threads)]
        own = iter(counts)
        parallel.together(lambda taken=taken, own=own: count(taken, pages * page, next(own)), threads)  # type: ignore[misc]
        assert (np.sum(counts, axis=0) == 1).all()


def test_only_kernels_of_secagg_are_announced() -> None:
    import numba

    @numba.njit
    def stranger(x: int) -> int:
        return x + 1

    announced: list[str] = []
    with jit.announce(announced.append):
        assert stranger(1) == 2
    assert announced == []


def test_warm_up_loads_every_kernel_that_a_run_can_use() -> None:
    code = """
import secagg, sys
secagg.warm_up()
from numba.core.dispatcher import Dispatcher
for name in ("kernels.field257", "kernels.montgomery", "kernels.sha", "exposure.leverage", "exposure.anonymity"):
    for function in vars(sys.modules["secagg." + name]).values():
        if isinstance(function, Dispatcher) and not function.signatures:
            print(function.py_func.__name__, end=" ")
from secagg.kernels import vectors
assert len(vectors.encode.signatures) == 2 and vectors.decode.signatures and len(vectors.survey.signatures) == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # those that only other kernels call
    inner = {"_unpack", "_ripple", "_pack", "_times_plus", "_pack_points", "_pair", "_parallel", "_first_nonzero"}
    assert set(done.stdout.split()) <= inner | {"mul", "sub", "inverse", "_write"}


@pytest.mark.long  # it compiles everything; test_prg.py and test_kernel_caches.py have the two halves
def test_the_first_compilation_is_announced_once_and_a_missing_cache_is_reported_once() -> None:
    code = """
from numba.core import caching
def refuse(self): raise OSError("read-only")
caching._CacheLocator.ensure_cache_path = refuse
from secagg.kernels import jit, vectors
import secagg, secagg.compilation
import secagg.crypto.shamir, secagg.simulation.secure_sum, secagg.exposure.audit
secagg.crypto.shamir.split = secagg.simulation.secure_sum.secure_sum = lambda *args, **kwargs: None
secagg.crypto.shamir.combine = secagg.exposure.audit.audit = lambda *args, **kwargs: None
secagg.crypto.hashing.has_kernel = lambda: False
secagg.warm_up()
"""
    environment = os.environ | {"SECAGG_BACKEND": "openssl", "PYTHONWARNINGS": "default"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("secagg: compiling numeric loops for this machine") == 1
    assert done.stderr.count("NoCacheWarning: secagg compiles its loops in every process: set NUMBA") == 1
    assert done.stdout == ""


def test_warm_up_leaves_announcements_to_the_caller() -> None:
    with jit.announce(lambda name: None):
        assert jit.announced()
    assert not jit.announced()
