"""The work of a run, counted from the protocol, and the least CPU time for it on this machine.

Counted are key agreements, signatures, mask bytes, hashed bytes and passes over vectors. Multiplied by the rates of
this processor they give a floor: the CPU time that no implementation with these primitives can beat.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from secagg.agreement.agreement import Agreement
from secagg.agreement.thresholds import default_colluders, default_threshold
from secagg.crypto import prg
from secagg.crypto.keys import AgreementKey, Identity, verify
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED, Policy
from secagg.protocol.result import Stage
from secagg.simulation import make_agreement
from secagg.types import ClientId

LENGTH: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a run: a flat sum, or several groupings into groups of `group` clients."""

    clients: int
    length: int = LENGTH
    dropped: int = 0
    groupings: int = 1
    group: int = 0  # 0: one group of all

    def __str__(self) -> str:
        text = f"{self.clients} clients, {self.length:,} numbers"
        if self.group:
            text += f", {self.groupings} groupings into groups of {self.group}"
        return text + (f", {self.dropped} dropped" if self.dropped else "")

    @property
    def percent(self) -> int:
        return round(100 * self.dropped / self.clients)

    @property
    def members(self) -> int:
        return self.group or self.clients

    @property
    def threshold(self) -> int:
        return default_threshold(self.clients, default_colluders(self.clients))

    def agreement(self) -> tuple[Agreement, dict[ClientId, Identity]]:
        """An agreement with default thresholds, made anew. Small groups are opened even if they expose somebody."""
        return make_agreement(
            members=self.clients,
            size=self.members,
            length=self.length,
            clip=1.0,
            schedule="random",
            groupings=self.groupings,
            groups="survivors",
            policy=Policy(mode=REPORT_EVEN_IF_EXPOSED) if self.group else Policy(),
        )

    def drop(self) -> Mapping[ClientId, Stage]:
        """Who drops out after sharing: spread evenly over the roster."""
        return {k * self.clients // self.dropped: Stage.INPUTS for k in range(self.dropped)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What clients and server of a run must do."""

    agreements: int  # X25519
    verifications: int  # Ed25519
    signatures: int  # Ed25519
    mask_bytes: int  # AES-128-CTR
    hash_bytes: int  # SHA-256 of masked vectors: where they are made, and where they arrive
    vector_bytes: int  # read or written in passes over vectors: encode, copy, mask, add

    @classmethod
    def of(cls, size: Size) -> Work:
        """Count the work of a run.

        A client agrees with every peer for boxes, and with every peer of its groups for masks. It checks
        n - 1 keys, the survivors' views and t openings. The server checks one signature per message, and
        agrees in place of each dropout with the survivors of its groups, at their mean over the groupings.
        """
        n, m, r, words = size.clients, size.members, size.groupings, size.length
        stay = n - size.dropped
        share = stay / (n - 1)  # of a dropout's peers survive
        mates = min(n - 1, r * (m - 1))
        messages = 2 * n + 3 * stay
        vectors = r * stay
        own, pairs, orphans = 2 * vectors, vectors * (m - 1), round(r * size.dropped * (m - 1) * share)
        return cls(
            agreements=n * (n - 1) + stay * mates + round(size.dropped * mates * share),
            verifications=n * (n - 1) + stay * (stay + size.threshold) + messages,
            signatures=messages,
            mask_bytes=4 * words * (own + pairs + orphans),
            hash_bytes=4 * words * 2 * vectors,
            vector_bytes=4 * words * (2 * stay + 7 * vectors),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Speed of one core of this machine."""

    agree_us: float
    verify_us: float
    sign_us: float
    mask_gb_per_s: float
    hash_gb_per_s: float
    copy_gb_per_s: float  # read and written

    @classmethod
    def measure(cls) -> Rates:
        key, identity = AgreementKey.from_private(os.urandom(32)), Identity.generate()
        signature = identity.sign(b"")
        words, keys = 2**16, [os.urandom(prg.MASK_KEY_BYTES) for _ in range(64)]
        vector, large = np.zeros(words, np.uint32), np.zeros(2**24, np.uint32)
        copy = np.zeros_like(large)
        masks = _shortest(lambda: prg.add_masks(vector, keys, [1] * len(keys), threads=1), 20)
        return cls(
            agree_us=1e6 * _shortest(lambda: key.agree(key.public), 200),
            verify_us=1e6 * _shortest(lambda: verify(identity.public, signature, b"", signer=0), 200),
            sign_us=1e6 * _shortest(lambda: identity.sign(b""), 200),
            mask_gb_per_s=4e-9 * words * len(keys) / masks,
            hash_gb_per_s=1e-9 * vector.nbytes / _shortest(lambda: hashlib.sha256(vector.data).digest(), 20),
            copy_gb_per_s=8e-9 * len(large) / _shortest(lambda: np.copyto(copy, large), 10),
        )

    def floor(self, work: Work) -> float:
        """The least CPU seconds for this work."""
        micro = work.agreements * self.agree_us + work.verifications * self.verify_us + work.signatures * self.sign_us
        nano = work.mask_bytes / self.mask_gb_per_s + work.hash_bytes / self.hash_gb_per_s
        nano += work.vector_bytes / self.copy_gb_per_s
        return 1e-6 * micro + 1e-9 * nano


def _shortest(task: Callable[[], object], times: int) -> float:
    """The least CPU time of one call. Other load on the machine can only add to it."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        task()
        best = min(best, time.process_time() - start)
    return best
