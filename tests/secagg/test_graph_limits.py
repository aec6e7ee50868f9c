"""The sparse mode's numbers against exact fractions, for all small graphs, and its limits."""

import math
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from hashlib import shake_256
from itertools import islice, product

import pytest

from secagg.agreement import graph
from secagg.errors import UsageError
from secagg.labels import NEIGHBOUR_GRAPH


def log(exact: Fraction) -> float:
    return math.log(exact.numerator) - math.log(exact.denominator) if exact else -math.inf


def near(found: float, exact: Fraction) -> bool:
    """An upper bound of a logarithm, and by no more than a few millionths."""
    return found == -math.inf if exact == 0 else log(exact) <= found <= log(exact) + 5e-6


@cache
def tail(least: int, n: int, marked: int, drawn: int) -> Fraction:
    ways = sum(math.comb(marked, x) * math.comb(n - marked, drawn - x) for x in range(max(least, 0), drawn + 1))
    return Fraction(ways, math.comb(n, drawn))


@cache
def cut(n: int, k: int, removed: int) -> Fraction:
    """Pairs of gaps of k/2 or more, for the worst number of clients up to `removed`."""
    return max(
        Fraction(math.comb(n - r, 2) * math.comb(n - k - 1, n - r - 1), math.comb(n - 1, n - r - 1))
        for r in range(min(removed, n - 2) + 1)
    )


def exposed(n: int, k: int, t: int, bad: int, gone: int) -> Fraction:
    return n * tail(t, n - 1, bad, k) + cut(n, k, bad + gone)


def lost(n: int, k: int, t: int, gone: int) -> Fraction:
    return n * tail(k - t + 1, n - 1, gone, k)


# --- the bounds ----------------------------------------------------------------------------------------------------


def test_the_tail_is_exact_for_all_small_numbers() -> None:
    for n in range(1, 10):
        for marked, drawn in product(range(n + 1), repeat=2):
            for least in range(drawn + 2):
                assert near(graph._tail(least, n, marked, drawn), tail(least, n, marked, drawn))


@pytest.mark.parametrize(("n", "marked", "drawn"), [(400, 120, 200), (900, 450, 300), (2000, 30, 40)])
def test_the_tail_is_exact_on_either_side_of_its_peak(n: int, marked: int, drawn: int) -> None:
    peak = marked * drawn // n
    for least in {0, 1, peak // 2, peak - 1, peak, peak + 1, 2 * peak, min(marked, drawn)}:
        assert near(graph._tail(least, n, marked, drawn), tail(least, n, marked, drawn))


def test_the_bound_on_disconnection_is_that_of_the_worst_number() -> None:
    for n in range(3, 19):
        for k in range(2, n, 2):
            for removed in range(n - 1):
                assert near(graph._disconnected(n, k, removed), cut(n, k, removed))


@pytest.mark.parametrize(("n", "k"), [(60, 4), (61, 6), (97, 8), (150, 10)])
def test_the_worst_number_is_found_in_larger_graphs(n: int, k: int) -> None:
    for removed in range(n // 2, n - 1):
        assert near(graph._disconnected(n, k, removed), cut(n, k, removed))


def test_the_sum_of_two_probabilities() -> None:
    for a, b in ((0.0, 0.0), (-3.0, -1.0), (-1.0, -3.0), (-800.0, -801.0)):
        top = max(a, b)
        assert graph._plus(a, b) == pytest.approx(top + math.log(math.exp(a - top) + math.exp(b - top)))
    assert graph._plus(-math.inf, -2.0) == graph._plus(-2.0, -math.inf) == -2.0
    assert graph._plus(-math.inf, -math.inf) == -math.inf


def test_an_assessment_has_both_probabilities_and_none_is_above_one() -> None:
    for n, k, bad, gone in ((12, 6, 3, 2), (12, 10, 2, 3), (9, 4, 0, 0), (20, 8, 4, 4), (20, 2, 9, 9), (7, 6, 3, 0)):
        for t in range(2, k + 1):
            found = graph.assess(n, degree=k, threshold=t, colluders=bad / n, dropouts=gone / n)
            assert (found.clients, found.colluders, found.dropouts) == (n, bad, gone)
            assert (found.degree, found.threshold, found.assumes) == (k, t, graph.ASSUMES)
            for log2, exact in ((found.privacy, exposed(n, k, t, bad, gone)), (found.correctness, lost(n, k, t, gone))):
                assert near(log2 * math.log(2), exact) if exact < 0.999 else log2 == 0.0


# --- the search ----------------------------------------------------------------------------------------------------


def first_enough(n: int, bad: int, gone: int, privacy: Fraction, correctness: Fraction) -> tuple[int, int] | None:
    return next(
        (
            (k, t)
            for k in range(2, n, 2)
            for t in range(2, k + 1)
            if exposed(n, k, t, bad, gone) <= privacy and lost(n, k, t, gone) <= correctness
        ),
        None,
    )


@pytest.mark.parametrize("n", [3, 4, 5, 8, 9, 13, 20])
def test_the_search_finds_the_least_degree_and_threshold(n: int) -> None:
    for bad, gone in product(range(0, n // 2 + 1, max(1, n // 6)), repeat=2):
        for private, correct in product((0.9, 0.3, 2.0**-5, 2.0**-11), repeat=2):
            wanted = None
            if bad + gone <= n - 2:
                wanted = first_enough(n, bad, gone, Fraction(private), Fraction(correct))
            try:
                found = graph.search(n, colluders=bad / n, dropouts=gone / n, privacy=private, correctness=correct)
            except UsageError:
                assert wanted is None
            else:
                assert (found.degree, found.threshold) == wanted
                made = {"degree": found.degree, "threshold": found.threshold}
                assert found == graph.assess(n, colluders=bad / n, dropouts=gone / n, **made)


@pytest.mark.parametrize(
    ("n", "bad", "gone", "privacy", "correctness"),
    [
        (30, 3, 4, 2.0**-9, 2.0**-9),
        (40, 6, 9, 2.0**-12, 2.0**-3),
        (40, 2, 12, 2.0**-8, 2.0**-2),
        (36, 9, 3, 2.0**-4, 2.0**-14),
        (15, 4, 3, 0.25, 0.9),  # colluders and dropouts together cut the graph
        (25, 4, 1, 0.25, 0.1),
        (34, 6, 3, 2.0**-10, 0.9),
    ],
)
def test_the_search_is_exact_for_larger_numbers(
    n: int, bad: int, gone: int, privacy: float, correctness: float
) -> None:
    found = graph.search(n, colluders=bad / n, dropouts=gone / n, privacy=privacy, correctness=correctness)
    assert (found.degree, found.threshold) == first_enough(n, bad, gone, Fraction(privacy), Fraction(correctness))


def exactly(value: Callable[[int], float]) -> tuple[int, float]:
    """The first number whose logarithm is that of a float to the last bit, and this float."""
    values = ((x, value(x)) for x in range(4, 400))
    return next((x, math.exp(v)) for x, v in values if -600 < v < -3 and math.log(math.exp(v)) == v)


def test_a_probability_that_is_just_the_target_is_enough() -> None:
    gone, privacy = exactly(lambda gone: graph._disconnected(400, 20, gone))
    found = graph.search(400, colluders=0, dropouts=gone / 400, privacy=privacy, correctness=0.999)
    assert found.degree == 20
    gone, correctness = exactly(lambda gone: graph._unrebuilt(400, 20, 2, gone))
    found = graph.search(400, colluders=0, dropouts=gone / 400, privacy=0.999, correctness=correctness)
    assert (found.degree, found.threshold) == (20, 2)
    bad, privacy = exactly(lambda bad: graph._outnumbered(400, 20, 9, bad))
    assert graph._least_threshold(400, 20, bad, -math.inf, math.log(privacy)) == 9
    gone, correctness = exactly(lambda gone: graph._unrebuilt(400, 20, 5, gone))
    assert graph._least_degree(range(6, 400, 2), 400, 5, gone, math.log(correctness)) == 20


def test_a_threshold_that_no_degree_allows_is_one_above_it() -> None:
    assert graph._least_threshold(20, 4, 19, -math.inf, -1.0) == 5
    assert graph._least_threshold(20, 4, 0, -math.inf, -1.0) == 2
    assert graph._least_threshold(20, 4, 0, 0.0, -1.0) == 5  # (b) alone is too likely
    assert graph._least_degree(range(2, 10, 2), 20, 5, 18, -9.0) is None


def test_the_targets_are_those_of_the_documents() -> None:
    assert graph.search.__kwdefaults__ == {"privacy": 2.0**-40, "correctness": 2.0**-30}
    assert graph.MOST_CLIENTS == 10**7


# --- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n": 2}, "n=2 must be between 3 and 10000000"),
        ({"n": 10**7 + 1}, "n=10000001 must be between 3 and 10000000"),
        *(
            ({name: wrong}, "fractions {colluders}, {dropouts} must be at least 0 and below 1")
            for name in ("colluders", "dropouts")
            for wrong in (-0.001, 1.0, 1.5)
        ),
        *(
            ({name: wrong}, "failure probabilities {privacy}, {correctness} must be between 0 and 1")
            for name in ("privacy", "correctness")
            for wrong in (0.0, 1.0, -0.5, 1.5)
        ),
        ({"n": 4, "colluders": 0.5, "dropouts": 0.25}, "2 colluders and 1 dropouts of n=4 leave fewer than two honest"),
        (
            {"colluders": 0.49, "dropouts": 0.49},
            "no degree below n=100 withstands 49 colluders and 49 dropouts at these probabilities; use the complete",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_in_words(changes: dict[str, float], says: str) -> None:
    given = {"n": 100, "colluders": 0.1, "dropouts": 0.1, "privacy": 0.1, "correctness": 0.1} | changes
    with pytest.raises(UsageError, match=f"^{re.escape(says.format(**given))}"):
        graph.search(int(given.pop("n")), **given)


def test_the_least_and_the_most_clients() -> None:
    assert graph.assess(3, degree=2, threshold=2, colluders=0, dropouts=0).privacy == -math.inf
    assert graph.assess(10**7, degree=46, threshold=24, colluders=0.05, dropouts=0.05).clients == 10**7
    two_left = graph.assess(4, degree=2, threshold=2, colluders=0.25, dropouts=0.25)
    assert (two_left.colluders, two_left.dropouts) == (1, 1)
    assert graph.assess(100, degree=2, threshold=2, colluders=0.29, dropouts=0.57).colluders == 29


@pytest.mark.parametrize(
    ("degree", "threshold", "says"),
    [
        (0, 2, "degree must be even, at least 2 and below n=10, got 0"),
        (3, 2, "degree must be even, at least 2 and below n=10, got 3"),
        (10, 2, "degree must be even, at least 2 and below n=10, got 10"),
        (4, 1, "threshold 1 must be between 2 and the degree 4"),
        (4, 5, "threshold 5 must be between 2 and the degree 4"),
    ],
)
def test_a_degree_and_a_threshold_have_limits(degree: int, threshold: int, says: str) -> None:
    with pytest.raises(UsageError, match=f"^{says}$"):
        graph.assess(10, degree=degree, threshold=threshold, colluders=0.1, dropouts=0.1)
    for fits in ((2, 2), (8, 8), (8, 2)):
        graph.assess(10, degree=fits[0], threshold=fits[1], colluders=0.1, dropouts=0.1)


def test_a_degree_is_below_the_number_of_clients() -> None:
    graph.check_degree(9, 8)
    with pytest.raises(UsageError, match="below n=8, got 8"):
        graph.check_degree(8, 8)
    near = graph.neighbours(range(9), 8, b"seed")
    assert all(set(peers) == set(range(9)) - {v} for v, peers in near.items())


def test_words_are_those_of_numbered_blocks() -> None:
    """A second implementation must give the same, see docs/sparse.md."""
    blocks = [shake_256(NEIGHBOUR_GRAPH + n.to_bytes(8, "little") + b"seed").digest(8192) for n in range(2)]
    stream = b"".join(blocks)
    wanted = [int.from_bytes(stream[i : i + 8], "little") for i in range(0, len(stream), 8)]
    assert list(islice(graph._words(b"seed"), 2048)) == wanted


def test_an_order_is_that_of_fisher_and_yates() -> None:
    order, words = sorted([5, 3, 9, 7, 1]), graph._words(b"x")
    for last in (4, 3, 2, 1):
        other = next(words) % (last + 1)  # no word of these is in the incomplete stretch
        order[last], order[other] = order[other], order[last]
    assert graph.circle([9, 7, 5, 3, 1], b"x") == order
    with pytest.raises(UsageError, match=r"^a client is listed twice in the roster$"):
        graph.circle([1, 2, 1], b"x")


def test_a_sparse_graph_says_what_it_assumes() -> None:
    found = graph.assess(10, degree=4, threshold=2, colluders=0.1, dropouts=0.1)
    assert found.assumes == "semi-honest server; colluders and dropouts chosen without regard to the graph's seed"
    with pytest.raises(TypeError, match="assumes"):
        graph.Sparse(clients=1, colluders=0, dropouts=0, degree=2, threshold=2, privacy=0, correctness=0, assumes="x")  # type: ignore[call-arg]
