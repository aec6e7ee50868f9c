"""How secagg compiles its numeric loops: once, without the GIL, and kept on disk between processes.

numba stores compiled code under the processor's name and features, so processors may share a directory. It reads its
cache with pickle, so anyone who can write to the cache can run code in this process. Beside the sources (`__pycache__`)
that is no new risk: Python itself loads code from there. Any other directory is used only if `is_private`.
Import this module only where a loop is about to run: numba takes longer to import than all the rest of the package.
"""

import os
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
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
        where = Path(compiled.stats.cache_path)
        beside = Path(function.__code__.co_filename).parent / "__pycache__"
        # audit: numba-cache-private
        if where != beside and not is_private(where):
            raise RuntimeError(f"others can write to {where}")
    except RuntimeError as reason:  # also numba's own: it can write to none of its directories
        if not _warned:
            _warned.append(True)
            advice = f"set NUMBA_CACHE_DIR to a directory that only you can write to ({reason})"
            warnings.warn(f"secagg compiles its loops in every process: {advice}", NoCacheWarning, 2)
        compiled = numba.njit(**options)(function)
    return cast(Function, compiled)


def is_private(directory: Path) -> bool:
    """Whether only this user and root can put a file into the directory or replace a directory above it."""
    if not hasattr(os, "getuid"):
        return True  # no owners and modes to read; the user's profile is private by default
    trusted, place = {0, os.getuid()}, directory.resolve()
    for above in (place, *place.parents):
        found = above.stat()
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        # In a sticky directory such as /tmp others can add names but not replace ours. The cache directory
        # itself must not be shared even then.
        replaceable = shared and (above == place or not found.st_mode & stat.S_ISVTX)
        if found.st_uid not in trusted or replaceable:
            return False
    return True


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
