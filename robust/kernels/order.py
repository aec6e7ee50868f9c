"""Order statistics of every column: the mean of chosen ranks, and the mean of the values nearest the median.

A tile of LANES columns is copied out of the matrix row by row. Comparing two rows then takes one minimum and
one maximum for eight columns at a time. The comparisons come from a table (`network`). Loads, exchanges and
averages are written as LLVM vectors: the compiler would otherwise turn a minimum that is stored back into a
masked store, which on some processors is several times slower. LLVM fits the vectors to the processor.

Two details make it fast. Eight rows at a time are sorted in registers on their way into the tile. Rows are
prefetched into the second-level cache only: prefetching dozens of rows into the first level evicts the tile.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from robust.kernels import Indices, Matrix, Vector, network, straight_line
from robust.kernels.jit import compiled
from robust.kernels.network import RUN
from robust.kernels.simd import DOUBLE8, FLOAT8, INT64, at, exchange, intrinsic, offset, prefetch
from robust.kernels.threads import spread

LANES = 32  # columns in a tile: four vectors a row; 200 rows still fit the first-level cache
ROW_BYTES = LANES * 4
AHEAD = 4  # tiles between prefetching a row's values and using them
PIECE_BYTES = 1 << 21  # of the matrix, for one thread at a time

_VECTORS = LANES // 8


def middle_mean(matrix: Matrix, rows: Indices, low: int, high: int) -> Vector | None:
    """For every column, the mean of the values of rank low..high-1; None if a value is not finite."""
    if straight_line.is_worthwhile(len(rows), matrix.shape[1]):
        return straight_line.middle_mean(matrix, rows, low, high)
    return _over_columns(matrix, rows, network.steps_to_select(len(rows), low, high), low, high, 0)


def mean_around_median(matrix: Matrix, rows: Indices, keep: int) -> Vector | None:
    """For every column, the mean of the `keep` values nearest the median; None if a value is not finite.

    Of two values at the same distance on either side of the median, the lower one is nearer.
    """
    return _over_columns(matrix, rows, network.steps_to_sort(len(rows)), 0, len(rows), keep)


def _over_columns(matrix: Matrix, rows: Indices, steps: Indices, low: int, high: int, keep: int) -> Vector | None:
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
    return builder.fpext(builder.load(at(builder, row, k), align=32), DOUBLE8)


def _compare(wires: int, pairs: list[network.Comparator]) -> Any:
    """Code for a few comparators on tile rows at given addresses, all lanes."""

    def emit(context: Any, builder: Any, signature: Any, addresses: Any) -> Any:
        for k in range(_VECTORS):
            places = [at(builder, address, k) for address in addresses]
            values = [builder.load(place, align=32) for place in places]
            for i, j in pairs:
                values[i], values[j] = exchange(builder, values[i], values[j])
            for place, value in zip(places, values, strict=True):
                builder.store(value, place, align=32)
        return context.get_dummy_value()

    return types.void(*[types.intp] * wires), emit


@intrinsic
def exchange2(context: Any, a: Any, b: Any) -> Any:
    return _compare(2, [(0, 1)])


@intrinsic
def exchange4(context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return _compare(4, [(0, 2), (1, 3), (1, 2)])


def _load(count: int) -> Any:
    """Code that copies `count` rows into the tile, sorted lane by lane.

    x * 0 is 0 for a finite x and NaN otherwise, so the sum in `flags` shows whether all values are finite.
    """
    pairs = [pair for _, pair in network.batcher(count)]

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, column, stride, tile, flags = arguments
        numbers = builder.inttoptr(numbers, INT64.as_pointer())
        sources = []
        for i in range(count):
            number = builder.load(builder.gep(numbers, [ir.Constant(INT64, i)]))
            sources.append(builder.add(column, builder.mul(number, stride)))
        for source in sources:
            prefetch(builder, source, AHEAD * ROW_BYTES, ROW_BYTES)
        zero = ir.Constant(FLOAT8, [0.0] * 8)
        checks = [builder.load(at(builder, flags, 0), align=32), zero, zero, zero]
        for k in range(_VECTORS):
            values = [builder.load(at(builder, source, k), align=4) for source in sources]
            for i, value in enumerate(values):
                product = builder.fmul(value, zero, flags=("contract",))
                checks[i % 4] = builder.fadd(checks[i % 4], product, flags=("contract",))
            for i, j in pairs:
                values[i], values[j] = exchange(builder, values[i], values[j])
            for i, value in enumerate(values):
                builder.store(value, at(builder, offset(builder, tile, i * ROW_BYTES), k), align=32)
        total = builder.fadd(builder.fadd(checks[0], checks[1]), builder.fadd(checks[2], checks[3]))
        builder.store(total, at(builder, flags, 0), align=32)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5), emit


@intrinsic
def load_run(context: Any, numbers: Any, column: Any, stride: Any, tile: Any, flags: Any) -> Any:
    return _load(RUN)


@intrinsic
def load_half(context: Any, numbers: Any, column: Any, stride: Any, tile: Any, flags: Any) -> Any:
    return _load(RUN // 2)


@intrinsic
def load_one(context: Any, numbers: Any, column: Any, stride: Any, tile: Any, flags: Any) -> Any:
    return _load(1)


@intrinsic
def add_row(context: Any, row: Any, sums: Any) -> Any:
    """Code that adds a tile row to LANES sums in double precision."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, sums = arguments
        for k in range(_VECTORS):
            place = at(builder, sums, k, DOUBLE8)
            total = builder.fadd(builder.load(place, align=64), _widened(builder, row, k))
            builder.store(total, place, align=64)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), emit


@intrinsic
def middles(context: Any, below: Any, above: Any, median: Any) -> Any:
    """Code for the mean of two tile rows, in double precision."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        below, above, median = arguments
        half = ir.Constant(DOUBLE8, [0.5] * 8)
        for k in range(_VECTORS):
            total = builder.fadd(_widened(builder, below, k), _widened(builder, above, k))
            builder.store(builder.fmul(total, half), at(builder, median, k, DOUBLE8), align=64)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), emit


@intrinsic
def add_if_near(context: Any, row: Any, under: Any, over: Any, median: Any, sums: Any) -> Any:
    """Code that adds the lanes of a sorted tile row that are among the `keep` values nearest the median.

    The nearest values form a window in sorted order. The window starts at the lowest row and moves up while
    the value that enters is nearer than the value that leaves. So a row is inside unless the window moved
    past it (`over`, `keep` rows higher, is nearer) or stopped below it (it is not nearer than `under`, `keep`
    rows lower). Where there is no such row, infinity takes its place.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, under, over, median, sums = arguments
        zeros = ir.Constant(DOUBLE8, [0.0] * 8)
        for k in range(_VECTORS):
            middle = builder.load(at(builder, median, k, DOUBLE8), align=64)
            value, below, above = (_widened(builder, place, k) for place in (row, under, over))
            stays = builder.fcmp_ordered(">=", builder.fsub(above, middle), builder.fsub(middle, value))
            enters = builder.fcmp_ordered("<", builder.fsub(value, middle), builder.fsub(middle, below))
            chosen = builder.select(builder.and_(stays, enters), value, zeros)
            place = at(builder, sums, k, DOUBLE8)
            builder.store(builder.fadd(builder.load(place, align=64), chosen), place, align=64)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5), emit


@compiled(
    "boolean(Array(float32, 2, 'C', readonly=True), int64[::1], Array(int64, 2, 'C', readonly=True),"
    " int64, int64, int64, float32[::1], int64, int64)",
    fastmath=frozenset({"contract"}),
)
def order_statistics(
    matrix: Matrix, rows: Indices, steps: Indices, low: int, high: int, keep: int, result: Vector, start: int, stop: int
) -> bool:
    """Columns start..stop-1: the mean of ranks low..high-1 or, if keep > 0, around the median."""
    n, width = rows.size, matrix.shape[1]
    # Vector loads and stores need addresses that are multiples of 64 bytes.
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
            a, b = base + steps[t, 0] * ROW_BYTES, base + steps[t, 1] * ROW_BYTES
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
        share = 1.0 / count  # not exactly a division, but equal after rounding to float32
        into = result[column : column + LANES]
        for k in range(LANES):
            into[k] = sums[k] * share
    return not np.isnan(flags.sum())
