"""How many bad clients a rule withstands: exact counts against brute force, and the paper's formulas."""

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robust
from robust import tolerance
from tests.robust import references
from tests.robust.cases import BUILT_IN, parameters


@st.composite
def settings_of_clusters(draw: st.DrawFn) -> tuple[int, int, int]:
    n = draw(st.integers(1, 10))
    return n, draw(st.integers(0, n)), draw(st.integers(1, n))


@settings(max_examples=60, deadline=None)
@given(settings_of_clusters())
def test_distribution_of_clean_clusters_is_that_of_counting_all_cases(case: tuple[int, int, int]) -> None:
    """By symmetry: fixed clusters, and every set of bad clients equally likely."""
    n, bad, m = case
    c = n // m
    counts = [0] * (c + 1)
    for chosen in combinations(range(n), bad):
        spoiled = {client // m for client in chosen if client < c * m}
        counts[c - len(spoiled)] += 1
    assert tolerance.clean_clusters(n, bad, m) == tuple(Fraction(k, comb(n, bad)) for k in counts)


@pytest.mark.parametrize(("n", "bad", "m"), [(60, 12, 3), (100, 30, 7), (500, 60, 5)])
def test_distribution_adds_up_and_has_the_right_mean(n: int, bad: int, m: int) -> None:
    found = tolerance.clean_clusters(n, bad, m)
    assert sum(found) == 1
    assert min(found) >= 0
    mean = sum(k * p for k, p in enumerate(found))
    assert mean == n // m * Fraction(comb(n - m, bad), comb(n, bad))


def test_distribution_agrees_with_drawing_clusters() -> None:
    rng = np.random.default_rng(0)
    n, bad, m, draws = 20, 4, 3, 4000
    counts = np.zeros(n // m + 1)
    for _ in range(draws):
        clusters = rng.permutation(n)[: n // m * m].reshape(-1, m)
        counts[(clusters >= bad).all(axis=1).sum()] += 1
    expected = np.array([float(p) for p in tolerance.clean_clusters(n, bad, m)])
    assert np.abs(counts / draws - expected).max() < 5 * np.sqrt(0.25 / draws)


@pytest.mark.parametrize("rule", BUILT_IN)
def test_rules_accept_the_f_that_they_withstand_and_no_more(rule: str) -> None:
    found = robust.AGGREGATORS[rule]
    for n in range(1, 30):
        most = tolerance.withstands(rule, n)
        assert 0 <= most < n
        assert most == max(found.withstands(n), 0)
        if "f" not in found.parameters:
            with pytest.raises(ValueError, match="does not take f"):
                tolerance.withstands(rule, n, f=0)
        elif found.withstands(n) >= 0:
            found.check(n, **parameters(rule, n, most, 3))
            with pytest.raises(ValueError, match=f"f={most + 1}"):
                found.check(n, **parameters(rule, n, most + 1, 3))
            assert tolerance.withstands(rule, n, f=most // 2) == most // 2
            with pytest.raises(ValueError, match=f"n={n}, f={most + 1}"):
                tolerance.withstands(rule, n, f=most + 1)


SIZES = [*range(1, 31), 60, 200]
QUICK = {"smea": [*range(1, 13), 20], "caf": [*range(1, 31), 60]}  # the others take seconds each


@pytest.mark.parametrize("rule", BUILT_IN)
def test_rules_run_with_as_many_bad_rows_as_they_withstand(rule: str) -> None:
    """A plan that relies on this number is not refused later."""
    found = robust.AGGREGATORS[rule]
    for n in QUICK.get(rule, SIZES):
        if found.withstands(n) < 0:
            continue
        x = np.random.default_rng(n).standard_normal((n, 5)).astype(np.float32)
        options = parameters(rule, n, tolerance.withstands(rule, n), 5)
        found.check(n, **options)
        assert np.isfinite(found(x, **options)).all()
        if 1 < n < 20:  # also with a row that is not finite
            x[n // 2] = np.nan
            if found.withstands(n - 1) >= 0:
                assert np.isfinite(found(x, **options)).all()


def test_exact_searches_withstand_no_more_than_is_feasible() -> None:
    assert [tolerance.withstands("mda", n) for n in (32, 33, 34, 60, 1000)] == [15, 16, 16, 16, 16]
    assert [tolerance.withstands("smea", n) for n in (19, 20, 21, 60, 200, 1000)] == [9, 8, 7, 3, 1, 0]
    for n in range(1, 400):
        f = tolerance.withstands("smea", n)
        assert f == 0 or (comb(n, f) <= 2**17 and comb(n, f) * (n - f) ** 3 <= 2**33)


WRONG = [
    ("mda", 60, {"f": 17}, "mda needs n > 2f, f <= 16: got n=60, f=17"),
    ("smea", 20, {"f": 9}, r"smea needs n > 2f, C\(n, f\) <= 2\^17.*: got n=20, f=9"),  # 167,960 subsets
    ("smea", 200, {"f": 2}, r"smea needs n > 2f, C.*2\^33: got n=200, f=2"),  # matrices of 198 rows: minutes
    ("multi_krum", 9, {"f": 2, "m": 8}, "got m=8, n=9, f=2"),
    ("multi_krum", 9, {"f": 2, "m": 0}, "got m=0, n=9, f=2"),
    ("trimmed_mean", 9, {"f": -1}, "f=-1"),
    ("trimmed_mean", 9, {}, "either f or fraction"),
    ("trimmed_mean", 9, {"f": 1, "fraction": 0.1}, "either f or fraction"),
    ("trimmed_mean", 9, {"fraction": 0.5}, r"below 1/2, got 0\.5"),
    ("trimmed_mean", 9, {"fraction": -0.1}, r"below 1/2, got -0\.1"),
    ("geometric_median", 9, {"steps": 0}, "got steps=0"),
    ("geometric_median", 9, {"tolerance": 0.0}, r"above 0: .*tolerance=0\.0"),
    ("geometric_median", 9, {"smoothing": -1.0}, r"above 0: .*smoothing=-1\.0"),
    ("monna", 9, {"f": 1, "trusted": 9}, "row 9 was requested, but rows are numbered 0 to 8"),
    ("monna", 9, {"f": 1, "trusted": -1}, "row -1 was requested"),
    ("centered_clipping", 9, {"steps": 0}, "got steps=0"),
    ("centered_clipping", 9, {"radius": -1.0}, r"cannot be negative, got -1\.0"),
    ("norm_bounded_mean", 9, {"bound": -1.0}, r"cannot be negative, got -1\.0"),
    ("clipping", 9, {"radius": -1.0}, r"cannot be negative, got -1\.0"),
    ("bucketing", 9, {"size": 0, "rng": np.random.default_rng(0)}, "got size=0"),
    ("nnm", 9, {"f": 9}, "nnm needs n > f: got n=9, f=9"),
    ("arc", 9, {"f": 9}, "arc needs n > f: got n=9, f=9"),
    ("arc", 9, {"f": -1}, "arc needs n > f: got n=9, f=-1"),
    ("mean", 0, {}, "mean needs at least one row, got n=0"),
]


@pytest.mark.parametrize(("name", "n", "options", "message"), WRONG)
def test_what_a_rule_would_refuse_is_refused_before_there_are_rows(
    name: str, n: int, options: dict[str, object], message: str
) -> None:
    found = {**robust.AGGREGATORS, **robust.PRE_AGGREGATORS}[name]
    with pytest.raises(ValueError, match=message):
        found.check(n, **options)
    if n:
        with pytest.raises(ValueError, match=message):
            found(np.ones((n, 3), dtype=np.float32), **options)


def test_withstands_by_count_and_fraction() -> None:
    assert tolerance.withstands("median", 20) == 9
    assert tolerance.withstands("krum", 20) == 8
    assert tolerance.withstands("bulyan", 20) == 4
    assert tolerance.withstands("mean", 20) == 0
    assert tolerance.withstands("zeno", 20) == 19
    assert tolerance.withstands("trimmed_mean", 20, fraction=0.4) == 8
    for wrong in ({"fraction": 0.4, "f": 3}, {"fraction": 0.4}):
        with pytest.raises(ValueError, match="fraction"):
            tolerance.withstands("krum" if "f" not in wrong else "trimmed_mean", 20, **wrong)
    with pytest.raises(ValueError, match="at least one row"):
        tolerance.withstands("median", 0)


def test_worst_case_is_one_client_per_bad_row_and_it_is_sharp() -> None:
    """The rule holds with f bad clients; with f + 1 it fails if each is in a cluster of its own."""
    n, m = 24, 3
    for rule in ("median", "krum", "bulyan", "trimmed_mean"):
        most = tolerance.bad_clients_worst_case(rule, n, m)
        assert most == tolerance.withstands(rule, n // m)
        assert tolerance.probability_rule_holds(rule, n, most, m) == 1
        assert tolerance.probability_rule_holds(rule, n, most + 1, m) < 1


def test_clusters_leave_the_remainder_out() -> None:
    assert tolerance.clusters(20, 3) == 6
    for n, m in ((3, 4), (3, 0)):
        with pytest.raises(ValueError, match=f"{n} clients cannot form clusters of {m}"):
            tolerance.clusters(n, m)


def test_probabilities_over_reclusterings() -> None:
    once = Fraction(3, 4)
    assert tolerance.probability_all(once, 2) == Fraction(9, 16)
    assert tolerance.probability_any(once, 2) == Fraction(15, 16)
    for function in (tolerance.probability_all, tolerance.probability_any):
        with pytest.raises(ValueError, match="at least one reclustering"):
            function(once, 0)


@settings(max_examples=40, deadline=None)
@given(settings_of_clusters())
def test_signal_is_lost_as_often_as_counting_all_cases_says(case: tuple[int, int, int]) -> None:
    n, bad, m = case
    if bad == n:
        with pytest.raises(ValueError, match="so that one is honest"):
            tolerance.signal_lost(n, bad, m)
        return
    # Client 0 is honest; its companions are any m - 1 of the others, of whom 1..bad are bad.
    cases = list(combinations(range(1, n), m - 1))
    lost = sum(any(companion <= bad for companion in companions) for companions in cases)
    assert tolerance.signal_lost(n, bad, m) == Fraction(lost, len(cases))
    assert tolerance.signal_lost(n, bad, m, 3) == Fraction(lost, len(cases)) ** 3


def test_the_papers_example_does_not_hold_as_it_counts() -> None:
    """n = 60, m = 3, q = 12, trimming 2/3 of the updates: Sec. 5 says q_0 / m = 40 / 3 > 12 is enough.

    Two thirds in all are one third a side: 6 of 20 cluster means, or 8 as it was run (0.4 a side).
    """
    assert references.paper_bad_clients(40, 3) > 12
    assert tolerance.bad_clients_worst_case("trimmed_mean", 60, 3, fraction=1 / 3) == 6
    assert tolerance.bad_clients_worst_case("trimmed_mean", 60, 3, fraction=0.4) == 8
    assert tolerance.bad_clients_worst_case("trimmed_mean", 60, 3) == 9
    as_run = tolerance.probability_rule_holds("trimmed_mean", 60, 12, 3, fraction=0.4)
    assert float(as_run) == pytest.approx(0.0863, abs=1e-4)
    assert tolerance.probability_all(as_run, 10) < Fraction(1, 10**9)


def test_appendix_e_counts_clusters_where_it_should_count_companions() -> None:
    ours, theirs = tolerance.signal_lost(60, 12, 3, 10), references.paper_signal_lost(60, 12, 3, 10)
    assert float(ours) == pytest.approx(4.6e-5, rel=0.02)
    assert theirs > Fraction(9, 10)
    assert references.paper_signal_lost(60, 12, 60) == 0  # one cluster of all: every signal is lost
    assert tolerance.signal_lost(60, 12, 60) == 1


def test_impossible_numbers_and_unknown_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="must be 0 to 60, got 61"):
        tolerance.clean_clusters(60, 61, 3)
    with pytest.raises(robust.UnknownNameError, match="no aggregator 'krumm'"):
        tolerance.withstands("krumm", 5)
