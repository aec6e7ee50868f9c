"""Order statistics of every column: mean of chosen ranks, and mean of the values nearest the median.

A tile of LANES columns is copied out of the matrix row by row, so that a comparison of two rows is one
minimum and one maximum for eight columns at a time, and the comparisons come from a table
(`network`). Loads, exchanges and averages are written as LLVM vectors because the compiler, left alone,
turns a minimum that is stored back into a masked store, which on some processors is several times slower.
Nothing here names an instruction set: LLVM splits or joins the vectors for the processor at hand.

Two details carry the speed. Eight rows at a time are sorted in registers on their way into the tile. And
rows are fetched ahead into the second-level cache only: with dozens of rows, fetching ahead into the first
level evicts the tile itself (twice as slow at 60 rows).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from robust.kernels import network, straight_line
from robust.kernels.jit import compiled
from robust.kernels.network import RUN
from robust.kernels.simd import DOUBLE8, FLOAT8, INT64, double, exchanged, fetch_ahead, offset, vector
from robust.kernels.threads import spread

LANES = 32  # columns in a tile: four vectors a row; 200 rows still fit the first-level cache
ROW_BYTES = LANES * 4
AHEAD = 4  # tiles between fetching a row's values and using them
PIECE_BYTES = 1 << 21  # of the matrix, for one thread at a time

_VECTORS = LANES // 8


def middle_mean(
    matrix: NDArray[np.float32], rows: NDArray[np.int64], low: int, high: int
) -> NDArray[np.float32] | None:
    """For every column, the mean of the values of rank low..high-1; None if a value is not finite."""
    if straight_line.serves(len(rows), matrix.shape[1]):
        return straight_line.middle_mean(matrix, rows, low, high)
    return _over_columns(matrix, rows, network.selecting(len(rows), low, high), low, high, 0)


def mean_around_median(
    matrix: NDArray[np.float32], rows: NDArray[np.int64], keep: int
) -> NDArray[np.float32] | None:
    """For every column, the mean of the `keep` values nearest the median; None if a value is not finite.

    Of two values at the same distance on either side of the median, the lower one is nearer.
    """
    return _over_columns(matrix, rows, network.sorting(len(rows)), 0, len(rows), keep)


def _over_columns(
    matrix: NDArray[np.float32],
    rows: NDArray[np.int64],
    steps: NDArray[np.int64],
    low: int,
    high: int,
    keep: int,
) -> NDArray[np.float32] | None:
    width = matrix.shape[1]
    if width < LANES:  # a tile must not read past the end of a row
        padded = np.zeros((len(rows), LANES), dtype=np.float32)
        padded[:, :width] = matrix[rows]
        matrix, rows = padded, np.arange(len(rows))
    result = np.empty(matrix.shape[1], dtype=np.float32)
    tiles = max(1, PIECE_BYTES // (ROW_BYTES * len(rows)))
    finite = np.ones(-(-matrix.shape[1] // (tiles * LANES)), dtype=np.bool_)

    def work(number: int, start: int, stop: int) -> None:
        finite[number] = order_statistics(matrix, rows, steps, low, high, keep, result, start, stop)

    spread(work, matrix.shape[1], tiles * LANES)
    return result[:width] if finite.all() else None


def _widened(builder: Any, row: Any, k: int) -> Any:
    return builder.fpext(builder.load(vector(builder, row, k), align=32), DOUBLE8)


def _compare(wires: int, pairs: list[network.Comparator]) -> Any:
    """Code for a few comparators on tile rows at given addresses, all lanes."""

    def emit(context: Any, builder: Any, signature: Any, addresses: Any) -> Any:
        for k in range(_VECTORS):
            places = [vector(builder, address, k) for address in addresses]
            values = [builder.load(place, align=32) for place in places]
            for i, j in pairs:
                values[i], values[j] = exchanged(builder, values[i], values[j])
            for place, value in zip(places, values, strict=True):
                builder.store(value, place, align=32)
        return context.get_dummy_value()

    return types.void(*[types.intp] * wires), emit


def _exchange2(context: Any, a: Any, b: Any) -> Any:
    return _compare(2, [(0, 1)])


def _exchange4(context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return _compare(4, [(0, 2), (1, 3), (1, 2)])


def _load(count: int) -> Any:
    """Code that copies `count` rows into the tile, sorted lane by lane.

    x * 0 is 0 for a finite x and NaN otherwise: added up in `flags`, it shows whether all were finite.
    """
    pairs = [placed.pair for placed in network.batcher(count)]

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, column, stride, tile, flags = arguments
        numbers = builder.inttoptr(numbers, INT64.as_pointer())
        sources = []
        for i in range(count):
            number = builder.load(builder.gep(numbers, [ir.Constant(INT64, i)]))
            sources.append(builder.add(column, builder.mul(number, stride)))
        for source in sources:
            fetch_ahead(builder, source, AHEAD * ROW_BYTES, ROW_BYTES)
        zero = ir.Constant(FLOAT8, [0.0] * 8)
        seen = [builder.load(vector(builder, flags, 0), align=32), zero, zero, zero]
        for k in range(_VECTORS):
            values = [builder.load(vector(builder, source, k), align=4) for source in sources]
            for i, value in enumerate(values):
                nothing = builder.fmul(value, zero, flags=("contract",))
                seen[i % 4] = builder.fadd(seen[i % 4], nothing, flags=("contract",))
            for i, j in pairs:
                values[i], values[j] = exchanged(builder, values[i], values[j])
            for i, value in enumerate(values):
                builder.store(value, vector(builder, offset(builder, tile, i * ROW_BYTES), k), align=32)
        total = builder.fadd(builder.fadd(seen[0], seen[1]), builder.fadd(seen[2], seen[3]))
        builder.store(total, vector(builder, flags, 0), align=32)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5), emit


def _load_run(context: Any, numbers: Any, column: Any, stride: Any, tile: Any, flags: Any) -> Any:
    return _load(RUN)


def _load_half(context: Any, numbers: Any, column: Any, stride: Any, tile: Any, flags: Any) -> Any:
    return _load(RUN // 2)


def _load_one(context: Any, numbers: Any, column: Any, stride: Any, tile: Any, flags: Any) -> Any:
    return _load(1)


def _add_row(context: Any, row: Any, sums: Any) -> Any:
    """Code that adds a tile row to LANES sums in double precision."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, sums = arguments
        for k in range(_VECTORS):
            place = double(builder, sums, k)
            total = builder.fadd(builder.load(place, align=64), _widened(builder, row, k))
            builder.store(total, place, align=64)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), emit


def _middles(context: Any, below: Any, above: Any, median: Any) -> Any:
    """Code for the mean of two tile rows, in double precision."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        below, above, median = arguments
        half = ir.Constant(DOUBLE8, [0.5] * 8)
        for k in range(_VECTORS):
            total = builder.fadd(_widened(builder, below, k), _widened(builder, above, k))
            builder.store(builder.fmul(total, half), double(builder, median, k), align=64)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), emit


def _add_if_near(context: Any, row: Any, under: Any, over: Any, median: Any, sums: Any) -> Any:
    """Code that adds those lanes of a sorted tile row which are among the `keep` nearest the median.

    The nearest are neighbours in sorted order: a window that starts at the lowest row and moves up while
    the value that would enter is nearer than the one that would leave. So a row is in it unless the window
    has moved past it (`over`, keep rows further, was nearer) or never reached it (it was not nearer than
    `under`, keep rows before). Where there is no such row, infinity stands in for it.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, under, over, median, sums = arguments
        nothing = ir.Constant(DOUBLE8, [0.0] * 8)
        for k in range(_VECTORS):
            middle = builder.load(double(builder, median, k), align=64)
            value, below, above = (_widened(builder, place, k) for place in (row, under, over))
            stays = builder.fcmp_ordered(">=", builder.fsub(above, middle), builder.fsub(middle, value))
            enters = builder.fcmp_ordered("<", builder.fsub(value, middle), builder.fsub(middle, below))
            chosen = builder.select(builder.and_(stays, enters), value, nothing)
            place = double(builder, sums, k)
            builder.store(builder.fadd(builder.load(place, align=64), chosen), place, align=64)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5), emit


exchange2: Any = intrinsic(_exchange2)
exchange4: Any = intrinsic(_exchange4)
load_run: Any = intrinsic(_load_run)
load_half: Any = intrinsic(_load_half)
load_one: Any = intrinsic(_load_one)
add_row: Any = intrinsic(_add_row)
add_if_near: Any = intrinsic(_add_if_near)
middles: Any = intrinsic(_middles)


@compiled(
    "boolean(Array(float32, 2, 'C', readonly=True), int64[::1], Array(int64, 2, 'C', readonly=True),"
    " int64, int64, int64, float32[::1], int64, int64)",
    fastmath=frozenset({"contract"}),
)
def order_statistics(
    matrix: NDArray[np.float32],
    rows: NDArray[np.int64],
    steps: NDArray[np.int64],
    low: int,
    high: int,
    keep: int,
    result: NDArray[np.float32],
    start: int,
    stop: int,
) -> bool:
    """Columns start..stop-1: the mean of ranks low..high-1 or, if keep > 0, around the median."""
    n = rows.size
    width = matrix.shape[1]
    # Everything that vectors touch begins at a multiple of 64 bytes.
    floats = np.empty((n + 3) * LANES + 16, dtype=np.float32)
    floats = floats[(-floats.ctypes.data // 4) % 16 :]
    tile, flags = floats[: n * LANES], floats[n * LANES : (n + 1) * LANES]
    lowest, highest = floats[(n + 1) * LANES : (n + 2) * LANES], floats[(n + 2) * LANES : (n + 3) * LANES]
    flags[:], lowest[:], highest[:] = 0.0, -np.inf, np.inf
    doubles = np.empty(2 * LANES + 8, dtype=np.float64)
    doubles = doubles[(-doubles.ctypes.data // 8) % 8 :]
    sums, median = doubles[:LANES], doubles[LANES : 2 * LANES]
    base = tile.ctypes.data
    for nominal in range(start, stop, LANES):
        column = min(nominal, width - LANES)  # the last tile overlaps the one before it
        source = matrix.ctypes.data + column * 4
        i = 0
        while i + RUN <= n:
            load_run(rows.ctypes.data + i * 8, source, width * 4, base + i * ROW_BYTES, flags.ctypes.data)
            i += RUN
        if i + RUN // 2 <= n:
            load_half(rows.ctypes.data + i * 8, source, width * 4, base + i * ROW_BYTES, flags.ctypes.data)
            i += RUN // 2
        while i < n:
            load_one(rows.ctypes.data + i * 8, source, width * 4, base + i * ROW_BYTES, flags.ctypes.data)
            i += 1
        for t in range(steps.shape[0]):
            a = base + steps[t, 0] * ROW_BYTES
            b = base + steps[t, 1] * ROW_BYTES
            if steps[t, 2] < 0:
                exchange2(a, b)
            else:
                exchange4(a, b, base + steps[t, 2] * ROW_BYTES, base + steps[t, 3] * ROW_BYTES)
        sums[:] = 0.0
        count = keep
        if keep > 0:
            middles(base + (n - 1) // 2 * ROW_BYTES, base + n // 2 * ROW_BYTES, median.ctypes.data)
            for i in range(n):
                under = base + (i - keep) * ROW_BYTES if i >= keep else lowest.ctypes.data
                over = base + (i + keep) * ROW_BYTES if i + keep < n else highest.ctypes.data
                add_if_near(base + i * ROW_BYTES, under, over, median.ctypes.data, sums.ctypes.data)
        else:
            count = high - low
            for i in range(low, high):
                add_row(base + i * ROW_BYTES, sums.ctypes.data)
        share = 1.0 / count  # rounding to float32 hides that this is not quite a division
        into = result[column : column + LANES]
        for k in range(LANES):
            into[k] = sums[k] * share
    return not np.isnan(flags.sum())
