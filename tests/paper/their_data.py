"""CIFAR-10 partitioned among clients as the authors of the paper did it, to see what the partition changes.

The roles of these data sets are the authors' clients, so they are used with `data.partition = "role"`. What is known:
the examples are sorted by label, in the order of the file, and cut into n * s equal shards; each client has s of them.
Without shards they are distributed at random, and all clients have the same number. With 60 clients this is 833, so
that the last minibatch of every epoch has a single image; in our own partition, 20 clients have 834. The authors'
random generator is not known. Here it is numpy's legacy generator, seeded once for the whole program, as was usual
(`share` has a generator per purpose). This module follows the description in docs/experiments.md, not the authors'
code. `python -m tests.paper.explain` uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fl.data import DataSet, Index, load

SEED = 0


def shards(labels: Sequence[int], clients: int, per_client: int) -> list[Index]:
    """Rows sorted by label in the order of the file, cut into equal shards; each client has some of them at random."""
    pieces = np.array_split(np.argsort(labels, kind="stable"), clients * per_client)
    order = np.random.RandomState(SEED).permutation(len(pieces)).reshape(clients, per_client)
    return [np.concatenate([pieces[piece] for piece in hand]) for hand in order]


def at_random(labels: Sequence[int], clients: int) -> list[Index]:
    """A permutation of all rows, cut into parts of the same size; the rows that are left over go to nobody."""
    each = len(labels) // clients
    order = np.random.RandomState(SEED).permutation(len(labels))[: each * clients]
    return list(order.reshape(clients, each))


def _with_roles(data: DataSet, dealt: Sequence[Index]) -> DataSet:
    return replace(data, roles=tuple((f"client {i}", np.sort(rows).astype(np.int64)) for i, rows in enumerate(dealt)))


def iid_60() -> DataSet:
    """60 clients, with examples at random."""
    data = load("cifar10")
    return _with_roles(data, at_random(data.train.labels.tolist(), 60))


def same_size() -> DataSet:
    """CIFAR-10 without 20 images, so that our own partition gives 833 to each of 60 clients."""
    data = load("cifar10")
    rows = np.random.RandomState(SEED).permutation(len(data.train.labels))
    return replace(data, train=data.train.take(np.sort(rows[: len(rows) // 60 * 60]).astype(np.int64)))


def shards_2() -> DataSet:
    """50 clients with 2 shards each: the paper's "2 labels"."""
    data = load("cifar10")
    return _with_roles(data, shards(data.train.labels.tolist(), 50, 2))


def shards_5() -> DataSet:
    """50 clients with 5 shards each: the paper's "5 labels"."""
    data = load("cifar10")
    return _with_roles(data, shards(data.train.labels.tolist(), 50, 5))
