"""The audit at its limits: whole verdicts, what its hash covers, leverage at the edge of what rounding leaves."""

import hashlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from secagg import labels
from secagg.errors import UsageError
from secagg.exposure import Anonymity, Policy, Verdict, audit, revealed, rowspace
from secagg.exposure import leverage as leverages
from secagg.exposure.incidence import Incidence
from secagg.exposure.leverage import Leverage
from secagg.exposure.rowspace import Field, RowSpace, is_prime
from tests.secagg import rational

FIELD = Field.drawn_from(b"a test")
REPORT = Policy(mode="report-even-if-exposed")


def test_the_default_policy() -> None:
    fields = {"min_survivors": 2, "anonymity": 3, "max_leverage": 0.5, "mode": "enforce", "memory": "training"}
    assert Policy() == Policy(**fields)  # type: ignore[arg-type]
    assert Policy().at_least(Policy(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"min_survivors": 1}, "^min_survivors: expected a whole number from 2 to 4294967295, got 1$"),
        ({"anonymity": 1}, "^anonymity: expected a whole number from 2 to 4294967295, got 1$"),
        ({"anonymity": 2**32}, "^anonymity: expected a whole number from 2 to 4294967295, got 4294967296$"),
        ({"max_leverage": 0.0}, r"^max_leverage must be above 0 and at most 1, not 0\.0$"),
        ({"max_leverage": 1.0 + 2**-52}, "^max_leverage must be above 0 and at most 1, not 1.0"),
        ({"mode": "audit"}, "^mode must be 'enforce' or 'report-even-if-exposed', not 'audit'$"),
        ({"mode": None}, "^mode must be 'enforce' or 'report-even-if-exposed', not None$"),
        ({"memory": "week"}, "^memory must be 'training' or 'round', not 'week'$"),
        ({"memory": ()}, r"^memory must be 'training' or 'round', not \(\)$"),
    ],
)
def test_a_policy_refuses_what_protects_nobody(fields: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Policy(**fields)


def test_a_policy_at_its_limits() -> None:
    strictest = Policy(min_survivors=2**32 - 1, anonymity=2**32 - 1, max_leverage=5e-324)
    assert strictest.at_least(Policy())
    assert Policy(min_survivors=2, anonymity=2, max_leverage=1.0).enforced


def test_a_verdict_about_groups_that_all_open() -> None:
    verdict = audit([((0, 1, 2), (3, 4, 5, 6))], range(7), Policy(), plan_hash=b"plan")
    third: Any = pytest.approx(1 / 3)
    quarter: Any = pytest.approx(1 / 4)
    assert verdict == Verdict(
        policy=Policy(),
        opened=frozenset({(0, 0), (0, 1)}),
        closed={},
        objections={},
        exposed=frozenset(),
        would_expose=frozenset(),
        clients=7,
        rank=2,
        leverage={0: third, 1: third, 2: third, 3: quarter, 4: quarter, 5: quarter, 6: quarter},
        anonymity=Anonymity(3, 3, "computed"),
        sentences=("2 of 2 group sums are opened; T = 3 (exact)",),
    )
    assert verdict.mean_leverage == 2 / 7
    assert "leverage" not in repr(verdict).replace("max_leverage", "")


def test_a_verdict_about_groups_that_stay_closed() -> None:
    verdict = audit([((0, 1, 2), (3, 4, 5))], (0, 1), Policy(), plan_hash=b"")
    reasons = {(0, 0): "it has 2 survivors, fewer than 3", (0, 1): "it has no survivors"}
    assert (dict(verdict.closed), dict(verdict.objections)) == (reasons, reasons)
    assert (verdict.opened, verdict.clients, verdict.rank, verdict.mean_leverage) == (frozenset(), 2, 0, 0.0)
    assert verdict.anonymity == Anonymity(3, None, "no group sum is opened")
    assert dict(verdict.leverage) == {0: 0.0, 1: 0.0}
    assert verdict.sentences == (
        "0 of 2 group sums are opened; nothing is learned",
        "group 0 of grouping 0 stays closed: it has 2 survivors, fewer than 3",
        "group 1 of grouping 0 stays closed: it has no survivors",
    )


def test_a_verdict_about_nobody() -> None:
    verdict = audit([((0, 1, 2),)], (), Policy(), plan_hash=b"")
    assert (verdict.clients, verdict.rank, verdict.mean_leverage) == (0, 0, 0.0)
    assert verdict.anonymity == Anonymity(1, None, "no group sum is opened")


def test_a_report_opens_what_has_survivors_and_says_what_it_should_not() -> None:
    """Client 2 is the difference of two groups; a group without survivors has nothing to open."""
    groupings = [((0, 1, 2), (3, 4, 5)), ((0, 1), (2, 3, 4, 5)), ((6, 7),)]
    verdict = audit(groupings, range(6), REPORT, plan_hash=b"")
    assert verdict.opened == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert dict(verdict.closed) == {(2, 0): "it has no survivors"}
    assert verdict.exposed == verdict.would_expose == {2}
    assert verdict.anonymity == Anonymity(1, 1, "computed")
    assert verdict.leverage[2] == 1.0
    assert verdict.sentences[:4] == (
        "REPORT ONLY: every group sum is opened, whatever it exposes",
        "4 of 5 group sums are opened; T = 1 (exact)",
        "the server learns the updates of client 2 exactly",
        "opening grouping 1 would expose client 2",
    )
    assert [sentence.partition(": ")[0] for sentence in verdict.sentences[4:]] == [
        f"group {k} of grouping {g} should stay closed" for g, k in verdict.objections
    ]
    assert verdict.objections[2, 0] == "it has no survivors"
    assert verdict.objections[1, 0] == "it has 2 survivors, fewer than 3"
    assert verdict.objections.keys() - {(2, 0), (1, 0)} == {(1, 1)}  # less group 1 of grouping 0 it is client 2


def test_a_proof_of_the_schedule_counts_if_it_is_better_than_what_was_computed() -> None:
    atoms = [tuple(range(3 * a, 3 * a + 3)) for a in range(4)]
    one = [(atoms[0] + atoms[1], atoms[2] + atoms[3])]
    found = audit(one, range(12), Policy(), plan_hash=b"", atoms=atoms).anonymity
    assert found == Anonymity(6, 6, "computed")  # the proof says 3
    single = [tuple(atoms)]
    found = audit(single, range(12), Policy(), plan_hash=b"", atoms=atoms).anonymity
    assert found == Anonymity(3, 3, "computed")  # the proof says the same
    wide = [tuple(range(20 * a, 20 * a + 20)) for a in range(4)]
    three = [((*wide[0], *wide[1]), (*wide[2], *wide[3])), ((*wide[0], *wide[2]), (*wide[1], *wide[3]))]
    three.append(((*wide[0], *wide[3]), (*wide[1], *wide[2])))
    found = audit(three, range(80), Policy(), plan_hash=b"", atoms=wide).anonymity
    assert (found.lower, found.how) == (20, "by the schedule")


def test_no_reported_leverage_is_above_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leverage, "values", property(lambda self: np.full(len(self.weights), 1.0 + 2**-40)))
    assert set(audit([((0, 1, 2),)], range(3), REPORT, plan_hash=b"").leverage.values()) == {1.0}


def test_what_sums_reveal_over_several_rounds() -> None:
    found = revealed([{0, 1, 2}, {0, 1}, {5, 6}])
    assert (found.clients, found.rank, found.exposed) == ((0, 1, 2, 5, 6), 3, frozenset({2}))
    assert dict(found.leverage) == pytest.approx({0: 0.5, 1: 0.5, 2: 1.0, 5: 0.5, 6: 0.5})
    assert "leverage" not in repr(found)


# --- what the prime is drawn from --------------------------------------------------------------------------------


def key(groupings: Any, alive: Any, colluders: Any, plan_hash: bytes) -> bytes:
    """SHA-256 of all public sets, each with its length before it, in words of four bytes."""
    numbers = [len(alive), *sorted(alive), len(colluders), *sorted(colluders)]
    for grouping in groupings:
        numbers += [1, len(grouping)]
        for group in grouping:
            numbers += [len(group), *group]
    return hashlib.sha256(labels.AUDIT_SETS + plan_hash + b"".join(v.to_bytes(4, "little") for v in numbers)).digest()


def test_the_prime_is_drawn_from_all_public_sets() -> None:
    groupings = [((0, 1, 70_000), (3, 4)), ((0, 3), (1, 4, 70_000))]
    sets = Incidence(groupings, (4, 0, 1, 70_000), colluders=(4, 3), plan_hash=b"plan")
    assert sets.key == key(groupings, (0, 1, 4, 70_000), (3, 4), b"plan")
    assert sets.field == Field.drawn_from(sets.key)


def test_the_rows_of_an_audit_leave_out_colluders_and_the_missing() -> None:
    sets = Incidence([((9, 1, 2), (3, 4))], (9, 1, 3, 4), colluders=(3, 7), plan_hash=b"")
    assert sets.members == {(0, 0): (1, 9), (0, 1): (4,)}
    assert sets.index == {(0, 0): (0, 2), (0, 1): (1,)}
    assert (sets.clients, sets.alive, sets.missing) == ((1, 4, 9), {(0, 0): 2, (0, 1): 2}, {2, 3})
    assert sets.weights.tolist() == [1.0, 1.0, 1.0]
    weighted = Incidence([((0, 1),)], (0, 1), weights={0: 2, 1: 0.5, 5: 9}, plan_hash=b"")
    assert weighted.weights.tolist() == [2.0, 0.5]


@pytest.mark.parametrize(
    ("groupings", "weights", "says"),
    [
        ([((0, 1), (1, 2))], None, "^grouping 0 has a client twice; its groups must be disjoint$"),
        ([((0, 1),), ((2, 2),)], None, "^grouping 1 has a client twice"),
        ([((0, 1, 2),)], {0: 1.0, 2: 1.0}, "^client 1 has no weight$"),
        ([((0, 1, 2),)], {0: 1.0, 1: 0.0, 2: 1.0}, "^weights must be positive and finite$"),
        ([((0, 1, 2),)], {0: 1.0, 1: -1.0, 2: 1.0}, "^weights must be positive and finite$"),
    ],
)
def test_an_audit_refuses_what_is_no_grouping_or_no_weight(groupings: Any, weights: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Incidence(groupings, (0, 1, 2), weights=weights, plan_hash=b"")


def test_the_witnesses_of_primality_are_the_primes_up_to_37() -> None:
    assert list(rowspace._WITNESSES) == [number for number in range(-5, 41) if is_prime(number)]
    assert not is_prime(41 * 43)
    assert is_prime(2**61 - 1)
    assert not is_prime(3825123056546413051)  # a strong pseudoprime to the bases up to 23


# --- leverage ----------------------------------------------------------------------------------------------------


def measured(rows: Any, weights: Any) -> Leverage:
    space, result = RowSpace(len(weights), FIELD), Leverage(np.array(weights, np.float64))
    for row in rows:
        if space.add(row):
            result.add(row)
    return result


@pytest.mark.parametrize("seed", range(12))
def test_leverage_is_the_exact_diagonal_of_the_projector(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    rows = [tuple(np.flatnonzero(rng.random(n) < 0.6).tolist()) or (0,) for _ in range(6)]
    weights = rng.integers(1, 9, n).tolist()
    exact = rational.leverage(rows, range(n), [Fraction(w) for w in weights])
    assert measured(rows, weights).values == pytest.approx([float(value) for value in exact], abs=1e-12)


def test_the_room_for_rows_grows_with_them() -> None:
    pairs = [(2 * i, 2 * i + 1) for i in range(40)]
    result = measured(pairs, [1.0] * 80)
    assert result.rank == 40
    assert result.values == pytest.approx(0.5)
    assert result.consider((0, 2))[[0, 1, 2, 3]] == pytest.approx([0.75] * 4)


def test_a_remainder_exactly_at_the_limit_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def after_one_row() -> Leverage:
        result = Leverage(np.ones(3))
        result.add((0, 1))
        return result

    share = after_one_row()._remainder((0, 2))
    assert share == pytest.approx(0.75)
    for limit, lost in ((share, False), (float(np.nextafter(share, 1)), True)):
        monkeypatch.setattr(leverages, "LOST", limit)
        assert bool((after_one_row().consider((0, 2)) == 1).all()) is lost
        added = after_one_row()
        added.add((0, 2))
        assert added.lost is lost
        assert bool((added.values == 1).all()) is lost


@pytest.mark.parametrize(("light", "lost"), [(1.5e-5, False), (0.9e-5, True)])
def test_a_row_is_lost_if_less_than_a_ten_billionth_of_it_is_new(light: float, lost: bool) -> None:
    """The squared length of what row {0, 2} adds to {0}: light^2 of 1 + light^2."""
    result = Leverage(np.array([1.0, 1.0, light]))
    result.add((0,))
    result.add((0, 2))
    assert result.lost is lost
