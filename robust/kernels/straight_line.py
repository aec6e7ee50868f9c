"""Means of chosen ranks of every column, by straight-line code: one kernel per number of rows and ranks.

With few rows, the values of eight columns stay in registers from the first comparison to the last. `order`
must store and load them again after every step of its table. Each number of rows and ranks costs a
compilation, so this is for large matrices only.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from robust.kernels import Indices, Matrix, Vector, network
from robust.kernels.jit import compiled
from robust.kernels.simd import DOUBLE8, FLOAT8, INT64, at, exchange, intrinsic, prefetch
from robust.kernels.threads import spread

MOST_ROWS = 24  # with more rows most values are in memory anyway, and compiling takes seconds
LEAST_VALUES = 1 << 24  # in the matrix; with fewer, the gain is a fraction of a millisecond
COLUMNS = 16  # one cache line of every row
PIECE_BYTES = 1 << 21  # of the matrix, for one thread at a time
AHEAD = 1024  # bytes between prefetching a row's values and using them

Kernel = Callable[..., bool]


def is_worthwhile(n: int, width: int) -> bool:
    """Whether a matrix of this shape is worth a kernel of its own."""
    return n <= MOST_ROWS and n * width >= LEAST_VALUES and width >= COLUMNS


def middle_mean(matrix: Matrix, rows: Indices, low: int, high: int) -> Vector | None:
    """For every column, the mean of the values of rank low..high-1; None if a value is not finite."""
    n, width = len(rows), matrix.shape[1]
    result = np.empty(width, dtype=np.float32)
    offsets = rows * (4 * width)
    step = -(-PIECE_BYTES // (4 * n * COLUMNS)) * COLUMNS
    finite = np.ones(-(-width // step), dtype=np.bool_)
    means, lengths = kernel(n, low, high), shape(n, low, high)

    def work(number: int, start: int, stop: int) -> None:
        finite[number] = means(matrix, offsets, result, start, stop, *lengths)

    spread(work, width, step)
    return result if finite.all() else None


@lru_cache(maxsize=64)
def kernel(n: int, low: int, high: int) -> Kernel:
    """The kernel for n rows and ranks low..high-1; compiled, or loaded, at its first call."""
    counts = ", ".join(f"UniTuple(int64, {count})" for count in (n, low + 1, high - low))
    return compiled(
        f"boolean(Array(float32, 2, 'C', readonly=True), int64[::1], float32[::1], int64, int64, {counts})",
        fastmath=frozenset({"contract"}),
    )(means_of_ranks)


def shape(n: int, low: int, high: int) -> tuple[tuple[int, ...], ...]:
    """The last three arguments of the kernel. Their lengths are part of their types and select the code."""
    return (0,) * n, (0,) * (low + 1), (0,) * (high - low)


@intrinsic
def select(context: Any, column: Any, offsets: Any, into: Any, flags: Any, wires: Any, below: Any, chosen: Any) -> Any:
    """Code for COLUMNS columns: load each row when it is first needed, exchange, write the mean of the ranks.

    Zero times one or two values is zero, or NaN if one of them is not finite.
    """
    n, low = wires.count, below.count - 1
    high = low + chosen.count
    pairs = network.shortest(n, low, high)
    used = {wire for pair in pairs for wire in pair}
    steps = [*pairs, *((wire,) for wire in range(n) if wire not in used)]

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        column, offsets, into, flags = arguments[:4]
        table = builder.inttoptr(offsets, INT64.as_pointer())
        rows = [builder.add(column, builder.load(builder.gep(table, [ir.Constant(INT64, i)]))) for i in range(n)]
        for row in rows:
            prefetch(builder, row, AHEAD)
        zero = ir.Constant(FLOAT8, [0.0] * 8)
        share = ir.Constant(DOUBLE8, [1.0 / (high - low)] * 8)
        check = builder.load(at(builder, flags, 0), align=4)
        for k in range(COLUMNS // 8):
            values: dict[int, Any] = {}
            for step in steps:
                product = zero
                for wire in step:
                    if wire not in values:
                        values[wire] = builder.load(at(builder, rows[wire], k), align=4)
                        product = builder.fmul(product, values[wire])
                if product is not zero:
                    check = builder.fadd(check, product)
                if len(step) == 2:
                    i, j = step
                    values[i], values[j] = exchange(builder, values[i], values[j])
            total = builder.fpext(values[low], DOUBLE8)
            for wire in range(low + 1, high):
                total = builder.fadd(total, builder.fpext(values[wire], DOUBLE8))
            mean = builder.fptrunc(builder.fmul(total, share), FLOAT8)
            builder.store(mean, at(builder, into, k), align=4)
        builder.store(check, at(builder, flags, 0), align=4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, wires, below, chosen), emit


def means_of_ranks(
    matrix: Matrix,
    offsets: Indices,
    result: Vector,
    start: int,
    stop: int,
    wires: tuple[int, ...],
    below: tuple[int, ...],
    chosen: tuple[int, ...],
) -> bool:
    """Write columns start..stop-1 for the rows at these byte offsets; return whether all are finite."""
    flags = np.zeros(8, dtype=np.float32)
    width = matrix.shape[1]
    for nominal in range(start, stop, COLUMNS):
        column = min(nominal, width - COLUMNS)  # the last columns overlap those before them
        source, into = matrix.ctypes.data + column * 4, result.ctypes.data + column * 4
        select(source, offsets.ctypes.data, into, flags.ctypes.data, wires, below, chosen)
    return not np.isnan(flags.sum())
