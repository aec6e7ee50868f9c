"""The verdict is the truth: every small case, against rational arithmetic.

Clients in the same group of every grouping are interchangeable, so two groupings are, up to names, the table
of the sizes of their intersections; the tests of all cases walk these tables, with all survivors.
"""

from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED, Policy, audit
from tests.secagg import rational

Grouping = tuple[tuple[int, ...], ...]


def check(
    groupings: Sequence[Grouping],
    survivors: Collection[int],
    colluders: Collection[int] = (),
    policy: Policy | None = None,
    weights: dict[int, int] | None = None,
) -> None:
    """Hold everything in the verdict against the rational truth."""
    policy = policy or Policy(max_leverage=1.0)
    hidden = set(survivors) - set(colluders)
    members = {
        (g, k): tuple(sorted(hidden & set(group)))
        for g, grouping in enumerate(groupings)
        for k, group in enumerate(grouping)
    }
    columns = sorted({client for row in members.values() for client in row})
    verdict = audit(groupings, survivors, policy, weights=weights, colluders=colluders, plan_hash=b"plan")
    opened = [members[row] for row in sorted(verdict.opened)]
    assert verdict.would_expose == rational.exposed(members.values(), columns)
    assert verdict.rank == rational.rank(opened, columns)
    assert verdict.opened | set(verdict.closed) == set(members)
    assert not verdict.opened & set(verdict.closed)

    def allowed(rows: Sequence[Collection[int]]) -> bool:
        if rational.fewest(rows, columns, policy.anonymity - 1) < policy.anonymity:
            return False
        scale = [Fraction(weights[c] if weights else 1) for c in columns]
        return max(rational.leverage(rows, columns, scale), default=Fraction(0)) <= policy.max_leverage

    floor = max(policy.min_survivors, policy.anonymity)
    assert verdict.exposed == set()
    assert all(len(row) >= floor for row in opened)
    assert allowed(opened)
    for row in verdict.closed:
        assert len(members[row]) < floor or not allowed([*opened, members[row]])
    if opened:
        truth = rational.fewest(opened, columns, len(columns))
        assert verdict.anonymity.lower <= truth <= verdict.anonymity.upper
        assert verdict.anonymity.exact or truth > 7

    report = Policy(mode=REPORT_EVEN_IF_EXPOSED)
    verdict = audit(groupings, survivors, report, colluders=colluders, plan_hash=b"plan")
    assert verdict.exposed == verdict.would_expose == rational.exposed(members.values(), columns)


def table(groupings: Sequence[Grouping]) -> tuple[tuple[int, ...], ...]:
    """What two or three groupings have in common, whatever the clients and the groups are called."""
    cells = {
        key: len(set.intersection(*(set(g) for g in groups)))
        for key, groups in zip(
            product(*(range(len(grouping)) for grouping in groupings)), product(*groupings), strict=True
        )
    }
    orders = [list(permutations(range(len(grouping)))) for grouping in groupings]
    return min(
        tuple(
            tuple(cells[tuple(order[i] for order, i in zip(chosen, key, strict=True))] for key in cells)
            for chosen in [chosen]
        )
        for chosen in product(*orders)
    )


def distinct(n: int, size: int, count: int) -> Iterator[tuple[Grouping, ...]]:
    """All groupings into groups of `size`, `count` at a time, one for each way they can meet."""
    first = next(iter(rational.partitions(range(n), size)))
    seen = set()
    for others in product(rational.partitions(range(n), size), repeat=count - 1):
        groupings = (first, *others)
        key = table(groupings)
        if key not in seen:
            seen.add(key)
            yield groupings


@pytest.mark.parametrize(("n", "size"), [(4, 2), (6, 2), (6, 3), (8, 4), (8, 2)])
def test_any_two_groupings_without_dropouts(n, size):
    first = next(iter(rational.partitions(range(n), size)))
    for second in rational.partitions(range(n), size):
        check([first, second], range(n), policy=Policy(anonymity=2, max_leverage=1.0))
        check([first, second], range(n))


@pytest.mark.parametrize(("n", "size"), [(4, 2), (6, 2), (6, 3)])
def test_any_two_groupings_with_any_dropouts_and_one_colluder(n, size):
    everything(n, size, 2, Policy(anonymity=2, max_leverage=1.0))
    everything(n, size, 2, Policy(max_leverage=1.0))


@pytest.mark.parametrize(("n", "size"), [(4, 2), (6, 3)])
def test_any_three_groupings_with_any_dropouts_and_one_colluder(n, size):
    everything(n, size, 3, Policy(max_leverage=1.0), most_colluders=n // 6)


@pytest.mark.long
@pytest.mark.parametrize(("n", "size", "count"), [(8, 4, 2), (8, 2, 2), (8, 4, 3), (6, 2, 3)])
@pytest.mark.parametrize("policy", [Policy(anonymity=2, max_leverage=1.0), Policy(max_leverage=1.0), Policy()])
def test_any_groupings_of_eight_with_any_dropouts_and_colluders(n, size, count, policy):
    everything(n, size, count, policy, most_colluders=2 if count == 2 else 1)


def everything(n: int, size: int, count: int, policy: Policy, most_colluders: int = 1) -> None:
    for groupings in distinct(n, size, count):
        for survivors in rational.subsets(range(n)):
            for colluders in rational.subsets(survivors, most=min(most_colluders, len(survivors))):
                check(groupings, survivors, colluders, policy)


def test_any_two_groupings_of_unequal_groups():
    for first, second in product(rational.set_partitions(range(4)), repeat=2):
        check([first, second], range(4))


@pytest.mark.long
def test_any_grouping_of_eight_and_any_two_of_five_into_unequal_groups():
    for grouping in rational.set_partitions(range(8)):
        check([grouping], range(8))
    for first, second in product(rational.set_partitions(range(5)), repeat=2):
        check([first, second], range(5))


@st.composite
def case(draw: st.DrawFn) -> tuple[list[Grouping], list[int], list[int], Policy, dict[int, int] | None]:
    n = draw(st.integers(2, 12))
    groups = draw(st.integers(1, 5))
    groupings = []
    for _ in range(draw(st.integers(1, 4))):
        labels = draw(st.lists(st.integers(0, groups - 1), min_size=n, max_size=n))
        groupings.append(tuple(tuple(i for i in range(n) if labels[i] == k) for k in range(groups)))
    survivors = draw(st.lists(st.sampled_from(range(n)), unique=True, min_size=n // 2))
    colluders = draw(st.lists(st.sampled_from(range(n)), unique=True, max_size=2))
    policy = Policy(
        min_survivors=draw(st.sampled_from([2, 2, 4])),
        anonymity=draw(st.sampled_from([2, 3, 3, 4, 5])),
        max_leverage=draw(st.sampled_from([1.0, 0.8, 0.5])),
    )
    weights = draw(st.none() | st.fixed_dictionaries({i: st.integers(1, 3) for i in range(n)}))
    return groupings, survivors, colluders, policy, weights


@settings(deadline=None, max_examples=150)
@given(case())
def test_random_groupings_of_up_to_twelve(drawn):
    groupings, survivors, colluders, policy, weights = drawn
    check(groupings, survivors, colluders, policy, weights)


@pytest.mark.long
@settings(deadline=None, max_examples=5000)
@given(case())
def test_many_random_groupings_of_up_to_twelve(drawn):
    groupings, survivors, colluders, policy, weights = drawn
    check(groupings, survivors, colluders, policy, weights)


@settings(deadline=None, max_examples=60)
@given(case())
def test_the_two_oracles_agree(drawn):
    groupings, survivors, *_ = drawn
    rows = [tuple(set(group) & set(survivors)) for grouping in groupings for group in grouping]
    columns = sorted(survivors)
    assert rational.fewest(rows, columns, 3) == rational.lightest(rows, columns, 3)
