"""Whole runs generated from a seed: sizes, thresholds, schedules, weights, dropouts, cheats, damage, restarts.

`draw(seed)` determines everything about a run; `play` runs it and checks the outcome. To repeat a single run:
`python -m tests.secagg.generated 1234`.
"""

import random
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from secagg import AgreementRefused, Plan, Policy, Schedule, Stage, TooFewSurvivors, UsageError
from secagg.protocol.wire import encode
from tests.secagg.cheats import CHEATS, LIARS, SPOILERS, STAGES
from tests.secagg.cluster import (
    LOOSE,
    Cheat,
    Cluster,
    Envelope,
    WideCache,
    both_kinds,
    check_outcome,
    make_plan,
    remembered_signatures,
)

MOST = 12
FLIP = "a bit flipped on the way to the server at "
NOISE = "a bit flipped on the way to the client at "


@dataclass
class Case:
    """One run with its dropouts, cheaters, restarts and order of messages."""

    seed: int
    plan: Plan
    inputs: dict[int, Any] = field(repr=False)
    absent: dict[int, Stage]
    cheaters: dict[int, str]
    restarts: float
    shuffled: bool


@dataclass
class Outcome:
    """Counts and flags of one finished run."""

    exact: int = 0
    lost: int = 0
    closed: int = 0
    blamed: int = 0
    too_few: bool = False
    must_finish: bool = False
    sparse: bool = False


def draw_plan(rng: random.Random) -> Plan:
    """A random valid plan. Parameters that the package refuses are drawn again."""
    while True:
        n = rng.randint(2, MOST)
        name = rng.choice(["random", "random", "fixed", "transversal", "atoms"])
        atom = rng.randint(2, 4) if name == "atoms" else 0
        size = atom * rng.randint(1, 3) if atom else rng.randint(2, n)
        changes: dict[str, Any] = {
            "colluders": rng.randint(0, n // 2),
            "length": rng.randint(1, 6),
            "round": rng.randint(0, 1000),
            "seed": rng.randbytes(32),
            "context": rng.randbytes(rng.choice([0, 32])),
            "policy": rng.choice(
                [LOOSE, Policy(), Policy(anonymity=2), Policy(anonymity=3, min_survivors=4, max_leverage=1.0)]
            ),
        }
        if rng.random() < 0.1 and n >= 4:
            changes |= {"degree": 2 * rng.randint(1, (n - 1) // 2), "threshold": 2}
            size, name, atom = n, "random", 0
            changes["threshold"] = rng.randint(2, changes["degree"])
        elif rng.random() < 0.5:
            changes["threshold"] = rng.randint((n + changes["colluders"]) // 2 + 1, n)
        if rng.random() < 0.5:
            changes |= {"bound": None, "clip": rng.choice([0.01, 1.0, 3.7, 1000.0])}
            if rng.random() < 0.5:
                changes["weights"] = tuple(rng.randint(1, 10) for _ in range(n))
        try:
            schedule = Schedule(name=name, size=size, groupings=rng.choice([1, 1, 2, 3, 4]), atom=atom)
            return make_plan(n, schedule=schedule, **changes)
        except (UsageError, AgreementRefused):
            continue


def draw_inputs(plan: Plan, rng: random.Random) -> dict[int, Any]:
    numbers = np.random.default_rng(rng.getrandbits(64))
    for bound in plan.bounds:
        return {v: numbers.integers(-bound, bound + 1, plan.length) for v in plan.ids}
    [clip] = plan.clips
    return {v: numbers.normal(0, clip, plan.length) for v in plan.ids}


def draw(seed: int) -> Case:
    """Everything about run number `seed`."""
    rng = random.Random(seed)
    plan = draw_plan(rng)
    n, spare = len(plan.ids), len(plan.ids) - plan.t
    ids = list(plan.ids)
    rng.shuffle(ids)
    trouble = rng.random() < 0.85
    gone = rng.randint(0, max(spare, 0)) if trouble else 0
    gone += rng.random() < 0.1  # sometimes one dropout too many
    bad = 0 if plan.semi_honest_only else rng.randint(0, max(spare - gone, 0)) if trouble else 0
    names = [*CHEATS, *(kind + stage for stage in STAGES for kind in (FLIP, NOISE))]
    names = [name for name in names if name != NOISE + "keys" and not name.startswith("silence")]
    return Case(
        seed=seed,
        plan=plan,
        inputs=draw_inputs(plan, rng),
        absent={v: rng.choice(list(Stage)[:5]) for v in ids[: min(gone, n)]},
        cheaters={v: rng.choice(names) for v in ids[gone : gone + bad]},
        restarts=rng.choice([0.0, 0.0, 0.05]),
        shuffled=rng.random() < 0.5,
    )


def cheats_of(case: Case, rng: random.Random) -> dict[int, Cheat]:
    cheats = {v: CHEATS[f"silence at {list(STAGES)[stage]}"] for v, stage in case.absent.items()}
    for v, name in case.cheaters.items():
        cheats[v] = CHEATS[name] if name in CHEATS else flipping(name, rng)
    return cheats


def flipping(name: str, rng: random.Random) -> Cheat:
    """A client whose message of one stage is damaged on the way to the server."""
    kind = STAGES.get(name.removeprefix(FLIP))

    def send(cluster: Cluster, me: int, message: Any) -> list[bytes]:
        data = encode(message)
        return [flipped(data, rng) if type(message) is kind else data]

    return send


def flipped(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def play(case: Case) -> Outcome:
    """Run a case to its end and check the outcome. Raises if it is wrong or an unexpected error occurs."""
    rng = random.Random(case.seed + 1)
    plan = case.plan
    cluster = Cluster(
        plan, case.inputs, seed=b"run %d" % case.seed, cheats=cheats_of(case, rng), cache=WideCache()
    ).start()
    outcome = Outcome(sparse=plan.semi_honest_only)
    outcome.must_finish = (
        not outcome.sparse and not plan.atoms and len(plan.ids) - len(case.absent) - len(case.cheaters) >= plan.t
    )
    try:
        while cluster.server.stage < Stage.DONE:
            disturb(case, cluster, rng)
            cluster.advance()
    except TooFewSurvivors:
        outcome.too_few = True
        assert not outcome.must_finish
    for v in plan.ids:
        assert not both_kinds(cluster.sent[v])
    if outcome.too_few:
        return outcome
    result = cluster.server.result()
    noisy = [v for v, name in case.cheaters.items() if name not in CHEATS]
    named = {v for v, name in case.cheaters.items() if name in LIARS}  # damage on the way does not change a vector
    spoilers = {v for v, name in case.cheaters.items() if name in SPOILERS} | set(noisy)
    if outcome.sparse:  # liveness depends on each neighbourhood: single clients may give up
        check_outcome(cluster, result, cheaters=plan.ids, spoilers=plan.ids)
        assert result.blamed == {}
    else:
        check_outcome(cluster, result, cheaters=case.cheaters, absent=case.absent, liars=named, spoilers=spoilers)
    outcome.exact, outcome.lost = len(result.groups), len(result.lost)
    outcome.closed, outcome.blamed = len(result.closed), len(result.blamed)
    return outcome


def disturb(case: Case, cluster: Cluster, rng: random.Random) -> None:
    """Deliver all messages of one stage: some damaged, some twice, in any order, with restarts in between."""
    stage = list(STAGES)[cluster.server.stage]
    for letter in cluster.flying:
        if not letter.up and case.cheaters.get(letter.client) == NOISE + stage:
            letter.data = flipped(letter.data, rng)
    if case.shuffled:
        rng.shuffle(cluster.flying)
    while cluster.flying:
        if cluster.flying[0].up and case.shuffled and rng.random() < 0.2:
            letter = cluster.flying[0]
            cluster.flying.append(Envelope(letter.up, letter.client, letter.data))
        cluster.deliver()
        if rng.random() < case.restarts:
            cluster.save_and_restore_client(rng.choice(cluster.plan.ids))
        if rng.random() < case.restarts:
            cluster.save_and_restore_server()


def play_all(seeds: range) -> dict[str, int]:
    """Play runs and add up their outcomes."""
    totals = dict.fromkeys(
        ("runs", "sums exact", "sums lost", "sums closed", "clients blamed", "too few", "sparse", "must finish"), 0
    )
    with remembered_signatures():
        for seed in seeds:
            case = draw(seed)
            try:
                outcome = play(case)
            except BaseException as failure:
                failure.add_note(f"generated run {case}")
                raise
            totals["runs"] += 1
            totals["sums exact"] += outcome.exact
            totals["sums lost"] += outcome.lost
            totals["sums closed"] += outcome.closed
            totals["clients blamed"] += outcome.blamed
            totals["too few"] += outcome.too_few
            totals["sparse"] += outcome.sparse
            totals["must finish"] += outcome.must_finish
    return totals


if __name__ == "__main__":
    first, last = int(sys.argv[1]), int(sys.argv[-1]) + 1
    print(play_all(range(first, last)))
