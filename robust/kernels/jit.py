"""Compiling kernels: on first use, once per machine, never silently, and never from a stranger's cache.

Numba keeps compiled code in files that it reads back with pickle, so whoever can write to the cache
directory can run code in this process. Beside the sources (`__pycache__`) that adds nothing to what Python
itself already trusts. Anywhere else (a user-wide directory, or the one that NUMBA_CACHE_DIR names) the path
must belong to this user or to root and be writable by nobody else; otherwise, and where nothing can be
written at all, kernels are compiled in memory for each process.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numba
from numba.core import config, event

from robust.kernels.announce import announce

P = ParamSpec("P")
R = TypeVar("R")


def compiled(signature: str, *, fastmath: frozenset[str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a kernel for exactly this signature at its first call, to run without the GIL.

    `fastmath` names the licences given to the compiler. Kernels may get "contract" (fused multiply-add) and
    "reassoc" (sums in vector order), never "nnan" or "ninf": a kernel has to see NaN and infinity.
    """
    options = {"nogil": True, "error_model": "numpy", "fastmath": set(fastmath)}
    return lambda function: _Kernel(function, signature, options)


class _Kernel(Generic[P, R]):
    def __init__(self, function: Callable[P, R], signature: str, options: dict[str, Any]) -> None:
        self._function = function
        self._signature = signature
        self._options = options
        self._machine_code: Callable[P, R] | None = None
        self._building = threading.Lock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return (self._machine_code or self._build())(*args, **kwargs)

    def _build(self) -> Callable[P, R]:
        with self._building:
            if self._machine_code is None:
                self._machine_code = _compile(self._function, self._signature, self._options)
            return self._machine_code


def _compile(function: Callable[P, R], signature: str, options: dict[str, Any]) -> Callable[P, R]:
    if getattr(config, "DISABLE_JIT", False):
        raise RuntimeError("robust has no interpreted kernels: unset NUMBA_DISABLE_JIT")
    kernel: Any = _cached(function, options) or numba.njit(**options)(function)
    with event.install_listener("numba:compile", _Announcer(kernel)):
        try:
            kernel.compile(signature)
        except OSError:  # the cache could not be read or written after all: a full disk, say
            kernel = numba.njit(**options)(function)
            kernel.compile(signature)
    kernel.disable_compile()  # another signature would be a mistake here, not a reason to compile again
    return cast(Callable[P, R], kernel)


class _Announcer(event.Listener):
    """Hears of real compilation only: numba does not fire this event for code that it finds in its cache."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def on_start(self, started: Any) -> None:
        if started.data["dispatcher"] is self._kernel:
            where = self._kernel.stats.cache_path
            kept = f"kept in {where}" if where else "not kept: no safe cache directory"
            announce(f"robust: compiling {self._kernel.py_func.__name__} for this machine ({kept})")

    def on_end(self, ended: Any) -> None:
        """Nothing to say."""


def _cached(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    try:
        kernel = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no directory that it can write to
        return None
    source = Path(function.__code__.co_filename)
    where = Path(kernel.stats.cache_path)
    if where != source.parent / "__pycache__" and not only_ours(where):
        return None
    # Numba notices a change of the file that defines a kernel, but not of what that file imports.
    newest = max(file.stat().st_mtime for file in source.parent.glob("*.py"))
    for index in where.glob(f"{source.stem}.{function.__name__}-*.nbi"):
        with suppress(FileNotFoundError):  # another process may do the same
            if index.stat().st_mtime < newest:
                index.unlink()
    return kernel


def only_ours(directory: Path) -> bool:
    """Whether nobody but this user and root can put a file at this path, or swap a directory above it."""
    if not hasattr(os, "getuid"):
        return True  # no owners and modes to read; the user's profile is private by default
    ours = {0, os.getuid()}
    for place in (directory.resolve(), *directory.resolve().parents):
        found = place.stat()
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        # A sticky directory such as /tmp lets others add names but not replace ours; the last one may not be.
        replaceable = shared and (place == directory.resolve() or not found.st_mode & stat.S_ISVTX)
        if found.st_uid not in ours or replaceable:
            return False
    return True
