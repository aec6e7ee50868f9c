"""Kernels at the edges of their blocks, pieces and groups of rows, against plain numpy on whole numbers: exact.

A kernel also runs interpreted. Compiled code does not check its indices; numpy does.
"""

from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import pytest

from robust.kernels import distances, order, straight_line

Kernel = Callable[..., Any]
MODES = [pytest.param(False, id="compiled"), pytest.param(True, id="interpreted")]
COUNTS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13]
MIB = 1 << 20


def whole(n: int, width: int) -> np.ndarray:
    """Small whole numbers: their sums of squares are exact, and so are their sums in float32."""
    return np.random.default_rng([n, width]).integers(-9, 10, (n, width)).astype(np.float32)


def some_rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix with more rows than are used, and n of its rows in no order."""
    return whole(n + 3, 61), np.random.default_rng(n).permutation(n + 3)[:n].astype(np.int64)


def version(kernel: Any, interpreted: bool) -> Kernel:
    chosen: Kernel = kernel._function if interpreted else kernel
    return chosen


def columns_of(start: int, stop: int, block: int) -> list[tuple[int, int, int]]:
    """Pieces that end before, at and after the end of a block."""
    return [(start, end, block) for end in (start + 1, stop - 1, stop, stop + 1)]


@pytest.mark.parametrize("interpreted", MODES)
@pytest.mark.parametrize("n", COUNTS)
def test_distances_of_a_piece_are_added_to_what_is_there(n: int, interpreted: bool) -> None:
    x, rows = some_rows(n)
    add = version(distances.add_distances, interpreted)
    for start, stop, block in (*columns_of(3, 35, 16), *columns_of(0, 16, 16), (5, 60, 16), (0, 61, 64), (0, 61, 2)):
        part = x[rows, start:stop].astype(np.float64)
        totals = np.arange(n * n, dtype=np.float64).reshape(n, n)
        expected = totals + ((part[:, None] - part[None]) ** 2).sum(axis=2)
        add(x, rows, start, stop, block, totals)
        assert np.array_equal(np.triu(totals), np.triu(expected))


@pytest.mark.parametrize("interpreted", MODES)
@pytest.mark.parametrize("n", COUNTS)
def test_one_vector_is_compared_with_every_row_of_a_piece(n: int, interpreted: bool) -> None:
    x, rows = some_rows(n)
    point = whole(1, 61)[0]
    for start, stop in ((0, 61), (0, 1), (7, 60), (60, 61), (16, 48)):
        part, other = x[rows, start:stop].astype(np.float64), point[start:stop].astype(np.float64)
        for kernel, expected in (
            (distances.add_distances_to, ((part - other) ** 2).sum(axis=1)),
            (distances.add_products, part @ other),
        ):
            totals = np.arange(n, dtype=np.float64)
            version(kernel, interpreted)(x, rows, point, start, stop, totals)
            assert np.array_equal(totals, np.arange(n) + expected)


@pytest.mark.parametrize("interpreted", MODES)
@pytest.mark.parametrize("n", [4, 8, 12])
def test_a_weighted_sum_of_a_piece_writes_its_columns_only(n: int, interpreted: bool) -> None:
    width = 1100 if n == 4 else 61  # above and below the strip that is added up at a time
    x, rows, weights = whole(n + 2, width), np.arange(n)[::-1].copy() + 1, np.arange(n) - 1.5
    for start, stop in ((0, width), (2, width - 1), (width - 3, width)):
        result = np.full(width, 77, np.float32)
        assert version(distances.sum_rows, interpreted)(x, rows, weights, start, stop, result)
        expected = np.full(width, 77, np.float32)
        expected[start:stop] = (weights @ x[rows].astype(np.float64))[start:stop]
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("interpreted", MODES)
@pytest.mark.parametrize(("n", "sums"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 1), (6, 5), (8, 2), (9, 3), (11, 6)])
def test_every_weighted_sum_of_a_piece_is_exact(n: int, sums: int, interpreted: bool) -> None:
    x, rows = some_rows(n)
    weights = np.random.default_rng(sums).integers(-3, 4, (sums, n)).astype(np.float64)
    padded = np.zeros((sums + sums % 2, n + -n % 4))
    padded[:sums, :n] = weights
    for start, stop, block in (*columns_of(3, 35, 16), (0, 61, 16), (0, 61, 64)):
        result = np.full((sums, 61), 77, np.float32)
        assert version(distances.mix_rows, interpreted)(x, rows, padded, start, stop, block, result)
        expected = np.full((sums, 61), 77, np.float32)
        expected[:, start:stop] = (weights @ x[rows].astype(np.float64))[:, start:stop]
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 40])
def test_a_piece_of_weighted_sums_says_whether_it_is_finite(bad: float, place: int) -> None:
    """In every block, also if the last block is finite, and in the first and the second sum of two."""
    x, rows = np.zeros((4, 41), np.float32), np.arange(4)
    for row in range(4):
        spoiled = x.copy()
        spoiled[row, place] = bad
        one, result = np.eye(4)[row], np.empty((3, 41), np.float32)
        assert not distances.sum_rows(spoiled, rows, one, 0, 41, result[0])
        for sums in range(3):
            padded = np.zeros((4, 4))
            padded[sums] = one
            assert not distances.mix_rows(spoiled, rows, padded, 0, 41, 16, result)
        assert distances.sum_rows(spoiled, rows, one, 0, place, result[0])
    assert distances.sum_rows(x, rows, np.ones(4), 0, 41, np.empty(41, np.float32))


@pytest.mark.parametrize("n", [1, 3, 5, 6, 7])
def test_results_are_the_same_in_many_pieces(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a piece is one block wide. Rows are taken from a larger matrix."""
    x, rows = whole(n + 3, 1100), np.random.default_rng(n).permutation(n + 3)[:n].astype(np.int64)
    chosen, point = x[rows].astype(np.float64), whole(1, 1100)[0]
    weights = np.random.default_rng(n).integers(-3, 4, (3, n)).astype(np.float64)
    for piece_bytes in (1, distances.PIECE_BYTES):
        monkeypatch.setattr(distances, "PIECE_BYTES", piece_bytes)
        squares = ((chosen[:, None] - chosen[None]) ** 2).sum(axis=2)
        assert np.array_equal(distances.squared_distances(x, rows), squares)
        assert np.array_equal(distances.squared_distances_to(x, rows, point), ((chosen - point) ** 2).sum(axis=1))
        assert np.array_equal(distances.products(x, rows, point), chosen @ point)
        assert np.array_equal(distances.weighted_sum(x, rows, weights[0]), weights[0] @ chosen)
        assert np.array_equal(distances.weighted_sums(x, rows, weights), weights @ chosen)
        for place in (0, 511, 1023, 1024, 1099):
            spoiled = x.copy()
            spoiled[rows[n // 2], place] = np.inf
            assert distances.weighted_sum(spoiled, rows, np.ones(n)) is None
            assert distances.weighted_sums(spoiled, rows, np.ones((2, n))) is None


def steps_of(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The columns that a call shares among threads, and how many of them are a piece. Nothing is computed."""
    seen: list[tuple[int, int]] = []
    for module in (distances, order, straight_line):
        monkeypatch.setattr(module, "spread", lambda work, columns, step: seen.append((columns, step)))
    call()
    (only,) = seen
    return only


def shaped(n: int, width: int) -> np.ndarray:
    """A matrix of zeros that takes no memory."""
    return np.broadcast_to(np.float32(0), (n, width))


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 136, 200, 1000, 4095, 4096, 5000])
def test_a_block_of_widened_rows_takes_half_a_mebibyte_at_most(n: int) -> None:
    """Sixteen columns are one cache line of floats; a block has between 16 and 512 of them, the most that fit."""
    fit = [columns for columns in range(16, 513, 16) if 8 * n * columns <= MIB // 2]
    assert distances._block(n) == max(fit, default=16)


@pytest.mark.parametrize(
    ("n", "width"), [(3, 5), (5, 1 << 20), (20, 300_000), (300, 70_000), (3000, 9000), (40_000, 99)]
)
def test_a_piece_is_two_mebibytes_of_the_matrix_at_most(n: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole blocks or strips, as many as fit and at least one."""
    x, rows = shaped(n, width), np.arange(n)
    block = distances._block(n)
    for call, unit in (
        (lambda: distances.weighted_sum(x, rows, np.ones(n)), 1024),
        (lambda: distances.weighted_sums(x, rows, np.ones((1, n))), block),
        (lambda: order._over_columns(x, rows, rows, 0, n, 0), 32),
    ):
        columns, step = steps_of(call, monkeypatch)
        assert columns == max(width, 32 if unit == 32 else 0)
        assert step == max(2 * MIB // (4 * n) // unit, 1) * unit
    columns, step = steps_of(lambda: distances.products(x, rows, x[0]), monkeypatch)
    assert (columns, step) == (width, max(2 * MIB // (4 * n), 512))


@pytest.mark.parametrize(
    ("n", "width"),
    [(1, 1), (3, 5), (5, 1 << 20), (20, 300_000), (300, 70_000), (700, 12_000), (1000, 5000), (2049, 3000)],
)
def test_partial_sums_of_distances_take_32_mebibytes_at_most(
    n: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many pieces as there are 2 MiB in the matrix, unless their sums take more than that, all of one size."""
    columns, step = steps_of(lambda: distances.squared_distances(shaped(n, width), np.arange(n)), monkeypatch)
    pieces = min(ceil(Fraction(4 * n * width, 2 * MIB)), max(32 * MIB // (8 * n * n), 1))
    block = distances._block(n)
    assert columns == width
    assert step % block == 0
    assert ceil(width / step) <= pieces
    assert step == block or ceil(width / (step - block)) > pieces
