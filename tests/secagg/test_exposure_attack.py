"""The attacks that the audit is there for, run against real transcripts and against its own limits."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Plan
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED, Policy, audit, revealed
from secagg.exposure.schedules import Schedule
from secagg.protocol.result import Result, Stage
from tests.secagg import lattice
from tests.secagg.attack import solve
from tests.secagg.cluster import make_plan, run_plan

SEED = bytes(range(32))
LENGTH = 400


def plan_for(schedule: Schedule, n: int, policy: Policy, weights=()) -> Plan:
    return make_plan(n, length=LENGTH, schedule=schedule, clip=1.0, policy=policy, weights=weights or (1,) * n)


def aggregate(schedule: Schedule, n: int, *, policy: Policy, drop=(), weights=()) -> tuple[Result, np.ndarray]:
    """A real run over random updates: keys, shares, masks, consistency, unmasking."""
    plan = plan_for(schedule, n, policy, weights)
    updates = np.random.default_rng(3).uniform(-1, 1, (n, LENGTH)).astype(np.float32)
    result = run_plan(plan, dict(enumerate(updates)), drop=dict.fromkeys(drop, Stage.INPUTS))
    return result, updates


def attack(result: Result) -> dict[int, np.ndarray]:
    """What the server can do with its own result: read the sums as integers and solve."""
    members = {row: opened.members for row, opened in result.groups.items()}
    sums = {row: opened.total.view(np.int32).astype(np.float64) for row, opened in result.groups.items()}
    return solve(members, sums)


def encoded(result: Result, updates: np.ndarray, client: int) -> np.ndarray:
    """A client's fixed-point vector, which the server must never see."""
    return np.rint(updates[client].astype(np.float64) * result.plan.encoding.encodings[0].scale)


def test_the_papers_default_reveals_every_update_exactly():
    schedule = Schedule(name="random", size=3, groupings=10)
    result, updates = aggregate(schedule, 60, policy=Policy(mode=REPORT_EVEN_IF_EXPOSED))
    found = attack(result)
    assert set(found) == result.verdict.exposed == set(range(60))
    for client, vector in found.items():
        assert np.array_equal(np.rint(vector), encoded(result, updates, client))


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(name="random", size=3, groupings=10),
        Schedule(name="fixed", size=3, groupings=10),
        Schedule(name="transversal", size=6, groupings=4),
        Schedule(name="atoms", size=6, groupings=10, atom=3),
    ],
    ids=lambda schedule: schedule.name,
)
def test_by_default_the_same_attack_learns_nothing(schedule):
    result, updates = aggregate(schedule, 24, policy=Policy(), drop=(5,))
    assert result.groups
    assert attack(result) == {}
    # the best guess explains no more of anyone's update than its leverage says
    rows = sorted(result.groups)
    matrix = np.array([[c in result.groups[row].members for c in result.survivors] for row in rows], float)
    sums = np.array([result.sum(row) for row in rows], float)
    guess = np.linalg.pinv(matrix) @ sums
    for at, client in enumerate(result.survivors):
        truth = updates[client].astype(float)
        left = 1 - np.square(guess[at] - truth).sum() / np.square(truth).sum()
        assert left < result.verdict.leverage.get(client, 0.0) + 0.25
    assert max(result.verdict.leverage.values()) <= 0.8


def test_the_attack_finds_a_client_in_a_real_run_exactly_if_the_audit_says_exposed():
    schedule = Schedule(name="random", size=3, groupings=2)
    report, exposed = Policy(mode=REPORT_EVEN_IF_EXPOSED), set()
    lonely, *mates = plan_for(schedule, 15, report).groupings[0][0]
    for drop in ((), mates[:1], mates):
        result, updates = aggregate(schedule, 15, policy=report, drop=drop)
        found = attack(result)
        assert set(found) == result.verdict.exposed
        exposed |= set(found)
        for client, vector in found.items():
            assert np.array_equal(np.rint(vector), encoded(result, updates, client))
    assert lonely in exposed
    assert len(exposed) < 13


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_least_squares_finds_exactly_the_exposed(data):
    n = data.draw(st.integers(2, 12))
    rows = data.draw(st.lists(st.sets(st.integers(0, n - 1), min_size=1), min_size=1, max_size=14))
    weights = data.draw(st.none() | st.fixed_dictionaries({i: st.sampled_from([0.5, 1.0, 3.0]) for i in range(n)}))
    truth = np.arange(n)[:, None] * 1.5 + np.array([[0.25, -3.0]])
    scale = {i: 1.0 if weights is None else weights[i] for i in range(n)}
    members = {(0, k): row for k, row in enumerate(rows)}
    sums = {row: sum(scale[i] * truth[i] for i in inside) for row, inside in members.items()}
    found = solve(members, sums, weights=weights)
    assert set(found) == revealed(rows, weights=weights).exposed
    for client, vector in found.items():
        assert vector == pytest.approx(truth[client], abs=1e-6)


def test_long_vectors_are_solved_in_blocks():
    members = {(0, 0): (0, 1), (1, 0): (1,)}
    x = np.arange(2 * 150_000, dtype=float).reshape(2, -1)
    found = solve(members, {(0, 0): x[0] + x[1], (1, 0): x[1]})
    assert np.allclose(found[0], x[0])
    assert np.allclose(found[1], x[1])


# Whole numbers leak more than real ones: why max_leverage is not 1 by default


def test_without_a_leverage_limit_integers_are_recovered_although_nobody_is_exposed():
    """80 clients, T = 3, no exposed client, and yet every 27-bit input follows from the sums."""
    n = 80
    draw = Schedule(name="random", size=10, groupings=13).draw(range(n), bytes(32), 0)
    verdict = audit(draw, range(n), Policy(max_leverage=1.0), plan_hash=b"h")
    assert not verdict.exposed
    assert verdict.anonymity.lower >= 3
    rows = [draw[g][k] for g, k in sorted(verdict.opened)]
    rng = random.Random(1)
    inputs = [[rng.randrange(-(2**26), 2**26) for _ in range(n)] for _ in range(3)]
    assert lattice.recover(rows, [[sum(x[i] for i in row) for row in rows] for x in inputs], n) == inputs


def test_the_default_limit_leaves_the_lattice_too_fine_for_that():
    """The determinant per dimension is what inputs must be smaller than to be found: here about two bits."""
    n = 80
    draw = Schedule(name="random", size=10, groupings=13).draw(range(n), bytes(32), 0)
    verdict = audit(draw, range(n), Policy(), plan_hash=b"h")
    matrix = np.array([[i in draw[g][k] for i in range(n)] for g, k in sorted(verdict.opened)], float)
    values = np.linalg.svd(matrix, compute_uv=False)
    bits = np.log2(values[values > 1e-9]).sum() / (n - verdict.rank)
    assert bits < 4
    # and for every set J of clients, the rows inside it have rank at most 0.8 |J|
    assert max(verdict.leverage.values()) <= 0.8 + 1e-9


# What sums cannot hide: an update that only one client has


def test_a_coordinate_that_one_client_alone_uses_is_found_where_groups_cross_and_not_inside_an_atom():
    """Documented, not prevented: with side knowledge, crossing groups say who; atoms only say which atom."""
    crossing = Schedule(name="transversal", size=5, groupings=2)
    draw = crossing.draw(range(35), SEED, 0)
    verdict = audit(draw, range(35), Policy(), plan_hash=b"h", columns=crossing.columns(range(35), SEED, 0))
    assert len(verdict.opened) == 14
    assert verdict.anonymity.lower == 5
    hit = [set(group) for grouping in draw for group in grouping if 17 in group]
    assert set.intersection(*hit) == {17}

    whole = Schedule(name="atoms", size=6, groupings=10, atom=3)
    atom = next(set(unit) for unit in whole.atoms(range(36), SEED, 0) if 17 in unit)
    hit = [set(group) for grouping in whole.draw(range(36), SEED, 0) for group in grouping if 17 in group]
    assert atom <= set.intersection(*hit)
