"""Runs with survivors that leave evidence, with dropouts and cheaters, and ways to spoil it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from secagg import Agreement, Policy, Result, Schedule, Stage
from secagg.evidence import Evidence, RunRecord, assemble
from secagg.protocol.wire import encode
from tests.secagg.cheats import CHEATS, STAGES
from tests.secagg.cluster import Cluster, identity, make_agreement, make_inputs, plan_from

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
    cheats: Mapping[int, str] | None = None,
    stops: Mapping[int, Stage] | None = None,
    journals: Any = None,
) -> Result:
    """One run: `cheats` and the stage at which a client stops answering, by client."""
    plan = plan_from(agreement, b"model %d" % later, later)
    table = {v: CHEATS[name] for v, name in (cheats or {}).items()}
    for v, stage in (stops or {}).items():
        table[v] = _stopping(table.get(v), stage)
    cluster = Cluster(plan, make_inputs(plan), cheats=table, journals=journals, seed=b"round %d " % later)
    return cluster.start().finish()


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
    agreement, draw = agreed(kind, seed), random.Random(f"{kind} {seed}")
    results = []
    for later in range(rounds):
        v = draw.choice(agreement.terms.ids)
        chance = draw.random()
        if chance < 0.4:
            results.append(played(agreement, later, stops={v: Stage(draw.randrange(5))}))
        elif chance < 0.7:
            results.append(played(agreement, later, cheats={v: draw.choice(sorted(BLAMED))}))
        else:
            results.append(played(agreement, later))
    return evidence_of(agreement, results)


def changed(data: bytes, place: int, change: Callable[[RunRecord], RunRecord]) -> bytes:
    """The evidence with one record changed."""
    evidence = Evidence.from_bytes(data)
    runs = list(evidence.runs)
    runs[place] = change(runs[place])
    return replace(evidence, runs=tuple(runs)).to_bytes()
