"""The neighbour graph is what it says, and its failure probabilities are bounded as claimed."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secagg.agreement import graph
from secagg.errors import PeerError, TooFewSurvivors, UsageError
from secagg.protocol import client_checks
from secagg.protocol.messages import Dealer, Endorsement, Signatures, Survivor, Survivors
from tests.secagg.cluster import make_plan, signed

DOCS = Path(__file__).parents[2] / "docs" / "sparse.md"

rosters = st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=40, unique=True)
seeds = st.binary(max_size=40)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], int, bytes]:
    roster = draw(rosters)
    return roster, 2 * draw(st.integers(1, (len(roster) - 1) // 2)), draw(seeds)


def connected(adjacent: Mapping[int, Sequence[int]], alive: Iterable[int]) -> bool:
    """Whether the living are one component, found by walking (nobody and one client are)."""
    left = set(alive)
    reached = [left.pop()] if left else []
    while reached:
        near = left.intersection(adjacent[reached.pop()])
        left -= near
        reached.extend(near)
    return not left


# The graph


@settings(deadline=None)
@given(graphs())
def test_graph_is_symmetric_regular_and_without_loops(case: tuple[list[int], int, bytes]) -> None:
    roster, degree, seed = case
    near = graph.neighbours(roster, degree, seed)
    assert list(near) == sorted(roster)
    for client, peers in near.items():
        assert len(set(peers)) == len(peers) == degree
        assert list(peers) == sorted(peers)
        assert client not in peers
        assert all(client in near[peer] for peer in peers)


@settings(deadline=None)
@given(graphs(), st.data())
def test_graph_stays_connected_whichever_degree_minus_one_clients_leave(
    case: tuple[list[int], int, bytes], data: st.DataObject
) -> None:
    roster, degree, seed = case
    near = graph.neighbours(roster, degree, seed)
    leave = data.draw(st.sets(st.sampled_from(roster), max_size=degree - 1))
    assert connected(near, set(roster) - leave)


@settings(deadline=None)
@given(graphs(), st.data())
def test_graph_depends_on_seed_and_ranks_alone(case: tuple[list[int], int, bytes], data: st.DataObject) -> None:
    roster, degree, seed = case
    near = graph.neighbours(roster, degree, seed)
    assert graph.neighbours(data.draw(st.permutations(roster)), degree, seed) == near
    rank = {client: i for i, client in enumerate(sorted(roster))}
    ranked = {rank[client]: tuple(rank[peer] for peer in peers) for client, peers in near.items()}
    assert graph.neighbours(range(len(roster)), degree, seed) == ranked


def test_neighbours_are_the_nearest_on_the_circle() -> None:
    order = graph.circle(range(11), b"seed")
    near = graph.neighbours(range(11), 4, b"seed")
    for i, client in enumerate(order):
        assert set(near[client]) == {order[(i + step) % 11] for step in (-2, -1, 1, 2)}


def test_circle_known_answers() -> None:
    """A second implementation must give the same, see docs/sparse.md."""
    assert graph.circle(range(10), b"") == [8, 0, 4, 6, 9, 5, 1, 7, 2, 3]
    assert graph.circle([7, 1000, 3, 2**31], b"secagg") == [7, 3, 2**31, 1000]


def test_stream_does_not_repeat_from_block_to_block() -> None:
    assert len(set(islice(graph._words(b"seed"), 3000))) == 3000


def test_every_order_is_equally_likely() -> None:
    orders = Counter(tuple(graph.circle(range(4), i.to_bytes(2, "little"))) for i in range(4800))
    assert len(orders) == 24
    assert sum((seen - 200) ** 2 / 200 for seen in orders.values()) < 49.7  # chi-square, 23 degrees: p = 0.001


def test_words_of_the_incomplete_stretch_are_skipped() -> None:
    top = 2**64 - 2**64 % 1000
    assert graph._below(1000, iter([top, 2**64 - 1, top - 1])) == 999
    assert graph._below(2**63, iter([2**64 - 1])) == 2**63 - 1


@pytest.mark.parametrize("degree", [-2, 0, 1, 3, 9, 10, 12])
def test_degree_that_no_such_graph_has_is_refused(degree: int) -> None:
    with pytest.raises(UsageError, match="degree"):
        graph.neighbours(range(10), degree, b"seed")


def test_client_listed_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        graph.neighbours([1, 2, 3, 4, 2], 2, b"seed")


# The bounds, against exact counting


def exact_tail(least: int, n: int, marked: int, drawn: int) -> Fraction:
    ways = sum(
        math.comb(marked, x) * math.comb(n - marked, drawn - x) for x in range(max(least, 0), min(marked, drawn) + 1)
    )
    return Fraction(ways, math.comb(n, drawn))


def assert_just_above(log: float, exact: Fraction) -> None:
    """An upper bound, and by no more than a hundred-thousandth."""
    if exact == 0:
        assert log == -math.inf
    elif exact == 1:
        assert 0 <= log < 1e-5
    else:
        logarithm = math.log(exact.numerator) - math.log(exact.denominator)
        assert logarithm < log < logarithm + 1e-5


@settings(deadline=None)
@given(st.data())
def test_tail_is_exact(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 300))
    marked, drawn = data.draw(st.integers(0, n)), data.draw(st.integers(0, n))
    least = data.draw(st.integers(-1, drawn + 2))
    assert_just_above(graph._tail(least, n, marked, drawn), exact_tail(least, n, marked, drawn))


@pytest.mark.parametrize(
    ("least", "n", "marked", "drawn"),
    [(23, 10**6 - 1, 50_000, 44), (58, 999, 200, 112), (291, 10**6 - 1, 330_000, 572), (24, 10**7 - 1, 500_000, 46)],
)
def test_tail_is_exact_for_large_rosters(least: int, n: int, marked: int, drawn: int) -> None:
    assert_just_above(graph._tail(least, n, marked, drawn), exact_tail(least, n, marked, drawn))


@pytest.mark.parametrize(("n", "k", "marked"), [(7, 2, 3), (9, 4, 4), (10, 6, 5), (11, 8, 2)])
def test_bounds_count_the_clients_in_trouble(n: int, k: int, marked: int) -> None:
    """Every placement of colluders (or dropouts): the mean number among the others, scaled to n."""
    order, near = graph.circle(range(n), b"seed"), graph.neighbours(range(n), k, b"seed")
    for t in range(1, k + 1):
        among = below = 0
        for places in combinations(order, marked):
            beside = [len(set(places).intersection(near[client])) for client in set(order).difference(places)]
            among += sum(found >= t for found in beside)
            below += sum(k - found < t for found in beside)
        total = math.comb(n, marked) * Fraction(n - marked, n)
        for log, exact in ((graph._outnumbered(n, k, t, marked), among), (graph._unrebuilt(n, k, t, marked), below)):
            assert_just_above(log - math.log(n), exact / total / n)


def long_gaps(removed: Sequence[int], n: int, half: int) -> int:
    """How many runs of removed places between two survivors on a circle of n are at least `half` long."""
    alive = [place for place in range(n) if place not in removed]
    following = [*alive[1:], *(place + n for place in alive[:1])]
    return sum(after - place > half for place, after in zip(alive, following, strict=True))


@pytest.mark.parametrize(("n", "k"), [(n, k) for n in range(4, 12) for k in range(2, n, 2)])
def test_disconnection_is_two_long_gaps_and_its_bound_counts_their_pairs(n: int, k: int) -> None:
    """Every set of removed clients of every size, on the real graph."""
    order, near = graph.circle(range(n), b"seed"), graph.neighbours(range(n), k, b"seed")
    worst = Fraction(0)
    for r in range(n - 1):
        pairs = cuts = 0
        for removed in combinations(range(n), r):
            gaps = long_gaps(removed, n, k // 2)
            cut = not connected(near, set(order) - {order[place] for place in removed})
            assert cut == (gaps >= 2)
            pairs += math.comb(gaps, 2)
            cuts += cut
        total = math.comb(n, r)
        assert cuts <= pairs
        worst = max(worst, Fraction(pairs, total))  # the bound is for r clients or fewer
        if worst < 1:
            assert_just_above(graph._disconnected(n, k, r), worst)
        else:
            assert graph._disconnected(n, k, r) >= 0


@pytest.mark.parametrize(("n", "k", "r"), [(100, 24, 40), (1000, 34, 100), (10**4, 30, 2000)])
def test_bound_on_disconnection_is_nearly_exact(n: int, k: int, r: int) -> None:
    """Bonferroni: pairs of long gaps, less twice the triples, is below the probability."""
    s = n - r
    triples = math.comb(s, 3) * Fraction(math.comb(n - 3 * k // 2 - 1, s - 1), math.comb(n - 1, s - 1))
    assert 2 * triples < math.exp(graph._disconnected(n, k, r)) / 1000


# The bounds, against simulation

COLLUDER, DROPOUT = 1, 2
Circles = npt.NDArray[np.int8]


def circles(rng: np.random.Generator, trials: int, n: int, bad: int, gone: int) -> Circles:
    kinds = np.repeat(np.array([COLLUDER, DROPOUT, 0], np.int8), [bad, gone, n - bad - gone])
    return rng.permuted(np.tile(kinds, (trials, 1)), axis=1)


def ahead(marked: npt.NDArray[np.bool_], steps: int) -> npt.NDArray[np.int64]:
    """How many of the next `steps` places on the circle are marked, for every place."""
    n = marked.shape[1]
    sums: npt.NDArray[np.int64] = np.cumsum(np.hstack([marked, marked[:, :steps]]), axis=1)
    return sums[:, steps:] - sums[:, :n]


def beside(marked: npt.NDArray[np.bool_], k: int) -> npt.NDArray[np.int64]:
    """How many of its k neighbours are marked, for every place."""
    after = ahead(marked, k // 2)
    return after + np.roll(after, k // 2 + 1, axis=1)


def outnumbered(kinds: Circles, k: int, t: int) -> float:
    """How often (a) fails: some honest client, alive or dropped, has t colluders beside it."""
    victims = (beside(kinds == COLLUDER, k) >= t) & (kinds != COLLUDER)
    return float(victims.any(axis=1).mean())


def disconnected(kinds: Circles, k: int) -> float:
    """How often (b) fails: two survivors are each followed by k/2 colluders or dropouts."""
    long = (ahead(kinds != 0, k // 2) == k // 2) & (kinds == 0)
    return float((long.sum(axis=1) >= 2).mean())


def unrebuilt(kinds: Circles, k: int, t: int) -> float:
    """How often (c) fails: some client has fewer than t surviving neighbours."""
    return float((beside(kinds == DROPOUT, k) > k - t).any(axis=1).mean())


def assert_bounds(log: float, frequency: float, trials: int, most: float) -> None:
    """Not below the frequency (four standard errors allowed), and at most `most` times it."""
    bound = math.exp(log)
    assert 2**-10 < bound < 2**-3, "choose a case that the simulation can see"
    assert frequency <= bound + 4 * math.sqrt(bound / trials)
    assert bound <= most * frequency


TRIALS = 60_000


@pytest.mark.parametrize(
    ("n", "k", "t", "bad"), [(60, 12, 7, 12), (100, 16, 9, 15), (200, 20, 12, 40), (300, 24, 17, 99)]
)
def test_outnumbered_clients_are_as_rare_as_bounded(n: int, k: int, t: int, bad: int) -> None:
    kinds = circles(np.random.default_rng(1), TRIALS, n, bad, 0)
    assert_bounds(graph._outnumbered(n, k, t, bad), outnumbered(kinds, k, t), TRIALS, most=4)


@pytest.mark.parametrize(
    ("n", "k", "bad", "gone"), [(40, 6, 4, 6), (60, 8, 10, 10), (100, 10, 15, 15), (200, 14, 40, 40)]
)
def test_disconnections_are_as_rare_as_bounded(n: int, k: int, bad: int, gone: int) -> None:
    kinds = circles(np.random.default_rng(2), TRIALS, n, bad, gone)
    assert_bounds(graph._disconnected(n, k, bad + gone), disconnected(kinds, k), TRIALS, most=1.2)


@pytest.mark.parametrize(
    ("n", "k", "t", "gone"), [(60, 12, 6, 12), (100, 16, 8, 15), (200, 20, 9, 40), (300, 24, 8, 99)]
)
def test_lost_secrets_are_as_rare_as_bounded(n: int, k: int, t: int, gone: int) -> None:
    kinds = circles(np.random.default_rng(3), TRIALS, n, 0, gone)
    assert_bounds(graph._unrebuilt(n, k, t, gone), unrebuilt(kinds, k, t), TRIALS, most=4)


def test_searched_graphs_fail_no_more_often_than_asked() -> None:
    """From the seed to the failure, on the real graph, with (a), (b) and (c) as they are written."""
    n, trials = 60, 3000
    found = graph.search(n, colluders=0.1, dropouts=0.15, privacy=2**-5, correctness=2**-5)
    colluders, dropouts = (set(range(found.colluders)), set(range(found.colluders, found.colluders + found.dropouts)))
    exposed = lost = 0
    for i in range(trials):
        near = graph.neighbours(range(n), found.degree, i.to_bytes(2, "little"))
        honest = near.keys() - colluders
        exposed += not connected(near, honest - dropouts) or any(
            len(colluders.intersection(near[client])) >= found.threshold for client in honest
        )
        lost += any(found.degree - len(dropouts.intersection(near[client])) < found.threshold for client in near)
    for failures, log2 in ((exposed, found.privacy), (lost, found.correctness)):
        assert log2 <= -5
        assert failures / trials <= 2**log2 + 4 * math.sqrt(2**log2 / trials)
        assert failures / trials >= 2**log2 / 4


# The search

fractions = st.floats(0, 0.4)
targets = st.integers(1, 50).map(lambda bits: 2.0**-bits)


@settings(deadline=None, max_examples=60)
@given(st.integers(3, 80), fractions, fractions, targets, targets)
@example(9, 4 / 9, 0.0, 2**-2, 2**-24)  # (a) and (b) stay below the target each, but not together
@example(52, 7 / 52, 3 / 52, 2**-14, 2**-16)  # a larger degree, for the sake of (b), needs a lower threshold
def test_search_is_minimal_among_all_degrees_and_thresholds(
    n: int, colluders: float, dropouts: float, privacy: float, correctness: float
) -> None:
    try:
        found = graph.search(n, colluders=colluders, dropouts=dropouts, privacy=privacy, correctness=correctness)
    except UsageError:
        found = None
    if math.floor(colluders * n + 1e-6) + math.floor(dropouts * n + 1e-6) > n - 2:
        assert found is None
        return
    enough = (
        (k, t)
        for k in range(2, n, 2)
        for t in range(2, k + 1)
        if (made := graph.assess(n, degree=k, threshold=t, colluders=colluders, dropouts=dropouts)).privacy
        <= math.log2(privacy)
        and made.correctness <= math.log2(correctness)
    )
    assert (found and (found.degree, found.threshold)) == next(enough, None)


PUBLISHED = {  # k and t of Google's search at 2^-40 and 2^-30, semi-honest server
    (100, 0.05): (12, 6),
    (1000, 0.05): (34, 18),
    (10**4, 0.05): (38, 21),
    (10**6, 0.05): (44, 24),
    (100, 0.2): (42, 21),
    (1000, 0.2): (112, 59),
    (10**4, 0.2): (136, 71),
}


@pytest.mark.parametrize(("n", "fraction"), PUBLISHED)
def test_one_step_less_is_not_enough(n: int, fraction: float) -> None:
    found = graph.search(n, colluders=fraction, dropouts=fraction)
    assert found.privacy <= -40
    assert found.correctness <= -30

    def enough(k: int, t: int) -> bool:
        made = graph.assess(n, degree=k, threshold=t, colluders=fraction, dropouts=fraction)
        return made.privacy <= -40 and made.correctness <= -30

    assert enough(found.degree, found.threshold)
    assert not enough(found.degree, found.threshold - 1)
    assert not any(enough(k, t) for k in (found.degree - 2, found.degree - 4) for t in range(2, k + 1))


@cache
def google(n: int, colluders: float, dropouts: float) -> tuple[int, int]:
    """The criterion of Google's search at 2^-40 and 2^-30, in our words and exact numbers.

    Half the privacy budget for (a), half for (b); each client among those that its neighbours are drawn
    from; (b) a union over pairs of places where a run of k/2 begins; t found from 1 up, then raised to 2.
    """
    bad, gone = round(colluders * n), round(dropouts * n)
    removed = bad + gone
    for k in range(2, n, 2):
        runs = math.comb(n - k, removed - k) * n * (n - k - 1) // 2 if removed >= k else 0
        if runs * 2**41 >= math.comb(n, removed):
            continue
        t = next(t for t in range(1, k + 2) if exact_tail(t, n, bad, k) * n * 2**41 <= 1)
        if exact_tail(k - t + 1, n, gone, k) * n * 2**30 <= 1:
            return k, max(t, 2)
    raise AssertionError("none found")


@pytest.mark.parametrize(("n", "fraction"), PUBLISHED)
def test_published_table_differs_by_half_the_privacy_budget_alone(n: int, fraction: float) -> None:
    assert n > 10**4 or google(n, fraction, fraction) == PUBLISHED[n, fraction]
    found = graph.search(n, colluders=fraction, dropouts=fraction, privacy=2**-41)
    assert (found.degree, found.threshold) == PUBLISHED[n, fraction]


@pytest.mark.parametrize(
    ("n", "colluders", "dropouts", "theirs", "ours"),
    [
        (10_000, 0.2, 0.2, (136, 71), (134, 70)),  # one budget for (a) and (b)
        (500, 0, 0.4, (42, 2), (40, 2)),  # each long gap counted once
        (200, 0.2, 0.33, (92, 40), (94, 40)),  # nobody is its own neighbour
        (100, 0, 0.05, (6, 2), (8, 2)),  # a client's share of its own secrets is not relied on
    ],
)
def test_differences_from_google_are_those_of_the_docs(
    n: int, colluders: float, dropouts: float, theirs: tuple[int, int], ours: tuple[int, int]
) -> None:
    assert google(n, colluders, dropouts) == theirs
    found = graph.search(n, colluders=colluders, dropouts=dropouts)
    assert (found.degree, found.threshold) == ours


def test_tables_of_the_docs_are_what_search_finds() -> None:
    rows = re.findall(r"^\| (\d+)% \| (\d+)% \| ([\d,]+) \| (\d+) \((\d+)\) \|", DOCS.read_text(), re.MULTILINE)
    assert len(rows) >= len(PUBLISHED)
    for colluders, dropouts, n, k, t in rows:
        found = graph.search(int(n.replace(",", "")), colluders=int(colluders) / 100, dropouts=int(dropouts) / 100)
        assert (found.degree, found.threshold) == (int(k), int(t))


def test_result_says_that_it_is_semi_honest() -> None:
    assert "semi-honest" in repr(graph.search(1000, colluders=0.05, dropouts=0.05))


def test_threshold_is_never_one() -> None:
    """With one, any neighbour would hold a client's secrets in the clear."""
    assert graph.search(100, colluders=0, dropouts=0).threshold == 2
    with pytest.raises(UsageError, match="threshold"):
        graph.assess(100, degree=4, threshold=1, colluders=0, dropouts=0)


def test_fractions_that_floats_cannot_hold_do_not_lose_a_colluder() -> None:
    assert 0.29 * 100 < 29
    assert graph.search(100, colluders=0.29, dropouts=0.0).colluders == 29


@pytest.mark.parametrize(
    ("n", "colluders", "dropouts", "privacy", "reason"),
    [
        (2, 0.0, 0.0, 0.1, "n=2"),
        (10**7 + 1, 0.0, 0.0, 0.1, "n=10000001"),
        (100, -0.1, 0.0, 0.1, "fractions"),
        (100, 0.0, 1.0, 0.1, "fractions"),
        (100, math.nan, 0.0, 0.1, "fractions"),
        (100, 0.0, 0.0, 0.0, "probabilities"),
        (100, 0.0, 0.0, 1.0, "probabilities"),
        (100, 0.5, 0.49, 0.1, "fewer than two"),
        (100, 0.49, 0.49, 0.1, "complete graph"),
    ],
)
def test_search_refuses(n: int, colluders: float, dropouts: float, privacy: float, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        graph.search(n, colluders=colluders, dropouts=dropouts, privacy=privacy)


@pytest.mark.parametrize(("degree", "threshold"), [(3, 2), (100, 2), (4, 5)])
def test_assess_refuses_impossible_parameters(degree: int, threshold: int) -> None:
    with pytest.raises(UsageError, match=f"{threshold if threshold > degree else degree}"):
        graph.assess(100, degree=degree, threshold=threshold, colluders=0.0, dropouts=0.0)


def test_a_threshold_of_one_is_not_assessed() -> None:
    with pytest.raises(UsageError, match="threshold 1 must be between 2"):
        graph.assess(100, degree=10, threshold=1, colluders=0.1, dropouts=0.1)


def test_only_neighbours_count_for_a_client_of_a_sparse_run() -> None:
    plan = make_plan(12, degree=6, threshold=3, colluders=1)
    near = plan.peers(0)
    far = [v for v in plan.ids if v not in near][:3]
    dealers = [Dealer(v, (), bytes(32)) for v in near]
    everybody = Survivors(tuple(Survivor(v, (), bytes(32), bytes(64)) for v in sorted((0, *far))), ())
    with pytest.raises(TooFewSurvivors, match="1 clients survive"):
        client_checks.check_survivors(plan, 0, dealers, bytes(32), 1.0, everybody)
    statement = b"what all signed"
    signatures = Signatures(tuple(Endorsement(v, signed(v, statement)) for v in far))
    with pytest.raises(PeerError, match=f"client {far[0]} may not sign"):
        client_checks.check_endorsements(plan, 0, plan.ids, statement, signatures)
