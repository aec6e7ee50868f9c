"""One range of work over several threads, for kernels that run without the GIL.

The threads live for one call. Starting one costs less than 0.1 ms, and in return nothing has to survive a
fork, nothing is shared between callers, and callers in several threads cannot get into each other's way
(numba's own workqueue layer ends the process when they do).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from secagg.errors import UsageError

Result = TypeVar("Result")


def cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count(threads: int | None) -> int:
    """The caller's number of threads, or one per core."""
    if threads is None:
        return cores()
    if threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}")
    return threads


def spread(
    work: Callable[[int, int], Result], start: int, stop: int, *, step: int, threads: int
) -> list[Result]:
    """Call `work(a, b)` for pieces that cover [start, stop), cut at multiples of `step`; results in no order.

    Pieces are handed out as threads become free, so a core that is busy elsewhere does not hold up the rest.
    The first exception of any thread is raised here, after all of them have stopped.
    """
    edges = [start, *range((start // step + 1) * step, stop, step), stop]
    pieces = list(itertools.pairwise(edges)) if stop > start else []
    if threads == 1 or len(pieces) < 2:
        return [work(a, b) for a, b in pieces]
    queue = iter(pieces)
    take = threading.Lock()
    results: list[Result] = []
    failures: list[BaseException] = []

    def drain() -> None:
        try:
            while not failures:
                with take:
                    piece = next(queue, None)
                if piece is None:
                    return
                results.append(work(*piece))
        except BaseException as failure:  # raised again below, by the caller's thread
            failures.append(failure)

    helpers = [threading.Thread(target=drain, daemon=True) for _ in range(min(threads, len(pieces)) - 1)]
    for helper in helpers:
        helper.start()
    drain()
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]
    return results
