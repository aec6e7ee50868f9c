"""The claims of docs/flower.md about Flower's own SecAgg+, tested on Flower's own code."""

import os

import numpy as np
import pytest

utils = pytest.importorskip("flwr.common.secure_aggregation.secaggplus_utils")
mod = pytest.importorskip("flwr.client.mod.secure_aggregation.secaggplus_mod")


def test_masks_depend_on_32_bits_of_their_seed() -> None:
    """The 32 bytes of a seed are folded to 4 by xor. Seeds with the same fold give the same mask."""
    seed = os.urandom(32)
    other = seed[4:8] + seed[:4] + seed[8:]
    first, second = (utils.pseudo_rand_gen(s, 1 << 24, [(1000,)])[0] for s in (seed, other))
    assert (first == second).all()


def test_masks_come_from_a_generator_that_is_not_made_for_secrets() -> None:
    """The masks are numpy's Mersenne twister, whose outputs reveal its state."""
    seed = (123456789).to_bytes(4, "little") + bytes(28)
    mask = utils.pseudo_rand_gen(seed, 1 << 24, [(100,)])[0]
    twister = np.random.RandomState(123456789).randint(0, (1 << 24) - 1, (100,), dtype=np.int64)
    assert (mask == twister).all()


def test_a_client_sends_both_kinds_of_share_if_the_server_lists_a_peer_twice() -> None:
    """The seed and the key of a peer together unmask that peer's update."""
    state = mod.SecAggPlusState()
    state.nid, state.threshold = 1, 2
    state.rd_seed_share_dict = {2: b"seed of 2", 3: b"seed of 3"}
    state.sk1_share_dict = {2: b"key of 2", 3: b"key of 3"}
    asked = {mod.Key.ACTIVE_NODE_ID_LIST: [2, 3], mod.Key.DEAD_NODE_ID_LIST: [2]}
    given = mod._unmask(state, asked)
    pairs = list(zip(given[mod.Key.NODE_ID_LIST], given[mod.Key.SHARE_LIST], strict=True))
    assert (2, b"seed of 2") in pairs
    assert (2, b"key of 2") in pairs
