"""The loops under the masks: sums of streams agree with integers, and code is compiled for this processor."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import aes_kernels, compiled, kernels, prg


@settings(deadline=None, max_examples=60)
@given(
    signs=st.lists(st.sampled_from([1, -1]), min_size=1, max_size=4),
    before=st.integers(0, 3),
    start=st.integers(0, 50),
    length=st.integers(0, 100),
    seed=st.binary(min_size=16, max_size=16),
)
def test_add_streams_agrees_with_integers(
    signs: list[int], before: int, start: int, length: int, seed: bytes
) -> None:
    words = prg.expand(seed, 200 * (len(signs) + 1))
    vector, streams = words[:200].copy(), words[200:].reshape(-1, 200).copy()
    expected = vector.tolist()
    for sign, stream in zip(signs, streams.tolist(), strict=True):
        for i in range(length):
            expected[start + i] = (expected[start + i] + sign * stream[i]) % 2**32
    streams[:, :length] ^= vector[start : start + length]  # as OpenSSL leaves them
    all_signs = np.array([0] * before + signs, np.int64)
    kernels.add_streams(vector, start, start + length, streams, all_signs, before, len(signs))
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
    features = compiled.target_features()
    for name in ("vaes", "aesni"):
        assert (name in prg.available_backends()) == (features >= aes_kernels.FEATURES[name])


def test_tiles_hold_whole_pages_and_never_cross_a_change_of_the_table() -> None:
    # the table of two rounds serves a tile; it changes every 2^40 blocks of four words
    assert aes_kernels.TILE % aes_kernels.PAGE == 0
    assert aes_kernels.PAGE == 4 * 256
    assert 2**42 % aes_kernels.TILE == 0
    assert (prg._PAGE, prg._TILE) == (aes_kernels.PAGE, aes_kernels.TILE)


def test_only_kernels_of_secagg_are_announced() -> None:
    import numba

    @numba.njit
    def stranger(x: int) -> int:
        return x + 1

    announced: list[str] = []
    with compiled.announce(announced.append):
        assert stranger(1) == 2
    assert announced == []
