"""Means of chosen ranks of every column, by straight-line code: a kernel for each number of rows and ranks.

With few rows a column's values, eight columns side by side, stay in registers from the first comparison to
the last; `order` has to store and load them again after every step of its table. It costs a compilation for
each number of rows and ranks, so it is for large matrices only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from robust.kernels import medians
from robust.kernels.jit import compiled
from robust.kernels.simd import DOUBLE8, FLOAT8, INT64, exchanged, fetch_ahead, vector
from robust.kernels.threads import spread

MOST_ROWS = 24  # above, most values are in memory anyway, and compiling takes seconds
LEAST_VALUES = 1 << 24  # of a matrix: below, the gain is a fraction of a millisecond
COLUMNS = 16  # one cache line of every row
PIECE_BYTES = 1 << 21  # of the matrix, for one thread at a time
AHEAD = 1024  # bytes between fetching a row's values and using them: two cores wait longer than one

Kernel = Callable[..., bool]


def serves(n: int, width: int) -> bool:
    """Whether a matrix of this shape is worth a kernel of its own."""
    return n <= MOST_ROWS and n * width >= LEAST_VALUES and width >= COLUMNS


def middle_mean(
    matrix: NDArray[np.float32], rows: NDArray[np.int64], low: int, high: int
) -> NDArray[np.float32] | None:
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
    """The last three arguments of the kernel: it is their lengths, as types, that the code is made for."""
    return (0,) * n, (0,) * (low + 1), (0,) * (high - low)


def _select(
    context: Any, column: Any, offsets: Any, into: Any, flags: Any, wires: Any, below: Any, chosen: Any
) -> Any:
    """Code for COLUMNS columns: load a row when it is first needed, exchange, write the mean of the ranks.

    Zero times a value is zero, or NaN if the value is not finite, and so is zero times two values.
    """
    n, low = wires.count, below.count - 1
    high = low + chosen.count
    pairs = medians.comparators(n, low, high)
    used = {wire for pair in pairs for wire in pair}
    steps = [*pairs, *((wire,) for wire in range(n) if wire not in used)]

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        column, offsets, into, flags = arguments[:4]
        table = builder.inttoptr(offsets, INT64.as_pointer())
        rows = [
            builder.add(column, builder.load(builder.gep(table, [ir.Constant(INT64, i)]))) for i in range(n)
        ]
        for row in rows:
            fetch_ahead(builder, row, AHEAD)
        zero = ir.Constant(FLOAT8, [0.0] * 8)
        share = ir.Constant(DOUBLE8, [1.0 / (high - low)] * 8)
        seen = builder.load(vector(builder, flags, 0), align=4)
        for k in range(COLUMNS // 8):
            values: dict[int, Any] = {}
            for step in steps:
                nothing = zero
                for wire in step:
                    if wire not in values:
                        values[wire] = builder.load(vector(builder, rows[wire], k), align=4)
                        nothing = builder.fmul(nothing, values[wire])
                if nothing is not zero:
                    seen = builder.fadd(seen, nothing)
                if len(step) == 2:
                    i, j = step
                    values[i], values[j] = exchanged(builder, values[i], values[j])
            total = builder.fpext(values[low], DOUBLE8)
            for wire in range(low + 1, high):
                total = builder.fadd(total, builder.fpext(values[wire], DOUBLE8))
            mean = builder.fptrunc(builder.fmul(total, share), FLOAT8)
            builder.store(mean, vector(builder, into, k), align=4)
        builder.store(seen, vector(builder, flags, 0), align=4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, wires, below, chosen), emit


select: Any = intrinsic(_select)


def means_of_ranks(
    matrix: NDArray[np.float32],
    offsets: NDArray[np.int64],
    result: NDArray[np.float32],
    start: int,
    stop: int,
    wires: tuple[int, ...],
    below: tuple[int, ...],
    chosen: tuple[int, ...],
) -> bool:
    """Columns start..stop-1 of the rows at these offsets, in bytes; whether all their values were finite."""
    flags = np.zeros(8, dtype=np.float32)
    width = matrix.shape[1]
    for nominal in range(start, stop, COLUMNS):
        column = min(nominal, width - COLUMNS)  # the last columns overlap those before them
        select(
            matrix.ctypes.data + column * 4,
            offsets.ctypes.data,
            result.ctypes.data + column * 4,
            flags.ctypes.data,
            wires,
            below,
            chosen,
        )
    return not np.isnan(flags.sum())
