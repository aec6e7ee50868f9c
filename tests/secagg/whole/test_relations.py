"""Sums that contradict each other are found, whatever the groups; honest ones never are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.crypto import Segment
from secagg.exposure import Schedule
from secagg.protocol.relations import contradictions
from secagg.whole import GroupSum
from secagg.whole.relations import open_sums
from tests.secagg.whole.cast import agreed

DRAWN = [
    Schedule(name="random", size=3, groupings=4),
    Schedule(name="transversal", size=4, groupings=3),
    Schedule(name="atoms", size=4, groupings=5, atom=2),
]


def drawn(schedule: Schedule, seed: int) -> tuple[Any, Any]:
    """The members of each group, and the sum of a number of each client."""
    numbers = [int(number) for number in np.random.default_rng(seed).integers(-(2**40), 2**40, 12)]
    groupings = schedule.draw(range(12), bytes(31) + bytes([seed]), round=0)
    members = {(r, g): group for r, grouping in enumerate(groupings) for g, group in enumerate(grouping)}
    return members, {group: sum(numbers[v] for v in clients) for group, clients in members.items()}


@given(st.sampled_from(DRAWN), st.integers(0, 255), st.data())
@settings(max_examples=60, deadline=None)
def test_honest_sums_never_contradict_each_other_and_changed_ones_do(schedule: Schedule, seed: int, data: Any) -> None:
    members, numbers = drawn(schedule, seed)
    for group in data.draw(st.sets(st.sampled_from(sorted(members)), max_size=4)):
        del members[group]
    assert contradictions(members, numbers) == ()
    group = data.draw(st.sampled_from(sorted(members)))
    numbers[group] += data.draw(st.integers(1, 1000))
    rows = np.array([[v in clients for v in range(12)] for clients in members.values()], float)
    others = np.array([[v in clients for v in range(12)] for g, clients in members.items() if g != group], float)
    determined = len(others) and np.linalg.matrix_rank(rows) == np.linalg.matrix_rank(others)
    wrong = contradictions(members, numbers)
    assert bool(wrong) == bool(determined)
    assert all(set(one) <= set(members) for one in wrong)
    assert not wrong or any(group in one for one in wrong)


def opened(terms: Any, *totals: Any) -> Any:
    sums = {(r, 0): GroupSum(np.array(total, np.int32).view(np.uint32), (0, 1)) for r, total in enumerate(totals)}
    return open_sums(terms, sums, {})


@given(st.integers(0, 99_999), st.sampled_from([-1, 1]), st.sampled_from(["first", "second"]))
@settings(max_examples=30, deadline=None)
def test_sums_at_the_limit_are_opened_and_one_above_is_discarded(place: int, sign: int, which: str) -> None:
    """Two segments, each with its own bound; long enough for several chunks and for products that could overflow."""
    bounds = {"first": 2**30 - 1, "second": 5}
    segments = tuple(Segment(name=name, shape=(50_000,), bound=bound) for name, bound in bounds.items())
    terms = agreed()[0].terms
    terms = replace(terms, segments=segments)
    place = place % 50_000 + (50_000 if which == "second" else 0)
    total = np.concatenate([np.full(50_000, sign * 2 * bound) for bound in bounds.values()])
    found = opened(terms, total, total)
    assert (len(found.groups), found.lost, found.inconsistent) == (2, {}, ())
    different = total.copy()
    different[place] -= sign
    assert opened(terms, total, different).inconsistent == (((0, 0), (1, 0)),)
    large = total.copy()
    large[place] += sign
    assert set(opened(terms, total, large).lost) == {(1, 0)}
