"""The operator's own short list, held once against an agreement."""

from typing import Any

import pytest

from secagg import AgreementRefused, Budget, Policy, UsageError
from secagg.agreement import Floors, Noise
from secagg.agreement.cost import over_budget, worst_round
from secagg.agreement.terms import Terms
from secagg.crypto import Segment, SegmentNoise
from secagg.privacy.budget import Charge
from secagg.simulation import make_agreement
from tests.secagg.agreement.common import Trial, plain_terms

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


def test_the_floors_of_an_operator_who_says_nothing() -> None:
    found = Floors()
    assert (found.anonymity, found.size, found.leverage, found.rounds) == (3, 3, 0.5, 100_000)
    assert (found.clip, found.bound) == ((2.0**-10, 2.0**20), (1, 2**31 - 1))
    assert (found.memory, found.budget) == ("training", None)
    assert (found.survivors, found.sparse, found.report, found.roll_call) == (False, False, False, False)


REFUSED: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: wrong}, f"floors: {name}: expected a whole number of at least 1, got {wrong!r}")
        for name in ("anonymity", "size", "rounds")
        for wrong in (0, -1, 1.0, True, None)
    ),
    *(
        ({name: wrong}, f"floors: {name}: expected true or false, got {wrong!r}")
        for name in ("survivors", "sparse", "report", "roll_call")
        for wrong in (1, None)
    ),
    ({"memory": "both"}, "floors: memory: expected 'training' or 'round', got 'both'"),
    ({"memory": ["round"]}, "floors: memory: expected 'training' or 'round', got ['round']"),
    *(
        ({"leverage": wrong}, f"floors: leverage: expected a number above 0 and at most 1, got {wrong!r}")
        for wrong in (0, -0.5, 1.01, "0.5", True, float("nan"))
    ),
    *(
        ({name: wrong}, f"floors: {name}: expected a pair of numbers, got {wrong!r}")
        for name in ("clip", "bound")
        for wrong in ((1,), (1, 2, 3), "ab", (1, "2"), (1, float("inf")), (float("nan"), 2), (True, 2))
    ),
    *(
        ({"budget": wrong}, f"floors: budget: expected an epsilon and a delta, got {wrong!r}")
        for wrong in (8, {"epsilon": 8}, {"epsilon": 8, "delta": 1e-6, "more": 1})
    ),
]


@pytest.mark.parametrize(("wrong", "says"), REFUSED)
def test_wrong_floors_are_refused_in_words(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        Floors(**wrong)
    assert str(refused.value) == says


def test_floors_at_their_limits_are_accepted() -> None:
    found = Floors(anonymity=1, size=1, rounds=1, leverage=1, clip=[1, 2.5], bound=[0, 9])  # type: ignore[arg-type]
    assert (found.clip, found.bound) == ((1, 2.5), (0, 9))  # a file has lists
    assert Floors(budget={"epsilon": 8, "delta": 1e-6}).budget == Budget(8, 1e-6)  # type: ignore[arg-type]


def crossed(what: Any, **floors: Any) -> list[tuple[str, str]]:
    return list(Floors(**floors).crossed(what))


def test_every_floor_that_is_crossed_is_told_in_order() -> None:
    policy = Policy(mode="report-even-if-exposed", memory="round", anonymity=2, max_leverage=0.75)
    found = crossed(plain_terms(rounds=7, policy=policy), size=4, rounds=6, clip=(2, 8))
    assert found == [
        ("report", "it opens every sum, whatever it exposes"),
        ("anonymity", "T = 2, my floor is 3"),
        ("size", "groups have 3 members, my floor is 4"),
        ("leverage", "it allows leverage 0.75, my most is 0.5"),
        ("rounds", "it has 7 rounds, my most is 6"),
        ("memory", "it promises each round alone, and I ask for all rounds together"),
        ("clip", "clip 1.0 is outside my range 2 to 8"),
    ]
    sparse = plain_terms(members=6, size=6, groups="survivors", degree=4, threshold=4, colluders=0)
    assert crossed(sparse) == [
        ("survivors", "its groups shrink with dropouts, and I accept whole groups only"),
        ("sparse", "sparse mode protects only from a semi-honest server"),
    ]
    assert crossed(sparse, survivors=True, sparse=True) == []
    called = plain_terms(size=6, policy=ROUND, roll_call=True)
    why = "the server says who is present, so it can choose whom a member is summed with"
    assert crossed(called) == [("roll_call", why)]
    with pytest.raises(AgreementRefused, match=r"^agreement refused: T = 2, my floor is 3 \(anonymity\)$"):
        Floors(report=True).check(plain_terms(policy=policy))


def test_each_segment_has_a_range_of_its_own() -> None:
    segments = (
        Segment(name="a", shape=(1,), clip=4.0),
        Segment(name="b", shape=(1,), bound=4),
        Segment(name="c", shape=(1,), clip=1.0),
        Segment(name="d", shape=(1,), bound=9),
    )
    assert crossed(plain_terms(segments=segments), clip=(2, 4), bound=(4, 8)) == [
        ("clip", "segment 'c': clip 1.0 is outside my range 2 to 4"),
        ("bound", "segment 'd': bound 9 is outside my range 4 to 8"),
    ]
    assert crossed(plain_terms(segments=segments), clip=(1, 4), bound=(4, 9)) == []


def test_each_round_alone_is_enough_where_there_is_one_round() -> None:
    assert crossed(plain_terms(policy=ROUND)) == []
    assert [floor for floor, _ in crossed(plain_terms(policy=ROUND, rounds=2))] == ["memory"]
    assert [floor for floor, _ in crossed(plain_terms(policy=ROUND, predecessors=(bytes(32),)))] == ["memory"]
    assert crossed(plain_terms(policy=ROUND, rounds=2), memory="round") == []
    assert crossed(plain_terms(rounds=2), memory="round") == []


def test_a_budget_is_held_against_the_rounds_of_terms_and_of_agreements() -> None:
    budget = Budget(1.0, 1e-5)
    assert crossed(plain_terms(), budget=budget) == [("budget", "it has no noise, and I have a budget of epsilon 1")]
    noise = Noise(segments=(SegmentNoise(clip=1.0, sigma=2**24),))
    terms = plain_terms(segments=(Segment(shape=(1,), clip=64.0),), noise=noise, rounds=5)
    each = worst_round(Trial(terms)).assumed
    total = each.times(5).epsilon(1e-5)
    for epsilon, fits in ((1.01 * total, True), (0.5 * total, False)):
        budget = Budget(epsilon, 1e-5)
        why = over_budget(terms, each, budget, Charge())
        for what in (terms, Trial(terms)):
            assert crossed(what, budget=budget) == ([] if fits else [("budget", why)])
