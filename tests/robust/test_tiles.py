"""Order statistics at the edges of tiles, vectors and runs of rows, against sorting: every rank and every window."""

import numpy as np
import pytest

from robust.kernels import network, order, straight_line
from tests.robust import references

ROWS = [1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 16, 17, 20, 25]
WIDTHS = [1, 31, 32, 33, 65]


def scattered(n: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers with many ties, in some rows of a larger matrix. The other rows must not be read."""
    draw = np.random.default_rng([n, width])
    x = np.full((2 * n + 1, width), np.nan, np.float32)
    rows = draw.permutation(2 * n + 1)[:n].astype(np.int64)
    x[rows] = draw.integers(-9, 10, (n, width))
    return x, rows


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("n", ROWS)
def test_the_mean_of_any_ranks_is_that_of_sorted_columns(n: int, width: int) -> None:
    x, rows = scattered(n, width)
    ordered = np.sort(x[rows].astype(np.float64), axis=0)
    ranks = {(0, 1), (n - 1, n), (0, n), ((n - 1) // 2, n // 2 + 1), (n // 3, n - n // 4)}
    for low, high in ranks:
        found = order.middle_mean(x, rows, low, high)
        assert found is not None
        assert found.shape == (width,)
        np.testing.assert_allclose(found, ordered[low:high].mean(axis=0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("n", ROWS)
def test_the_mean_of_any_number_of_values_around_the_median(n: int, width: int) -> None:
    x, rows = scattered(n, width)
    for keep in {1, 2, n // 2, n - 2, n - 1, n} & set(range(1, n + 1)):
        found = order.mean_around_median(x, rows, keep)
        assert found is not None
        expected = references.around_median(x[rows].astype(np.float64), keep)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 13])
def test_a_value_that_is_not_finite_is_found_in_every_row_and_vector(n: int, bad: float) -> None:
    x, rows = scattered(n, 70)
    assert order.middle_mean(x, rows, 0, 1) is not None
    for row in rows:
        for place in (0, 9, 17, 25, 31, 32, 63, 69):
            spoiled = x.copy()
            spoiled[row, place] = bad
            assert order.middle_mean(spoiled, rows, n // 2, n // 2 + 1) is None
            assert order.mean_around_median(spoiled, rows, n) is None


@pytest.mark.parametrize("n", [2, 5, 9])
def test_tiles_in_many_pieces_give_the_same(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, rows = scattered(n, 203)
    whole = order.middle_mean(x, rows, 1, 2), order.mean_around_median(x, rows, 2)
    for size in (1, 2 * order.ROW_BYTES * n, 3 * order.ROW_BYTES * n):
        monkeypatch.setattr(order, "PIECE_BYTES", size)
        for one, two in zip(
            (order.middle_mean(x, rows, 1, 2), order.mean_around_median(x, rows, 2)), whole, strict=True
        ):
            assert one is not None
            assert two is not None
            assert np.array_equal(one, two)
        for place in (0, 64, 100, 202):
            spoiled = x.copy()
            spoiled[rows[0], place] = np.nan
            assert order.middle_mean(spoiled, rows, 1, 2) is None


@pytest.mark.parametrize(
    ("n", "width", "worthwhile"),
    [
        (20, 838_861, True),  # 20 times as many columns are just above 2^24 values
        (20, 838_860, False),
        (16, 1 << 20, True),  # exactly 2^24
        (16, (1 << 20) - 1, False),
        (24, 1 << 20, True),
        (25, 1 << 20, False),
        (1, 1 << 24, True),
    ],
)
def test_straight_line_code_serves_large_matrices_of_at_most_24_rows(n: int, width: int, worthwhile: bool) -> None:
    assert straight_line.is_worthwhile(n, width) is worthwhile


@pytest.mark.parametrize(("width", "worthwhile"), [(15, False), (16, True), (17, True)])
def test_straight_line_code_needs_a_cache_line_of_columns(
    width: int, worthwhile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(straight_line, "LEAST_VALUES", 1)
    assert straight_line.is_worthwhile(5, width) is worthwhile
    used: list[tuple[int, int]] = []
    monkeypatch.setattr(straight_line, "middle_mean", lambda matrix, rows, low, high: used.append((low, high)))
    x, rows = scattered(5, width)
    order.middle_mean(x, rows, 2, 4)
    assert used == [(2, 4)] * worthwhile


@pytest.mark.parametrize(("n", "width"), [(1, 16), (5, 1 << 20), (24, 100_000)])
def test_a_piece_of_straight_line_code_is_the_least_above_two_mebibytes(
    n: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whole cache lines of sixteen columns."""
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(straight_line, "spread", lambda work, columns, step: seen.append((columns, step)))
    straight_line.middle_mean(np.broadcast_to(np.float32(0), (n, width)), np.arange(n), 0, 1)
    ((columns, step),) = seen
    assert columns == width
    assert step % 16 == 0
    assert 4 * n * (step - 16) < 2 << 20 <= 4 * n * step


def test_straight_line_code_joins_the_pieces_and_what_they_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(straight_line, "PIECE_BYTES", 1)
    x, rows = scattered(5, 60)
    ordered = np.sort(x[rows].astype(np.float64), axis=0)
    found = straight_line.middle_mean(x, rows, 1, 4)
    assert found is not None
    np.testing.assert_allclose(found, ordered[1:4].mean(axis=0), rtol=1e-6, atol=1e-6)
    for row in rows:
        for place in (0, 15, 16, 47, 59):
            for bad in (np.nan, np.inf, -np.inf):
                spoiled = x.copy()
                spoiled[row, place] = bad
                assert straight_line.middle_mean(spoiled, rows, 1, 4) is None


def test_a_kernel_is_made_once_for_its_number_of_rows_and_ranks() -> None:
    assert straight_line.kernel(5, 1, 4) is straight_line.kernel(5, 1, 4)
    assert straight_line.kernel(5, 1, 4) is not straight_line.kernel(5, 1, 3)
    assert [len(part) for part in straight_line.shape(5, 1, 4)] == [5, 2, 3]


@pytest.mark.parametrize("n", [2, 3, 6, 9, 10, 19, 24])
def test_the_lower_middle_alone_takes_the_network_that_gives_it(n: int) -> None:
    """For even n the networks of the table give both middle values in any order: one more comparator sorts them."""
    low = (n - 1) // 2
    draw = np.random.default_rng(n)
    for last in {low + 1, n // 2 + 1}:
        pairs = network.shortest(n, low, last)
        for _ in range(20):
            values = draw.permutation(n).tolist()
            for i, j in pairs:
                values[i], values[j] = min(values[i], values[j]), max(values[i], values[j])
            assert sorted(values[low:last]) == list(range(low, last))


def test_networks_are_pruned_to_what_the_ranks_need() -> None:
    """The least value of eight needs seven comparators, and nothing needs more than sorting does."""
    assert len(network.pruned(8, 0, 1)) == len(network.pruned(8, 7, 8)) == 7
    assert network.pruned(8, 0, 8) == []  # all ranks in any order: there is nothing to do
    for n in (5, 8, 13):
        for low in range(n):
            assert len(network.pruned(n, low, low + 1)) <= len(network.batcher(n))
