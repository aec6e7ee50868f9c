"""What permitted groups reveal, record by record, and the words in which an agreement is refused for it."""

from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secagg import AgreementRefused, Policy, UsageError
from secagg.agreement import audit
from secagg.agreement.audit import (
    Permitted,
    _judge,
    _over_rounds,
    _permitted,
    _weightings,
    audit_round,
    audit_training,
)
from secagg.agreement.keeping import lasting_atoms, lasting_groupings
from secagg.crypto import Segment
from secagg.exposure.audit import Anonymity
from secagg.exposure.audit import audit as exposure_audit
from tests.secagg.agreement.common import Trial, plain_terms

ROUND = Policy(memory="round")
REPORT = Policy(mode="report-even-if-exposed")
BOTH = (Segment(name="a", shape=(1,), clip=1.0), Segment(name="b", shape=(1,), bound=5))
INTEGERS = (Segment(shape=(1,), bound=5),)
NEW: dict[str, Any] = {"members": 12, "size": 6, "groupings": 2, "schedule": "random"}
HEAVY = (1, 1, 3, 1, 1, 1)


def trial(**more: Any) -> Trial:
    return Trial(plain_terms(**more))


def disjoint(size: int, leverage: float, worst: int, **more: Any) -> Permitted:
    fields: dict[str, Any] = {"rounds": 1, "exposed": frozenset()}
    anonymity = Anonymity(size, size, "the groups share no client")
    return Permitted(**fields | {"anonymity": anonymity, "leverage": leverage, "worst": worst} | more)


# --- groups that share nobody --------------------------------------------------------------------------------------


def test_groups_that_share_nobody_reveal_their_sums_and_nothing_else() -> None:
    heavy = trial(weights=HEAVY, policy=Policy(max_leverage=1.0))
    assert audit_round(heavy) == disjoint(3, 9 / 11, 2)
    assert audit_training(Trial(replace(heavy.terms, last_round=8))) == disjoint(3, 9 / 11, 2, rounds=9)
    integers = trial(weights=HEAVY, segments=INTEGERS)
    found = audit_round(integers)
    assert found == disjoint(3, 1 / 3, found.worst)
    assert found.worst in range(6)


def test_a_group_that_breaks_the_policy_is_told() -> None:
    few = trial(size=3, policy=replace(REPORT, anonymity=4, min_survivors=5, max_leverage=0.25))
    found = audit_round(few)
    leverage = f"the leverage of client {found.worst} would be 0.333, above 0.25"
    assert found == disjoint(3, 1 / 3, found.worst, objections=("a group has 3 members, fewer than 5", leverage))
    for fits in (
        replace(REPORT, anonymity=3, max_leverage=1 / 3),
        replace(REPORT, min_survivors=3, max_leverage=1 / 3),
    ):
        assert audit_round(trial(size=3, policy=fits)).objections == ()
    exact = 0.25 - 1e-9  # a computed leverage may be this much above a written one
    assert exact + 1e-9 == 0.25
    assert audit_round(trial(members=8, size=4, policy=replace(REPORT, max_leverage=exact))).objections == ()
    slightly = audit_round(trial(size=3, policy=replace(REPORT, max_leverage=1 / 3 - 1e-8)))
    assert slightly.objections == (f"the leverage of client {slightly.worst} would be 0.333, above 0.333333",)


def test_a_group_of_one_exposes_its_member() -> None:
    terms = plain_terms(policy=REPORT)
    found = _judge(terms, (((0, 1), (2,), (3, 4, 5)),), rounds=4)
    reasons = ("a group has 1 members, fewer than 3", "the leverage of client 2 would be 1.000, above 0.5")
    assert found == disjoint(1, 1.0, 2, rounds=4, exposed=frozenset({2}), objections=reasons)


def test_a_vector_of_floats_and_integers_is_judged_as_both() -> None:
    """The worse of the two: more objections, then more leverage."""
    heavy = audit_round(trial(weights=HEAVY, segments=BOTH, policy=REPORT))
    assert heavy == disjoint(3, 9 / 11, 2, objections=("the leverage of client 2 would be 0.818, above 0.5",))
    terms = plain_terms(weights=HEAVY, segments=BOTH)
    weights = dict(enumerate(HEAVY))
    assert _weightings(terms) == [weights, None]
    assert _weightings(plain_terms(weights=HEAVY)) == [weights]
    for unweighted in (plain_terms(weights=HEAVY, segments=INTEGERS), plain_terms(segments=BOTH), plain_terms()):
        assert _weightings(unweighted) == [None]


def test_leavers_keep_the_weights_that_they_had() -> None:
    now, before = plain_terms(members=3), plain_terms(weights=(1, 1, 1, 5), size=4)
    assert _weightings(now, [before]) == [{0: 1, 1: 1, 2: 1, 3: 5}]
    integers = plain_terms(members=3, segments=INTEGERS)
    assert _weightings(integers, [before]) == [{0: 1, 1: 1, 2: 1, 3: 5}, None]
    assert _weightings(now, [plain_terms(members=4, size=4)]) == [None]


# --- overlapping groups --------------------------------------------------------------------------------------------


def test_overlapping_groups_are_judged_as_the_audit_of_a_run_judges_them() -> None:
    """x0 + x1 + x2 and x0 + x1 + x3 give the difference of clients 2 and 3; x3 + x4 + x5 hides the rest."""
    terms = plain_terms(policy=Policy(max_leverage=1.0, anonymity=2))
    found = _judge(terms, (((0, 1, 2), (3, 4, 5)), ((0, 1, 3),)), rounds=2)
    matrix = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1], [1, 1, 0, 1, 0, 0]], float)
    leverage = np.diag(np.linalg.pinv(matrix) @ matrix)
    assert found == Permitted(
        rounds=2,
        anonymity=Anonymity(2, 2, "computed"),
        exposed=frozenset(),
        leverage=pytest.approx(leverage.max()),  # type: ignore[arg-type]
        worst=found.worst,
    )
    assert leverage[found.worst] == pytest.approx(leverage.max())
    exposing = _judge(terms, (((0, 1, 2), (3, 4, 5)), ((0, 1, 2, 3),)), rounds=2)
    assert (exposing.exposed, exposing.leverage, exposing.worst) == (frozenset({3}), 1.0, 3)
    assert len(exposing.objections) == 1


def test_a_decision_that_went_further_than_the_report_counts() -> None:
    def verdict(lower: int, *objections: str) -> Any:
        return SimpleNamespace(
            anonymity=Anonymity(lower, 9, "computed"),
            objections=dict(enumerate(objections)),
            leverage={0: 0.1, 1: 0.4, 2: 0.3},
            exposed=frozenset(),
        )

    terms = plain_terms(size=6, policy=Policy(anonymity=5))
    expected = Permitted(rounds=3, anonymity=Anonymity(5, 9, "computed"), exposed=frozenset(), leverage=0.4, worst=1)
    assert _permitted(terms, verdict(4), 3) == _permitted(terms, verdict(5), 3) == expected
    assert _permitted(terms, verdict(6), 3) == replace(expected, anonymity=Anonymity(6, 9, "computed"))
    assert _permitted(terms, verdict(4, "x", "y"), 3) == replace(
        expected, anonymity=Anonymity(4, 9, "computed"), objections=("x", "y")
    )


# --- rounds --------------------------------------------------------------------------------------------------------


def test_a_roll_call_leaves_the_policy_and_its_heaviest_member() -> None:
    given: dict[str, Any] = {"members": 6, "size": 6, "roll_call": True}
    loose = Policy(memory="round", max_leverage=1.0, min_survivors=4)
    found = audit_round(trial(**given, weights=(5, 2, 1, 3, 4, 1), policy=loose))
    assert found == Permitted(
        rounds=1,
        anonymity=Anonymity(4, 4, "the fewest members of a roll call"),
        exposed=frozenset(),
        leverage=25 / (25 + 1 + 1 + 4),
        worst=0,
        bound=True,
    )
    assert audit_round(trial(**given, policy=replace(ROUND, max_leverage=0.3))).leverage == 0.3
    everybody = audit_round(trial(**given, policy=replace(ROUND, min_survivors=6)))
    assert (everybody.anonymity.lower, everybody.bound) == (6, False)  # all or nothing
    assert not audit_round(trial(**given | {"roll_call": False}, policy=ROUND)).bound


def test_all_fixed_groups_count_whoever_is_sampled() -> None:
    training = trial(members=12, weights=(1,) * 11 + (3,), sample=3, policy=REPORT)
    absent = next(
        Trial(training.terms, bytes([k] * 32))
        for k in range(99)
        if 11 not in chain(*Trial(training.terms, bytes([k] * 32)).groupings(0)[0])
    )
    for found in (audit_round(absent), audit_training(absent)):
        assert (found.worst, found.leverage) == (11, 9 / 11)


def test_atoms_bound_what_any_round_reveals() -> None:
    atoms: dict[str, Any] = {"members": 12, "size": 6, "schedule": "atoms", "atom": 3}
    one = audit_round(trial(**atoms))
    assert one == disjoint(6, 1 / 6, one.worst)
    several = audit_round(trial(**atoms, groupings=2))
    assert several == disjoint(3, 1 / 3, several.worst, bound=True)
    weights = (1,) * 11 + (2,)
    weighted = audit_round(trial(**atoms, weights=weights, policy=Policy(max_leverage=0.7)))
    assert weighted == disjoint(3, 4 / 6, 11, bound=True)
    within = audit_round(trial(**atoms, weights=weights, rounds=2))  # by the groups, where the atoms alone would not do
    assert within == disjoint(6, 4 / 9, 11)
    assert audit_training(trial(**atoms, weights=weights, policy=replace(REPORT, max_leverage=0.5))).objections == ()


def test_rounds_that_differ_are_judged_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An enforced policy: all rounds, up to the first that breaks it. A report: the first ten, the worst of them."""
    judged: list[int] = []
    results: dict[int, Permitted] = {}

    def judge(training: Any, round: int) -> Permitted:
        judged.append(round)
        return results.get(round, disjoint(6, 0.25, round))

    monkeypatch.setattr(audit, "_judge_drawn", judge)

    def seen(policy: Policy, **found: Permitted) -> tuple[Permitted, list[int]]:
        judged.clear()
        results.clear()
        results.update({int(name[1:]): value for name, value in found.items()})
        return audit_round(trial(**NEW, policy=policy, first_round=1, last_round=11)), list(judged)

    worse = disjoint(6, 0.3, 7)
    exposing = disjoint(6, 0.2, 5, exposed=frozenset({5}))
    broken = disjoint(6, 0.1, 4, objections=("too bad",))
    worst = disjoint(6, 1.0, 3, objections=("too bad",), exposed=frozenset(range(12)))
    everything = list(range(1, 12))
    assert seen(ROUND) == (disjoint(6, 0.25, 1), everything)
    assert seen(ROUND, r7=worse, r9=disjoint(6, 0.3, 9)) == (worse, everything)
    assert seen(ROUND, r7=worse, r5=exposing) == (exposing, everything)
    assert seen(ROUND, r7=worse, r5=exposing, r4=broken) == (broken, everything[:4])
    report = replace(ROUND, mode="report-even-if-exposed")
    first = everything[:10]
    assert seen(report) == (replace(disjoint(6, 0.25, 1), partial=True), first)
    assert seen(report, r7=worse, r5=exposing, r4=broken) == (replace(broken, partial=True), first)
    assert seen(report, r11=worst) == (replace(disjoint(6, 0.25, 1), partial=True), first)
    assert seen(report, r3=worst) == (worst, everything[:3])
    results.clear()
    assert not audit_round(trial(**NEW, policy=report, rounds=10)).partial
    assert audit_round(trial(**NEW, policy=report, rounds=11)).partial


def test_at_most_two_to_the_22_places_are_judged_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_judge_drawn", lambda training, round: disjoint(8, 0.1, 0, objections=("stop",)))
    given: dict[str, Any] = {"members": 16, "size": 8, "groupings": 2, "schedule": "random"}
    assert audit_round(trial(**given, policy=ROUND, rounds=2**17)).objections == ("stop",)
    with pytest.raises(
        AgreementRefused,
        match=r"^policy: 131073 rounds of 2 new groupings of 16 members are too many to judge beforehand; use the",
    ):
        audit_round(trial(**given, policy=ROUND, rounds=2**17 + 1))
    report = replace(ROUND, mode="report-even-if-exposed")
    assert audit_round(trial(**given, policy=report, rounds=2**17 + 1)).objections == ("stop",)


def test_equal_members_of_a_grid_are_judged_by_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    monkeypatch.setattr(
        audit,
        "_judge_drawn",
        lambda training, round: judged.append(round) or disjoint(4, 0.3, 0),  # type: ignore[func-returns-value]
    )
    given: dict[str, Any] = {"members": 16, "size": 4, "groupings": 2, "schedule": "transversal", "policy": ROUND}
    audit_round(trial(**given, first_round=2, last_round=4))
    assert judged == [2]
    audit_round(trial(**given, weights=(2,) + (1,) * 15, first_round=2, last_round=4))
    assert judged == [2, 2, 3, 4]


def test_the_proof_of_a_grid_is_used_and_cells_are_judged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    judge = exposure_audit

    def spy(groupings: Any, *more: Any, columns: Any, **rest: Any) -> Any:
        seen.append((groupings, columns))
        return judge(groupings, *more, columns=columns, **rest)

    monkeypatch.setattr(audit, "audit", spy)
    grid = trial(members=16, size=4, groupings=2, schedule="transversal", policy=ROUND)
    audit_round(grid)
    (cell,) = grid.cells(0)
    assert cell.columns
    assert seen == [(cell.groupings, cell.columns)]
    survivors = {"groups": "survivors", "colluders": 0, "cell": 12, "policy": ROUND}
    celled = trial(members=24, size=6, groupings=2, schedule="random", **survivors)
    audit_round(celled)
    one, two = celled.cells(0)
    both = tuple(a + b for a, b in zip(one.groupings, two.groupings, strict=True))
    assert seen[1:] == [(both, ())]


# --- all rounds together -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "size", "rounds", "judged"),
    [
        (12, 3, 17, 17),
        (12, 3, 18, 17),  # 4 groups in a round: 68 are more than 64
        (15, 3, 13, 13),
        (15, 3, 14, 13),  # 5 groups in a round: 65 are more than 64
        (60, 5, 8, 7),  # 12 groups in a round: 72 are 1.2 for a member, 84 are more
        (60, 4, 6, 5),  # 15 groups in a round: 75 are more
    ],
)
def test_new_groups_are_judged_together_until_they_surely_expose(
    members: int, size: int, rounds: int, judged: int
) -> None:
    """More than 64 groups, and more than 1.2 for each member: if they differ, everybody is exposed."""
    training = trial(members=members, size=size, schedule="random", rounds=rounds, policy=REPORT, first_round=0)
    span = _over_rounds(training)
    assert (span.rounds, span.whole, span.exact) == (judged, judged == rounds, True)
    assert list(span.groupings) == [training.groupings(t)[0] for t in range(judged)]


def test_lasting_groups_stand_for_all_rounds() -> None:
    atoms: dict[str, Any] = {"members": 12, "size": 6, "schedule": "atoms", "atom": 3, "rounds": 9}

    def seen(**more: Any) -> tuple[Any, ...]:
        training = trial(**more)
        span = _over_rounds(training)
        assert span.whole
        terms = training.terms
        if span.groupings == training.groupings(terms.first_round):
            return "groups", span.rounds, span.exact
        assert span.groupings == (lasting_atoms(None, terms.schedule, terms.ids, training.seed),)
        return "atoms", span.rounds, span.exact

    assert seen(rounds=9) == ("groups", 9, True)
    assert seen(size=6, schedule="random", rounds=9) == ("groups", 9, True)  # one group of all
    assert seen(schedule="random", first_round=4, last_round=4) == ("groups", 1, True)
    assert seen(**atoms) == ("atoms", 9, False)
    assert seen(**atoms | {"rounds": 1}) == ("groups", 1, True)
    assert seen(**atoms | {"size": 12}) == ("groups", 9, True)
    survivors = {"groups": "survivors", "colluders": 0, "policy": ROUND}
    for more in ({}, {"rounds": 1}, {"size": 12}):
        assert seen(**atoms | survivors | more)[0::2] == ("atoms", False)
    sampled = trial(members=12, sample=3, rounds=5)
    fixed = lasting_groupings(None, sampled.terms.schedule, sampled.terms.ids, sampled.seed)
    assert _over_rounds(sampled).groupings == fixed


def test_too_many_different_groups_expose_everybody_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    training = trial(members=12, schedule="random", rounds=40, policy=REPORT)
    exposed = Permitted(
        rounds=17,
        anonymity=Anonymity(1, 1, "everybody is exposed"),
        exposed=frozenset(range(12)),
        leverage=1.0,
        worst=0,
        objections=("the server would learn every update",),
        partial=True,
    )
    assert audit_training(training) == exposed
    same = audit._Span(((((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11))),), 17, whole=False)
    monkeypatch.setattr(audit, "_over_rounds", lambda training: same)
    found = audit_training(training)
    assert found == disjoint(
        3,
        1 / 3,
        found.worst,
        rounds=17,
        partial=True,
        objections=("there are too many different groups to judge them together",),
    )


def test_one_round_together_is_that_round() -> None:
    for more in ({}, {"first_round": 5, "last_round": 5}, {"size": 6, "roll_call": True, "policy": ROUND}):
        training = trial(**more)
        assert audit_training(training) == audit_round(training)


ANYBODY = Permitted(
    rounds=1,
    anonymity=Anonymity(1, 1, "two sums can differ by one member"),
    exposed=frozenset(range(6)),
    leverage=1.0,
    worst=0,
    objections=("sums of members that were present or had not released can differ by one member",),
    bound=True,
)


def test_sums_that_can_differ_by_one_member_expose_anybody() -> None:
    flat: dict[str, Any] = {"size": 6, "policy": ROUND}
    assert audit_training(trial(**flat, roll_call=True, rounds=3)) == replace(ANYBODY, rounds=3)
    assert audit_training(trial(**flat, rounds=3)).exposed == frozenset()
    first = trial(**flat)
    second = Trial(plain_terms(**flat, predecessors=(first.fingerprint,)), fingerprint=b"2" * 32)
    assert audit_training(second, [first]) == ANYBODY
    lasting = trial(size=6)
    third = Trial(plain_terms(size=6, predecessors=(lasting.fingerprint,)), fingerprint=b"3" * 32)
    found = audit_training(third, [lasting])
    assert found == disjoint(6, 1 / 6, found.worst)
    assert audit_training(third, None) == found


def test_what_earlier_agreements_opened_counts_with_what_they_weighed() -> None:
    first = Trial(plain_terms(weights=(1, 1, 1, 1, 1, 3), policy=REPORT))
    later = plain_terms(weights=(1, 1, 1), policy=REPORT, predecessors=(first.fingerprint,), rounds=2)
    second = Trial(later, fingerprint=b"2" * 32)
    found = audit_training(second, [first])
    groups = [*first.groupings(0)[0], (0, 1, 2)]
    assert found.rounds == 2
    if len({v for group in groups for v in group}) == 6:
        weights = [1, 1, 1, 1, 1, 3]
        matrix = np.array([[weights[v] * (v in group) for v in range(6)] for group in groups], float)
        assert found.leverage == pytest.approx(np.diag(np.linalg.pinv(matrix) @ matrix).max())


def test_what_is_no_agreement_cannot_be_judged() -> None:
    wrong: Any = 5
    for judge in (audit_round, audit_training):
        with pytest.raises(UsageError, match=r"^training: expected an agreement, got int$"):
            judge(wrong)
    with pytest.raises(UsageError, match=r"^earlier, each: expected an agreement, got int$"):
        audit_training(trial(), [wrong])
    with pytest.raises(UsageError, match=r"^earlier: expected a collection of object, got int$"):
        audit_training(trial(), wrong)
