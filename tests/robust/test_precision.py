"""Numbers that break implementations: offsets, huge rows, huge values, tiny ones."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

import robust
from tests.robust import references
from tests.robust.cases import Matrix, apply


def test_krum_on_rows_at_10_plus_minus_001_chooses_as_float64_does() -> None:
    """The Gram trick in float32 fails this: 10 squared hides 0.01 squared."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        n, width = int(rng.integers(5, 16)), int(rng.integers(50, 400))
        x = (10 + 0.01 * rng.standard_normal((n, width))).astype(np.float32)
        f = int(rng.integers(0, (n - 3) // 2 + 1))
        wide = x.astype(np.float64)
        squared = ((wide[:, None] - wide) ** 2).sum(axis=2)
        np.fill_diagonal(squared, np.inf)
        expected = int(np.argmin(np.sort(squared, axis=1)[:, : n - f - 2].sum(axis=1)))
        assert robust.krum.detail(x, f=f).accepted == (expected,)


def test_distances_are_exact_to_double_precision_beside_a_huge_row() -> None:
    rng = np.random.default_rng(1)
    x = (10 + 0.01 * rng.standard_normal((7, 5000))).astype(np.float32)
    x[3] = 1e30
    found = robust.Rows(robust.rows.as_matrix(x)).squared_distances()
    assert np.allclose(found, references.distances(x.astype(np.float64)), rtol=1e-12, atol=0)
    assert np.array_equal(found, found.T)
    assert not found.diagonal().any()


def huge_rows(honest: Matrix, value: float, rng: np.random.Generator) -> Iterator[Matrix]:
    """Rows with entries of this size: in every coordinate, in one alone, and in random directions."""
    width = honest.shape[1]
    ordinary = honest.mean(axis=0)
    everywhere = np.full(width, value)
    alone = np.where(np.arange(width) == rng.integers(width), value, ordinary)
    directions = [rng.uniform(-1, 1, width) for _ in range(2)]
    for row in (everywhere, alone, *(value * direction for direction in directions)):
        yield row.astype(np.float32)


def honest_sized_rows(honest: Matrix, rng: np.random.Generator) -> Iterator[Matrix]:
    """Rows whose entries all lie between the extremes of the honest rows."""
    low, high = honest.min(axis=0), honest.max(axis=0)
    yield from honest
    yield from (low, high)
    for _ in range(10):
        yield np.where(rng.random(len(low)) < 0.5, low, high)
        yield rng.uniform(low, high).astype(np.float32)


@pytest.mark.parametrize("rule", ["trimmed_mean", "median", "krum", "geometric_median", "caf"])
@pytest.mark.parametrize("value", [1e10, 1e20, 1e30, -3e38, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("offset", [0.0, 10.0])
@pytest.mark.parametrize("count", [6, 15])
def test_one_huge_row_moves_no_more_than_an_honest_sized_row_could(
    rule: str, value: float, offset: float, count: int
) -> None:
    """Compared with the result without that row, for f = 0 and for f = 1."""
    rng = np.random.default_rng(2)
    honest = (offset + 0.01 * rng.standard_normal((count, 100))).astype(np.float32)
    low, high = honest.min(axis=0), honest.max(axis=0)

    def with_row(row: Matrix, place: int = count) -> NDArray[np.float64]:
        return apply(rule, np.insert(honest, place, row, axis=0), 1).astype(np.float64)

    for before in (apply(rule, honest, 0).astype(np.float64), apply(rule, honest, 1).astype(np.float64)):
        reach = max(float(np.linalg.norm(with_row(row) - before)) for row in honest_sized_rows(honest, rng))
        for row in huge_rows(honest, value, rng):
            twin = np.clip(np.where(np.isnan(row), honest[0], row), low, high)
            most = max(reach, float(np.linalg.norm(with_row(twin) - before)))
            for place in (0, count // 2, count):
                assert np.linalg.norm(with_row(row, place) - before) <= most * (1 + 1e-6)


def test_the_mean_fails_this_test() -> None:
    honest = np.random.default_rng(2).standard_normal((6, 100)).astype(np.float32)
    rows = honest_sized_rows(honest, np.random.default_rng(3))
    moved = [np.linalg.norm(robust.mean(np.vstack([honest, row])) - robust.mean(honest)) for row in rows]
    huge = next(huge_rows(honest, 1e10, np.random.default_rng(4)))
    assert np.linalg.norm(robust.mean(np.vstack([honest, huge])) - robust.mean(honest)) > 1e6 * max(moved)


@pytest.mark.parametrize("value", [1e10, 1e20, 1e30])
def test_geometric_median_depends_on_the_direction_of_a_far_row_and_not_its_length(value: float) -> None:
    rng = np.random.default_rng(3)
    honest = rng.standard_normal((8, 50)).astype(np.float32)
    direction = rng.standard_normal(50)
    near = robust.geometric_median(np.concatenate([honest, [1e5 * direction]]), tolerance=1e-10)
    far = robust.geometric_median(np.concatenate([honest, [value * direction]]).astype(np.float32), tolerance=1e-10)
    without = robust.geometric_median(honest, tolerance=1e-10)
    assert np.linalg.norm(far - near) < 1e-3
    assert np.linalg.norm(near - without) > 0.1  # otherwise the comparison would show nothing


def test_two_far_rows_on_opposite_sides_cancel() -> None:
    rng = np.random.default_rng(4)
    honest = rng.standard_normal((7, 50)).astype(np.float32)
    direction = rng.standard_normal(50).astype(np.float32)
    x = np.concatenate([honest, [1e30 * direction], [-1e30 * direction]]).astype(np.float32)
    expected = robust.geometric_median(honest, tolerance=1e-10)
    assert np.linalg.norm(robust.geometric_median(x, tolerance=1e-10) - expected) < 1e-3


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed_mean", "meamed", "norm_bounded_mean"])
def test_values_near_the_largest_do_not_overflow(rule: str) -> None:
    x = np.array([[3e38, -3e38], [3.2e38, -3.2e38], [3.1e38, -3.1e38], [3.3e38, -3.3e38]], dtype=np.float32)
    found = apply(rule, x, 1)
    assert np.isfinite(found).all()
    assert np.allclose(found, [3.15e38, -3.15e38], rtol=0.03)


@pytest.mark.parametrize("rule", ["median", "krum", "geometric_median", "caf", "smea", "mda", "centered_clipping"])
def test_tiny_values_are_not_lost(rule: str) -> None:
    x = (np.random.default_rng(5).standard_normal((9, 40)) * 1e-30).astype(np.float32)
    found = apply(rule, x, 2)
    expected = apply(rule, (x * np.float32(1e30)), 2)
    assert np.allclose(found * 1e30, expected, atol=1e-5)


def test_geometric_median_reaches_its_objective_where_convergence_is_slow() -> None:
    """Plain Weiszfeld is slow where the median is almost a data point."""
    angles = np.linspace(0, 2 * np.pi, 5, endpoint=False)
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for nudge in (0.0, 1e-3, 0.2):
        x = np.concatenate([ring + np.array([nudge, 0]), [[0.0, 0.0]]]).astype(np.float32)
        wide = x.astype(np.float64)
        best = references.objective(wide, references.geometric_median(wide))
        assert references.objective(wide, robust.geometric_median(x)) <= best * (1 + 2e-6)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_geometric_median_stops_where_the_gradient_proves_it(tolerance: float) -> None:
    """2 |gradient| / n bounds how far the objective is from its least value, relative to it."""
    rng = np.random.default_rng(7)
    for n in (4, 7, 20):
        x = rng.standard_normal((n, 300)).astype(np.float32)
        x[: n // 3] += 2
        off = robust.geometric_median(x, tolerance=tolerance) - x.astype(np.float64)
        pulls = off / np.linalg.norm(off, axis=1)[:, None]
        assert 2 * np.linalg.norm(pulls.sum(axis=0)) / n <= tolerance + 1e-6  # rounding of the result


@pytest.mark.parametrize("far", [False, True])
def test_geometric_median_reports_when_its_steps_run_out(far: bool) -> None:
    x = np.random.default_rng(8).standard_normal((9, 40)).astype(np.float32)
    if far:
        x[4] = 1e30
    assert robust.geometric_median.detail(x).converged
    short = robust.geometric_median.detail(x, steps=1)
    assert not short.converged
    assert not robust.aggregate("geometric_median", x, steps=1, before=[("arc", {"f": 1})]).converged
    assert np.isfinite(short.vector).all()
    assert robust.geometric_median.detail(np.repeat(x[:1], 3, axis=0), steps=1).converged
    assert robust.median.detail(x).converged


def test_geometric_median_of_a_majority_of_equal_rows_is_that_row() -> None:
    row = np.random.default_rng(6).standard_normal(30).astype(np.float32)
    x = np.concatenate([np.repeat(row[None], 4, axis=0), np.full((3, 30), 1e20, dtype=np.float32)])
    assert np.array_equal(robust.geometric_median(x), row)
