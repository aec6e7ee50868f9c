"""Terms at their limits: the last value that is accepted, the first that is refused, and the words of the refusal."""

import re
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from secagg import AgreementRefused, Policy, Schedule, UsageError
from secagg.agreement import Member, Noise, Terms
from secagg.agreement.canonical import MOST_PREDECESSORS
from secagg.agreement.keeping import Kept
from secagg.agreement.statistics.columns import Numbers
from secagg.agreement.statistics.kinds import Count, Statistics, Sum
from secagg.arguments import MOST_ROUND
from secagg.crypto import Segment, SegmentNoise
from tests.secagg.agreement.common import plain_terms

ROUND = Policy(memory="round")
REPORT = Policy(mode="report-even-if-exposed")
SURVIVORS: dict[str, Any] = {"groups": "survivors", "policy": ROUND}
ATOMS: dict[str, Any] = {"schedule": "atoms", "atom": 3, "size": 6, "members": 12}
FLAT: dict[str, Any] = {"size": 6, "policy": ROUND}
ONE = Segment(shape=(1,), clip=1.0)


def member(id: int, key: int, name: str = "") -> Member:
    return Member(id, key.to_bytes(32, "big"), name)


def built(**changes: Any) -> Terms:
    """Plain terms; `people` stands for the members as they are given."""
    more = {"members": changes.pop("people")} if "people" in changes else {}
    terms = plain_terms(**changes)
    return replace(terms, **more) if more else terms


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name: expected 1 to 200 printable characters, got ''"),
    ({"name": "a" * 201}, "name: expected 1 to 200 printable characters, got 'aaa"),
    ({"name": "a\n"}, "name: expected 1 to 200 printable characters, got 'a\\n'"),
    ({"name": 5}, "name: expected 1 to 200 printable characters, got 5"),
    ({"policy": None}, "policy: expected Policy, got NoneType"),
    ({"people": 5}, "members: expected a collection of Member, got int"),
    ({"people": [member(0, 1), 5]}, "members, each: expected Member, got int"),
    ({"segments": 5}, "segments: expected a collection of Segment, got int"),
    *(
        ({name: wrong}, f"{name}: expected a whole number from 0 to {MOST_ROUND}, got {wrong}")
        for name in (
            "first_round",
            "last_round",
            "sample",
            "least_groups",
            "cell",
            "degree",
            "colluders",
            "threshold",
        )
        for wrong in (-1, MOST_ROUND + 1, 1.5)
    ),
    ({"roll_call": 1}, "roll_call: expected True or False, got 1"),
    ({"groups": "some"}, "groups: expected 'whole' or 'survivors', got 'some'"),
    ({"groups": ["whole"]}, "groups: expected 'whole' or 'survivors', got ['whole']"),
    ({"people": (member(0, 1),)}, "members: expected 2 to 65535, got 1"),
    ({"people": (member(0, 1),) * 65536}, "members: expected 2 to 65535, got 65536"),
    ({"people": (member(0, 1),) * 65535}, "members: ids must be strictly ascending, but 0 follows 0; sort them by id"),
    (
        {"people": (member(1, 1), member(0, 2))},
        "members: ids must be strictly ascending, but 0 follows 1; sort them by id",
    ),
    ({"people": (member(0, 1), member(1, 2, "a" * 201))}, "member name: expected at most 200 printable characters"),
    ({"people": (member(0, 1), member(1, 2, "a\n"))}, "member name: expected at most 200 printable characters"),
    ({"people": (member(0, 1), member(1, 1))}, "members: two of them have one identity key"),
    ({"people": (member(0, 1, "a"), member(1, 2, "a"))}, "members: two of them have one name"),
    (
        {"first_round": 6, "last_round": 5},
        "rounds: expected 0 <= first_round <= last_round <= 2^63 - 1, got 6 and 5",
    ),
    ({"segments": (ONE,) * 65536}, "segments: expected at most 65535, got 65536"),
    ({"segments": (ONE,) * 65535}, "segments: expected a different name for each, got "),
    ({"size": 7}, "6 clients are too few for one group of 7"),
    ({"sample": 2}, "2 clients are too few for one group of 3"),
    ({"sample": 7}, "sample: expected 0 (all) to 6 members, got 7"),
    ({"least_groups": 0}, "least_groups: expected 1 to 2 (all groups of a round), got 0"),
    ({"least_groups": 3}, "least_groups: expected 1 to 2 (all groups of a round), got 3"),
    (
        {"least_groups": 5, "groupings": 2, "policy": REPORT},
        "least_groups: expected 1 to 4 (all groups of a round), got 5",
    ),
    (
        {"least_groups": 2, "sample": 5},
        "least_groups: expected 1 to 1 (all groups of a round), got 2",
    ),
    *(
        ({name: number}, "colluders, threshold, cell and degree are for groups = 'survivors'; whole groups need none")
        for name, number in (("colluders", 0), ("threshold", 0), ("cell", 6), ("degree", 2))
    ),
    *(
        ({name: 7, **SURVIVORS}, f"{name}: expected at most 6, the number of members, got 7")
        for name in ("colluders", "threshold", "degree")
    ),
    ({"least_groups": 2, **SURVIVORS}, "least_groups is for groups = 'whole'"),
    ({"cell": 1, **SURVIVORS}, "cell: expected 0 (one cell) or the group size 3 to 6, got 1"),
    ({"cell": 2, **SURVIVORS}, "cell: expected 0 (one cell) or the group size 3 to 6, got 2"),
    ({"cell": 7, **SURVIVORS}, "cell: expected 0 (one cell) or the group size 3 to 6, got 7"),
    ({"colluders": 6, **SURVIVORS}, "colluders: expected 0 to 5 of 6 members, got 6"),
    (
        {"sample": 6, "groupings": 2, **SURVIVORS},
        "sample: 2 fixed groupings connect the members, so no smaller sample can be drawn; use the schedule 'atoms', "
        "groupings=1 or sample=0",
    ),
    (
        {"degree": 2, **SURVIVORS, "size": 6},
        "threshold: the sparse mode needs one; secagg.agreement.graph.search finds it",
    ),
    (
        {"degree": 2, "threshold": 2, "colluders": 0, **SURVIVORS},
        "degree: the sparse mode sums one group of all clients in a cell, but groups have 3 clients in 1 grouping(s), "
        "and cells have 6",
    ),
    (
        {"degree": 2, "threshold": 2, "colluders": 0, "members": 8, "cell": 4, "groupings": 2, "size": 4, **SURVIVORS},
        "one group of 4 among 4 clients is the same in all 2 groupings",
    ),
    ({"degree": 2, "threshold": 0, "colluders": 0, **SURVIVORS, "size": 6}, "threshold 0 must be between 2 and"),
    (
        {"roll_call": True, "colluders": 0, **SURVIVORS, "size": 6},
        "roll_call: only for groups = 'whole'; with survivors, dropouts are recovered",
    ),
    (
        {"roll_call": True, "policy": ROUND},
        "roll_call: only for a flat sum, but a round has 2 groups of 3; use one group of all members (size = 6), or "
        "roll_call = false",
    ),
    (
        {"roll_call": True, "policy": ROUND, "members": 12, "sample": 9, "groupings": 2},
        "roll_call: only for a flat sum, but a round has 6 groups of 3; use one group of all members (size = 9)",
    ),
    (
        {"roll_call": True, "size": 6},
        "roll_call: the members of a sum differ from round to round, so the difference of two sums can be one member's",
    ),
    ({"keep": 5}, "keep: expected Kept, got int"),
    ({"keep": Kept(bytes(32), ()), "colluders": 0, **SURVIVORS}, "keep: only for groups = 'whole'"),
    ({"keep": Kept(bytes(32), ())}, "keep: expected the agreement whose groups are kept in predecessors, got none"),
    (
        {"keep": Kept(bytes(32), ()), "predecessors": (bytes(32),), "schedule": "random"},
        "keep: 'random' groups are new in every round; only 'fixed' and 'atoms' can be kept",
    ),
    ({"beacon": 5}, "beacon: expected a NamedPulse, got int"),
    *(
        ({"predecessors": wrong}, "predecessors: expected at most 64 different fingerprints of 32 bytes, got ")
        for wrong in (
            5,
            bytes(32),
            (bytes(31),),
            ("a" * 32,),
            (bytes(32), bytes(32)),
            tuple(bytes([k] * 32) for k in range(65)),
        )
    ),
    ({"transport": 5}, "transport: expected Transport, got int"),
    ({"noise": 5}, "noise: expected Noise, got int"),
    ({"statistics": 5}, "statistics: expected Statistics, got int"),
]


@pytest.mark.parametrize(("changes", "says"), REFUSED, ids=[f"{'-'.join(c)}: {s[:30]}" for c, s in REFUSED])
def test_what_cannot_be_kept_is_refused_in_words(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(says)}"):
        built(**changes)


def test_a_schedule_is_a_schedule() -> None:
    with pytest.raises(UsageError, match=r"^schedule: expected Schedule, got str$"):
        replace(plain_terms(), schedule="fixed")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "a" * 200},
        {"people": (member(0, 1, "a" * 200), member(1, 2), member(7, 3))},
        {"people": tuple(member(v, v + 1, "") for v in range(3))},  # none has a name
        {"segments": (Segment(name="a" * 200, shape=(1,), clip=1.0),)},
        {"first_round": 5, "last_round": 5},
        {"last_round": MOST_ROUND},
        {"sample": 6},
        {"sample": 3},
        {"least_groups": 2},
        {"least_groups": 4, "groupings": 2, "policy": REPORT},
        {"cell": 0, "colluders": 0, **SURVIVORS},
        {"cell": 3, "colluders": 0, **SURVIVORS},
        {"cell": 6, "colluders": 0, **SURVIVORS},
        {"threshold": 6, "colluders": 5, **SURVIVORS, "size": 6},
        {"sample": 3, "colluders": 0, **SURVIVORS},
        {"sample": 12, "colluders": 0, **SURVIVORS, **ATOMS, "groupings": 2},
        {"groupings": 2, "colluders": 0, **SURVIVORS, "policy": REPORT},
        {"degree": 4, "threshold": 4, "colluders": 0, **SURVIVORS, "size": 6},
        {"degree": 2, "threshold": 2, "colluders": 0, "members": 8, "cell": 4, **SURVIVORS, "size": 4},
        {"roll_call": True, **FLAT},
        {"keep": Kept(bytes(32), ()), "predecessors": (bytes(32),)},
        {"predecessors": tuple(bytes([k] * 32) for k in range(MOST_PREDECESSORS))},
        {"policy": Policy(memory="training"), "groups": "survivors", "colluders": 0},
        {"policy": Policy(memory="training"), "groups": "survivors", "colluders": 0, **ATOMS, "rounds": 9},
    ],
)
def test_terms_at_their_limits_are_accepted(changes: dict[str, Any]) -> None:
    terms = built(**changes)
    assert Terms.from_bytes(terms.to_bytes()) == terms


def test_a_round_has_at_most_1024_groupings_and_a_million_places() -> None:
    def many(members: int, groupings: int) -> Terms:
        return plain_terms(members, 2, groupings=groupings, schedule="random", policy=REPORT)

    assert many(4, 1024).schedule.groupings == 1024
    assert many(1024, 1024).schedule.groupings == 1024
    for members, groupings in ((4, 1025), (1026, 1024)):
        with pytest.raises(
            UsageError,
            match=rf"^schedule: {members} members in {groupings} groupings; at most 1024 groupings and 1048576 places",
        ):
            many(members, groupings)


def test_terms_cannot_be_changed_and_are_built_with_keywords() -> None:
    with pytest.raises(FrozenInstanceError):
        plain_terms().name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Terms("name")  # type: ignore[call-arg]


def test_the_defaults_are_those_of_the_documents() -> None:
    found = Terms(name="x", members=plain_terms().members, schedule=Schedule(name="fixed", size=3), last_round=0, segments=(ONE,))  # fmt: skip  # noqa: E501
    names = ("first_round", "groups", "sample", "least_groups", "colluders", "threshold", "cell", "degree", "roll_call")
    assert tuple(getattr(found, name) for name in names) == (0, "whole", 0, 1, None, None, 0, 0, False)
    assert found.policy == Policy()
    more = ("beacon", "predecessors", "statistics", "keep", "transport", "noise")
    assert tuple(getattr(found, name) for name in more) == (None, (), None, None, None, None)


def test_what_is_given_loosely_is_the_same_terms() -> None:
    typed = plain_terms(members=12, colluders=2, threshold=8, last_round=3, predecessors=(bytes(32),), **SURVIVORS)
    loose = replace(
        typed,
        members=list(typed.members),  # type: ignore[arg-type]
        segments=list(typed.segments),  # type: ignore[arg-type]
        last_round=np.int64(3),  # type: ignore[arg-type]
        colluders=np.uint8(2),  # type: ignore[arg-type]
        threshold=np.uint8(8),  # type: ignore[arg-type]
        predecessors=[bytes(32)],  # type: ignore[arg-type]
    )
    assert loose == typed
    assert loose.hash == typed.hash
    for name in ("members", "segments", "last_round", "colluders", "threshold", "predecessors"):
        assert type(getattr(loose, name)) is type(getattr(typed, name))


# --- the policy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "size", "least"),
    [
        (Policy(anonymity=4), 3, 4),
        (Policy(min_survivors=5), 3, 5),
        (Policy(anonymity=4, min_survivors=5, memory="round"), 3, 5),
    ],
)
def test_groups_that_cannot_hide_a_member_are_refused(policy: Policy, size: int, least: int) -> None:
    says = (
        f"cannot hide anybody among {least} (anonymity {policy.anonymity}, min_survivors {policy.min_survivors}); use "
    )
    with pytest.raises(AgreementRefused, match=re.escape(f"policy: groups of {size} {says}groups of at least {least}")):
        plain_terms(size=size, policy=policy)
    with pytest.raises(AgreementRefused, match=re.escape(f"policy: atoms of 3 {says}atoms of at least {least}")):
        plain_terms(**ATOMS, policy=policy)
    plain_terms(size=size, policy=replace(policy, mode="report-even-if-exposed"))
    plain_terms(members=10, size=least, policy=policy)
    plain_terms(members=2 * least, size=2 * least, schedule="atoms", atom=least, policy=policy)


def test_survivors_promise_nothing_over_rounds_except_with_atoms() -> None:
    given: dict[str, Any] = {"groups": "survivors", "colluders": 0}
    with pytest.raises(
        AgreementRefused, match=r"^policy: with survivors, groups shrink differently in every round, so"
    ):
        plain_terms(**given, rounds=2)
    for fine in (
        {"rounds": 1},
        {"rounds": 2, "policy": ROUND},
        {"rounds": 2, **ATOMS},
        {"rounds": 2, "policy": REPORT},
    ):
        plain_terms(**given, **fine)
    plain_terms(rounds=2)


def test_statistics_ask_for_no_fewer_sites_than_the_policy_opens() -> None:
    asked = Statistics(most_rows=5, min_sites=4, asked=(Count(name="n", of=None),))
    given: dict[str, Any] = {"members": 12, "size": 6, "segments": (), "statistics": asked}
    assert plain_terms(**given, policy=Policy(anonymity=4)).length == 1
    assert plain_terms(**given, policy=Policy(min_survivors=4)).length == 1
    for policy, opened in ((Policy(), 3), (Policy(anonymity=2, min_survivors=3), 3), (Policy(anonymity=9, mode="report-even-if-exposed"), 1)):  # fmt: skip  # noqa: E501
        with pytest.raises(
            AgreementRefused,
            match=rf"^statistics: results are asked for from 4 sites on \(min_sites\), but the policy opens sums of "
            rf"{opened}; set policy.min_survivors = 4$",
        ):
            plain_terms(**given, policy=policy)


def test_with_noise_a_statistic_has_one_limb() -> None:
    asked = Statistics(most_rows=9, asked=(Sum(name="s", of=Numbers("x", 0, 2.0**40, step=1)),))
    given: dict[str, Any] = {"size": 6, "segments": (), "statistics": asked}
    segments = plain_terms(**given).segments
    noise = Noise(segments=tuple(SegmentNoise(clip=9, sigma=9) for _ in segments))
    with pytest.raises(UsageError, match=r"^statistics.s: with noise, a sum must fit into one place of the vector"):
        plain_terms(**given, noise=noise)
