"""Runs with survivors that leave evidence, with dropouts and cheaters, and ways to spoil it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

from secagg import Agreement, Policy, Result, Schedule, Stage
from secagg.evidence import Evidence, RunRecord, assemble
from secagg.protocol.wire import encode
from secagg.simulation import agree_on
from tests.secagg.cheats import CHEATS, STAGES
from tests.secagg.cluster import Cluster, identity, make_agreement, make_inputs
from tests.secagg.drbg import Drbg
from tests.secagg.evidence.common import noise

POLICY = Policy(min_survivors=2, anonymity=2, max_leverage=1.0, memory="round")
KINDS: dict[str, dict[str, Any]] = {
    "flat": {"n": 5, "colluders": 1, "threshold": 4},
    "groups": {"n": 6, "schedule": Schedule(name="random", size=3), "colluders": 1, "threshold": 4},
    "strict": {
        "n": 6,
        "schedule": Schedule(name="random", size=3),
        "colluders": 1,
        "threshold": 4,
        "policy": replace(POLICY, min_survivors=3, anonymity=3),
    },
    "two groupings": {"n": 6, "schedule": Schedule(name="fixed", size=3, groupings=2), "policy": POLICY},
    "atoms": {
        "n": 8,
        "schedule": Schedule(name="atoms", size=4, atom=2, groupings=2),
        "colluders": 1,
        "threshold": 5,
        "policy": replace(POLICY, memory="training"),
    },
    "left out": {"n": 7, "schedule": Schedule(name="random", size=3), "colluders": 1},
    "weights": {
        "n": 6,
        "schedule": Schedule(name="fixed", size=3),
        "clip": 8.0,
        "weights": (3, 4, 3, 4, 3, 4),
        "policy": replace(POLICY, max_leverage=0.6),
    },
    "sparse": {"n": 10, "degree": 6, "threshold": 3, "colluders": 2, "sparse_risk": 2.0**-40},
    "cells": {"n": 13, "schedule": Schedule(name="random", size=3), "cell": 7, "colluders": 1},
    "fixed cells": {"n": 15, "schedule": Schedule(name="fixed", size=3, groupings=2), "cell": 9, "colluders": 1},
    "cells of atoms": {
        "n": 17,
        "schedule": Schedule(name="atoms", size=4, atom=2, groupings=2),
        "cell": 8,
        "colluders": 1,
        "policy": replace(POLICY, memory="training"),
    },
    "noise": {"n": 5, "colluders": 1, "threshold": 4, "noise": noise()},
    "noise in groups": {"n": 7, "schedule": Schedule(name="random", size=3), "colluders": 1, "noise": noise(sigma=10)},
    "faint noise": {"n": 5, "colluders": 1, "threshold": 4, "noise": noise(sigma=1, clip=2.0, colluders=0)},
    "noise of two groupings": {
        "n": 6,
        "schedule": Schedule(name="fixed", size=3, groupings=2),
        "noise": noise(sigma=10),
    },
    "noise of atoms": {
        "n": 8,
        "schedule": Schedule(name="atoms", size=4, atom=2, groupings=2),
        "colluders": 1,
        "threshold": 5,
        "policy": replace(POLICY, memory="training"),
        "noise": noise(colluders=0),
    },
    "noise of weights in cells": {
        "n": 12,
        "schedule": Schedule(name="random", size=3),
        "cell": 6,
        "colluders": 1,
        "clip": 8.0,
        "weights": (3, 4, 3, 4, 3, 4, 5, 5, 6, 3, 3, 3),
        "noise": noise(sigma=2**20, clip=1.0),
    },
    "noise of a sparse graph": {
        "n": 10,
        "degree": 6,
        "threshold": 3,
        "colluders": 2,
        "sparse_risk": 2.0**-40,
        "noise": noise(),
    },
}
BLAMED = {  # a cheat, and what convicts
    "a wrong seed share": "wrong share",
    "a wrong nonce": "wrong share",
    "a share not below the prime": "wrong share",
    "a share too few": "wrong number of shares",
    "shares of a stranger": "dealt none",
    "the other kind of share": "wrong kind",
    "corrupts every box": "",
}


@cache
def agreed(kind: str, seed: int = 0, rounds: int = 6) -> Agreement:
    settings = dict(KINDS[kind])
    return make_agreement(settings.pop("n"), seed=b"%d" % seed, last_round=4 + rounds, **settings)


def signatures_of(agreement: Agreement) -> Mapping[int, bytes]:
    return {v: agreement.sign(v, identity(v)) for v in agreement.terms.ids}


def played(
    agreement: Agreement,
    later: int = 0,
    *,
    cell: int = 0,
    cheats: Mapping[int, str] | None = None,
    stops: Mapping[int, Stage] | None = None,
    journals: Any = None,
) -> Result:
    """One run of a cell: `cheats` and the stage at which a client stops answering, by client."""
    plan = agreement.plan(agreement.terms.first_round + later, cell, b"model %d" % later)
    table = {v: CHEATS[name] for v, name in (cheats or {}).items() if v in plan.ids}
    for v, stage in (stops or {}).items():
        table[v] = _stopping(table.get(v), stage)
    seed = b"round %d cell %d" % (later, cell)
    return (
        Cluster(plan, make_inputs(plan), agreed=agreement, cheats=table, journals=journals, seed=seed).start().finish()
    )


def _stopping(cheat: Any, stage: Stage) -> Any:
    """A client that cheats, and says nothing from a stage on."""
    kinds = list(STAGES.values())

    def answer(cluster: Cluster, me: int, message: Any) -> list[bytes]:
        if kinds.index(type(message)) >= stage:
            return []
        made: list[bytes] = cheat(cluster, me, message) if cheat else [encode(message)]
        return made

    return answer


def evidence_of(agreement: Agreement, results: Sequence[Result]) -> bytes:
    return assemble(agreement, signatures_of(agreement), [result.record for result in results])


@cache
def honest(kind: str, rounds: int = 3, seed: int = 0) -> bytes:
    """A training in which now and then a client vanishes or cheats."""
    return evidence_of(agreed(kind, seed), trained(agreed(kind, seed), rounds, f"{kind} {seed}"))


def trained(agreement: Agreement, rounds: int, seed: str) -> list[Result]:
    draw, results = random.Random(seed), []
    for later in range(rounds):
        v = draw.choice(agreement.terms.ids)
        chance, stage, cheat = draw.random(), Stage(draw.randrange(5)), draw.choice(sorted(BLAMED))
        for cell in range(len(agreement.terms.cells)):
            stops, cheats = {v: stage} if chance < 0.4 else {}, {v: cheat} if 0.4 <= chance < 0.7 else {}
            results.append(played(agreement, later, cell=cell, stops=stops, cheats=cheats))
    return results


@cache
def unsafe(kind: str, seed: int = 0) -> Evidence:
    """A training whose agreement breaks its policy: limits over all rounds, which only atoms can keep, or do not."""
    terms = agreed(kind, seed).terms
    limit = 0.4 if terms.schedule.atom else terms.policy.max_leverage  # of atoms of 2 in groups of 4
    policy = replace(terms.policy, memory="training", max_leverage=limit)
    with patch("secagg.agreement.agreement.check_policy"), patch("secagg.agreement.terms.Terms._check_policy"):
        made = agree_on(replace(terms, policy=policy), {v: identity(v) for v in terms.ids}, Drbg(b"%d" % seed))
        return Evidence.from_bytes(evidence_of(made, trained(made, 1, f"{kind} {seed}")))


@cache
def torn(kind: str, seed: int = 0) -> Result | None:
    """The first run with more dropouts than its sparse graph bears, of clients that do not mind; None without one."""
    if not agreed(kind, seed).terms.degree:
        return None
    settings = {**KINDS[kind], "sparse_risk": 1.0}
    loose = make_agreement(settings.pop("n"), seed=b"%d" % seed, last_round=10, **settings)
    return played(loose, stops=dict.fromkeys(loose.terms.ids[:4], Stage.INPUTS))


def changed(data: bytes, place: int, change: Callable[[RunRecord], RunRecord]) -> bytes:
    """The evidence with one record changed."""
    evidence = Evidence.from_bytes(data)
    runs = list(evidence.runs)
    runs[place] = change(runs[place])
    return replace(evidence, runs=tuple(runs)).to_bytes()
