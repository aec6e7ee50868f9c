"""Compile kernels at their first call, keep the code on disk, and report each compilation.

Numba reads its cache files with pickle, so anyone who can write to the cache directory can run code in this
process. Beside the sources (`__pycache__`) that is no new risk: Python itself loads code from there. Another
directory (a user-wide one, or the one in NUMBA_CACHE_DIR) is used only if it belongs to this user or root and
nobody else can write to it. Otherwise kernels are compiled in memory, once per process.
"""

import os
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

_callback: Callable[[str], None] | None = None


def on_compile(callback: Callable[[str], None] | None) -> None:
    """Send the message about each compilation to `callback`; None sends it to stderr again.

    >>> import robust
    >>> messages = []
    >>> robust.on_compile(messages.append)
    >>> robust.on_compile(None)
    """
    global _callback
    _callback = callback


def compiled(signature: str, *, fastmath: frozenset[str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a kernel for exactly this signature at its first call, to run without the GIL.

    `fastmath` lists what the compiler may assume. Kernels may get "contract" (fused multiply-add) and
    "reassoc" (sums in vector order), never "nnan" or "ninf": a kernel must see NaN and infinity.
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
    import numba  # not at the top: `import robust` loads this module, and numba is slow to load
    from numba.core import config, event

    if getattr(config, "DISABLE_JIT", False):
        raise RuntimeError("robust has no interpreted kernels: unset NUMBA_DISABLE_JIT")
    kernel: Any = _cached(function, options) or numba.njit(**options)(function)

    class Announcer(event.Listener):
        """Numba sends this event for real compilations only, not for code that it finds in its cache."""

        def on_start(self, started: Any) -> None:
            if started.data["dispatcher"] is kernel:
                where = kernel.stats.cache_path
                kept = f"kept in {where}" if where else "not kept: no safe cache directory"
                message = f"robust: compiling {function.__name__} for this machine ({kept})"
                _callback(message) if _callback else print(message, file=sys.stderr)

        def on_end(self, ended: Any) -> None:
            """Required by the base class."""

    with event.install_listener("numba:compile", Announcer()):
        try:
            kernel.compile(signature)
        except OSError:  # the cache could not be read or written, for example because the disk is full
            kernel = numba.njit(**options)(function)
            kernel.compile(signature)
    kernel.disable_compile()  # a call with another signature is a bug, not a reason to compile again
    return cast(Callable[P, R], kernel)


def _cached(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """The kernel with a cache on disk, or None if there is no safe directory for it."""
    import numba

    try:
        kernel = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no directory that it can write to
        return None
    source = Path(function.__code__.co_filename)
    where = Path(kernel.stats.cache_path)
    if where != source.parent / "__pycache__" and not is_private(where):
        return None
    # Numba notices a change of the file that defines a kernel, but not of the modules that it imports.
    newest = max(file.stat().st_mtime for file in source.parent.glob("*.py"))
    for index in where.glob(f"{source.stem}.{function.__name__}-*.nbi"):
        with suppress(FileNotFoundError):  # another process may do the same
            if index.stat().st_mtime < newest:
                index.unlink()
    return kernel


def is_private(directory: Path) -> bool:
    """Whether only this user and root can put a file into the directory or replace a directory above it."""
    if not hasattr(os, "getuid"):
        return True  # no owners and modes to read; the user's profile is private by default
    trusted = {0, os.getuid()}
    for place in (directory.resolve(), *directory.resolve().parents):
        found = place.stat()
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        # In a sticky directory such as /tmp others can add names but not replace ours. The cache directory
        # itself must not be shared even then.
        replaceable = shared and (place == directory.resolve() or not found.st_mode & stat.S_ISVTX)
        if found.st_uid not in trusted or replaceable:
            return False
    return True
