"""What each rule promises, as formulas: the f that it accepts, its kappa, its parameters, and its building blocks."""

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

import robust
from robust import aggregators, geometry, subsets
from tests.robust import references

CONDITIONS: dict[str, Callable[[int, int], bool]] = {
    "f = 0": lambda n, f: f == 0,
    "n > 2f": lambda n, f: n > 2 * f,
    "n > 2f + 2": lambda n, f: n > 2 * f + 2,
    "n >= 4f + 3": lambda n, f: n >= 4 * f + 3,
    "10f <= n": lambda n, f: 10 * f <= n,
    "n > 2f, f <= 16": lambda n, f: n > 2 * f and f <= 16,
    "n > 2f, C(n, f) <= 2^17, C(n, f) (n - f)^3 <= 2^33": lambda n, f: (
        f == 0 or (n > 2 * f and math.comb(n, f) <= 2**17 and math.comb(n, f) * (n - f) ** 3 <= 2**33)
    ),
    "a validation loss": lambda n, f: f < n,
    "a validation gradient": lambda n, f: f < n,
    "the server's own update": lambda n, f: f < n,
}


@pytest.mark.parametrize("rule", list(robust.AGGREGATORS))
def test_a_rule_accepts_exactly_the_f_that_its_condition_allows(rule: str) -> None:
    found = robust.AGGREGATORS[rule]
    holds = CONDITIONS[found.needs]
    for n in (*range(1, 50), 100, 203, 305, 306):
        allowed = [f for f in range(n) if holds(n, f)]
        assert max(found.withstands(n), -1) == max(allowed, default=-1), n
        assert found.largest_f(n) == found.withstands(n)


ROOT = math.sqrt(4 / 3)
KAPPAS = [
    ("median", 5, 1, 64 / 9), ("median", 7, 0, 4.0), ("geometric_median", 10, 3, 4 * (7 / 4) ** 2),
    ("trimmed_mean", 5, 1, 8 / 3), ("trimmed_mean", 12, 4, 12.0), ("trimmed_mean", 5, 0, 0.0),
    ("meamed", 5, 1, 49 / 9), ("meamed", 10, 2, 4 * (1 / 2 + 2 / 3) ** 2),
    ("krum", 6, 1, 10.0), ("multi_krum", 11, 3, 12.0),
    ("mda", 5, 2, 32 / 3), ("monna", 9, 3, 12.0), ("smea", 5, 1, 4 / 3), ("smea", 9, 3, 4.0),
    ("caf", 5, 1, (1 + ROOT) ** 2), ("caf", 9, 3, (1 + 3 * math.sqrt(2)) ** 2),
    ("caf", 10, 3, 3 / 4 * (1 + math.sqrt(2) + math.sqrt(7)) ** 2), ("caf", 8, 0, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "n", "f", "kappa"), KAPPAS)
def test_kappa_is_the_published_constant(rule: str, n: int, f: int, kappa: float) -> None:
    found = robust.AGGREGATORS[rule].kappa
    assert found is not None
    assert found(n, f) == pytest.approx(kappa, rel=1e-12)


def test_rules_without_a_proof_have_no_kappa() -> None:
    proven = {rule for rule, *_ in KAPPAS}
    assert {name for name, rule in robust.AGGREGATORS.items() if rule.kappa is None} == set(robust.AGGREGATORS) - proven


def test_every_parameter_has_the_default_that_the_documentation_names() -> None:
    assert [repr(one) for one in (*robust.AGGREGATORS.values(), *robust.PRE_AGGREGATORS.values())] == [
        "<mean()>",
        "<median(middle: 'mean' or 'lower' = 'mean')>",
        "<trimmed_mean(f: int or None = None, fraction: float or None = None)>",
        "<meamed(f: int)>",
        "<geometric_median(smoothing: float = 1e-06, tolerance: float = 1e-06, steps: int = 10000)>",
        "<krum(f: int)>",
        "<multi_krum(f: int, m: int or None = None)>",
        "<bulyan(f: int)>",
        "<mda(f: int)>",
        "<monna(f: int, trusted: int)>",
        "<caf(f: int)>",
        "<smea(f: int)>",
        "<centered_clipping(centre: a vector or None = None, radius: float or None = None, steps: int = 3)>",
        "<norm_bounded_mean(bound: float or None = None)>",
        "<dnc(f: int, rng: Generator, rounds: int = 5, sampled: int = 10000)>",
        "<zeno(loss: a callable, losses: a vector or None = None, rho: float = 0.0001, epsilon: float = 0.0)>",
        "<zeno++(gradient: a vector, eta: float = 1.0, rho: float = 0.0001, epsilon: float = 0.0, "
        "longest: float or None = None)>",
        "<fltrust(server: a vector)>",
        "<clipping(radius: float)>",
        "<arc(f: int)>",
        "<nnm(f: int)>",
        "<bucketing(size: int, rng: Generator)>",
    ]
    assert [repr(one) for one in robust.ATTACKS.values()] == [
        "<attack sign_flip(scale: float = 1.0)>",
        "<attack fall_of_empires(factor: float = -1.0, knows: 'honest' or 'own' = 'honest', "
        "against: a callable or None = None, largest: float = 100.0)>",
        "<attack a_little_is_enough(z: float or None = None, knows: 'honest' or 'own' = 'honest', "
        "against: a callable or None = None, largest: float = 100.0)>",
        "<attack gaussian(mean: float = 0.0, std: float = 200.0)>",
        "<attack mimic(target: int or None = None, knows: 'honest' or 'own' = 'honest')>",
        "<attack min_max(direction: 'std' or 'unit' or 'sign' = 'std', knows: 'honest' or 'own' = 'honest')>",
        "<attack min_sum(direction: 'std' or 'unit' or 'sign' = 'std', knows: 'honest' or 'own' = 'honest')>",
        "<attack zero()>",
        "<attack non_finite(value: 'nan' or 'inf' or '-inf' = 'nan')>",
    ]


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("trimmed_mean", {"fraction": 0.0}),
        ("geometric_median", {"smoothing": 1e-300, "tolerance": 1e-300, "steps": 1}),
        ("multi_krum", {"f": 2, "m": 1}),
        ("multi_krum", {"f": 2, "m": 7}),
        ("monna", {"f": 1, "trusted": 0}),
        ("monna", {"f": 1, "trusted": 8}),
        ("centered_clipping", {"steps": 1, "radius": 0.0}),
        ("norm_bounded_mean", {"bound": 0.0}),
        ("zeno++", {"gradient": np.ones(3), "longest": 0.0}),
        ("dnc", {"f": 1, "rng": np.random.default_rng(0), "rounds": 1, "sampled": 1}),
        ("clipping", {"radius": 0.0}),
        ("bucketing", {"size": 1, "rng": np.random.default_rng(0)}),
    ],
)
def test_the_last_permitted_value_is_accepted(rule: str, options: dict[str, object]) -> None:
    found = {**robust.AGGREGATORS, **robust.PRE_AGGREGATORS}[rule]
    assert found.check(9, **options).keys() == options.keys()
    assert np.isfinite(found(np.eye(9, 3), **options)).all()


@pytest.mark.parametrize(
    ("rule", "options", "problem"),
    [
        ("geometric_median", {"smoothing": 0.0}, "both must be above 0: got smoothing=0.0, tolerance=1.0"),
        ("geometric_median", {"tolerance": -0.5}, "both must be above 0: got smoothing=1.0, tolerance=-0.5"),
        ("dnc", {"f": 1, "rng": np.random.default_rng(0), "rounds": 0}, "at least one step is needed, got steps=0"),
        ("dnc", {"f": 1, "rng": np.random.default_rng(0), "sampled": 0}, "at least one coordinate is needed"),
        ("zeno++", {"gradient": np.ones(3), "longest": -1e-9}, "a radius or bound cannot be negative, got -1e-09"),
    ],
)
def test_the_first_value_beyond_is_refused(rule: str, options: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        robust.AGGREGATORS[rule].check(9, **options)


@pytest.mark.parametrize(("row", "server"), [([1e-3, 0.0], [1e-3, 0.0]), ([0.5, 0.0], [100.0, 0.0])])
def test_fltrust_trusts_rows_of_any_length(row: list[float], server: list[float]) -> None:
    found = robust.fltrust.detail([row, [0.0, -1.0], [-1.0, 0.0]], server=server)
    assert found.accepted == (0,)
    assert found.vector.tolist() == pytest.approx(server)


def test_the_mean_of_all_rows_is_always_feasible() -> None:
    """It takes no search, however many rows there are: 2049^3 is more than 2^33."""
    assert [subsets.largest_f_for_eigenvalue(n) for n in (1, 2, 306, 2048, 2049, 10**6)] == [0] * 6


def cloud(n: int, width: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows in general position, and the squared distances between them."""
    x = np.random.default_rng([n, width, seed]).normal(size=(n, width))
    return x, references.distances(x)


@pytest.mark.parametrize("n", range(1, 8))
def test_a_krum_score_counts_n_less_f_less_2_neighbours_and_one_at_least(n: int) -> None:
    x, squared = cloud(n)
    for f in range(n + 1):
        count = min(max(n - f - 2, 1), n - 1)
        expected = [sum(sorted(float(squared[i, j]) for j in range(n) if j != i)[:count]) for i in range(n)]
        assert np.allclose(geometry.krum_scores(squared, f), expected, rtol=1e-12, atol=0)
        assert list(np.argsort(expected, kind="stable")) == references.krum_order(x, f) or n == 1


@pytest.mark.parametrize("n", [3, 5, 8])
def test_repeated_krum_takes_rows_one_after_the_other(n: int) -> None:
    for seed in range(5):
        x, squared = cloud(n, seed=seed)
        for f in (0, 1, 2):
            for count in range(n + 1):
                left = list(range(n))
                for _ in range(count):
                    left.remove(left[references.krum_order(x[left], f, spread=True)[0]] if len(left) > 1 else left[0])
                expected = sorted(set(range(n)) - set(left))
                assert geometry.repeated_krum(squared, f, count).tolist() == expected


@pytest.mark.parametrize("smoothing", [1e-9, 0.7, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_geometric_median_moves_as_weiszfeld_does_on_the_rows_themselves(smoothing: float, steps: int) -> None:
    x, squared = cloud(7, 4)
    lengths = np.linalg.norm(x[:, None] - x[None], axis=2)
    typical = np.median(lengths, axis=1)
    nu = smoothing * np.median(typical)
    weights = 1 / typical / (1 / typical).sum()
    for _ in range(steps):
        pull = 1 / np.maximum(np.linalg.norm(x - weights @ x, axis=1), nu)
        weights = pull / pull.sum()
    found, converged = geometry.geometric_median_weights(squared, smoothing, 1e-15, steps)
    assert not converged
    assert np.allclose(found, weights, rtol=1e-9, atol=0)
    assert np.allclose(geometry.typical_distances(squared), typical)


def test_equal_rows_that_are_a_majority_share_the_weight() -> None:
    x = np.array([[1, 2], [1, 2], [5, 5], [1, 2], [7, 1]], float)
    weights, converged = geometry.geometric_median_weights(references.distances(x), 1e-6, 1e-6, 1)
    assert converged
    assert weights.tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3, 0])


@pytest.mark.parametrize("seed", range(6))
def test_products_of_centred_rows_follow_from_distances(seed: int) -> None:
    x, squared = cloud(6, 4, seed)
    weights = np.random.default_rng(seed).random(6)
    weights /= weights.sum()
    centred = x - weights @ x
    assert np.allclose(geometry.centred_gram(squared, weights), centred @ centred.T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("f", [0, 1, 2, 3])
def test_caf_gives_the_weights_of_its_definition(f: int) -> None:
    for seed in range(8):
        x = cloud(8, 3, seed)[0]
        x[0] *= 6
        weights = geometry.caf_weights(references.distances(x), f)
        assert weights.sum() == pytest.approx(1)
        assert np.allclose(weights @ x, references.caf(x, f), rtol=0, atol=1e-9)


def test_caf_stops_where_all_rows_that_are_left_agree() -> None:
    x = np.array([[1.0, 1], [1, 1], [1, 1], [9, 1]])
    assert geometry.caf_weights(references.distances(x), 1).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert geometry.caf_weights(np.zeros((3, 3)), 1).tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("seed", range(6))
def test_rows_stand_out_along_the_direction_of_largest_variance(seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(7, 4)) + 5
    centred = x - x.mean(axis=0)
    order = np.argsort(-np.abs(centred @ np.linalg.svd(centred)[2][0]))
    for count in range(1, 7):
        assert geometry.stand_out(x, count).tolist() == sorted(order[:count].tolist())


def test_of_rows_that_stand_out_alike_the_first_is_taken() -> None:
    line = np.array([[-1.0], [1], [0], [-1], [1]])
    assert [geometry.stand_out(line, count).tolist() for count in (1, 2, 3)] == [[0], [0, 1], [0, 1, 3]]
    after = np.array([[1.0], [-1], [0], [-4], [4], [0]])
    assert [geometry.stand_out(after, count).tolist() for count in (1, 2, 3)] == [[3], [3, 4], [0, 3, 4]]
    cross = np.array([[0.0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
    assert [geometry.stand_out(cross, count).tolist() for count in (1, 3)] == [[1], [1, 2, 3]]
    assert geometry.stand_out(np.ones((5, 2)), 2).tolist() == [0, 1]


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_rounding_does_not_decide_which_row_stands_out(scale: float) -> None:
    """Scores closer than 1e-9 of the largest are equal, also those that are zero but for rounding."""
    x = np.array([[0.0, 0], [0, 1], [0, -1], [9, 0], [-9, 0], [9 + 1e-10, 0], [-9 - 1e-10, 0]])
    for turn in range(7):
        order = np.roll(np.arange(7), turn)
        for count in range(1, 7):
            large = [i for i in range(7) if abs(x[order[i], 0]) > 1]
            small = [i for i in range(7) if i not in large]
            assert geometry.stand_out(x[order] * scale, count).tolist() == sorted([*large, *small][:count])
    apart = np.array([[9.0], [-9 - 1e-7], [1e-7], [0]])
    assert geometry.stand_out(apart * scale, 1).tolist() == [1]


def test_a_length_at_the_limit_is_not_shortened() -> None:
    found = geometry.clipping_factors(np.array([0.0, 1, 2, 2.5, 8]), 2.0)
    assert found.tolist() == [1, 1, 1, 0.8, 0.25]


@pytest.mark.parametrize("seed", range(12))
def test_the_least_diameter_is_that_of_all_subsets(seed: int) -> None:
    """Of equal diameters the least sum of distances wins, and of equal sums the first rows in order."""
    draw = np.random.default_rng(seed)
    n = int(draw.integers(2, 9))
    squared = references.distances(draw.integers(0, 4, (n, 2)).astype(float))
    for f in range((n - 1) // 2 + 1):

        def cost(rows: tuple[int, ...]) -> tuple[float, float, tuple[int, ...]]:
            part = squared[np.ix_(rows, rows)]
            return float(part.max()), float(part.sum()), rows

        found = subsets.least_diameter(squared, f)
        best = min(map(cost, combinations(range(n), n - f)))
        assert len(found) == n - f
        assert cost(tuple(found.tolist()))[0] == best[0]


@pytest.mark.parametrize("seed", range(20))
def test_all_least_covers_are_found_and_none_is_above_the_budget(seed: int) -> None:
    draw = np.random.default_rng(seed)
    long = [pair for pair in combinations(range(6), 2) if draw.random() < 0.35]
    partners = [sum(1 << (set(pair) - {i}).pop() for pair in long if i in pair) for i in range(6)]
    every = {out for out in range(64) if all(out >> a & 1 or out >> b & 1 for a, b in long)}
    minimal = {out for out in every if not any(out >> i & 1 and out & ~(1 << i) in every for i in range(6))}
    for budget in range(4):
        found = set(subsets._covers(partners, budget))
        assert found <= {out for out in every if out.bit_count() <= budget}
        assert found >= {out for out in minimal if out.bit_count() <= budget}


def test_pairs_are_long_above_the_diameter_and_not_at_it() -> None:
    squared = references.distances(np.array([[0.0], [1], [3], [10]]))
    assert subsets._long_pairs(squared, 4.0) == [0b1100, 0b1000, 0b1001, 0b0111]


@pytest.mark.parametrize("batch", [1, 40, 1 << 20])
@pytest.mark.parametrize(("n", "f"), [(1, 0), (4, 1), (6, 2), (7, 3)])
def test_the_least_eigenvalue_is_that_of_all_subsets(
    n: int, f: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of any size."""
    monkeypatch.setattr(subsets, "BATCH", batch)
    for seed in range(4):
        x, squared = cloud(n, 3, seed)
        values = {}
        for rows in combinations(range(n), n - f):
            centred = x[list(rows)] - x[list(rows)].mean(axis=0)
            values[rows] = np.linalg.svd(centred)[1].max()
        assert tuple(subsets.least_eigenvalue(squared, f).tolist()) == min(values, key=values.__getitem__)


def test_of_equal_eigenvalues_the_first_subset_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in (1, 1 << 20):
        monkeypatch.setattr(subsets, "BATCH", batch)
        assert subsets.least_eigenvalue(np.zeros((5, 5)), 2).tolist() == [0, 1, 2]


def test_a_search_for_the_least_eigenvalue_works_on_2_to_the_20_numbers_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is 4096 matrices of 16 rows and columns, of the 4845 that leave out 4 of 20 rows."""
    sizes: list[int] = []
    monkeypatch.setattr(np.linalg, "eigvalsh", lambda a: sizes.append(len(a)) or np.zeros(a.shape[:2]))
    subsets.least_eigenvalue(np.zeros((20, 20)), 4)
    assert sizes == [4096, 749]


@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_rows_beyond_a_million_typical_distances_are_moved_closer(offset: float) -> None:
    """To a million typical distances from the row in the middle, in their own direction, wherever the origin is."""
    x = np.random.default_rng(1).normal(size=(7, 3)) + offset
    x[2] = [1e9, -1e9, 3e8]
    x[5] = [2e12, 0, 1e12]
    rows = robust.Rows(robust.rows.as_matrix(x))
    squared = rows.squared_distances()
    typical = geometry.typical_distances(squared)
    near, reach = int(np.argmin(typical)), 1e6 * float(np.median(typical))
    far = typical > reach
    assert np.flatnonzero(far).tolist() == [2, 5]
    wide = x.astype(np.float32).astype(np.float64)
    closer = wide.copy()
    for i in (2, 5):
        away = wide[i] - wide[near]
        closer[i] = wide[near] + away * reach / np.linalg.norm(away)
    found = aggregators._with_far_rows_closer(rows, squared, far, near, reach)
    assert np.allclose(found, references.distances(closer), rtol=1e-5, atol=1e-9)
    outcome = robust.geometric_median.detail(x, tolerance=1e-9)
    assert outcome.weights is not None
    assert outcome.weights.sum() == pytest.approx(1, rel=1e-12)
    expected = geometry.geometric_median_weights(references.distances(closer), 1e-6, 1e-9, 10_000)[0] @ closer
    assert np.allclose(outcome.vector, expected, rtol=0, atol=0.05 if offset else 1e-4)


@pytest.mark.parametrize(("beyond", "moved"), [(0.0, False), (0.5, True)])
def test_a_row_is_far_beyond_a_million_typical_distances(
    beyond: float, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.array([[0.0], [1], [2], [3], [4], [1e9]])
    typical = float(np.median(np.median(np.abs(x - x.T), axis=1)))
    x[5] = 1e6 * typical + 2.5 + beyond  # its distances are 0 and 4, 3, 2, 1, 0 less than this: 2.5 less in the middle
    used: list[int] = []
    real = aggregators._with_far_rows_closer
    monkeypatch.setattr(
        aggregators, "_with_far_rows_closer", lambda rows, *given: used.append(len(rows)) or real(rows, *given)
    )
    robust.geometric_median(x)
    assert used == [6] * moved
