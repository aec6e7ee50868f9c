"""How likely a member is alone among colluders: every kind of schedule, against the formula of one grouping."""

import re
from dataclasses import replace
from typing import Any

import pytest

from secagg import Policy, UsageError
from secagg.agreement.collusion import Risk, alone, alone_in_grouping, certain_colluders, correlation, least_left
from tests.secagg.agreement.common import plain_terms

ROUND = Policy(memory="round")
REPORT = Policy(mode="report-even-if-exposed", memory="round")
SURVIVORS: dict[str, Any] = {"groups": "survivors", "colluders": 3, "policy": ROUND}


def once(members: int, groups: int, size: int = 4, least: int = 0) -> float:
    return alone_in_grouping(members, 6, size=size, groups=groups, least=least)


def risk(rounds: int = 1, **more: Any) -> Risk:
    given: dict[str, Any] = {"members": 24, "size": 4, "rounds": 9, "policy": REPORT}
    return alone(plain_terms(**given | more), 6, rounds=rounds)


def some(p: float, times: int) -> float:
    return 1 - (1 - p) ** times


def assert_near(found: Risk, probability: float, exact: bool) -> None:
    assert found.probability == pytest.approx(probability)
    assert found.exact is exact


def test_fixed_groups_are_drawn_once() -> None:
    p = once(24, 6)
    for more in ({}, {"rounds": 9}, {"sample": 8}):
        assert risk(schedule="fixed", **more) == Risk(p, exact=True)
    assert alone(plain_terms(members=24, size=4, sample=8, rounds=9), 6, rounds=9) == Risk(p, exact=True)
    twice = risk(schedule="fixed", groupings=2)
    assert_near(twice, some(p, 2), exact=True)
    left_out = risk(schedule="fixed", members=26, groupings=2)
    assert_near(left_out, 2 * once(26, 6), exact=False)


def test_random_groups_are_new_in_every_round() -> None:
    p = once(24, 6)
    assert risk(schedule="random") == Risk(p, exact=True)
    assert alone(plain_terms(members=24, size=4, schedule="random"), 6) == Risk(p, exact=True)  # in one round
    for rounds, groupings in ((5, 1), (1, 3), (5, 3)):
        found = risk(schedule="random", rounds=rounds, groupings=groupings)
        assert_near(found, some(p, rounds * groupings), exact=True)


def test_only_who_is_drawn_can_be_alone() -> None:
    p = once(24, 2)
    found = risk(schedule="random", rounds=5, sample=8)
    assert_near(found, some(p, 5), exact=True)
    dependent = risk(schedule="random", rounds=5, sample=8, groupings=2)
    assert_near(dependent, some(2 * p, 5), exact=False)


def test_one_group_of_all_is_the_same_in_every_round() -> None:
    flat: dict[str, Any] = {"members": 7, "size": 7, "schedule": "random"}  # six of seven collude
    assert risk(rounds=5, **flat) == risk(**flat) == Risk(1.0, exact=True)
    sampled = alone(plain_terms(members=9, size=7, sample=7, schedule="random", rounds=5), 6, rounds=5)
    assert sampled.probability == pytest.approx(some(once(9, 1, size=7), 5))
    all_drawn = alone(plain_terms(members=7, size=7, sample=7, schedule="random", rounds=5), 5, rounds=5)
    assert all_drawn == Risk(0.0, exact=True)


def test_groupings_that_depend_on_each_other_are_bounded_by_their_sum() -> None:
    p = once(24, 6)
    found = risk(schedule="transversal", groupings=2)
    assert_near(found, 2 * p, exact=False)
    assert risk(schedule="transversal") == Risk(p, exact=True)
    certain = alone(plain_terms(members=24, size=4, groupings=3, schedule="transversal", policy=REPORT), 14)
    assert certain == Risk(1.0, exact=False)
    nothing = alone(plain_terms(members=24, size=4, groupings=3, schedule="transversal", policy=REPORT), 2)
    assert nothing == Risk(0.0, exact=True)


def test_atoms_are_seen_by_several_sums() -> None:
    atoms: dict[str, Any] = {"schedule": "atoms", "atom": 2, "members": 25}
    seen = Risk(alone_in_grouping(25, 6, size=2, groups=12), exact=False)
    assert risk(**atoms, rounds=2) == seen
    assert risk(**atoms, groupings=2) == seen
    assert risk(**atoms, **SURVIVORS | {"policy": replace(ROUND, anonymity=2)}) == seen
    assert risk(**atoms) == Risk(once(25, 6), exact=True)


def test_with_survivors_a_server_leaves_as_few_as_the_policy_allows() -> None:
    flat: dict[str, Any] = {"members": 24, "size": 12, **SURVIVORS, "schedule": "random"}
    assert risk(**flat) == Risk(once(24, 2, size=12, least=3), exact=True)
    assert risk(**flat | {"policy": REPORT}) == Risk(1.0, exact=True)  # groups with one survivor are opened too


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ({"size": 4}, 4),
        ({"size": 24, "policy": ROUND}, 24),
        ({"size": 24, "policy": ROUND, "roll_call": True}, 3),
        ({"size": 24, "policy": replace(ROUND, min_survivors=5), "roll_call": True}, 5),
        ({"size": 12, **SURVIVORS}, 3),  # t = 14 of 24: ten may drop out of one group
        ({"size": 12, **SURVIVORS, "policy": replace(ROUND, min_survivors=4)}, 4),
        ({"size": 12, **SURVIVORS, "policy": replace(ROUND, anonymity=5)}, 5),
        ({"size": 24, **SURVIVORS}, 14),
        ({"size": 24, **SURVIVORS, "threshold": 20}, 20),
        ({"size": 12, **SURVIVORS, "threshold": 20}, 8),
        ({"size": 24, **SURVIVORS, "colluders": 0, "degree": 22, "threshold": 20}, 3),
        ({"members": 20, "size": 4, **SURVIVORS, "colluders": 0, "cell": 12, "threshold": 8}, 3),  # cells of 12 and 8
        ({"members": 20, "size": 4, **SURVIVORS, "colluders": 0, "cell": 12, "policy": replace(ROUND, anonymity=4)}, 4),
    ],
)
def test_the_fewest_that_a_server_can_leave_in_a_group(more: dict[str, Any], left: int) -> None:
    given: dict[str, Any] = {"members": 24, "policy": Policy()}
    assert least_left(plain_terms(**given | more)) == left


@pytest.mark.parametrize(
    "wrong",
    [
        {"colluders": -1},
        {"colluders": 11},
        {"least": 1},
        {"least": 5},
        {"groups": 3},
        {"members": 7},
        {"groups": 0},
        {"size": 1, "least": 1},
    ],
)
def test_groups_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    numbers = {"members": 10, "colluders": 3, "size": 4, "groups": 2} | wrong
    say = {"least": numbers["size"]} | numbers
    text = "no {groups} groups of {size} (least {least}) among {members} with {colluders} colluders".format(**say)
    with pytest.raises(UsageError, match=f"^{re.escape(text)}$"):
        alone_in_grouping(**numbers)


def test_groups_at_their_limits_are_judged() -> None:
    assert alone_in_grouping(8, 0, size=4, groups=2) == 0.0
    assert alone_in_grouping(8, 8, size=4, groups=2) == 0.0  # nobody is honest
    assert alone_in_grouping(2, 1, size=2, groups=1) == 1.0
    assert alone_in_grouping(4, 1, size=4, groups=1, least=2) == 1.0
    assert alone_in_grouping(4, 3, size=4, groups=1, least=4) == alone_in_grouping(4, 3, size=4, groups=1) == 1.0


def test_wrong_numbers_of_colluders_and_rounds_are_refused() -> None:
    for arguments, says in (
        ((-1, 1), "colluders: expected a whole number of at least 0, got -1"),
        ((1, 0), "rounds: expected a whole number of at least 1, got 0"),
    ):
        with pytest.raises(UsageError, match=f"^{says}$"):
            alone(plain_terms(), arguments[0], rounds=arguments[1])
    with pytest.raises(UsageError, match=r"^terms: expected Terms, got int$"):
        alone(5, 1)  # type: ignore[arg-type]


def test_a_correlation_is_of_a_leverage_from_0_to_1() -> None:
    assert (correlation(0), correlation(0.25), correlation(1)) == (0.0, 0.5, 1.0)
    for wrong in (-0.01, 1.01):
        with pytest.raises(UsageError, match=f"^leverage: expected 0 to 1, got {wrong}$"):
            correlation(wrong)


def test_t_protects_for_certain_from_two_colluders_fewer() -> None:
    assert [certain_colluders(t) for t in (1, 2, 3, 4, 9)] == [0, 0, 1, 2, 7]
    assert str(Risk(0.123456, exact=True)) == "0.12"
