"""The first run on a machine compiles the numeric loops; this is where to start that, or to hear of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


def warm_up() -> None:
    """Compile, or load from the cache, what a run needs: half a minute once per machine, then a second.

    Call it before a process forks, so that each child need not do it again.

    >>> import secagg
    >>> secagg.warm_up()
    """
    from secagg.simulation.secure_sum import secure_sum

    secure_sum([[0.0] * 8] * 4, clip=1.0, drop=[3])


@contextmanager
def announce_compilation(on_compile: Callable[[str], None]) -> Iterator[None]:
    """Inside this context, call `on_compile` with a function's name each time one must be compiled.

    >>> import secagg
    >>> with secagg.announce_compilation(lambda name: None):
    ...     secagg.warm_up()
    """
    from secagg.kernels.jit import announce  # imports numba

    with announce(on_compile):
        yield
