"""The same sum in Flower, extrapolated from the CPU time of its primitives.

Flower's protocol needs a deployment, so its primitives are timed one by one and multiplied by their number:
masks, secret sharing, key agreements (each parses both keys) and encryption. Quantisation, wire format and
transport are left out, and Flower has no signatures. The figure is therefore a lower bound.
"""

import importlib
import importlib.metadata
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tests.benchmarks.secagg.report import Bar, Table
from tests.benchmarks.secagg.runs import Run

RECORDED: Final = 430.0  # CPU seconds for 100 clients and 100,000 numbers, measured with Flower 1.42
RECORDED_AT: Final = (100, 100_000)
TIMES_LESS: Final = 80.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flower:
    """CPU seconds of one operation each, and of all of them in a run."""

    version: str
    clients: int
    length: int
    mask: float  # expand one seed, and add
    split_key: float  # a private key, as bytes
    split_seed: float
    combine_seed: float  # from the shares of all clients, as its server does
    agree: float  # from its own key and a peer's, both as bytes; once for the box, once for the mask
    box: float  # seal one and open one

    @property
    def client_seconds(self) -> float:
        peers = self.clients - 1
        return self.clients * self.mask + self.split_key + self.split_seed + peers * (2 * self.agree + self.box)

    @property
    def server_seconds(self) -> float:
        return self.clients * (self.combine_seed + self.mask)

    @property
    def total(self) -> float:
        return self.clients * self.client_seconds + self.server_seconds


def measure_flower(clients: int, length: int, threshold: int) -> Flower | None:
    """None where Flower is not installed."""
    package = "flwr.common.secure_aggregation"
    try:
        version = importlib.metadata.version("flwr")
        expand: Any = importlib.import_module(f"{package}.secaggplus_utils").pseudo_rand_gen
        sharing: Any = importlib.import_module(f"{package}.crypto.shamir")
        boxes: Any = importlib.import_module(f"{package}.crypto.symmetric_encryption")
        keys: Any = importlib.import_module("flwr.supercore.primitives.asymmetric")
    except (ImportError, AttributeError):  # not installed, or another version than 1.41 and 1.42
        return None
    vector, seed = np.zeros(length, np.int64), os.urandom(32)
    private = keys.private_key_to_bytes(keys.generate_key_pairs()[0])
    public = keys.public_key_to_bytes(keys.generate_key_pairs()[1])
    shares = sharing.create_shares(seed, threshold, clients)

    def agree() -> bytes:
        agreed: bytes = boxes.generate_shared_key(keys.bytes_to_private_key(private), keys.bytes_to_public_key(public))
        return agreed

    channel, content = agree(), sharing.create_shares(private, threshold, clients)[0] + shares[0]
    return Flower(
        version=version,
        clients=clients,
        length=length,
        mask=_cpu(lambda: np.add(vector, expand(seed, 2**32, [(length,)])[0], out=vector), 3),
        split_key=_cpu(lambda: sharing.create_shares(private, threshold, clients), 2),
        split_seed=_cpu(lambda: sharing.create_shares(seed, threshold, clients), 2),
        combine_seed=_cpu(lambda: sharing.combine_shares(shares), 2),
        agree=_cpu(agree, 20),
        box=_cpu(lambda: boxes.decrypt(channel, boxes.encrypt(channel, content)), 20),
    )


def _cpu(task: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        task()
        best = min(best, time.process_time() - start)
    return best


def flower_table(ours: Run, theirs: Flower | None) -> Table:
    rows = [("secagg, measured: all clients and the server, one process, best of three", f"{ours.cpu_seconds:.2f}", "")]
    notes = []
    if theirs is not None:
        rows.append(
            (
                f"Flower {theirs.version}, extrapolated from its primitives",
                f"{theirs.total:.0f}",
                f"{theirs.total / ours.cpu_seconds:.0f}x",
            )
        )
        notes.append(
            f"Flower: a mask {1e3 * theirs.mask:.2f} ms, splitting a key {theirs.split_key:.2f} s and a seed "
            f"{theirs.split_seed:.2f} s, rebuilding a seed {theirs.combine_seed:.2f} s, an agreement "
            f"{1e3 * theirs.agree:.2f} ms, sealing and opening {1e3 * theirs.box:.2f} ms; per client "
            f"{theirs.client_seconds:.1f} s, server {theirs.server_seconds:.0f} s. Transport is not counted."
        )
    if (ours.size.clients, ours.size.length) == RECORDED_AT:
        rows.append(("Flower 1.42, recorded earlier", f"{RECORDED:.0f}", f"{RECORDED / ours.cpu_seconds:.0f}x"))
    return Table(
        name="flower",
        title=f"CPU seconds: {ours.size}, complete graph",
        header=("", "CPU s", "ratio"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def bars(ours: Run, theirs: Flower | None) -> list[Bar]:
    if (ours.size.clients, ours.size.length) != RECORDED_AT:
        return []
    seconds = theirs.total if theirs else RECORDED
    which = f"Flower {theirs.version}, extrapolated here" if theirs else "Flower 1.42, recorded"
    return [
        Bar(name=f"100 clients: times less CPU time than {which}", value=seconds / ours.cpu_seconds, bound=TIMES_LESS)
    ]
