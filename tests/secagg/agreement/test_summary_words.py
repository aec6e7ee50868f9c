"""The whole text of a summary, line by line, and all of its JSON."""

from dataclasses import replace
from typing import Any

import pytest

from secagg import Policy, UsageError
from secagg.agreement import Noise, Summary, Terms, summarise
from secagg.agreement.audit import audit_round, audit_training
from secagg.agreement.cost import describe, known_before_seed, to_json, worst_round
from secagg.agreement.statistics.kinds import Count, Statistics
from secagg.agreement.summary import DELTA, NOT_PROMISED
from secagg.crypto import Segment, SegmentNoise
from tests.secagg.agreement.common import Trial, plain_terms

ROUND = Policy(memory="round")
REPORT = Policy(memory="round", mode="report-even-if-exposed")
NOISE = Noise(segments=(SegmentNoise(clip=10, sigma=40),), colluders=1)
NOT = [f"not promised: {what}" for what in NOT_PROMISED]
COMBINED = (
    "memory = 'round': each round alone keeps the policy; a server that sees similar updates in several rounds can "
    "combine them"
)


def lines(**more: Any) -> list[str]:
    return summarise(Trial(plain_terms(**more))).lines()  # type: ignore[arg-type]


def alone(colluders: int, probability: str, more: str = "") -> str:
    s = "s" * (colluders > 1)
    return (
        f"with {colluders} colluder{s} fixed before the seed: some honest member is alone among them in its group with "
        f"probability {probability} in a round{more}"
    )


def worth(limit: str, most: str, found: str = "") -> str:
    return (
        f"leverage up to {limit} is allowed: if updates are independent and of equal size, the best estimate of an "
        f"update has correlation up to {most} with it{f' ({found} for the groups above)' if found else ''}"
    )


def test_two_fixed_groups() -> None:
    """Two of six colluders are in one group in 6 of 15 cases. The root of a leverage of 1/3 is 0.58."""
    assert lines() == [
        "plain: 6 members, equal weights, each with 1 numbers up to 1",
        "rounds 0 to 0; groups of 3, the same in every round (fixed), opened whole or not at all",
        "in one round: nobody is exposed; T = 3 (exact); highest leverage 0.333",
        alone(1, "0"),
        alone(2, "0.4"),
        "T = 3 protects for certain from 1 colluder, whoever they are",
        worth("0.5", "0.71", "0.58"),
        *NOT,
    ]


def test_groups_that_are_not_drawn_yet() -> None:
    assert summarise(plain_terms(rounds=4)).lines() == [
        "plain: 6 members, equal weights, each with 1 numbers up to 1",
        "rounds 0 to 3; groups of 3, the same in every round (fixed), opened whole or not at all",
        "what the groups reveal depends on the seed and is judged when there is one",
        alone(1, "0"),
        alone(2, "0.4"),
        "T = 3 protects for certain from 1 colluder, whoever they are",
        worth("0.5", "0.71"),
        *NOT,
    ]


def test_unequal_members_over_several_rounds() -> None:
    """A weight of 5 beside 1 and 1 in a flat sum of three has a leverage of 25/27."""
    found = lines(weights=(5, 1, 1), rounds=3, policy=Policy(max_leverage=1.0, anonymity=2))
    assert found == [
        "plain: 3 members, weights from 1 to 5, each with 1 numbers up to 1",
        "rounds 0 to 2; groups of 3, the same in every round (fixed), opened whole or not at all",
        "in one round: nobody is exposed; T = 3 (exact); highest leverage 0.926",
        "over all 3 rounds, if updates stood still: nobody is exposed; T = 3 (exact); highest leverage 0.926",
        alone(1, "0"),
        "T = 3 protects for certain from 1 colluder, whoever they are",
        worth("1", "1.00", "0.96"),
        *NOT,
    ]


def test_weights_are_told_from_the_least_to_the_most() -> None:
    assert lines(weights=(1, 2, 2), policy=Policy(max_leverage=1.0))[0].startswith(
        "plain: 3 members, weights from 1 to 2,"
    )
    assert lines(weights=(2, 2, 2))[0].startswith("plain: 3 members, equal weights,")


def test_groups_of_atoms() -> None:
    """Two of twelve are in one of four atoms in 12 of 66 cases; four, in all but 3^4 of 495 or with a whole atom."""
    found = lines(members=12, size=6, schedule="atoms", atom=3, rounds=2)
    assert found[1:6] == [
        "rounds 0 to 1; groups of 6, of atoms of 3 that stay together (atoms), opened whole or not at all",
        "in one round: nobody is exposed; T = 6 (exact); highest leverage 0.167",
        "over all 2 rounds, if updates stood still: nobody is exposed; T >= 3; highest leverage at most 0.333",
        alone(1, "0", ", over all rounds at most 0"),
        alone(2, "0", ", over all rounds at most 0.18"),
    ]
    assert found[7:9] == [
        "T = 3 protects for certain from 1 colluder, whoever they are",
        worth("0.5", "0.71", "0.58"),
    ]


def test_overlapping_groups_of_a_sample() -> None:
    terms = plain_terms(members=24, size=12, groupings=2, schedule="random", sample=24, policy=ROUND)
    found = summarise(Trial(terms)).lines()  # type: ignore[arg-type]
    assert found[1] == (
        "rounds 0 to 0, at most 24 members drawn for each; 2 groupings into groups of 12, new in every round (random), "
        "opened whole or not at all"
    )
    more = "; sums of groups that overlap can isolate more"
    assert found[3:7] == [alone(k, "0", more) for k in (2, 4, 8)] + [found[6]]


def test_survivors_of_cells() -> None:
    given: dict[str, Any] = {"members": 20, "size": 4, "groups": "survivors", "cell": 12, "policy": ROUND}
    found = lines(**given, colluders=1, rounds=2)
    assert found[1] == (
        "rounds 0 to 1; groups of 4, the same in every round (fixed), opened for the survivors; 2 cell(s) of 8 "
        "clients, t = 5, 12 clients, t = 7"
    )
    assert found[2].startswith("in one round: if nobody drops out: nobody is exposed; T = 4 (exact)")
    assert found[4] == COMBINED
    assert "T = 3 protects for certain from 1 colluder, whoever they are" in found
    worse = lines(**given, colluders=2)
    assert "T = 3 protects for certain from 1 colluder, whoever they are; it promises nothing against the 2 that the threshold withstands" in worse  # fmt: skip  # noqa: E501
    assert alone(2, summarise(plain_terms(**given, colluders=2)).alone[2][0].__str__()) in worse


def test_survivors_of_a_flat_sum_and_of_atoms() -> None:
    flat = lines(members=12, size=12, groups="survivors", colluders=4, policy=ROUND)
    assert "T = 9 protects for certain from 7 colluders, whoever they are" in flat  # t = 9
    atoms = lines(members=12, size=6, schedule="atoms", atom=3, groups="survivors", colluders=1, threshold=11)
    assert "T = 3 protects for certain from 1 colluder, whoever they are" in atoms
    given: dict[str, Any] = {"groups": "survivors", "colluders": 0, "policy": Policy(memory="round", anonymity=2)}
    several = lines(members=12, size=6, groupings=2, schedule="random", threshold=11, **given)
    assert "T = 2 protects for certain from 0 colluders, whoever they are" in several
    sparse = lines(members=6, size=6, groups="survivors", degree=4, threshold=4, colluders=0)
    assert sparse[1].endswith(
        "opened for the survivors; 1 cell(s) of 6 clients, t = 4; SPARSE MODE: it protects from a semi-honest server "
        "only"
    )


def test_a_roll_call() -> None:
    found = lines(members=12, size=12, roll_call=True, rounds=2, policy=ROUND)
    assert found[1:6] == [
        "rounds 0 to 1; groups of 12, the same in every round (fixed), opened for the members that the server finds "
        "present in a roll call, at least 3 of them",
        "in one round: nobody is exposed; T >= 3; highest leverage at most 0.333",
        "over all 2 rounds, if updates stood still: EXPOSED: clients 0, 1, 2, 3, 4, 5, 6, 7 and 4 others; T >= 1; "
        "highest leverage at most 1.000",
        COMBINED,
        "roll call: the server and 2 colluders can choose to be summed with one honest member",
    ]
    assert "T = 3 protects for certain from 1 colluder, whoever they are" in found
    assert worth("0.5", "0.71", "0.58") in found  # of each round alone


def test_a_report_protects_nobody() -> None:
    found = lines(members=12, schedule="random", rounds=40, policy=REPORT)
    assert found[2:5] == [
        "REPORT ONLY: every group sum is opened, whatever it exposes",
        "in one round: nobody is exposed; T = 3 (exact); highest leverage 0.333",
        "over the first 17 rounds, if updates stood still: EXPOSED: clients 0, 1, 2, 3, 4, 5, 6, 7 and 4 others; T = 1 "
        "(exact); highest leverage 1.000",
    ]
    assert not any("protects for certain" in line for line in found)
    assert worth("1", "1.00", "0.58") in found


@pytest.mark.parametrize(("count", "more"), [(8, ""), (9, ", 1 more segments")])
def test_of_many_segments_eight_are_named(count: int, more: str) -> None:
    segments = tuple(Segment(name=f"s{k}", shape=(k + 1,), bound=9) for k in range(count - 1))
    segments += (Segment(name="last", shape=(2, 3), clip=0.5),)
    named = [f"{k + 1} whole numbers (s{k})" for k in range(8)]
    named[count - 1 :] = ["6 numbers up to 0.5 (last)"] * (count == 8)
    found = lines(segments=segments)
    assert found[0] == f"plain: 6 members, equal weights, each with {', '.join(named)}{more}"


def test_statistics_are_told_one_by_one() -> None:
    asked = Statistics(most_rows=5, asked=(Count(name="n", of=None), Count(name="m", of=None)))
    found = lines(segments=(), statistics=asked)
    length = plain_terms(segments=(), statistics=asked).length
    assert found[0] == f"plain: 6 members, equal weights, each with {length} whole numbers for the statistics below"
    assert found[2:4] == ["may be asked: n: number of rows", "may be asked: m: number of rows"]


# --- noise ---------------------------------------------------------------------------------------------------------


def noisy(rounds: int = 1, **more: Any) -> Terms:
    given: dict[str, Any] = {"segments": (Segment(shape=(4,), bound=100),), "noise": NOISE, "rounds": rounds}
    return plain_terms(**given | more)


def test_noise_is_told_with_what_it_costs() -> None:
    terms = noisy(rounds=5)
    cost = worst_round(Trial(terms))
    assert known_before_seed(terms) == cost
    said = [
        "every client clips its update and adds noise of sigma 40 steps of the grid",
        f"a round costs a member at most {describe(cost, NOISE, 1e-6)}",
        f"all 5 rounds together: {describe(cost.times(5), NOISE, 1e-6)}",
        *NOT[1:],
    ]
    assert summarise(Trial(terms)).lines()[-6:] == summarise(terms).lines()[-6:] == said  # type: ignore[arg-type]
    other = summarise(terms, delta=1e-3).lines()
    assert other[-5] == f"a round costs a member at most {describe(cost, NOISE, 1e-3)}"
    assert DELTA == summarise(terms).delta == 1e-6
    assert not any("rounds together" in line for line in summarise(noisy()).lines())
    assert any("all 2 rounds together" in line for line in summarise(noisy(rounds=2)).lines())


def test_a_cost_that_depends_on_the_seed_is_told_as_such() -> None:
    terms = noisy(members=12, size=6, groupings=2, policy=REPORT)
    assert summarise(terms).lines()[-5:-3] == [
        "every client clips its update and adds noise of sigma 40 steps of the grid",
        "what a round costs depends on the seed and is judged when there is one",
    ]
    assert summarise(terms).to_json()["cost"] is None


def test_of_many_sigmas_eight_are_told() -> None:
    segments = tuple(Segment(name=str(k), shape=(1,), bound=9) for k in range(9))
    noise = Noise(segments=tuple(SegmentNoise(clip=1, sigma=10 * k + 10) for k in range(9)))
    found = summarise(noisy(segments=segments, noise=noise)).lines()
    assert "adds noise of sigma 10, 20, 30, 40, 50, 60, 70, 80 steps of the grid" in "\n".join(found)


# --- for programs --------------------------------------------------------------------------------------------------


def test_the_json_has_everything() -> None:
    terms = noisy(members=12, size=4, rounds=3, sample=8)
    training = Trial(terms, fingerprint=bytes(range(32)))
    found: Summary = summarise(training)  # type: ignore[arg-type]
    cost = worst_round(training)
    once = {"exposed": [], "anonymity": {"lower": 4, "upper": 4}, "leverage": 0.25, "bound": False, "partial": False}
    assert found.to_json() == {
        "name": "plain",
        "fingerprint": bytes(range(32)).hex(),
        "members": 12,
        "rounds": [0, 2],
        "groups": "whole",
        "schedule": "fixed",
        "size": 4,
        "groupings": 1,
        "sample": 8,
        "roll_call": False,
        "cells": [],
        "policy": {
            "anonymity": 3,
            "min_survivors": 2,
            "max_leverage": 0.5,
            "mode": "enforce",
            "memory": "training",
        },
        "round": once | {"rounds": 1, "objections": []},
        "training": once | {"rounds": 3, "objections": []},
        "alone": [
            {
                "colluders": k,
                "round": {"probability": first.probability, "exact": first.exact},
                "training": {"probability": every.probability, "exact": every.exact},
            }
            for k, (first, every) in found.alone.items()
        ],
        "correlation": 0.5**0.5,
        "cost": {"round": to_json(cost, 1e-6), "training": to_json(cost.times(3), 1e-6)},
        "not_promised": list(NOT_PROMISED[1:]),
        "lines": found.lines(),
    }
    assert sorted(found.alone) == [1, 2, 4]  # a tenth, a fifth and a third of twelve, and one more than T is sure of


def test_the_json_of_terms_and_of_survivors() -> None:
    terms = plain_terms(members=12, size=4, groups="survivors", colluders=3, cell=8, policy=REPORT)
    told = summarise(terms).to_json()
    assert (told["fingerprint"], told["round"], told["training"], told["cost"]) == (None, None, None, None)
    assert (told["cells"], told["correlation"]) == ([8, 4], 1.0)
    assert told["not_promised"] == list(NOT_PROMISED)
    assert [entry["colluders"] for entry in told["alone"]] == [1, 2, 3, 4]  # the assumed number too


def test_ten_objections_are_enough() -> None:
    found = audit_round(Trial(plain_terms()))
    many = replace(found, objections=tuple(map(str, range(11))), exposed=frozenset({5, 1}))
    told = replace(summarise(plain_terms()), round=many, training=many).to_json()["round"]
    assert told["objections"] == [str(k) for k in range(10)]
    assert told["exposed"] == [1, 5]


def test_a_summary_has_what_the_audit_found() -> None:
    training = Trial(plain_terms(members=12, size=6, schedule="atoms", atom=3, rounds=2))
    found = summarise(training)  # type: ignore[arg-type]
    assert (found.round, found.training) == (audit_round(training), audit_training(training))
    assert (found.terms, found.fingerprint, found.cost) == (training.terms, training.fingerprint, None)
    unknown = "what the groups reveal depends on the seed and is judged when there is one"
    assert unknown in replace(found, training=None).lines()
    assert unknown in replace(found, round=None).lines()


@pytest.mark.parametrize(
    ("members", "anonymity", "wanted"),
    [(30, 3, [2, 3, 6, 10]), (18, 3, [1, 2, 3, 6]), (4, 4, [1, 3]), (3, 3, [1, 2]), (2, 2, [1])],
)
def test_some_numbers_of_colluders_are_looked_at(members: int, anonymity: int, wanted: list[int]) -> None:
    terms = plain_terms(members=members, size=members, policy=Policy(anonymity=anonymity))
    assert sorted(summarise(terms).alone) == wanted
    impossible = plain_terms(members=6, policy=replace(REPORT, anonymity=7))
    assert sorted(summarise(impossible).alone) == [1, 2]


def test_what_is_no_agreement_has_no_summary() -> None:
    wrong: Any = 5
    with pytest.raises(UsageError, match=r"^what: expected terms or an agreement, got int$"):
        summarise(wrong)
    with pytest.raises(UsageError, match=r"^earlier, each: expected Agreement, got int$"):
        summarise(plain_terms(), [wrong])
    with pytest.raises(UsageError, match=r"^delta: expected a finite number, got nan$"):
        summarise(plain_terms(), delta=float("nan"))
