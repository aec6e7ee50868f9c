"""How secagg compiles its numeric loops: once, without the GIL, kept on disk between processes.

numba files compiled code under the processor's name and features, so code for one processor is never loaded
on another that shares the directory. Import this module only where a loop is about to run: it imports numba,
which takes longer than everything else in the package together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba
from numba.core import event
from numba.core.registry import cpu_target

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile on first call for each set of argument types, or load what an earlier process compiled.

    Whatever a kernel calls stands in its own file: numba notices a changed file, not a changed callee.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except (
        RuntimeError
    ):  # neither beside the source, nor in NUMBA_CACHE_DIR, nor in the user's cache may we write
        compiled = numba.njit(**options)(function)
    return cast(Function, compiled)


def load() -> None:
    """Let numba load now what it loads at the first kernel otherwise: a quarter of a second, as an import."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def target_features() -> frozenset[str]:
    """Instruction sets that compiled code may use: what the processor has, less what was switched off."""
    _triple, _cpu, features = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(f[1:] for f in features.split(",") if f.startswith("+"))


class _Announcer(event.Listener):
    """Hears of every compilation, and tells of those that are not part of another."""

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
    with event.install_listener("numba:compile", _Announcer(on_compile)):
        yield
