"""Two servers that share every update between them, and compute distances on the shares (He et al. 2020).

The paper compares itself with this scheme. A client adds nothing to its update that the other server does not hold:
update = one share at each server, in integers modulo 2^64. Whoever has one server sees random numbers; whoever has both
sees every update. For squared distances, a dealer gives both servers shares of random vectors a_i and of all products
<a_i, a_j>, before the round (Beaver 1991). The servers open e_i = x_i - a_i, which hides x_i, and find

    |x_i - x_j|^2 = |e_i - e_j|^2 + 2 <e_i - e_j, a_i - a_j> + |a_i - a_j|^2

from sums of what each of them can compute alone. The second server learns the distances, and nothing else, and selects.
Here both servers learn who was selected; He et al. hide it from one of them at the cost of a multiplication per value.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Ring64 = NDArray[np.uint64]
SEED_BYTES = 16
FRACTION = 16  # bits after the point: distances of a million values in [-1, 1] stay below 2^63
BLOCK = 65536


@dataclass
class Spent:
    """CPU seconds and bytes, by who spent or sent them."""

    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def by(self, who: str) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds[who] = self.seconds.get(who, 0.0) + time.process_time() - start

    def sent(self, what: str, count: int) -> None:
        self.bytes[what] = self.bytes.get(what, 0) + count


def encode(update: NDArray[np.float32]) -> Ring64:
    """Fixed point modulo 2^64, from values clipped to [-1, 1]."""
    return np.rint(np.clip(update, -1, 1) * 2.0**FRACTION).astype(np.int64).view(np.uint64)


def decode(total: Ring64) -> NDArray[np.float64]:
    return total.view(np.int64) / 2.0**FRACTION


def stream(seed: bytes, length: int) -> Ring64:
    """A share from a seed: AES-128 in counter mode."""
    made = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor().update(bytes(8 * length))
    return np.frombuffer(made, np.uint64)


def share(value: Ring64) -> tuple[Ring64, bytes]:
    """The first server's share, and the seed of the second server's."""
    seed = os.urandom(SEED_BYTES)
    return value - stream(seed, value.size).reshape(value.shape), seed


@dataclass(frozen=True)
class Triples:
    """One server's shares of the dealer's vectors a_i, a row each, and of their products."""

    a: Ring64
    products: Ring64


def deal(clients: int, length: int) -> tuple[Triples, Triples]:
    """What the dealer gives each server before a round. It must be trusted by both, or replaced by another protocol."""
    a = np.frombuffer(os.urandom(8 * clients * length), np.uint64).reshape(clients, length)
    products = inner(a, a)
    first, seed = share(a)
    one, other = share(products)
    return (
        Triples(first, one),
        Triples(stream(seed, a.size).reshape(a.shape), stream(other, products.size).reshape(products.shape)),
    )


def inner(left: Ring64, right: Ring64) -> Ring64:
    """All products of rows, modulo 2^64."""
    total = np.zeros((len(left), len(right)), np.uint64)
    for first in range(0, left.shape[1], BLOCK):
        total += left[:, first : first + BLOCK] @ right[:, first : first + BLOCK].T
    return total


def _distances(products: Ring64) -> Ring64:
    """From <u_i, v_j> for all i, j to <u_i - u_j, v_i - v_j>."""
    own = np.diagonal(products)
    return own[:, None] + own[None, :] - products - products.T


def distance_share(opened: Ring64, triples: Triples, *, first: bool) -> Ring64:
    """What one server can compute of all squared distances, from the opened e_i and its own shares."""
    mine = _distances(inner(opened, triples.a)) * np.uint64(2) + _distances(triples.products)
    return mine + _distances(inner(opened, opened)) if first else mine


def select(distances: NDArray[np.int64], f: int, count: int) -> list[int]:
    """The `count` clients with the smallest Krum scores, from squared distances alone."""
    nearest = np.sort(distances, axis=1)[:, 1 : len(distances) - f - 1]  # without itself
    return sorted(np.argsort(nearest.astype(np.float64).sum(axis=1), kind="stable")[:count].tolist())


@dataclass(frozen=True)
class Outcome:
    """The mean of the selected updates, who they are, and all squared distances as the second server sees them."""

    mean: NDArray[np.float64]
    selected: list[int]
    distances: NDArray[np.int64]


def aggregate(updates: NDArray[np.float32], f: int, count: int, spent: Spent | None = None) -> Outcome:
    """A round: everybody shares, the servers find distances, the second selects, the first learns one mean."""
    spent = spent or Spent()
    clients, length = updates.shape
    with spent.by("dealer"):
        one, two = deal(clients, length)
    spent.sent("dealer", (one.a.nbytes + one.products.nbytes) + 2 * SEED_BYTES)
    at_one, at_two = np.empty((clients, length), np.uint64), np.empty((clients, length), np.uint64)
    for client, update in enumerate(updates):
        with spent.by("clients"):
            at_one[client], seed = share(encode(update))
        spent.sent("clients", at_one[client].nbytes + SEED_BYTES)
        with spent.by("servers"):
            at_two[client] = stream(seed, length)
    with spent.by("servers"):
        opened = (at_one - one.a) + (at_two - two.a)
        mine, other = distance_share(opened, one, first=True), distance_share(opened, two, first=False)
        distances = (mine + other).view(np.int64)
        selected = select(distances, f, count)
        mean = decode(at_one[selected].sum(axis=0) + at_two[selected].sum(axis=0)) / len(selected)
    spent.sent("between servers", 2 * opened.nbytes + mine.nbytes + at_two[0].nbytes)
    return Outcome(mean, selected, distances)
