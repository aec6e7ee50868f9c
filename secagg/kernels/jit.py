"""How secagg compiles its numeric loops: once, without the GIL, and kept on disk between processes.

numba stores compiled code under the processor's name and features, so processors may share a directory. Import this
module only where a loop is about to run: numba takes longer to import than all the rest of the package.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba
import numba.core.cgutils
import numba.extending
from numba.core import event
from numba.core.registry import cpu_target

from secagg.errors import NoCacheWarning

Function = TypeVar("Function", bound=Callable[..., Any])
# For code in LLVM's own language. numba has no type annotations for its extension interface.
cgutils: Any = numba.core.cgutils
intrinsic: Callable[[Callable[..., Any]], Any] = numba.extending.intrinsic

_active: list[object] = []  # announcements in progress
_warned: list[bool] = []


def kernel(function: Function) -> Function:
    """Compile at the first call for each set of argument types, or load what an earlier process compiled.

    A kernel may only call kernels of its own file: numba notices a changed file, not a changed callee.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba may write neither beside the source nor in NUMBA_CACHE_DIR or the user's cache
        if not _warned:
            _warned.append(True)
            advice = "set NUMBA_CACHE_DIR to a writable directory"
            warnings.warn(f"secagg compiles its loops in every process: {advice}", NoCacheWarning, 2)
        compiled = numba.njit(**options)(function)
    return cast(Function, compiled)


def load() -> None:
    """Load now what numba otherwise loads at the first kernel: a quarter of a second."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def target_features() -> frozenset[str]:
    """Instruction sets that compiled code may use: what the processor has, except those switched off."""
    _triple, _cpu, features = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(f[1:] for f in features.split(",") if f.startswith("+"))


class _Announcer(event.Listener):
    """Reports each top-level compilation."""

    def __init__(self, on_compile: Callable[[str], None]) -> None:
        self._on_compile = on_compile
        self._depth = 0

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        if self._depth == 0 and function.__module__.startswith("secagg."):
            self._on_compile(f"{function.__module__}.{function.__name__}")
        self._depth += 1

    def on_end(self, event: Any) -> None:
        self._depth -= 1


@contextmanager
def announce(on_compile: Callable[[str], None]) -> Iterator[None]:
    """Inside this context, call `on_compile` with a function's name whenever one has to be compiled."""
    announcer = _Announcer(on_compile)
    with event.install_listener("numba:compile", announcer):
        _active.append(announcer)
        try:
            yield
        finally:
            _active.remove(announcer)


def announced() -> bool:
    """Whether an `announce` is in progress."""
    return bool(_active)
