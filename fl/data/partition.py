"""Partitions: which client holds which examples. All functions depend only on their arguments and a seed.

Each row goes to exactly one client (in `by_role` to at most one).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

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
    """Take a validation set for the server out of a data set and divide the rest among clients.

    `partition` is one of PARTITIONS; `shards_per_client` and `alpha` are for `shards` and `dirichlet`.
    """
    labels = data.train.labels.numpy()
    if data.train.labels.is_floating_point():
        if partition in ("shards", "dirichlet"):
            raise ValueError(f"partition {partition!r} divides by class; {data.name} has floats as targets: use 'iid'")
        labels = np.zeros(len(labels), dtype=np.int64)  # no classes to keep in proportion
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
            raise ValueError(f"partition 'role' needs data with roles; {data.name} has none")
        dealt = by_role([rows for _, rows in data.roles], kept, clients)
    else:
        raise ValueError(f"unknown partition {partition!r}: expected one of {', '.join(PARTITIONS)}")
    return Federated(data.train, dealt, data.test, data.classes, data.train.take(held) if len(held) else None)


def hold_out(rows: Index, labels: Labels, fraction: float, *, seed: int) -> tuple[Index, Index]:
    """(kept, held out): the same fraction of each label, drawn at random; round(fraction * rows) in total.

    The share of a label is rounded down; the labels with the largest remainders give one more.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"validation: expected a fraction in [0, 1), got {fraction}")
    generator = _generator("hold out", seed)
    by_label = [rows[labels[rows] == label] for label in np.unique(labels[rows])]
    shares = np.array([fraction * len(group) for group in by_label])
    counts = np.floor(shares).astype(int)
    missing = round(fraction * len(rows)) - counts.sum()
    counts[np.argsort(counts - shares, kind="stable")[: max(missing, 0)]] += 1
    chosen = [generator.permutation(group)[:count] for group, count in zip(by_label, counts, strict=True) if count]
    held = np.sort(np.concatenate(chosen)) if chosen else rows[:0]
    return np.setdiff1d(rows, held, assume_unique=True), held


def iid(rows: Index, clients: int, *, seed: int) -> tuple[Index, ...]:
    """A random permutation, cut into equal parts (sizes differ by at most one)."""
    _enough(len(rows), clients)
    order = _generator("iid", seed).permutation(rows)
    return tuple(np.sort(part) for part in np.array_split(order, clients))


def shards(rows: Index, labels: Labels, clients: int, per_client: int, *, seed: int) -> tuple[Index, ...]:
    """Sort by label, cut into clients * per_client equal shards, give each client `per_client` at random.

    McMahan et al. 2017, Section 3. If each shard has one label, a client has at most `per_client` labels: the
    paper's "2 labels" and "5 labels".
    """
    if per_client < 1:
        raise ValueError(f"expected at least one shard per client, got {per_client}")
    _enough(len(rows), clients * per_client)
    generator = _generator("shards", seed)
    # Shuffle first: a shard is then a random part of its label, not consecutive rows of the file.
    mixed = generator.permutation(rows)
    pieces = np.array_split(mixed[np.argsort(labels[mixed], kind="stable")], clients * per_client)
    hands = generator.permutation(len(pieces)).reshape(clients, per_client)
    return tuple(np.sort(np.concatenate([pieces[piece] for piece in hand])) for hand in hands)


def dirichlet(
    rows: Index, labels: Labels, clients: int, alpha: float, *, seed: int, least: int = 1
) -> tuple[Index, ...]:
    """Divide each label in proportions drawn from Dirichlet(alpha). A small alpha gives few labels each.

    Hsu, Qi and Brown 2019, Section 3, by label. A client with fewer than `least` examples takes some from the
    largest client.
    """
    if not alpha > 0 or least < 1:
        raise ValueError(f"expected alpha > 0 and least >= 1, got {alpha} and {least}")
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
    """The first `clients` roles, without the examples that were held out."""
    dealt = [rows for role in roles[:clients] if len(rows := np.intersect1d(role, kept, assume_unique=True))]
    if len(dealt) < clients:
        raise ValueError(f"expected {clients} roles with examples, one per client, got {len(dealt)}")
    return tuple(dealt)


def flip_labels(data: Federated, clients: Iterable[int]) -> Federated:
    """The label-flip attack: y becomes C-1-y for all examples of the given clients."""
    chosen = sorted(set(clients))
    if chosen and not 0 <= chosen[0] <= chosen[-1] < len(data.clients):
        raise ValueError(f"expected clients from 0 to {len(data.clients) - 1}, got {chosen}")
    if data.train.labels.is_floating_point():
        raise ValueError("label-flip needs class numbers; the data have floats as targets")
    labels = data.train.labels.clone()
    for client in chosen:
        rows = torch.from_numpy(data.clients[client])
        labels[rows] = data.classes - 1 - labels[rows]
    return replace(data, train=replace(data.train, labels=labels))


def plant_backdoor(
    data: Federated, clients: Iterable[int], *, seed: int, target: int = 0, size: int = 2, share: float = 0.5
) -> Federated:
    """A backdoor (Gu et al. 2017): a mark on a share of the given clients' examples, which get the label `target`.

    The mark is the largest input value, in the last `size` columns (of images: in a square at the lower right). The
    result has the test examples of other classes with the mark; a model that calls them `target` has the backdoor.
    """
    if data.train.labels.is_floating_point():
        raise ValueError("backdoor needs class numbers; the data have floats as targets")
    if not 0 <= target < data.classes or isinstance(target, bool) or not size >= 1 or not 0 < share <= 1:
        wanted = f"a target from 0 to {data.classes - 1}, a size of at least 1 and a share above 0 and at most 1"
        raise ValueError(f"backdoor: expected {wanted}, got {target}, {size} and {share}")
    sides = data.train.shape[-2:] if len(data.train.shape) >= 3 else data.train.shape[-1:]
    if size >= max(sides):
        raise ValueError(
            f"backdoor: expected a size below {max(sides)}, because a mark that fills inputs of "
            f"{' x '.join(map(str, sides))} makes them all the same, got {size}"
        )
    inputs, labels, top = data.train.inputs.clone(), data.train.labels.clone(), data.train.inputs.max()
    generator = _generator("backdoor", seed)
    for client in sorted(set(clients)):
        own = generator.permutation(data.clients[client])
        rows = torch.from_numpy(own[: max(1, round(share * len(own)))])
        inputs[rows] = _marked(inputs[rows], size, top)
        labels[rows] = target
    others = data.test.take(np.flatnonzero(data.test.labels.numpy() != target))
    marked = replace(others, inputs=_marked(others.inputs, size, top), labels=torch.full_like(others.labels, target))
    return replace(data, train=replace(data.train, inputs=inputs, labels=labels), backdoor=marked)


def _marked(inputs: torch.Tensor, size: int, top: torch.Tensor) -> torch.Tensor:
    found = inputs.clone()
    if found.dim() >= 4:
        found[..., -size:, -size:] = top
    else:
        found[..., -size:] = top
    return found


def _generator(step: str, seed: int) -> np.random.Generator:
    """Each step has its own stream, so that a change in one does not affect another."""
    return np.random.default_rng([seed, *step.encode()])


def _enough(examples: int, parts: int) -> None:
    if parts < 1 or examples < parts:
        raise ValueError(f"{examples} examples cannot be divided into {parts} parts")
