"""Trainings of a few members that leave evidence, and ways to spoil it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

from secagg.agreement import Noise
from secagg.agreement.agreement import Agreement
from secagg.crypto import SegmentNoise
from secagg.crypto.keys import Identity
from secagg.evidence import Evidence, RoundRecord, statements
from secagg.exposure.audit import Policy
from secagg.simulation import WholeRun, agree_on, make_agreement
from secagg.whole.messages import Release, encode
from tests.secagg.drbg import Drbg

ROUND = Policy(memory="round")
LOOSE = Policy(anonymity=2, max_leverage=1.0)


def noise(sigma: int = 40, clip: float = 10.0, colluders: int = 1) -> Noise:
    return Noise(segments=(SegmentNoise(clip=clip, sigma=sigma),), colluders=colluders)


KINDS: dict[str, dict[str, Any]] = {
    "fixed": {"members": 6, "size": 3},
    "atoms": {"members": 12, "size": 6, "schedule": "atoms", "atom": 3, "groupings": 2},
    "random": {"members": 8, "size": 4, "schedule": "random", "policy": ROUND},
    "sampled": {"members": 9, "size": 3, "sample": 6},
    "roll call": {"members": 5, "size": 5, "roll_call": True, "policy": ROUND},
    "least": {"members": 6, "size": 3, "least_groups": 2},
    "releases": {"members": 6, "size": 6, "policy": ROUND},
    "weights": {"members": 6, "size": 3, "clip": 16.0, "weights": [3, 4, 3, 4, 3, 4]},
    "two groupings": {"members": 7, "size": 3, "groupings": 2, "policy": LOOSE},
    "noise": {"members": 6, "size": 3, "noise": noise()},
    "faint noise": {"members": 6, "size": 3, "noise": noise(sigma=1, clip=2.0, colluders=0)},
    "noise of a roll call": {"members": 5, "size": 5, "roll_call": True, "policy": ROUND, "noise": noise()},
    "noise of a sum that shrinks": {"members": 6, "size": 6, "policy": ROUND, "noise": noise(sigma=3)},
    "noise of weights": {
        "members": 7,
        "size": 3,
        "clip": 16.0,
        "weights": [3, 4, 3, 4, 3, 5, 5],
        "noise": noise(sigma=2**20, clip=1.0),
        "policy": replace(LOOSE, memory="round"),
        "schedule": "random",
    },
    "noise of atoms": {"members": 12, "size": 6, "schedule": "atoms", "atom": 3, "groupings": 2, "noise": noise()},
    "noise of two groupings": {"members": 7, "size": 3, "groupings": 2, "policy": LOOSE, "noise": noise(sigma=5)},
    "noise of three groupings": {
        "members": 9,
        "size": 3,
        "groupings": 3,
        "schedule": "transversal",
        "policy": replace(LOOSE, memory="round"),
        "noise": noise(sigma=4, colluders=0),
    },
}


@cache
def agreed(kind: str, seed: int = 0) -> tuple[Agreement, dict[int, Identity]]:
    settings = {"length": 3, "rounds": 6, "bound": None if "clip" in KINDS[kind] else 100} | KINDS[kind]
    return make_agreement(entropy=Drbg(b"%s %d" % (kind.encode(), seed)), **settings)


def trained(kind: str, rounds: int = 4, seed: int = 0) -> WholeRun:
    """A training in which clients are absent now and then."""
    return played(*agreed(kind, seed), rounds, seed)


def played(agreement: Agreement, identities: Mapping[int, Identity], rounds: int, seed: int) -> WholeRun:
    """Whoever is away releases the round if that changes the sum, or only stays away."""
    run, draw, terms = WholeRun(agreement, identities), random.Random(seed), agreement.terms
    for t in range(rounds):
        away = [v for v in terms.ids if draw.random() < 0.15]
        for v in away if terms.varying and not terms.roll_call else ():
            if draw.random() < 0.8:
                statement = statements.release(agreement.fingerprint, t, v)
                run.server.receive(v, encode(Release(v, t, identities[v].sign(statement))))
        run.round(t, {v: [v, t, 1] for v in terms.ids}, context=b"model %d" % t, drop=away)
    return run


@cache
def honest(kind: str, rounds: int = 4, seed: int = 0) -> bytes:
    return trained(kind, rounds, seed).evidence()


@cache
def unsafe(kind: str, what: str, seed: int = 0) -> Evidence | None:
    """A training whose agreement breaks its policy; everybody signed it nevertheless. None if it does not fit."""
    agreement, identities = agreed(kind, seed)
    terms, policy = agreement.terms, agreement.terms.policy
    if what == "memory" and terms.schedule.name in ("random", "transversal"):
        policy = replace(policy, memory="training")
    elif what == "anonymity" and kind.endswith("two groupings"):
        policy = replace(policy, anonymity=3)
    elif what == "leverage":
        policy = replace(policy, max_leverage=1 / (terms.schedule.size + 1))
    else:
        return None
    with patch("secagg.agreement.agreement.check_policy"):
        made = agree_on(replace(terms, policy=policy), identities, Drbg(b"unsafe %d" % seed))
        return Evidence.from_bytes(played(made, identities, 2, seed).evidence())


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
