"""Sums that contradict each other are found, whatever the groups; honest ones never are."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.exposure import Schedule
from secagg.whole import GroupSum
from secagg.whole.relations import contradictions

DRAWN = [
    Schedule(name="random", size=3, groupings=4),
    Schedule(name="transversal", size=4, groupings=3),
    Schedule(name="atoms", size=4, groupings=5, atom=2),
]


def sums(schedule: Schedule, seed: int, length: int = 3) -> Any:
    rng = np.random.default_rng(seed)
    updates = rng.integers(-(2**27), 2**27, (12, length)).astype(np.int32)
    groupings = schedule.draw(range(12), bytes(31) + bytes([seed]), round=0)
    return {
        (r, g): GroupSum(updates[list(group)].sum(0, dtype=np.int32).view(np.uint32), group)
        for r, grouping in enumerate(groupings)
        for g, group in enumerate(grouping)
    }


@given(st.sampled_from(DRAWN), st.integers(0, 255), st.data())
@settings(max_examples=60, deadline=None)
def test_honest_sums_never_contradict_each_other_and_changed_ones_do(schedule: Schedule, seed: int, data: Any) -> None:
    found = sums(schedule, seed)
    lost = data.draw(st.sets(st.sampled_from(sorted(found)), max_size=4))
    left = {group: opened for group, opened in found.items() if group not in lost}
    assert contradictions(left) == ()
    group = data.draw(st.sampled_from(sorted(left)))
    total = left[group].total.copy()
    total[data.draw(st.integers(0, 2))] += np.uint32(data.draw(st.integers(1, 1000)))
    changed = {**left, group: GroupSum(total, left[group].members)}
    rows = np.array([[v in opened.members for v in range(12)] for opened in left.values()], float)
    others = np.array([[v in opened.members for v in range(12)] for g, opened in left.items() if g != group], float)
    determined = len(others) and np.linalg.matrix_rank(rows) == np.linalg.matrix_rank(others)
    wrong = contradictions(changed)
    assert bool(wrong) == bool(determined)
    assert all(set(one) <= set(left) for one in wrong)
    assert not wrong or any(group in one for one in wrong)


def test_long_vectors_and_extreme_values_do_not_overflow() -> None:
    for value in (-(2**31), 2**31 - 1):
        total = np.full(100_000, value, np.int32).view(np.uint32)
        same = {(0, 0): GroupSum(total, (0, 1)), (1, 0): GroupSum(total.copy(), (0, 1))}
        assert contradictions(same) == ()
        same[1, 0].total[99_999] += np.uint32(1)
        assert contradictions(same) == (((0, 0), (1, 0)),)
