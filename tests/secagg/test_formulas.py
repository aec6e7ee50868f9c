"""The paper's formulas, and the exact ones against every small clustering and samples of large ones."""

from fractions import Fraction
from itertools import combinations, product

import pytest

from secagg.errors import UsageError
from secagg.exposure.schedules import Schedule
from tests.paper import formulas
from tests.secagg import rational

SEED = bytes(range(32))
SMALL = [(4, 2), (6, 2), (6, 3), (8, 2), (8, 4), (9, 3)]


def every(n: int, m: int):
    return list(rational.partitions(range(n), m))


def share(cases, claim) -> Fraction:
    return Fraction(sum(map(claim, cases)), len(cases))


def mates(grouping, client: int) -> set[int]:
    return next(set(group) for group in grouping if client in group) - {client}


# can the server decode an update?


@pytest.mark.parametrize(("n", "m"), SMALL)
def test_one_clustering_exposes_nobody_where_the_paper_is_nearly_sure_of_it(n, m):
    assert not any(rational.exposed(grouping, range(n)) for grouping in every(n, m))
    assert formulas.paper_decodes(n, m, 1) >= 2 / 3


def test_the_papers_probability_of_decoding_counts_clusterings_and_not_what_they_reveal():
    assert formulas.paper_decodes(4, 2, 1) == pytest.approx(5 / 6)  # (2!)^2/4! = 1/6; the truth is 0
    assert formulas.paper_decodes(60, 3, 1) == pytest.approx(1.0)
    assert formulas.decodes(60, 3, 1, rounds=5).anyone == 0.0


@pytest.mark.parametrize(("n", "m"), [(4, 2), (6, 2), (6, 3), (8, 4)])
def test_two_equal_clusterings_expose_nobody_either(n, m):
    first = every(n, m)[0]
    for second in every(n, m):
        assert not rational.exposed([*first, *second], range(n))
    assert formulas.decodes(n, m, 2, rounds=20).anyone == 0.0


@pytest.mark.parametrize(("n", "m", "R"), [(4, 2, 3), (6, 3, 3), (6, 2, 3), (6, 3, 4)])
def test_sampled_decoding_agrees_with_every_clustering(n, m, R):
    first, truth, total = every(n, m)[0], 0, 0
    for others in product(every(n, m), repeat=R - 1):
        exposed = rational.exposed([g for grouping in (first, *others) for g in grouping], range(n))
        truth, total = truth + len(exposed), total + n
    sampled = formulas.decodes(n, m, R, rounds=1500, seed=SEED)
    assert sampled.client == pytest.approx(truth / total, abs=0.04)


@pytest.mark.parametrize(("n", "m", "least"), [(60, 3, 4), (60, 5, 6), (60, 10, 12), (60, 6, 7), (60, 12, 15)])
def test_full_rank_needs_more_clusterings_than_the_paper_says_because_all_share_the_total(n, m, least):
    assert formulas.groupings_needed(n, m) == least
    assert formulas.paper_groupings_needed(n, m) == m < least
    assert formulas.decodes(n, m, least - 1, rounds=3).everyone == 0.0
    assert formulas.decodes(n, m, least, rounds=3).everyone == 1.0


def test_a_single_cluster_never_gives_anyone_away():
    assert formulas.paper_decodes(8, 8, 3) == 0.0
    assert formulas.groupings_needed(8, 8) is None
    assert formulas.groupings_needed(8, 1) == 1


# is a benign client always clustered with a malicious one?


@pytest.mark.parametrize(("n", "m"), SMALL)
def test_the_chance_of_a_malicious_mate_is_that_of_every_clustering(n, m):
    groupings = every(n, m)
    for q in range(n - 1):
        bad = set(range(1, q + 1))  # client 0 is benign
        once = share(groupings, lambda grouping: bool(mates(grouping, 0) & bad))  # noqa: B023
        assert formulas.always_spoiled(n, m, q, 1) == once
        assert formulas.always_spoiled(n, m, q, 3) == once**3


def test_the_paper_takes_the_number_of_clusters_for_their_size_and_the_client_for_its_own_mate():
    assert formulas.always_spoiled(4, 2, 1, 1) == Fraction(1, 3)
    assert formulas.paper_always_spoiled(4, 2, 1, 1) == Fraction(1, 4)
    assert float(formulas.paper_always_spoiled(60, 3, 12, 10)) > 0.9
    assert float(formulas.always_spoiled(60, 3, 12, 10)) < 1e-4


def test_the_chance_of_a_malicious_mate_is_that_of_sampled_clusterings():
    schedule = Schedule(name="random", size=3)
    bad = set(range(1, 13))
    rounds = 2000
    hit = sum(bool(mates(schedule.draw(range(60), SEED, t)[0], 0) & bad) for t in range(rounds))
    assert hit / rounds == pytest.approx(float(formulas.always_spoiled(60, 3, 12, 1)), abs=0.04)


# are all but one of a cluster colluding?


@pytest.mark.parametrize(("n", "m"), SMALL)
def test_the_chance_of_being_surrounded_is_that_of_every_clustering(n, m):
    groupings = every(n, m)
    for q in range(n):
        bad = set(range(n - q, n))  # client 0 is benign
        assert formulas.surrounded(n, m, q) == share(groupings, lambda g: mates(g, 0) <= bad)  # noqa: B023
        someone = share(groupings, lambda g: any(len(set(group) - bad) == 1 for group in g))  # noqa: B023
        assert formulas.someone_surrounded(n, m, q) == someone


def test_the_papers_bound_on_being_surrounded_is_no_probability():
    with pytest.raises(UsageError, match="does not exist"):
        formulas.paper_surrounded(60, 12, 12)
    assert formulas.paper_surrounded(60, 3, 12) > 1e60
    assert float(formulas.surrounded(60, 3, 12)) == pytest.approx(66 / 1711)
    assert 0 < formulas.someone_surrounded(60, 3, 12) < 1


def test_the_chance_that_someone_is_surrounded_is_that_of_sampled_clusterings():
    schedule = Schedule(name="random", size=3)
    bad = set(range(12))
    rounds = 2000
    hit = sum(any(len(set(group) - bad) == 1 for group in schedule.draw(range(60), SEED, t)[0]) for t in range(rounds))
    assert hit / rounds == pytest.approx(float(formulas.someone_surrounded(60, 3, 12)), abs=0.04)


def test_reclustering_lets_colluders_learn_without_surrounding_anyone():
    """Two clusterings of six into pairs, chained into one ring: a single colluder opens the whole ring."""
    first, second = ((0, 1), (2, 3), (4, 5)), ((1, 2), (3, 4), (5, 0))
    rest = [1, 2, 3, 4, 5]
    assert not rational.exposed([*first, *second], range(6))
    assert rational.exposed([set(group) - {0} for group in (*first, *second)], rest) == set(rest)


# what does it cost?


@pytest.mark.parametrize(("n", "m"), [(4, 2), (6, 2), (6, 3)])
@pytest.mark.parametrize("R", [1, 2, 3])
def test_the_expected_number_of_distinct_mates_is_that_of_every_clustering(n, m, R):
    groupings = every(n, m)
    total = sum(
        len(set().union(*(mates(grouping, 0) for grouping in chosen))) for chosen in product(groupings, repeat=R)
    )
    assert formulas.client_cost(n, m, R, 7).keys == Fraction(total, len(groupings) ** R)


def test_costs_beside_the_papers():
    assert formulas.client_cost(60, 3, 1, 100) == formulas.Cost(Fraction(2), 100)
    assert formulas.paper_client_cost(3, 1, 100) == formulas.Cost(Fraction(3), 100)
    assert formulas.paper_remark_client_keys(60, 3, 1) == 20  # the number of clusters, not of mates
    assert formulas.paper_server_cost(60, 3, 10, 5) == formulas.Cost(Fraction(1800), 3000)
    exact = formulas.server_cost(60, 3, 10, 5)
    assert exact.words == 3000
    assert 1000 < exact.keys < 1200
    assert formulas.client_cost(60, 3, 1000, 5).keys == pytest.approx(59)


# how far is the mean of R resamples from the mean of all benign updates?


@pytest.mark.parametrize(("benign", "taken", "R"), [(4, 2, 1), (4, 2, 3), (5, 3, 2), (6, 1, 2), (6, 4, 2), (3, 3, 2)])
def test_the_variance_of_resampling_is_that_of_all_draws(benign, taken, R):
    values = [Fraction(v * v) for v in range(benign)]
    mean = sum(values) / benign
    spread = sum((v - mean) ** 2 for v in values) / benign
    means = [sum(drawn) / taken for drawn in combinations(values, taken)]
    squares = [(sum(drawn) / R - mean) ** 2 for drawn in product(means, repeat=R)]
    assert sum(squares) / len(squares) == spread * formulas.resampling_variance(benign, taken, R)


def test_the_papers_variance_of_resampling_is_too_small_for_several_clusterings():
    for benign, taken, R in product(range(2, 9), range(1, 8), range(1, 6)):
        if taken < benign:
            ratio = formulas.resampling_variance(benign, taken, R) / formulas.paper_resampling_variance(
                benign, taken, R
            )
            assert ratio == Fraction(R * benign - 1, R * benign - R)
            assert (ratio == 1) == (R == 1)
            assert ratio < Fraction(benign, benign - 1)
    assert formulas.resampling_variance(48, 24, 10) == Fraction(479, 470) * formulas.paper_resampling_variance(
        48, 24, 10
    )


@pytest.mark.parametrize("call", [
    lambda: formulas.clusters(10, 3),
    lambda: formulas.clusters(10, 0),
    lambda: formulas.always_spoiled(6, 3, 6, 1),
    lambda: formulas.someone_surrounded(6, 3, 7),
])  # fmt: skip
def test_impossible_numbers_are_refused(call):
    with pytest.raises(UsageError):
        call()
