"""A notice when kernels of `secagg` or `robust` must be compiled, which happens once per machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import robust
import secagg


@contextmanager
def announce_compilation(notice: Callable[[str], None]) -> Iterator[None]:
    """Give notice once if kernels are compiled inside this context: a first run would seem to hang."""
    announced = False

    def once(name: str) -> None:
        nonlocal announced
        if not announced:
            notice("compiling kernels for this machine; they are kept for the next time")
        announced = True

    robust.on_compile(once)
    try:
        with secagg.announce_compilation(once):
            yield
    finally:
        robust.on_compile(None)
