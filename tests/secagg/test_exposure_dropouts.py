"""For any dropouts, the sums opened under `enforce` expose nobody: many generated runs of many sizes."""

import random

import numpy as np
import pytest

from secagg.errors import UsageError
from secagg.exposure.audit import Policy, audit
from secagg.exposure.schedules import Schedule, keep_whole_atoms
from tests.secagg.attack import solve

SEED = bytes(range(32))


def generated(run: int) -> tuple[Schedule, int, float, Policy]:
    """A schedule that can be drawn, its clients, a dropout rate from 5 to 30 %, and a policy."""
    rng = random.Random(run)
    while True:
        name = rng.choice(["random", "random", "fixed", "transversal", "atoms"])
        atom = rng.choice([2, 3, 4]) if name == "atoms" else 0
        size = atom * rng.randint(2, 3) if atom else rng.randint(2, 12)
        n = size * rng.randint(2, 9) + rng.randrange(size)
        try:
            schedule = Schedule(name=name, size=size, groupings=rng.choice([1, 2, 3, 4, 6, 10]), atom=atom)
            schedule.check(n)
        except UsageError:
            continue
        policy = Policy(anonymity=rng.choice([2, 3, 3, 4]), max_leverage=rng.choice([0.99, 0.8]))
        return schedule, n, rng.uniform(0.05, 0.3), policy


def drop_out_and_audit(run: int) -> tuple[int, int]:
    """Rows opened, and rows there were."""
    schedule, n, rate, policy = generated(run)
    rng, roster = random.Random(-run - 1), range(n)
    survivors = frozenset(i for i in roster if rng.random() >= rate)
    draw, atoms = schedule.draw(roster, SEED, run), schedule.atoms(roster, SEED, run)
    if atoms and run % 2:
        survivors = keep_whole_atoms(atoms, survivors, policy.anonymity)
    colluders = rng.sample(roster, 1) if run % 3 == 0 else []
    verdict = audit(
        draw, survivors, policy, plan_hash=run.to_bytes(4, "big"), colluders=colluders, atoms=atoms,
        columns=schedule.columns(roster, SEED, run),
    )  # fmt: skip
    seen = {(g, k): survivors.intersection(draw[g][k]).difference(colluders) for g, k in verdict.opened}
    assert all(len(row) >= policy.anonymity for row in seen.values())
    if seen:
        assert not solve(seen, {row: np.empty(0) for row in seen}), (schedule, n, rate, run)
    assert not verdict.exposed
    return len(verdict.opened), sum(map(len, draw))


def test_generated_dropouts_never_expose_anyone():
    opened, rows = map(sum, zip(*(drop_out_and_audit(run) for run in range(700)), strict=True))
    assert 0.3 < opened / rows < 1.0  # the claim would be empty if nothing were ever opened


@pytest.mark.long
def test_ten_thousand_generated_dropouts_never_expose_anyone():
    for run in range(10_000):
        drop_out_and_audit(run)
