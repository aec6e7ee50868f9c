"""Trainings of a few members that leave evidence, and ways to spoil it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from secagg.agreement.agreement import Agreement
from secagg.crypto.keys import Identity
from secagg.evidence import Evidence, RoundRecord
from secagg.exposure.audit import Policy
from secagg.simulation import WholeRun, make_agreement
from tests.secagg.drbg import Drbg

KINDS: dict[str, dict[str, Any]] = {
    "fixed": {"members": 6, "size": 3},
    "atoms": {"members": 12, "size": 6, "schedule": "atoms", "atom": 3, "groupings": 2},
    "random": {"members": 8, "size": 4, "schedule": "random", "policy": Policy(memory="round")},
    "sampled": {"members": 9, "size": 3, "sample": 6},
    "roll call": {"members": 5, "size": 5, "roll_call": True, "policy": Policy(memory="round")},
    "least": {"members": 6, "size": 3, "least_groups": 2},
}


@cache
def agreed(kind: str, seed: int = 0) -> tuple[Agreement, dict[int, Identity]]:
    return make_agreement(length=3, bound=100, rounds=6, entropy=Drbg(b"%s %d" % (kind.encode(), seed)), **KINDS[kind])


def trained(kind: str, rounds: int = 4, seed: int = 0) -> WholeRun:
    """A training in which clients are absent now and then."""
    agreement, identities = agreed(kind, seed)
    run, draw = WholeRun(agreement, identities), random.Random(seed)
    for t in range(rounds):
        away = [v for v in agreement.terms.ids if draw.random() < 0.15]
        run.round(t, {v: [v, t, 1] for v in agreement.terms.ids}, context=b"model %d" % t, drop=away)
    return run


@cache
def honest(kind: str, rounds: int = 4, seed: int = 0) -> bytes:
    return trained(kind, rounds, seed).evidence()


def changed(data: bytes, change: Callable[[Evidence], Evidence]) -> bytes:
    return change(Evidence.from_bytes(data)).to_bytes()


def in_round(data: bytes, place: int, change: Callable[[RoundRecord], RoundRecord]) -> bytes:
    """The evidence with one record changed."""

    def one(evidence: Evidence) -> Evidence:
        rounds = list(evidence.rounds)
        rounds[place] = change(rounds[place])
        return replace(evidence, rounds=tuple(rounds))

    return changed(data, one)


def flipped(data: bytes, place: int = 0) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
