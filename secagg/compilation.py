"""The first run on a machine compiles the numeric loops: start that early, or be told of it."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache


def warm_up() -> None:
    """Compile the numeric loops of secagg, or load them from the cache of an earlier process.

    This takes half a minute once per machine, then a second once per process. Without it, each loop is compiled or
    loaded at its first use. Call it before a process forks, so that its children need not compile. The first
    compilation is announced on stderr, unless `announce_compilation` is active. Without a cache that only this user can
    write to, a `NoCacheWarning` says so.

    >>> import secagg
    >>> secagg.warm_up()
    """
    from secagg.crypto import prg
    from secagg.kernels import jit

    notice = notice_once("secagg: compiling numeric loops for this machine, once")
    with nullcontext() if jit.announced() else jit.announce(notice):
        _use_every_loop(prg.backend())


@cache
def _use_every_loop(backend: str) -> None:
    """Use every loop once; once per backend, because the loop for masks differs."""
    import numpy as np

    from secagg.crypto import hashing, noise, shamir
    from secagg.crypto.fixedpoint import FixedPoint
    from secagg.exposure.audit import Policy, audit
    from secagg.exposure.schedules import Schedule
    from secagg.kernels import jit
    from secagg.simulation.agree import make_agreement
    from secagg.simulation.secure_sum import secure_sum
    from secagg.simulation.whole import clear_whole

    jit.load()
    hashing.has_kernel()
    noise.discrete_gaussian(1, 1)
    shamir.combine(shamir.split(bytes(32), 2, 3))
    for dtype in (np.float32, np.float64):
        secure_sum([np.zeros(8, dtype)] * 4, clip=1.0, drop=[3])
    FixedPoint(clients=1, clip=1.0).decode(np.zeros(1, np.uint32), out=np.empty(1, np.float32))
    agreement, _ = make_agreement(members=3, size=3, length=8, clip=1.0)
    clear_whole(agreement, 0, dict.fromkeys(range(3), np.zeros(8)))
    groupings = Schedule(name="random", size=4, groupings=3).draw(range(12), bytes(32), round=0)
    audit(groupings, range(12), Policy(anonymity=3), plan_hash=b"")


def load_compiler() -> None:
    """Load the compiler now: a quarter of a second that the first use would take otherwise.

    Call it before a measurement that should not include it.

    >>> import secagg
    >>> secagg.load_compiler()
    """
    from secagg.kernels.jit import load  # imports numba

    load()


def announce_compilation(on_compile: Callable[[str], None]) -> AbstractContextManager[None]:
    """Inside this context, call `on_compile` with a function's name each time one must be compiled.

    >>> import secagg
    >>> with secagg.announce_compilation(lambda name: None):
    ...     secagg.warm_up()
    """
    from secagg.kernels.jit import announce  # imports numba

    return announce(on_compile)


def notice_once(text: str) -> Callable[[str], None]:
    """For `announce_compilation`: print this text on standard error at the first compilation only."""
    unsaid = [text]

    def notice(_name: str) -> None:
        if unsaid:
            print(unsaid.pop(), file=sys.stderr, flush=True)

    return notice
