"""Which thresholds a plan may have, and which policies are weaker than others."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Policy, Schedule, UsageError
from secagg.crypto import Segment
from secagg.simulation import make_identities, make_roster
from tests.secagg.cluster import LOOSE, make_plan
from tests.secagg.drbg import Drbg

ROSTER = make_roster(make_identities(range(300), Drbg(b"three hundred")))


@settings(deadline=None, max_examples=300)
@given(n=st.integers(2, 300), colluders=st.integers(0, 300), t=st.integers(0, 320))
def test_a_threshold_that_two_sets_could_reach_cannot_be_built(n: int, colluders: int, t: int) -> None:
    """2t > n + colluders and t <= n, for every n, t and number of colluders; nothing else is accepted."""
    flat: Any = make_plan(2)
    fields = {"schedule": Schedule(name="random", size=n), "segments": (Segment(shape=(3,), bound=1),), "policy": LOOSE}
    allowed = 2 <= t <= n and 2 * t > n + colluders and colluders < n
    try:
        plan = replace(flat, roster=ROSTER[:n], threshold=t, colluders=colluders, **fields)
    except UsageError:
        assert not allowed
    else:
        assert allowed
        assert plan.t == t


WEAKER = {
    "one survivor fewer": {"min_survivors": 3},
    "anonymity one less": {"anonymity": 3},
    "leverage a little more": {"max_leverage": 0.41},
}


@pytest.mark.parametrize("change", WEAKER)
def test_a_policy_is_weaker_if_one_limit_is(change: str) -> None:
    policy = Policy(min_survivors=4, anonymity=4, max_leverage=0.4)
    assert policy.at_least(policy)
    assert not replace(policy, **WEAKER[change]).at_least(policy)
