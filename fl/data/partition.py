"""Who holds which examples. Every function is a pure function of its arguments and an explicit seed.

All of them deal every row they are given to exactly one client (`by_role` to at most one), so n_i add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from fl.config.schema import PARTITIONS
from fl.data.examples import DataSet, Federated, Index

Labels = NDArray[np.int64]


def federate(
    data: DataSet,
    *,
    clients: int,
    seed: int,
    partition: str = "iid",
    shards_per_client: int = 2,
    alpha: float = 0.5,
    validation: float = 0.0,
) -> Federated:
    """Deal a data set to clients, after taking a validation set for the server out of it.

    `partition` is one of PARTITIONS; `shards_per_client` and `alpha` belong to `shards` and `dirichlet`.
    """
    labels = data.train.labels.numpy()
    every = np.arange(len(labels), dtype=np.int64)
    kept, held = hold_out(every, labels, validation, seed=seed)
    if partition == "iid":
        dealt = iid(kept, clients, seed=seed)
    elif partition == "shards":
        dealt = shards(kept, labels, clients, shards_per_client, seed=seed)
    elif partition == "dirichlet":
        dealt = dirichlet(kept, labels, clients, alpha, seed=seed)
    elif partition == "role":
        if data.roles is None:
            raise ValueError(f"{data.name} does not say who wrote its examples; partition 'role' needs that")
        dealt = by_role([rows for _, rows in data.roles], kept, clients)
    else:
        raise ValueError(f"unknown partition {partition!r}, one of {', '.join(PARTITIONS)}")
    return Federated(data.train, dealt, data.test, data.classes, data.train.take(held) if len(held) else None)


def hold_out(rows: Index, labels: Labels, fraction: float, *, seed: int) -> tuple[Index, Index]:
    """(kept, held out): the same fraction of every label, chosen by lot; round(fraction * rows) in all.

    Where a label's share is not whole, the labels with the largest remainders give one more.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"a validation fraction in [0, 1), got {fraction}")
    generator = _generator("hold out", seed)
    by_label = [rows[labels[rows] == label] for label in np.unique(labels[rows])]
    shares = np.array([fraction * len(group) for group in by_label])
    counts = np.floor(shares).astype(int)
    missing = round(fraction * len(rows)) - counts.sum()
    counts[np.argsort(counts - shares, kind="stable")[: max(missing, 0)]] += 1
    chosen = [
        generator.permutation(group)[:count] for group, count in zip(by_label, counts, strict=True) if count
    ]
    held = np.sort(np.concatenate(chosen)) if chosen else rows[:0]
    return np.setdiff1d(rows, held, assume_unique=True), held


def iid(rows: Index, clients: int, *, seed: int) -> tuple[Index, ...]:
    """A random permutation cut into equal parts (sizes differ by at most one)."""
    _enough(len(rows), clients)
    order = _generator("iid", seed).permutation(rows)
    return tuple(np.sort(part) for part in np.array_split(order, clients))


def shards(rows: Index, labels: Labels, clients: int, per_client: int, *, seed: int) -> tuple[Index, ...]:
    """Sort by label, cut into clients * per_client equal shards, deal `per_client` to each by lot.

    McMahan et al. 2017, Section 3. With whole shards inside one label a client sees at most `per_client`
    labels: the paper's "2 labels" and "5 labels".
    """
    if per_client < 1:
        raise ValueError(f"at least one shard per client, got {per_client}")
    _enough(len(rows), clients * per_client)
    generator = _generator("shards", seed)
    # Shuffled first, so that a shard is a random part of its label and not a stretch of the file.
    mixed = generator.permutation(rows)
    pieces = np.array_split(mixed[np.argsort(labels[mixed], kind="stable")], clients * per_client)
    hands = generator.permutation(len(pieces)).reshape(clients, per_client)
    return tuple(np.sort(np.concatenate([pieces[piece] for piece in hand])) for hand in hands)


def dirichlet(
    rows: Index, labels: Labels, clients: int, alpha: float, *, seed: int, least: int = 1
) -> tuple[Index, ...]:
    """Each label is dealt in proportions drawn from Dirichlet(alpha); small alpha: few labels per client.

    Hsu, Qi and Brown 2019, Section 3, by label. A client left with fewer than `least` examples gets some of
    the largest client's, instead of drawing again until chance is kind.
    """
    if not alpha > 0 or least < 1:
        raise ValueError(f"alpha > 0 and least >= 1, got {alpha} and {least}")
    _enough(len(rows), clients * least)
    generator = _generator("dirichlet", seed)
    hands: list[list[Index]] = [[] for _ in range(clients)]
    for label in np.unique(labels[rows]):
        group = generator.permutation(rows[labels[rows] == label])
        cuts = np.rint(np.cumsum(generator.dirichlet(np.full(clients, alpha)))[:-1] * len(group)).astype(int)
        for hand, part in zip(hands, np.split(group, cuts), strict=True):
            hand.append(part)
    dealt = [np.concatenate(hand) for hand in hands]
    sizes = np.array([len(hand) for hand in dealt])
    for poor in np.flatnonzero(sizes < least):
        while sizes[poor] < least:
            rich = int(np.argmax(sizes))
            moved = min(least - sizes[poor], sizes[rich] - least)
            given = generator.permutation(dealt[rich])
            dealt[poor] = np.concatenate([dealt[poor], given[:moved]])
            dealt[rich] = given[moved:]
            sizes[poor], sizes[rich] = len(dealt[poor]), len(dealt[rich])
    return tuple(np.sort(hand) for hand in dealt)


def by_role(roles: Sequence[Index], kept: Index, clients: int) -> tuple[Index, ...]:
    """The first `clients` roles, each without the examples that were held out."""
    dealt = [rows for role in roles[:clients] if len(rows := np.intersect1d(role, kept, assume_unique=True))]
    if len(dealt) < clients:
        raise ValueError(f"{clients} clients, but only {len(dealt)} roles have examples")
    return tuple(dealt)


def flip_labels(data: Federated, clients: Iterable[int]) -> Federated:
    """The label-flip attack in the data: y becomes C-1-y for all examples of the clients named."""
    chosen = sorted(set(clients))
    if chosen and not 0 <= chosen[0] <= chosen[-1] < len(data.clients):
        raise ValueError(f"clients {chosen} of {len(data.clients)}")
    labels = data.train.labels.clone()
    for client in chosen:
        rows = torch.from_numpy(data.clients[client])
        labels[rows] = data.classes - 1 - labels[rows]
    return replace(data, train=replace(data.train, labels=labels))


def stretches(sizes: Sequence[int]) -> list[Index]:
    """Rows 0..sum of sizes, cut into consecutive stretches of these sizes."""
    ends = np.cumsum([0, *sizes])
    return [np.arange(start, end, dtype=np.int64) for start, end in pairwise(ends)]


def _generator(step: str, seed: int) -> np.random.Generator:
    """Every step has a stream of its own, so that one more draw in one of them moves nothing in another."""
    return np.random.default_rng([seed, *step.encode()])


def _enough(examples: int, parts: int) -> None:
    if parts < 1 or examples < parts:
        raise ValueError(f"{examples} examples cannot be dealt into {parts} parts")
