"""An agreement whose groups break its own policy is refused, in words that say what would not."""

import re
from dataclasses import replace
from typing import Any

import pytest

from secagg import AgreementRefused, Policy
from secagg.agreement.audit import check_policy
from tests.secagg.agreement.common import Trial, plain_terms

ROUND = Policy(memory="round")
REPORT = Policy(mode="report-even-if-exposed")
HEAVY = (1, 1, 3, 1, 1, 1)


def trial(**more: Any) -> Trial:
    return Trial(plain_terms(**more))


def test_only_an_enforced_policy_is_held_against_an_agreement() -> None:
    heavy: dict[str, Any] = {"weights": HEAVY}
    with pytest.raises(AgreementRefused):
        check_policy(trial(**heavy))
    check_policy(trial(**heavy, policy=REPORT))
    for policy in (Policy(), ROUND):  # there, clients judge each run
        check_policy(trial(**heavy, groups="survivors", colluders=0, policy=policy))


def test_survivors_are_judged_together_with_earlier_agreements() -> None:
    atoms: dict[str, Any] = {
        "members": 12,
        "size": 6,
        "schedule": "atoms",
        "atom": 3,
        "groups": "survivors",
        "colluders": 0,
    }
    first = trial(**atoms)
    for policy, refused in ((Policy(), True), (ROUND, False)):
        second = Trial(plain_terms(**atoms, policy=policy, predecessors=(bytes(32),)), b"\7" * 32, b"2" * 32)
        check_policy(second)
        if refused:
            with pytest.raises(AgreementRefused, match="over all rounds together"):
                check_policy(second, (first,))
        else:
            check_policy(second, (first,))


def told(**more: Any) -> str:
    with pytest.raises(AgreementRefused) as refused:
        check_policy(trial(**more))
    return str(refused.value)


def test_a_refusal_says_what_breaks_the_policy_and_what_would_not() -> None:
    assert told(weights=HEAVY) == (
        "policy: 1 fixed grouping in groups of 3 breaks the policy in one round: the leverage of client 2 would be "
        "0.818, above 0.5. Instead: use larger groups; or make the members' weights more equal (anonymity 3, "
        "max_leverage 0.5)"
    )
    atoms = told(members=12, size=6, schedule="atoms", atom=3, rounds=2, policy=Policy(max_leverage=0.2, anonymity=3))
    assert re.search(
        r"over all rounds together: the leverage of client \d+ would be 0\.333, above 0\.2\. Instead: use groups and "
        r"atoms of at least 5 members \(anonymity 3, max_leverage 0\.2\)$",
        atoms,
    )
    new = told(members=12, schedule="random", rounds=40)
    assert new == (
        "policy: 1 random grouping in groups of 3 breaks the policy over the first 17 rounds together: 12 of 12 "
        "members would be exposed; the server would learn every update. Instead: random groups are new in every round "
        "and pass for single rounds only: use the schedule 'fixed', or 'atoms' with atom = 3; or set memory = "
        "'round', which promises each round alone: a server that sees similar updates in several rounds can combine "
        "them (anonymity 3, max_leverage 0.5)"
    )
    several = told(members=6, groupings=2, rounds=3)
    assert several.startswith("policy: 2 fixed groupings in groups of 3 break the policy over all rounds together: ")
    assert "Instead: use fewer groupings, larger groups, or the schedule 'atoms' with atom = 3 (anonymity 3" in several
    once = told(members=6, groupings=2, schedule="random", policy=replace(ROUND, max_leverage=0.4, min_survivors=3))
    assert " break the policy in one round: " in once
    assert "Instead: use fewer groupings, larger groups" in once
    grid = told(members=9, groupings=3, schedule="transversal", rounds=2)
    assert "transversal groups are new in every round and pass for single rounds only" in grid


@pytest.mark.parametrize(
    ("policy", "least"),
    [
        (Policy(max_leverage=0.3), 4),
        (Policy(max_leverage=0.25), 4),
        (Policy(max_leverage=0.24), 5),
        (Policy(max_leverage=0.3, anonymity=3, min_survivors=3), 4),
    ],
)
def test_a_refusal_offers_the_least_size_that_keeps_the_leverage(policy: Policy, least: int) -> None:
    assert f"Instead: use groups of at least {least} members" in told(policy=policy)
    check_policy(trial(members=3 * least, size=least, policy=policy))
