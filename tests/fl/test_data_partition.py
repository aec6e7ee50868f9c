from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.data import DataSet, Examples, federate, flip_labels, load
from fl.data.examples import consecutive
from fl.data.partition import by_role, dirichlet, hold_out, iid, plant_backdoor, shards

Deal = Callable[[np.ndarray, np.ndarray, int, int], tuple[np.ndarray, ...]]

DEALS: dict[str, Deal] = {
    "iid": lambda rows, labels, clients, seed: iid(rows, clients, seed=seed),
    "2 shards": lambda rows, labels, clients, seed: shards(rows, labels, clients, 2, seed=seed),
    "5 shards": lambda rows, labels, clients, seed: shards(rows, labels, clients, 5, seed=seed),
    "dirichlet 0.1": lambda rows, labels, clients, seed: dirichlet(rows, labels, clients, 0.1, seed=seed),
    "dirichlet 10": lambda rows, labels, clients, seed: dirichlet(rows, labels, clients, 10.0, seed=seed),
}


@pytest.mark.parametrize("deal", DEALS.values(), ids=DEALS)
@given(
    labels=st.lists(st.integers(0, 4), min_size=40, max_size=120),
    clients=st.integers(1, 8),
    seed=st.integers(0, 2**63),
    skipped=st.integers(0, 7),
)
@settings(deadline=None, max_examples=40)
def test_every_row_goes_to_exactly_one_client(deal: Deal, labels: list[int], clients: int, seed: int, skipped: int):
    if len(labels) - skipped < 5 * clients:
        clients = 1
    rows = np.arange(skipped, len(labels), dtype=np.int64)
    dealt = deal(rows, np.array(labels), clients, seed)
    assert len(dealt) == clients
    assert all(len(hand) > 0 and hand.dtype == np.int64 for hand in dealt)
    assert np.array_equal(np.sort(np.concatenate(dealt)), rows)
    again = deal(rows, np.array(labels), clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(dealt, again, strict=True))


@pytest.mark.parametrize("deal", DEALS.values(), ids=DEALS)
def test_another_seed_deals_otherwise(deal: Deal):
    labels = np.arange(200) % 10
    one, other = (deal(np.arange(200), labels, 5, seed) for seed in (1, 2))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@given(st.integers(1, 500), st.integers(1, 60), st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_iid_sizes_differ_by_at_most_one(examples: int, clients: int, seed: int):
    clients = min(clients, examples)
    sizes = [len(hand) for hand in iid(np.arange(examples), clients, seed=seed)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("per_client", [2, 5])
def test_a_client_of_s_shards_sees_at_most_s_labels(per_client: int):
    """The paper's non-IID setting in small: n=50 clients, shards that fit into labels."""
    labels = np.repeat(np.arange(10), 100)
    labels = np.random.default_rng(3).permutation(labels)
    dealt = shards(np.arange(1000), labels, 50, per_client, seed=1)
    assert {len(hand) for hand in dealt} == {20}
    assert all(len(np.unique(labels[hand])) <= per_client for hand in dealt)
    assert any(len(np.unique(labels[hand])) == per_client for hand in dealt)


def test_small_alpha_concentrates_labels_and_large_alpha_spreads_them():
    labels = np.arange(5000) % 10

    def largest_share(alpha: float) -> float:
        dealt = dirichlet(np.arange(5000), labels, 10, alpha, seed=4)
        return float(np.mean([np.bincount(labels[hand], minlength=10).max() / len(hand) for hand in dealt]))

    assert largest_share(100.0) < 0.15
    assert largest_share(0.05) > 0.6


def test_dirichlet_leaves_no_client_below_the_least():
    dealt = dirichlet(np.arange(300), np.arange(300) % 3, 40, 0.01, seed=0, least=5)
    assert min(map(len, dealt)) >= 5
    assert np.array_equal(np.sort(np.concatenate(dealt)), np.arange(300))


@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=200), fraction=st.floats(0, 0.9), seed=st.integers(0, 2**32)
)
@settings(deadline=None, max_examples=80)
def test_held_out_rows_are_balanced_and_apart(labels: list[int], fraction: float, seed: int):
    array, rows = np.array(labels), np.arange(len(labels), dtype=np.int64)
    kept, held = hold_out(rows, array, fraction, seed=seed)
    assert np.array_equal(np.sort(np.concatenate([kept, held])), rows)
    assert len(held) == round(fraction * len(labels))
    for label in range(7):
        share = fraction * np.sum(array == label)
        assert np.floor(share) - 1e-9 <= np.sum(array[held] == label) <= np.ceil(share) + 1e-9


def test_five_percent_of_cifar_are_250_of_each_label():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    _, held = hold_out(np.arange(50_000), labels, 0.05, seed=7)
    assert np.bincount(labels[held]).tolist() == [250] * 10


def test_roles_keep_their_order_and_lose_what_was_held_out():
    roles = consecutive([3, 2, 4])
    dealt = by_role(roles, np.array([0, 2, 3, 4, 6, 8]), 3)
    assert [hand.tolist() for hand in dealt] == [[0, 2], [3, 4], [6, 8]]


def test_more_clients_than_roles_are_refused():
    with pytest.raises(ValueError, match="expected 3 roles with examples"):
        by_role(consecutive([3, 2]), np.arange(5), 3)


def test_federate_deals_what_the_server_does_not_keep():
    data = load("digits")
    dealt = federate(data, clients=30, seed=5, validation=0.05)
    assert dealt.validation is not None
    assert len(dealt.validation) == round(0.05 * len(data.train))
    assert dealt.sizes.sum() + len(dealt.validation) == len(data.train)
    rows = np.concatenate(dealt.clients)
    assert len(np.unique(rows)) == len(rows)
    held = np.setdiff1d(np.arange(len(data.train)), rows)
    assert torch.equal(data.train.take(held).inputs, dealt.validation.inputs)


def test_without_validation_everything_is_dealt():
    data = load("digits")
    dealt = federate(data, clients=7, seed=0, partition="dirichlet", alpha=0.3)
    assert dealt.validation is None
    assert dealt.sizes.sum() == len(data.train)


def test_federate_by_role():
    rows = torch.arange(10)[:, None].float()
    some = Examples(rows, torch.zeros(10, dtype=torch.int64))
    roles = tuple((f"role {i}", part) for i, part in enumerate(consecutive([4, 6])))
    dealt = federate(DataSet("mine", some, some, 1, roles), clients=2, seed=0, partition="role")
    assert dealt.sizes.tolist() == [4, 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "role"}, "needs data with roles"),
        ({"partition": "fair"}, "unknown partition 'fair': expected one of iid, shards, dirichlet, role"),
        ({"clients": 5000}, "cannot be divided into 5000"),
        ({"clients": 0}, "cannot be divided into 0"),
        ({"validation": 1.0}, "fraction"),
        ({"partition": "dirichlet", "alpha": 0.0}, "alpha > 0"),
        ({"partition": "shards", "shards_per_client": 0}, "at least one shard"),
    ],
)
def test_impossible_partitions_are_rejected(options: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        federate(load("digits"), **{"clients": 10, "seed": 0, **options})  # type: ignore[arg-type]


def test_flipped_labels_are_those_of_the_clients_named_and_no_others():
    honest = federate(load("digits"), clients=10, seed=1, validation=0.1)
    flipped = flip_labels(honest, [2, 7])
    for client, rows in enumerate(honest.clients):
        before, after = honest.train.labels[rows], flipped.train.labels[rows]
        assert torch.equal(after, 9 - before if client in (2, 7) else before)
    assert flipped.test is honest.test
    assert flipped.validation is honest.validation


def test_flipping_twice_is_flipping_back():
    honest = federate(load("digits"), clients=4, seed=1)
    assert torch.equal(flip_labels(flip_labels(honest, [0]), [0]).train.labels, honest.train.labels)


@pytest.mark.parametrize("client", [-1, 4])
def test_flipping_labels_of_an_unknown_client_is_rejected(client: int):
    with pytest.raises(ValueError, match="from 0 to 3"):
        flip_labels(federate(load("digits"), clients=4, seed=1), [client])


def test_a_mark_may_be_as_high_as_the_image_but_not_fill_it():
    def wide(part: Examples) -> Examples:
        return replace(part, inputs=part.inputs.reshape(-1, 1, 2, 32))

    data = federate(load("digits"), clients=4, seed=1)
    data = replace(data, train=wide(data.train), test=wide(data.test))
    marked = plant_backdoor(data, [0], seed=0, size=31).backdoor
    assert marked is not None
    assert (marked.inputs[..., 1:] == data.train.inputs.max()).all()
    assert (marked.inputs[..., 0] == 0).all(), "the first column of digits is empty, and has no mark"
    with pytest.raises(ValueError, match="a size below 32, because a mark that fills inputs of 2 x 32"):
        plant_backdoor(data, [0], seed=0, size=32)
