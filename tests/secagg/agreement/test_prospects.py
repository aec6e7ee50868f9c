"""Whether a proposal will pass, before it has a seed: trial draws are counted, known groups are judged once."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from secagg import AgreementRefused, Schedule, UsageError
from secagg.agreement import Prospect, Terms, prospect
from secagg.agreement.audit import check_policy
from secagg.agreement.keeping import Kept
from secagg.agreement.prospects import _Trial
from secagg.agreement.successors import drawn_cells
from tests.secagg.agreement.common import Trial, made, plain_terms

NARROW: dict[str, Any] = {"members": 12, "size": 6, "groupings": 3, "schedule": "random"}


def passes(terms: Terms, number: int) -> str:
    """What the audit says of one trial draw: nothing, or why it is refused."""
    try:
        check_policy(Trial(terms, sha256(b"secagg/trial-draw:%d" % number + terms.hash).digest()))
    except AgreementRefused as refused:
        return str(refused)
    return ""


def test_a_prospect_in_words() -> None:
    assert str(Prospect(1, 1)) == "it passes"
    assert str(Prospect(1, 0, "too bad")) == "it does not pass"
    assert str(Prospect(2, 1)) == "1 of 2 trial draws pass"
    assert Prospect(2, 1).why == ""


def test_trial_draws_are_counted_and_the_first_refusal_is_told() -> None:
    terms = plain_terms(**NARROW)
    found = [passes(terms, number) for number in range(20)]
    assert 0 < sum(not why for why in found) < 20
    reasons = [why for why in found if why]
    assert len(set(reasons)) > 1
    assert prospect(terms, ()) == Prospect(20, found.count(""), reasons[0])
    assert prospect(terms, [], draws=3) == Prospect(3, found[:3].count(""), next((why for why in found[:3] if why), ""))


def test_the_number_of_draws_has_limits() -> None:
    terms = plain_terms(size=6)
    assert prospect(terms, (), draws=1) == Prospect(1, 1)
    for wrong in (0, 10_001):
        with pytest.raises(UsageError, match=f"^draws: expected a whole number from 1 to 10000, got {wrong}$"):
            prospect(terms, (), draws=wrong)
    with pytest.raises(UsageError, match=r"^terms: expected Terms, got int$"):
        prospect(5, ())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^earlier, each: expected Agreement, got int$"):
        prospect(terms, (5,))  # type: ignore[arg-type]


def test_kept_groups_are_known_and_judged_once() -> None:
    agreement, _ = made(members=6, size=3)
    kept = replace(agreement.terms, name="kept", predecessors=(agreement.fingerprint,), keep=Kept(agreement.seed, ()))
    assert prospect(kept, [agreement]) == Prospect(1, 1)
    assert prospect(replace(kept, sample=3), [agreement], 4).draws == 4
    atoms, _ = made(members=12, size=6, schedule="atoms", atom=3)
    regrouped = replace(atoms.terms, name="kept", predecessors=(atoms.fingerprint,), keep=Kept(atoms.seed, ()))
    assert prospect(regrouped, [atoms], 4) == Prospect(4, 4)
    new = replace(kept, keep=None)
    assert prospect(new, [agreement], 4).draws == 4


def test_predecessors_that_are_missing_are_told_at_once() -> None:
    agreement, _ = made(members=6, size=3)
    with pytest.raises(AgreementRefused, match=r"^predecessors: the agreement names 1 earlier agreements"):
        prospect(replace(agreement.terms, predecessors=(agreement.fingerprint,)), ())


def test_a_draw_is_judged_alone_and_with_its_predecessors() -> None:
    """New groups beside earlier ones of the same members: nearly always, two sums tell a member's update."""
    agreement, _ = made(members=6, size=3)
    again = replace(agreement.terms, name="again", predecessors=(agreement.fingerprint,))
    found = prospect(again, [agreement], 10)
    assert found.passed < 10
    assert "rounds together" in found.why
    twice = replace(again, schedule=Schedule(name="fixed", size=3, groupings=2), last_round=0)
    assert " break the policy in one round: " in prospect(twice, [agreement], 2).why
    alone = prospect(plain_terms(weights=(1, 1, 3, 1, 1, 1)), (), 2)
    assert alone.passed == 0
    assert "leverage of client 2" in alone.why


def test_a_trial_draws_what_an_agreement_with_its_seed_would() -> None:
    terms = plain_terms(**NARROW, rounds=3)
    trial = _Trial(terms, b"\5" * 32)
    for round in (0, 1, 1, 0, 2):
        assert trial.cells(round) == drawn_cells(terms, b"\5" * 32, round)
        assert trial.cells(round) is trial.cells(round)  # drawn once while it is judged
        assert len(trial._drawn) == 1  # and not kept for all rounds
    assert trial == _Trial(terms, b"\5" * 32)
    assert trial.fingerprint == b""
