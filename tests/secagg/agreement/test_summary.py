"""What an agreement allows, in words and numbers."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from secagg import Policy
from secagg.agreement import Agreement, Summary, summarise
from secagg.simulation import agree_on, make_agreement

REPORT = Policy(mode="report-even-if-exposed")


def summary(**more: Any) -> Summary:
    given: dict[str, Any] = {"members": 60, "size": 6, "length": 10, "clip": 1.0, "rounds": 20} | more
    return summarise(make_agreement(**given)[0])


def test_a_safe_agreement_says_so() -> None:
    said = summary().lines()
    assert said[0] == "simulation: 60 members, equal weights, each with 10 numbers up to 1"
    assert said[1] == "rounds 0 to 19; groups of 6, the same in every round (fixed), opened whole or not at all"
    assert said[2].startswith("in one round: nobody is exposed; T = 6 (exact)")
    assert said[3].startswith("over all 20 rounds, if updates stood still: nobody is exposed; T = 6 (exact)")
    text = "\n".join(said)
    assert "with 12 colluders fixed before the seed" in text
    assert "probability 0.0076 in a round\n" in text
    assert "T = 6 protects for certain from 4 colluders" in text
    assert "correlation up to 0.71 with it (0.41 for the groups above)" in text
    assert "only noise bounds that" in text


def test_a_loud_agreement_says_what_it_exposes() -> None:
    found = summary(size=3, groupings=10, schedule="random", policy=REPORT)
    assert "REPORT ONLY: every group sum is opened, whatever it exposes" in found.lines()
    assert "in one round: EXPOSED: clients 0, 1, 2" in "\n".join(found.lines())
    assert found.training is not None
    assert len(found.training.exposed) == 60


def test_rounds_alone_are_named_as_such() -> None:
    found = summary(schedule="random", policy=Policy(memory="round"))
    text = "\n".join(found.lines())
    assert "in one round: nobody is exposed; T = 6 (exact)" in text
    assert "if updates stood still: EXPOSED" in text
    assert "memory = 'round': each round alone keeps the policy" in text
    assert "over all rounds 0.14" in text  # 12 colluders, 20 rounds


def test_what_t_is_worth_against_the_bound() -> None:
    """Finding 6: T = 3 beside a third of the members."""
    text = "\n".join(summary(size=10, groups="survivors", schedule="random", policy=Policy(memory="round")).lines())
    assert "T = 3 protects for certain from 1 colluder" in text
    assert "it promises nothing against the 20 that the threshold withstands" in text
    flat = "\n".join(summary(size=60, groups="survivors", policy=Policy(memory="round")).lines())
    assert "T = 41 protects for certain from 39 colluders, whoever they are" in flat
    assert "promises nothing against" not in flat


def test_terms_without_a_seed_have_a_summary() -> None:
    agreement, _ = make_agreement(members=12, size=3, length=1, clip=1.0)
    found = summarise(agreement.terms)
    assert (found.fingerprint, found.round, found.training) == (None, None, None)
    assert any("depends on the seed" in line for line in found.lines())


def test_a_successor_is_summarised_with_its_predecessor() -> None:
    first, identities = make_agreement(members=60, size=20, length=1, clip=1.0)
    second = agree_on(replace(first.terms, predecessors=(first.fingerprint,)), identities)
    both, alone = summarise(second, [first]).training, summarise(first).training
    assert both is not None
    assert alone is not None
    assert both.leverage > alone.leverage


@pytest.mark.parametrize("more", [{}, {"schedule": "random", "size": 3, "policy": REPORT, "sample": 30}])
def test_json_holds_the_same(more: dict[str, Any]) -> None:
    found = summary(**more)
    said = json.loads(json.dumps(found.to_json()))
    assert said["lines"] == found.lines()
    assert found.round is not None
    assert said["round"]["leverage"] == found.round.leverage
    assert len(said["fingerprint"]) == 64
    assert {entry["colluders"] for entry in said["alone"]} == set(found.alone)


def test_a_thousand_members_and_200_rounds_are_loaded_checked_and_summarised_within_five_seconds() -> None:
    agreement, identities = make_agreement(members=1000, size=10, length=10, clip=1.0, rounds=200)
    signatures = {v: agreement.sign(v, identity) for v, identity in identities.items()}
    data, start = agreement.to_bytes(), time.process_time()
    loaded = Agreement.from_bytes(data)
    loaded.check_signatures(signatures)
    summarise(loaded).lines()
    assert time.process_time() - start < 5
