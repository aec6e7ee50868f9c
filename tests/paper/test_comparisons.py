"""The schemes that the paper compares itself with compute what they claim, so that their cost means something."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robust
from tests.paper import compare, homomorphic, two_servers
from tests.paper.compare import measure


def updates(clients: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.2, (clients, length)).astype(np.float32)


def test_distances_on_shares_are_those_of_the_encoded_updates() -> None:
    rows = updates(7, 301)
    rows[2] *= 4
    found = two_servers.aggregate(rows, f=1, count=3)
    encoded = np.stack([two_servers.encode(row).view(np.int64) for row in rows])
    expected = ((encoded[:, None] - encoded[None]) ** 2).sum(axis=2)
    assert np.array_equal(found.distances, expected)
    assert 2 not in found.selected


@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(5, 10))
@settings(deadline=None, max_examples=25)
def test_the_second_server_selects_as_krum_does(seed: int, clients: int) -> None:
    rows = updates(clients, 40, seed)
    found = two_servers.aggregate(rows, f=1, count=1)
    exact = np.stack([two_servers.decode(two_servers.encode(row)) for row in rows])
    assert np.allclose(found.mean, robust.krum(exact, f=1), atol=1e-12)


def test_a_share_alone_says_nothing_of_the_update() -> None:
    """The second share is a stream from a fresh seed. The first is the update minus it: uniform as well."""
    zero, one = (np.full(4096, value, np.uint64) for value in (0, 2**63))
    for value in (zero, one):
        first, seed = two_servers.share(value)
        assert np.array_equal(first + two_servers.stream(seed, 4096), value)
        # 262,144 fair bits: more than 10 standard deviations from half happens with probability below 1e-22
        assert abs(int(np.unpackbits(first.view(np.uint8)).sum()) - 131072) < 10 * 256
    assert not np.array_equal(two_servers.share(zero)[0], two_servers.share(zero)[0])


@given(clients=st.integers(1, 256), length=st.integers(1, 200), per=st.integers(1, 76))
@settings(deadline=None, max_examples=40)
def test_packed_values_are_added_without_touching_each_other(clients: int, length: int, per: int) -> None:
    """What Paillier adds are integers: 256 clients with the largest values still fit their slots."""
    row = np.linspace(-1, 1, length).astype(np.float32)
    packed = [number * clients for number in homomorphic.pack(row, per)]
    assert np.abs(homomorphic.unpack(packed, per, length, clients) - row).max() < 1e-6


def test_ours_and_the_two_servers_are_measured_without_paillier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scheme checks its own result. Two servers receive 8 bytes per parameter from a client, one server 4."""
    monkeypatch.setattr(compare, "find_spec", lambda name: None)
    ours, two = measure(clients=6, parameters=4096, sample=1)
    assert two.client_megabytes == pytest.approx(8, rel=0.1)
    assert ours.client_megabytes < two.client_megabytes
    assert two.server_megabytes > ours.server_megabytes == 0


@pytest.mark.long
def test_the_comparison_runs_with_paillier() -> None:
    pytest.importorskip("phe")
    ours, two, encrypted = measure(clients=6, parameters=4096, sample=2)
    assert two.name != encrypted.name
    assert encrypted.client_megabytes > 2 * ours.client_megabytes
    assert two.server_megabytes > 0 == ours.server_megabytes
