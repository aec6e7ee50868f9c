"""Which rows are opened: a second selection in exact fractions keeps the same ones, for the same reasons."""

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from secagg.exposure.incidence import Incidence
from secagg.exposure.leverage import Leverage
from secagg.exposure.selection import SLACK, Limits, Pass, _orders, choose, names
from tests.secagg import rational

Row = tuple[int, int]


def greedy(rows: Incidence, limits: Limits, order: list[Row]) -> list[Row]:
    """Keep each row that leaves T and the leverages within their limits, by rational elimination."""
    kept: list[Row] = []
    clients = range(len(rows.clients))
    for row in order:
        trial = [rows.index[one] for one in [*kept, row]]
        if rational.rank(trial, clients) > rational.rank(trial[:-1], clients):
            weights = [Fraction(float(weight)) for weight in rows.weights]
            worst = max(rational.leverage(trial, clients, weights))
            if rational.lightest(trial, clients) < limits.anonymity or worst > Fraction(limits.leverage) + 10**-9:
                continue
        kept.append(row)
    return kept


def best(rows: Incidence, limits: Limits) -> tuple[list[Row], set[Row]]:
    """Groupings with few weak rows first, or last; large rows first. The first of equals counts."""
    weak = {row for row, members in rows.members.items() if len(members) < limits.survivors}
    lost = Counter(g for g, _ in weak)
    strong = sorted(set(rows.members) - weak, key=lambda row: (lost[row[0]], row[0], -len(rows.members[row]), row))
    orders = [strong]
    if len({lost[g] for g in range(len(rows.groupings))}) > 1:
        orders.append(sorted(strong, key=lambda row: -lost[row[0]]))
    trials = [greedy(rows, limits, order) for order in orders]
    kept = trials[0] if len(trials[0]) >= len(trials[-1]) else trials[-1]
    return kept, weak


def drawn(seed: int) -> tuple[Incidence, Limits]:
    rng = np.random.default_rng(seed)
    n, groupings = int(rng.integers(5, 9)), []
    for _ in range(int(rng.integers(1, 4))):
        labels = rng.integers(0, int(rng.integers(1, 4)), n)
        groupings.append(tuple(tuple(np.flatnonzero(labels == k).tolist()) for k in sorted(set(labels.tolist()))))
    alive = np.flatnonzero(rng.random(n) < 0.9).tolist()
    anonymity = int(rng.integers(2, 6))
    limits = Limits(
        survivors=max(anonymity, int(rng.integers(2, 4))),
        anonymity=anonymity,
        leverage=float(rng.choice([0.5, 0.7, 1.0])),
        proven={},
    )
    return Incidence(groupings, alive, plan_hash=b"%d" % seed), limits


@pytest.mark.parametrize("seed", range(80))
def test_the_rows_that_are_opened_are_those_of_exact_fractions(seed: int) -> None:
    rows, limits = drawn(seed)
    kept, refused = choose(rows, limits)
    expected, weak = best(rows, limits)
    assert kept == expected
    assert set(refused) == set(rows.members) - set(expected)
    assert list(refused) == sorted(refused)
    assert {row for row, why in refused.items() if why.startswith("it has ")} == weak


@pytest.mark.parametrize(("seed", "better"), [(9, 0), (17, 0), (51, 1), (72, 1)])
def test_the_order_that_keeps_more_is_taken(seed: int, better: int) -> None:
    rows, limits = drawn(seed)
    weak = [row for row, members in rows.members.items() if len(members) < limits.survivors]
    kept = []
    for order in _orders(rows, limits, weak):
        trial = Pass(rows, limits)
        trial.add_all(order)
        kept.append(trial.span.kept)
    assert len(kept[better]) > len(kept[1 - better])
    assert choose(rows, limits)[0] == kept[better]


def test_covered_rows_come_first_in_both_orders() -> None:
    """Grouping 0 has a weak row, grouping 1 none; within a grouping, large rows come first."""
    groupings = [((0, 1, 2), (3, 4, 5, 6), (7, 8)), ((0, 3, 7, 8), (1, 2, 4, 5, 6))]
    rows, weak = Incidence(groupings, range(9), plan_hash=b""), [(0, 2)]
    for proven, first, second in (
        ({}, [(1, 1), (1, 0), (0, 1), (0, 0)], [(0, 1), (0, 0), (1, 1), (1, 0)]),
        ({(1, 0): 3}, [(1, 0), (1, 1), (0, 1), (0, 0)], [(1, 0), (0, 1), (0, 0), (1, 1)]),
        ({(0, 0): 3}, [(0, 0), (1, 1), (1, 0), (0, 1)], [(0, 0), (0, 1), (1, 1), (1, 0)]),
    ):
        given = limits(survivors=3, anonymity=3, proven=proven)
        assert list(_orders(rows, given, weak)) == [first, second]
    assert len(list(_orders(rows, limits(), []))) == 1


def test_how_clients_are_named() -> None:
    assert names([7]) == "client 7"
    assert names({23, 7}) == "clients 7 and 23"
    assert names((3, 1, 2)) == "clients 1, 2 and 3"
    assert names(range(8)) == "clients 0, 1, 2, 3, 4, 5, 6 and 7"
    assert names(range(9)) == "clients 0, 1, 2, 3, 4, 5, 6, 7 and 1 others"
    assert names(range(60)) == "clients 0, 1, 2, 3, 4, 5, 6, 7 and 52 others"


def limits(**changes: Any) -> Limits:
    return Limits(**{"survivors": 2, "anonymity": 2, "leverage": 1.0, "proven": {}, **changes})


def test_a_proof_covers_rows_up_to_its_own_anonymity() -> None:
    found = limits(anonymity=3, proven={(0, 0): 3, (0, 1): 2, (0, 2): 4})
    assert [found.covers((0, k)) for k in range(4)] == [True, False, True, False]


@pytest.mark.parametrize(("less", "opened"), [(0.0, True), (5e-10, True), (2e-9, False), (0.01, False)])
def test_a_leverage_may_be_a_billionth_above_its_limit(less: float, opened: bool) -> None:
    rows = Incidence([((0, 1, 2),)], range(3), plan_hash=b"")
    limit = 1 / 3 - less
    kept, refused = choose(rows, limits(leverage=limit))
    assert kept == ([(0, 0)] if opened else [])
    assert refused == ({} if opened else {(0, 0): f"the leverage of client 0 would be 0.333, above {limit:g}"})


def test_a_leverage_exactly_at_its_limit_is_allowed() -> None:
    rows = Incidence([((0, 1, 2),)], range(3), plan_hash=b"")
    found = float(Leverage(rows.weights).consider((0, 1, 2)).max())
    near = found - SLACK
    limit = next(x for x in (near, np.nextafter(near, 1), np.nextafter(near, 0)) if x + SLACK == found)
    assert choose(rows, limits(leverage=float(limit))) == ([(0, 0)], {})


def test_a_leverage_limit_of_one_is_none() -> None:
    rows = Incidence([((0,), (1, 2, 3))], range(4), plan_hash=b"")
    assert choose(rows, limits(survivors=1, anonymity=1)) == ([(0, 1), (0, 0)], {})


@pytest.mark.parametrize(
    ("alive", "colluders", "why"),
    [
        ((), (), "it has no survivors"),
        ((0,), (), "it has 1 survivor, fewer than 4"),
        ((0, 1, 2), (), "it has 3 survivors, fewer than 4"),
        ((0, 1, 2, 3), (3,), "it has 4 survivors, 1 of them assumed to collude, fewer than 4"),
        ((0,), (0,), "it has 1 survivor, 1 of them assumed to collude, fewer than 4"),
    ],
)
def test_why_a_row_with_few_survivors_stays_closed(alive: Any, colluders: Any, why: str) -> None:
    rows = Incidence([((0, 1, 2, 3),)], alive, colluders=colluders, plan_hash=b"")
    assert choose(rows, limits(survivors=4)) == ([], {(0, 0): why})


def test_why_a_row_that_exposes_stays_closed() -> None:
    rows = Incidence([((0, 1, 2, 3, 4, 5),), ((0, 1, 2, 3, 4),)], range(6), plan_hash=b"")
    assert choose(rows, limits()) == ([(0, 0)], {(1, 0): "with the sums opened before, it would expose client 5"})
    rows = Incidence([((10, 11, 12, 13, 14, 15),), ((10, 11, 12, 13),)], range(10, 16), plan_hash=b"")
    pair = "with the sums opened before, it would reveal a combination of only clients 14 and 15"
    assert choose(rows, limits(anonymity=3)) == ([(0, 0)], {(1, 0): pair})
    assert choose(rows, limits(anonymity=2)) == ([(0, 0), (1, 0)], {})


def test_a_sum_that_is_known_already_is_opened_for_nothing() -> None:
    whole = tuple(range(6))
    rows = Incidence([(whole,), (whole,), ((0, 1, 2), (3, 4, 5))], whole, plan_hash=b"")
    trial = Pass(rows, limits(anonymity=3))
    trial.add_all([(0, 0), (1, 0), (2, 0), (2, 1)])
    assert trial.span.kept == [(0, 0), (1, 0), (2, 0), (2, 1)]
    assert trial.span.space.rank == 2


def test_covered_rows_come_first_and_keep_their_proof() -> None:
    """Four rows of two crossing pairs of atoms: T is 40, which nobody could compute for 80 clients."""
    atoms = [tuple(range(20 * a, 20 * a + 20)) for a in range(4)]
    groupings = [
        ((*atoms[0], *atoms[1]), (*atoms[2], *atoms[3])),
        ((*atoms[0], *atoms[2]), (*atoms[1], *atoms[3])),
        ((*atoms[0], *atoms[3]), (*atoms[1], *atoms[2])),
    ]
    rows = Incidence(groupings, range(80), plan_hash=b"")
    everything = dict.fromkeys(rows.members, 20)
    assert choose(rows, limits(anonymity=20, proven=everything))[1] == {}
    kept, refused = choose(rows, limits(anonymity=20, proven={row: 20 for row in rows.members if row[0]}))
    assert [row[0] for row in kept[:4]] == [1, 1, 2, 2]
    assert all(row[0] == 0 for row in refused)
    why = "anonymity 20 among 80 clients is not proven and too expensive to compute"
    assert set(refused.values()) <= {why}


@pytest.mark.parametrize(("need", "opened"), [(20, True), (21, False)])
def test_two_groupings_are_judged_by_their_minimum_cut_if_that_is_cheaper(need: int, opened: bool) -> None:
    """Rows of 40 that cross in blocks of 10 and 30: the difference of two of them has 20 clients."""
    blocks = [tuple(range(*ends)) for ends in ((0, 10), (10, 40), (40, 70), (70, 80))]
    crossing = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    groupings = [tuple((*blocks[a], *blocks[b]) for a, b in pairs) for pairs in crossing]
    rows = Incidence(groupings, range(80), plan_hash=b"")
    kept, refused = choose(rows, limits(survivors=need, anonymity=need))
    assert len(kept) == (4 if opened else 2)
    cut = "with the sums opened before, it would reveal a combination of only 20 clients"
    assert set(refused.values()) == (set() if opened else {cut})
