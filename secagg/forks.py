"""One range of work over forked processes, for Python code that holds the global lock.

The counterpart of `parallel`, which is for kernels that run without it: X25519 and HKDF do not. A
child inherits all it needs by the fork, writes its results into memory that it shares with its parent, and
ends; nothing is pickled, and no process outlives the call.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import warnings
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt


def spread(
    work: Callable[[int, int], bytes], count: int, *, width: int, processes: int, least: int = 1
) -> npt.NDArray[np.uint8]:
    """`work(a, b)` gives `width` bytes for each item from a to b; the result has one row per item of `count`.

    At most `processes` take part, this one among them, and none gets fewer than `least` items: a fork costs
    milliseconds. Where a system cannot fork, everything is done here. If a child fails, its part is done
    again here, so that its error is raised where it can be handled.
    """
    parts = max(1, min(processes if hasattr(os, "fork") else 1, count // least))
    if parts == 1:
        return np.frombuffer(work(0, count), np.uint8).reshape(count, width)
    memory = mmap.mmap(-1, count * width)
    ranges = list(pairwise(count * part // parts for part in range(parts + 1)))

    def fill(start: int, stop: int) -> None:
        memory[start * width : stop * width] = work(start, stop)

    children: dict[int, tuple[int, int]] = {}
    try:
        for start, stop in ranges[1:]:
            children[_fork(fill, start, stop)] = start, stop
        fill(*ranges[0])
        while children:
            child, span = next(iter(children.items()))
            _, status = os.waitpid(child, 0)
            del children[child]
            if status != 0:
                fill(*span)
    finally:
        for child in children:  # only when something was raised here
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return np.frombuffer(memory, np.uint8).reshape(count, width)


def fork() -> int:
    """os.fork without the warning, from Python 3.12 on, that this process has other threads.

    A lock that such a thread holds at that moment stays locked in the child for ever. So fork while no other
    thread is inside secagg, numba or an import; helpers of `parallel` are gone between its calls. Where that
    cannot be promised, do not ask for several processes: one is the default.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        return os.fork()


def _fork(fill: Callable[[int, int], None], start: int, stop: int) -> int:
    child = fork()
    if child == 0:
        code = 1
        gc.disable()  # a collection would touch, and so copy, every page that is shared with the parent
        try:
            fill(start, stop)
            code = 0
        finally:
            os._exit(code)  # never run the parent's clean-up in the child
    return child
