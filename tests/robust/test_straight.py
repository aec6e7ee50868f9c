"""Straight-line order statistics agree with the kernel of `order` and with sorting."""

import numpy as np
import pytest

import robust
from robust.kernels import network, order, straight_line
from robust.kernels import threads as parallel

SHAPES = [
    (1, 0, 1), (2, 0, 2), (4, 1, 2), (4, 1, 3), (5, 2, 3), (8, 3, 4), (9, 4, 5),
    (20, 9, 10), (20, 9, 11), (straight_line.MOST_ROWS, 4, 20),
]  # fmt: skip


def values(n: int, width: int) -> np.ndarray:
    return np.random.default_rng(n * width).standard_normal((n, width), dtype=np.float32)


@pytest.mark.parametrize(("n", "low", "high"), SHAPES)
@pytest.mark.parametrize("width", [16, 17, 31, 32, 4099])
def test_means_of_ranks_are_those_of_sorted_columns(n: int, low: int, high: int, width: int) -> None:
    x, rows = values(n, width), np.arange(n)
    expected = np.sort(x.astype(np.float64), axis=0)[low:high].mean(axis=0)
    found = straight_line.middle_mean(x, rows, low, high)
    assert found is not None
    np.testing.assert_array_max_ulp(found, expected.astype(np.float32), maxulp=1)
    if width >= order.LANES:
        steps = network.steps_to_select(n, low, high)
        other = order._over_columns(x, rows, steps, low, high, 0)
        assert other is not None
        np.testing.assert_array_max_ulp(found, other, maxulp=1)


def test_only_the_given_rows_count() -> None:
    x = values(7, 100)
    x[[0, 6]] = np.nan
    found = straight_line.middle_mean(x, np.array([5, 1, 3, 2, 4]), 2, 3)
    assert found is not None
    assert np.array_equal(found, np.median(x[1:6], axis=0))


@pytest.mark.parametrize("width", [1, 15])
def test_matrices_of_few_columns_use_the_other_kernel(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(straight_line, "LEAST_VALUES", 1)
    x = values(5, width)
    assert np.array_equal(robust.median(x), np.median(x, axis=0))


@pytest.mark.parametrize("place", [0, 15, 16, 98, 99])
def test_a_value_that_is_not_finite_is_reported_wherever_it_is(place: int) -> None:
    for n, low, high in [(5, 2, 3), (20, 9, 11), (5, 0, 5)]:
        for bad in ([np.nan], [np.inf], [-np.inf], [np.inf, np.nan], [-np.inf, np.inf], [np.nan, np.nan]):
            for row in range(n):
                x = values(n, 100)
                for k, value in enumerate(bad):
                    x[(row + k) % n, place] = value
                assert straight_line.middle_mean(x, np.arange(n), low, high) is None


def test_extreme_values_are_finite() -> None:
    largest, least = np.finfo(np.float32).max, np.float32(1e-45)
    x = np.tile(np.array([largest, -largest, least, -least, 0, -0.0], np.float32), (5, 100))
    assert straight_line.middle_mean(x, np.arange(5), 2, 3) is not None


@pytest.mark.parametrize("threads", [1, 3])
def test_rules_use_it_for_large_matrices_and_give_the_same(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values(20, 3001)
    x[4] = np.inf
    before = [robust.median(x), robust.trimmed_mean(x, f=2)]
    used = []
    real = straight_line.middle_mean
    monkeypatch.setattr(straight_line, "LEAST_VALUES", 1)
    monkeypatch.setattr(straight_line, "PIECE_BYTES", 1 << 12)
    monkeypatch.setattr(straight_line, "middle_mean", lambda *given: used.append(given[2:]) or real(*given))
    after = [robust.median(x), robust.trimmed_mean(x, f=2)]
    assert len(used) == 4  # each rule runs twice, because a row is not finite
    monkeypatch.setattr(parallel, "_limit", threads)
    assert np.array_equal(robust.median(x), after[0])
    assert np.array_equal(robust.trimmed_mean(x, f=2), after[1])
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_max_ulp(one, two, maxulp=1)
