"""The operator's own short list, held once against an agreement."""

from typing import Any

import pytest

from secagg import AgreementRefused, Policy, UsageError
from secagg.agreement import Floors
from secagg.agreement.terms import Terms
from secagg.simulation import make_agreement

ROUND = Policy(memory="round")


def terms(**more: Any) -> Terms:
    given: dict[str, Any] = {"members": 12, "size": 4, "length": 1, "clip": 1.0, "rounds": 5} | more
    return make_agreement(**given)[0].terms


@pytest.mark.parametrize(
    ("floor", "floors", "more"),
    [
        ("anonymity", {"anonymity": 4}, {}),
        ("size", {"size": 5}, {}),
        ("leverage", {"leverage": 0.4}, {}),
        ("rounds", {"rounds": 4}, {}),
        ("clip", {"clip": (2.0, 8.0)}, {}),
        ("clip", {"clip": (0.1, 0.5)}, {}),
        ("bound", {"bound": (1, 99)}, {"clip": None, "bound": 100}),
        ("bound", {"bound": (101, 200)}, {"clip": None, "bound": 100}),
        ("memory", {}, {"policy": ROUND}),
        ("memory", {}, {"policy": ROUND, "rounds": 1, "predecessors": (bytes(32),)}),  # rounds of before count
        ("survivors", {}, {"groups": "survivors", "rounds": 1}),
        ("sparse", {"survivors": True}, {"groups": "survivors", "rounds": 1, "size": 12, "degree": 10, "threshold": 9}),
        ("roll_call", {}, {"size": 12, "policy": ROUND, "rounds": 1, "roll_call": True}),
        ("report", {}, {"policy": Policy(mode="report-even-if-exposed")}),
    ],
)
def test_an_agreement_below_a_floor_is_refused(floor: str, floors: dict[str, Any], more: dict[str, Any]) -> None:
    with pytest.raises(AgreementRefused, match=rf"\({floor}\)$") as refused:
        Floors(**floors).check(terms(**more))
    assert refused.value.floor == floor
    assert [name for name, _ in Floors(**floors).crossed(terms(**more))] == [floor]


def test_an_agreement_on_the_floors_is_accepted() -> None:
    Floors(anonymity=3, size=4, leverage=0.5, rounds=5, clip=(1.0, 1.0)).check(terms())
    Floors(memory="round").check(terms(policy=ROUND))
    Floors().check(terms(policy=ROUND, rounds=1))
    Floors(roll_call=True).check(terms(size=12, policy=ROUND, rounds=1, roll_call=True))
    Floors(survivors=True).check(terms(groups="survivors", rounds=1))
    Floors(report=True).check(terms(policy=Policy(mode="report-even-if-exposed")))
    Floors(bound=(100, 100)).check(terms(clip=None, bound=100))


@pytest.mark.parametrize(
    "wrong",
    [
        {"anonymity": 0},
        {"size": 2.5},
        {"rounds": None},
        {"leverage": 0},
        {"leverage": "0.5"},
        {"clip": 1.0},
        {"clip": (1.0,)},
        {"bound": (1, float("inf"))},
        {"memory": "forever"},
        {"survivors": 1},
        {"sparse": None},
        {"report": "no"},
        {"roll_call": 1},
    ],
)
def test_floors_of_the_wrong_type_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"floors: {next(iter(wrong))}: expected"):
        Floors(**wrong)
