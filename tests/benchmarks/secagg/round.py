"""One SHARE round at the paper's size: time relative to the keystream of its masks and the hashes, and memory.

The paper's CNN has 2,156,490 parameters; its 60 clients form clusters of 3, ten times. This exposes every
client (`secagg exposure` shows it), so the policy here only reports.
"""

import hashlib
import os
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from secagg.crypto import prg
from secagg.kernels.threads import cores, spread
from tests.benchmarks.secagg.memory import Watch
from tests.benchmarks.secagg.primitives import _raw_openssl
from tests.benchmarks.secagg.report import Bar, Table
from tests.benchmarks.secagg.runs import STAGES, OnProgress, Run, make_updates, run_once
from tests.benchmarks.secagg.work import Size, Work

PAPER: Final = Size(clients=60, length=2_156_490, groupings=10, group=3)
TIMES_RAW: Final = 3.0
SPARE_GB: Final = 0.5  # of memory, above the group sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A round and its comparison."""

    size: Size
    best: Run  # of those timed
    raw_seconds: float  # OpenSSL on all cores, same number of mask bytes and hashed bytes
    memory_gb: float | None  # above the inputs, at the peak

    @property
    def mask_gb(self) -> float:
        return 1e-9 * Work.of(self.size).mask_bytes

    @property
    def hash_gb(self) -> float:
        return 1e-9 * Work.of(self.size).hash_bytes

    @property
    def group_sums_gb(self) -> float:
        return 4e-9 * self.size.length * self.size.groupings * (self.size.clients // self.size.members)


def measure_round(size: Size = PAPER, *, repeats: int = 3, on_progress: OnProgress = lambda fraction: None) -> Round:
    """The best of several rounds, alternating with OpenSSL's keystream; one more round measures memory."""
    updates, agreed, raw, runs = make_updates(size), size.agreement(), [], []
    with Watch() as watch:
        run_once(size, updates, agreed)
    for k in range(repeats):
        on_progress((2 * k + 1) / (2 * repeats + 1))
        raw.append(_raw_seconds(size))
        on_progress((2 * k + 2) / (2 * repeats + 1))
        _touch(size)
        runs.append(run_once(size, updates, agreed)[1])
    return Round(
        size=size,
        best=min(runs, key=lambda one: one.seconds),
        raw_seconds=min(raw),
        memory_gb=None if watch.above is None else 1e-9 * watch.above,
    )


def _raw_seconds(size: Size) -> float:
    """Seconds in which OpenSSL makes the keystream of the round's masks, one key per mask, and hashes its vectors."""
    work, vector = Work.of(size), np.zeros(size.length, np.uint32)
    keys = [os.urandom(prg.MASK_KEY_BYTES) for _ in range(work.mask_bytes // vector.nbytes)]

    def hash_some(start: int, stop: int) -> None:
        for _ in range(start, stop):
            hashlib.sha256(vector.data).digest()

    start = time.perf_counter()
    _raw_openssl(keys, vector.nbytes, cores())
    spread(hash_some, 0, work.hash_bytes // vector.nbytes, step=1, threads=cores())
    return time.perf_counter() - start


def _touch(size: Size) -> None:
    """Use and free as much memory as the round will need.

    A virtual machine may have returned free pages to its host. Getting them back costs seconds per gigabyte
    and would distort the measurement.
    """
    rows = size.groupings * (size.clients // size.members + 2 * cores())
    np.empty((rows, size.length), np.uint32).fill(1)


def round_table(one: Round) -> Table:
    run = one.best
    memory = "unknown" if one.memory_gb is None else f"{one.memory_gb:.2f} GB"
    by_stage = ", ".join(
        f"{stage.name.lower()} {client:.2f} + {server:.2f}"
        for stage, client, server in zip(STAGES, run.client_seconds, run.server_seconds, strict=True)
    )
    return Table(
        name="round",
        title=f"One SHARE round: {one.size}, no dropouts",
        header=("", ""),
        rows=(
            ("all clients and the server", f"{run.seconds:.2f} s on {cores()} cores"),
            ("CPU time", f"{run.cpu_seconds:.2f} s"),
            (
                f"raw OpenSSL, the same {one.mask_gb:.1f} GB of keystream and {one.hash_gb:.1f} GB hashed",
                f"{one.raw_seconds:.2f} s",
            ),
            ("ratio", f"{run.seconds / one.raw_seconds:.2f}"),
            ("all group sums", f"{one.group_sums_gb:.2f} GB"),
            ("memory above the inputs, at the peak", memory),
        ),
        notes=(f"Seconds by stage, all clients + server: {by_stage}.",),
    )


def bars(one: Round) -> list[Bar]:
    found = []
    if prg.backend() == "vaes":
        found.append(
            Bar(
                name="SHARE round: times raw OpenSSL on all cores",
                value=one.best.seconds / one.raw_seconds,
                bound=TIMES_RAW,
                at_most=True,
            )
        )
    if one.memory_gb is not None:
        found.append(
            Bar(
                name="SHARE round: GB of memory above inputs and group sums",
                value=one.memory_gb - one.group_sums_gb,
                bound=SPARE_GB,
                at_most=True,
            )
        )
    return found
