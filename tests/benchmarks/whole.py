"""A round of whole groups: all clients and the server together, beside the cryptography that no program can avoid.

    python -m tests.benchmarks whole                 # both sizes, minutes
    python -m tests.benchmarks whole --only many     # 1000 clients in groups of 10, vectors of 100,000
    python -m tests.benchmarks whole --only long     # 60 clients in groups of 3, 10 groupings, a ResNet's vector

CPU seconds, in this process, on all cores. The floor is measured in the same run, before and after the round.
"""

from __future__ import annotations

import hashlib
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from secagg.crypto.fixedpoint import FixedPoint
from secagg.crypto.keys import AgreementKey, Identity, verify
from secagg.crypto.prg import add_masks
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED, Policy
from secagg.simulation import WholeRun, make_agreement

MOST_RATIO = 1.5


@dataclass(frozen=True)
class Size:
    """One size to measure; `sample` clients make the floor, which is scaled to all of them."""

    name: str
    members: int
    size: int
    groupings: int
    length: int
    sample: int
    cryptography: bool  # whether the floor counts agreements and signatures
    most_seconds: float | None


SIZES = (
    Size("many", 1000, 10, 1, 100_000, 200, True, 15.0),
    Size("long", 60, 3, 10, 2_156_490, 6, False, None),
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--only", choices=[size.name for size in SIZES], help="measure one size")


class Clock:
    """CPU seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.process_time() - start


def floor(size: Size) -> dict[str, float]:
    """The least work of a round: per client its masks and hashes, at the server a hash and an addition per vector."""
    clock, mates = Clock(), size.size - 1
    identity, peer = Identity.generate(), AgreementKey.generate()
    signature = identity.sign(b"statement")
    update = np.random.default_rng(0).normal(0, 0.1, size.length).astype(np.float32)
    encoding = FixedPoint(clients=size.size, clip=1.0)
    keys = np.frombuffer(np.random.default_rng(1).bytes(16 * mates), np.uint8).reshape(mates, 16)
    vectors = np.zeros((size.groupings, size.length), np.uint32)
    totals = np.zeros_like(vectors)
    for _ in range(size.sample):
        if size.cryptography:
            with clock.on("agreements"):
                key = AgreementKey.generate()
                for _ in range(mates * size.groupings):
                    key.agree(peer.public)
            with clock.on("signatures"):
                identity.sign(b"advert"), identity.sign(b"answer")
                for _ in range(mates * size.groupings + 2):
                    verify(identity.public, signature, b"statement", signer=0)
        with clock.on("passes"):
            encoded, _ = encoding.encode(update)
        for vector, total in zip(vectors, totals, strict=True):
            with clock.on("passes"):
                vector[:] = encoded
            with clock.on("masks"):
                add_masks(vector, keys, [1] * mates)
            with clock.on("hashing"):
                hashlib.sha256(vector.data), hashlib.sha256(vector.data)
            with clock.on("passes"):
                np.add(total, vector, out=total)
    scale = size.members / size.sample
    return {what: seconds * scale for what, seconds in clock.seconds.items()}


def round_seconds(size: Size) -> float:
    """The CPU time of one round, clients and server together, adverts included."""
    policy = Policy(min_survivors=2, anonymity=2, max_leverage=1.0, memory="round", mode=REPORT_EVEN_IF_EXPOSED)
    agreement, identities = make_agreement(
        members=size.members, size=size.size, groupings=size.groupings, length=size.length, clip=1.0, policy=policy,
        schedule="random",
    )  # fmt: skip
    update = np.random.default_rng(0).normal(0, 0.1, size.length).astype(np.float32)
    run = WholeRun(agreement, identities)
    run.client(0)  # all signatures on the agreement are made and checked once, before the first round
    start = time.process_time()
    result = run.round(0, dict.fromkeys(agreement.terms.ids, update))
    seconds = time.process_time() - start
    assert len(result.groups) == size.members // size.size * size.groupings
    assert result.inconsistent == ()
    return seconds


def measure(size: Size, tell: Callable[[str], None]) -> bool:
    """Print the figures of one size; whether its bars are met."""
    floor(Size(size.name, size.members, size.size, size.groupings, 2048, 1, size.cryptography, None))  # compiles
    before = floor(size)
    seconds = round_seconds(size)
    after = floor(size)
    least = {what: (before[what] + after[what]) / 2 for what in before}
    total = sum(least.values())
    ratio = seconds / total
    parts = ", ".join(f"{what} {part:.2f}" for what, part in least.items())
    tell(
        f"{size.name}: n={size.members}, m={size.size}, R={size.groupings}, d={size.length}: "
        f"round {seconds:.2f} s CPU, floor {total:.2f} s ({parts}), ratio {ratio:.2f} (bar {MOST_RATIO})"
    )
    return ratio <= MOST_RATIO and (size.most_seconds is None or seconds <= size.most_seconds)


def main(options: Namespace) -> int:
    """1 if a bar is missed."""
    chosen = [size for size in SIZES if options.only in (None, size.name)]
    met = [measure(size, print) for size in chosen]
    return 0 if all(met) else 1
