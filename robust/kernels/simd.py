"""Eight columns side by side as LLVM vectors: the building blocks of the kernels for order statistics."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending

FLOAT8 = ir.VectorType(ir.FloatType(), 8)
DOUBLE8 = ir.VectorType(ir.DoubleType(), 8)
INT32 = ir.IntType(32)
INT64 = ir.IntType(64)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make a function that emits LLVM code callable from a kernel."""
    return extending.intrinsic(function)


def at(builder: Any, address: Any, k: int, kind: Any = FLOAT8) -> Any:
    """A pointer to the k-th vector after an address."""
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [ir.Constant(INT64, k)])


def offset(builder: Any, address: Any, size: int) -> Any:
    """The address that is `size` bytes after another."""
    return builder.add(address, ir.Constant(INT64, size))


def declare(builder: Any, name: str, returns: Any, arguments: list[Any]) -> Any:
    """An external function, declared once per module."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(returns, arguments), name)


def exchange(builder: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """The smaller and the larger of two vectors, lane by lane.

    "nnan": the result for NaN is arbitrary, which is harmless: a tile with NaN is reported and dropped.
    """
    least = declare(builder, "llvm.minnum.v8f32", FLOAT8, [FLOAT8, FLOAT8])
    most = declare(builder, "llvm.maxnum.v8f32", FLOAT8, [FLOAT8, FLOAT8])
    smaller, larger = (builder.call(function, [x, y], fastmath=("nnan",)) for function in (least, most))
    return smaller, larger


def prefetch(builder: Any, source: Any, ahead: int, size: int = 64) -> None:
    """Fetch `size` bytes, `ahead` bytes after the source, into the second-level cache."""
    byte = ir.IntType(8).as_pointer()
    fetch = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [byte, INT32, INT32, INT32])
    read, second_level, data = (ir.Constant(INT32, value) for value in (0, 2, 1))
    for line in range(0, size, 64):
        place = builder.inttoptr(offset(builder, source, ahead + line), byte)
        builder.call(fetch, [place, read, second_level, data])
