"""The audit: what it allows, what it says, and that everyone reaches the same verdict."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import UsageError
from secagg.exposure.audit import ENFORCE, REPORT_EVEN_IF_EXPOSED, Policy, audit, revealed
from secagg.exposure.incidence import Incidence
from secagg.exposure.schedules import Schedule, keep_whole_atoms
from secagg.exposure.selection import Limits, Pass
from tests.secagg.attack import solve

SEED = bytes(range(32))
PAPER = Schedule(name="random", size=3, groupings=10)


def exposed_by(groupings, survivors, rows) -> set[int]:
    """Who is exposed, by singular values: no line of the audit's own code."""
    members = {(g, k): set(groupings[g][k]) & set(survivors) for g, k in rows}
    return set(solve(members, {row: np.empty(0) for row in rows})) if rows else set()


# the paper's default


def test_the_papers_default_exposes_every_client():
    draw = PAPER.draw(range(60), SEED, 0)
    verdict = audit(draw, range(60), Policy(mode=REPORT_EVEN_IF_EXPOSED), plan_hash=b"plan")
    assert verdict.exposed == verdict.would_expose == frozenset(range(60))
    assert verdict.rank == 60
    assert set(verdict.leverage.values()) == {1.0}
    assert (verdict.anonymity.lower, verdict.anonymity.upper) == (1, 1)
    assert len(verdict.opened) == 200
    assert not verdict.closed
    assert verdict.objections
    assert verdict.sentences[0].startswith("REPORT ONLY")
    assert "the server learns the updates of clients 0, 1, 2, 3, 4, 5, 6, 7 and 52 others exactly" in verdict.sentences


def test_by_default_the_same_run_opens_some_sums_and_exposes_nobody():
    draw = PAPER.draw(range(60), SEED, 0)
    verdict = audit(draw, range(60), Policy(), plan_hash=b"plan")
    assert verdict.exposed == exposed_by(draw, range(60), verdict.opened) == set()
    assert verdict.would_expose == frozenset(range(60))
    assert verdict.anonymity.lower >= 3
    assert max(verdict.leverage.values()) <= 0.8
    assert 20 <= len(verdict.opened) < 60
    assert set(verdict.closed) == set(verdict.objections)


@pytest.mark.parametrize(("size", "full"), [(3, 4), (5, 6), (10, 12)])
def test_each_grouping_adds_its_number_of_groups_minus_one_to_the_rank(size, full):
    draw = Schedule(name="random", size=size, groupings=full).draw(range(60), SEED, 0)
    report = Policy(mode=REPORT_EVEN_IF_EXPOSED)
    for R in range(1, full + 1):
        verdict = audit(draw[:R], range(60), report, plan_hash=b"plan")
        assert verdict.rank == min(60, R * (60 // size - 1) + 1)
        assert verdict.mean_leverage == pytest.approx(sum(verdict.leverage.values()) / 60)
        assert bool(verdict.exposed) == (full == R)


# dropouts

TWO = (((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)), ((0, 4, 8, 1), (5, 9, 2, 6), (10, 3, 7, 11)))


def test_a_weak_group_closes_one_more_when_the_total_is_known():
    survivors = set(range(12)) - {2, 3}  # leaves (0, 1) in the first grouping
    verdict = audit(TWO, survivors, Policy(max_leverage=1.0), plan_hash=b"plan")
    closed = [row for row in verdict.closed if row[0] == 0]
    assert (0, 0) in closed
    assert verdict.closed[0, 0] == "it has 2 survivors, fewer than 3"
    assert len(verdict.closed) == 2
    everything_else = {(g, k) for g in range(2) for k in range(3)} - {(0, 0)}
    learned = revealed([set(TWO[g][k]) & survivors for g, k in everything_else])
    assert learned.rank == 5  # the total is known from grouping 1, so closing (0, 0) alone would not hide it
    assert revealed([set(TWO[g][k]) & survivors for g, k in verdict.opened]).rank == 4


def test_the_reason_names_the_clients_that_would_be_exposed():
    groupings = (((0, 1, 2, 3), (4, 5, 6)), ((0, 1, 2), (4, 5, 6, 3)))
    verdict = audit(groupings, range(7), Policy(anonymity=2, max_leverage=1.0), plan_hash=b"plan")
    assert verdict.would_expose == {3}
    assert "opening grouping 1 would expose client 3" in verdict.sentences
    assert "with the sums opened before, it would expose client 3" in verdict.closed.values()


def test_totals_of_survivor_sets_that_differ_by_one_client_cannot_both_be_opened():
    """Dropout differencing, spelt as groupings: the second lacks client 5."""
    groupings = ((tuple(range(12)),), (tuple(i for i in range(12) if i != 5),))
    verdict = audit(groupings, range(12), Policy(), plan_hash=b"plan")
    assert len(verdict.opened) == 1
    assert verdict.would_expose == {5}


def test_groups_without_survivors_are_closed_even_in_a_report():
    survivors = range(4, 12)
    verdict = audit(TWO, survivors, Policy(mode=REPORT_EVEN_IF_EXPOSED), plan_hash=b"plan")
    assert verdict.closed == {(0, 0): "it has no survivors"}
    assert len(verdict.opened) == 5
    nobody = audit(TWO, (), Policy(), plan_hash=b"plan")
    assert not nobody.opened
    assert nobody.anonymity.upper is None
    assert str(nobody.anonymity) == "nothing is learned"


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(["random", "transversal", "atoms"]),
    st.integers(1, 4),
    st.sets(st.integers(0, 23), max_size=8),
    st.integers(0, 1000),
    st.data(),
)
def test_for_any_dropouts_the_opened_sums_expose_nobody(name, groupings, dropouts, round, data):
    schedule = Schedule(name=name, size=6, groupings=groupings, atom=3 if name == "atoms" else 0)
    draw = schedule.draw(range(24), SEED, round)
    survivors = set(range(24)) - dropouts
    verdict = audit(
        draw, survivors, Policy(anonymity=2, max_leverage=1.0), plan_hash=b"plan",
        atoms=schedule.atoms(range(24), SEED, round), columns=schedule.columns(range(24), SEED, round),
    )  # fmt: skip
    assert exposed_by(draw, survivors, verdict.opened) == set()
    if verdict.opened:  # and neither does any part of it
        part = data.draw(st.sets(st.sampled_from(sorted(verdict.opened))))
        assert exposed_by(draw, survivors, part) == set()


# colluders


def test_colluders_are_removed_before_the_audit():
    verdict = audit(TWO[:1], range(12), Policy(), colluders=(0, 1), plan_hash=b"plan")
    assert verdict.closed == {(0, 0): "it has 4 survivors, 2 of them assumed to collude, fewer than 3"}
    verdict = audit(TWO[:1], range(12), Policy(anonymity=2), colluders=(0, 1, 2), plan_hash=b"plan")
    assert (0, 0) in verdict.closed
    assert verdict.would_expose == {3}


def test_anonymity_three_withstands_any_one_colluder():
    draw = Schedule(name="random", size=3, groupings=2).draw(range(30), SEED, 3)
    verdict = audit(draw, range(30), Policy(), plan_hash=b"plan")
    for colluder in range(30):
        members = [set(draw[g][k]) - {colluder} for g, k in verdict.opened]
        assert not revealed(members).exposed


# limits


def test_a_group_with_too_few_survivors_stays_closed():
    for least, opened in [(2, 3), (4, 3), (5, 0)]:
        verdict = audit(TWO[:1], range(12), Policy(min_survivors=least), plan_hash=b"plan")
        assert len(verdict.opened) == opened


def test_a_group_dominated_by_one_heavy_client_stays_closed():
    weights = {i: 10.0 if i == 5 else 1.0 for i in range(12)}
    verdict = audit(TWO[:1], range(12), Policy(), weights=weights, plan_hash=b"plan")
    assert verdict.closed == {(0, 1): "the leverage of client 5 would be 0.971, above 0.5"}
    assert verdict.leverage[0] == pytest.approx(0.25)
    assert audit(TWO[:1], range(12), Policy(max_leverage=1.0), weights=weights, plan_hash=b"plan").opened


@pytest.mark.parametrize("size", [3, 5, 6, 7, 9, 11, 13, 49])
def test_a_limit_written_as_one_over_m_allows_groups_of_m(size):
    draw = Schedule(name="random", size=size).draw(range(4 * size), SEED, 0)
    verdict = audit(draw, range(4 * size), Policy(max_leverage=1 / size), plan_hash=b"plan")
    assert len(verdict.opened) == 4


def test_large_anonymity_is_allowed_only_where_it_is_proven_or_computed():
    n, plan = 500, b"plan"
    flat = Schedule(name="random", size=n).draw(range(n), SEED, 0)
    assert len(audit(flat, range(n), Policy(anonymity=200), plan_hash=plan).opened) == 1
    two = Schedule(name="random", size=25, groupings=2).draw(range(n), SEED, 0)
    assert len(audit(two, range(n), Policy(anonymity=20), plan_hash=plan).opened) == 40
    three = Schedule(name="random", size=25, groupings=3).draw(range(n), SEED, 0)
    verdict = audit(three, range(n), Policy(anonymity=20), plan_hash=plan)
    assert {g for g, _ in verdict.opened} == {0, 1}
    assert "not proven and too expensive to compute" in verdict.closed[2, 0]


def test_a_schedules_proof_replaces_the_computation():
    schedule = Schedule(name="transversal", size=11, groupings=6)
    draw, columns = schedule.draw(range(209), SEED, 0), schedule.columns(range(209), SEED, 0)
    policy = Policy(anonymity=11, max_leverage=0.8)
    proven = audit(draw, range(209), policy, plan_hash=b"plan", columns=columns)
    assert len(proven.opened) == 6 * 19
    assert str(proven.anonymity) == "T = 11 (exact)"
    assert len(audit(draw, range(209), policy, plan_hash=b"plan").opened) < 60
    fewer = audit(draw, range(1, 209), replace(policy, anonymity=10), plan_hash=b"plan", columns=columns)
    assert len(fewer.opened) == 6 * 19
    assert fewer.anonymity.lower == 10
    assert fewer.anonymity.how == "by the schedule"


def test_atoms_prove_any_number_of_groupings():
    schedule = Schedule(name="atoms", size=20, groupings=12, atom=10)
    draw, atoms = schedule.draw(range(400), SEED, 0), schedule.atoms(range(400), SEED, 0)
    survivors = set(range(400)) - {atoms[0][0], atoms[1][0], *atoms[2][:4]}
    verdict = audit(draw, survivors, Policy(anonymity=9), plan_hash=b"plan", atoms=atoms)
    assert verdict.anonymity.lower == 9
    weak = {row for row, group in _rows(draw).items() if set(atoms[2]) <= set(group)}
    assert weak.isdisjoint(verdict.opened)
    kept = keep_whole_atoms(atoms, survivors, 9)
    assert kept == survivors - set(atoms[2])
    assert len(audit(draw, kept, Policy(anonymity=9), plan_hash=b"plan", atoms=atoms).opened) == 12 * 20


def _rows(draw):
    return {(g, k): group for g, grouping in enumerate(draw) for k, group in enumerate(grouping)}


def test_a_false_claim_about_atoms_proves_nothing():
    draw = Schedule(name="random", size=20, groupings=12).draw(range(400), SEED, 0)
    atoms = tuple(tuple(range(start, start + 10)) for start in range(0, 400, 10))
    verdict = audit(draw, range(400), Policy(anonymity=9), plan_hash=b"plan", atoms=atoms)
    assert {g for g, _ in verdict.opened} <= {0, 1}


# everyone reaches the same verdict


def test_the_order_and_the_kind_of_the_arguments_do_not_matter():
    draw = Schedule(name="random", size=5, groupings=4).draw(range(40), SEED, 0)
    survivors = [i for i in range(40) if i % 7]
    weights = {i: 1.0 + i % 3 for i in range(40)}
    verdicts = [
        audit(draw, survivors, Policy(), weights=weights, plan_hash=b"plan"),
        audit(list(draw), set(survivors), Policy(), weights=dict(reversed(weights.items())), plan_hash=b"plan"),
        audit(draw, np.array(survivors)[::-1], Policy(), weights=weights, plan_hash=b"plan"),
    ]
    assert len({(v.opened, tuple(v.closed.items()), tuple(v.leverage.items())) for v in verdicts}) == 1


def test_another_process_with_another_hash_seed_says_the_same():
    code = (
        "from secagg.exposure.audit import Policy, audit; from secagg.exposure.schedules import Schedule\n"
        "draw = Schedule(name='random', size=5, groupings=4).draw(range(40), bytes(32), 0)\n"
        "v = audit(draw, set(range(40)) - {3, 9, 17}, Policy(), plan_hash=b'plan')\n"
        "print(sorted(v.opened), v.sentences, sorted(v.leverage.items()))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, check=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


def test_the_prime_depends_on_the_plan_and_on_who_survived():
    primes = set()
    for plan_hash, survivors in [(b"one", range(12)), (b"two", range(12)), (b"one", range(11))]:
        primes.add(Incidence(TWO, survivors, plan_hash=plan_hash).field.prime)
    assert len(primes) == 3


def test_names_that_are_also_modules_give_the_function():
    code = (
        "import secagg.exposure.audit, secagg.simulation.run, secagg.simulation.secure_sum\n"
        "from secagg.exposure import audit\nfrom secagg.simulation import run, secure_sum\n"
        "assert callable(audit) and callable(run) and callable(secure_sum)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_audit_does_not_import_numba():
    code = "import secagg.exposure.audit, sys; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=True)


# policies


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"anonymity": 1}, "anonymity: expected a whole number from 2"),
        ({"anonymity": 3.0}, "anonymity: expected a whole number from 2"),
        ({"min_survivors": 1}, "min_survivors: expected a whole number from 2"),
        ({"max_leverage": 0.0}, "above 0 and at most 1"),
        ({"max_leverage": 1.1}, "above 0 and at most 1"),
        ({"max_leverage": float("nan")}, "max_leverage: expected a finite number"),
        ({"mode": "report"}, "report-even-if-exposed"),
    ],
)
def test_policies_that_protect_nobody_are_refused(fields, says):
    with pytest.raises(UsageError, match=says):
        Policy(**fields)


def test_a_policy_is_at_least_another_in_every_respect_or_not_at_all():
    floor = Policy(min_survivors=4, anonymity=4, max_leverage=0.5)
    assert floor.at_least(floor)
    assert Policy(min_survivors=5, anonymity=6, max_leverage=0.1).at_least(floor)
    for weaker in (
        Policy(min_survivors=3, anonymity=4, max_leverage=0.5),
        Policy(min_survivors=4, anonymity=3, max_leverage=0.5),
        Policy(min_survivors=4, anonymity=4, max_leverage=0.51),
        Policy(min_survivors=4, anonymity=4, max_leverage=0.5, mode=REPORT_EVEN_IF_EXPOSED),
    ):
        assert not weaker.at_least(floor)
        assert weaker.at_least(Policy(mode=REPORT_EVEN_IF_EXPOSED))
    assert Policy().mode == ENFORCE


def test_invalid_arguments_are_refused():
    with pytest.raises(UsageError, match="a client twice"):
        audit((((0, 1), (1, 2)),), range(3), Policy(), plan_hash=b"plan")
    with pytest.raises(UsageError, match="client 1 has no weight"):
        audit((((0, 1),),), range(2), Policy(), weights={0: 1.0}, plan_hash=b"plan")
    for weight in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UsageError, match=r"positive|finite"):
            audit((((0, 1),),), range(2), Policy(), weights={0: 1.0, 1: weight}, plan_hash=b"plan")


# over rounds


def test_leverage_accumulates_over_rounds_unless_atoms_stay_together():
    """What the server would know if updates did not change: the rows of ten rounds taken together."""
    standing = {}
    for name, size, atom in [("random", 6, 0), ("fixed", 6, 0), ("transversal", 6, 0), ("atoms", 6, 3)]:
        schedule = Schedule(name=name, size=size, atom=atom)
        rows = [g for t in range(12) for grouping in schedule.draw(range(60), SEED, t) for g in grouping]
        standing[name] = revealed(rows)
    assert standing["random"].exposed == standing["transversal"].exposed == frozenset(range(60))
    assert standing["fixed"].leverage == pytest.approx(dict.fromkeys(range(60), 1 / 6))
    assert standing["atoms"].leverage == pytest.approx(dict.fromkeys(range(60), 1 / 3))


# One pass, in an order that the audit would not choose


def test_a_proof_is_not_used_once_a_group_outside_it_is_open():
    """Whole atoms 012 and 345 are proven together, but not beside the row 0123, which differs by client 3."""
    groupings = (((0, 1, 2, 3), (4, 5)), ((0, 1, 2), (3, 4, 5)))
    rows = Incidence(groupings, range(6), plan_hash=b"plan")
    limits = Limits(survivors=2, anonymity=2, leverage=1.0, proven={(1, 0): 3, (1, 1): 3})
    trial = Pass(rows, limits)
    trial.add_all([(0, 0), (1, 0), (1, 1)])
    assert trial.span.kept == [(0, 0), (1, 1)]
    assert trial.span.refused[1, 0] == "with the sums opened before, it would expose client 3"


def test_a_policy_for_single_rounds_is_weaker_than_one_for_the_training():
    training, rounds = Policy(memory="training"), Policy(memory="round")
    assert training.at_least(rounds)
    assert training.at_least(training)
    assert rounds.at_least(rounds)
    assert not rounds.at_least(training)


def test_beyond_three_every_component_is_tested():
    """Clients 0 to 7 hide four by four; of 10 to 16 the two sums together would reveal the sum of 14, 15 and 16."""
    groupings = [((0, 1, 2, 3), (10, 11, 12, 13)), (tuple(range(8)), tuple(range(10, 17)))]
    clients = [client for group in groupings[1] for client in group]
    verdict = audit(groupings, clients, Policy(anonymity=4, max_leverage=1.0), plan_hash=b"")
    assert {(0, 0), (1, 0)} <= verdict.opened
    assert len(verdict.opened & {(0, 1), (1, 1)}) == 1
    assert verdict.anonymity.lower == 4


def test_assumed_colluders_are_missing_for_a_schedules_proof_as_dropouts_are():
    rows = Incidence([((0, 1, 2), (3, 4, 5))], [0, 1, 2, 3, 4], colluders=[1], plan_hash=b"")
    assert rows.missing == {1, 5}
