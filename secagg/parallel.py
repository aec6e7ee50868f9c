"""One range of work over several threads, for kernels and libraries that let go of the GIL.

The threads live for one call. Starting one costs less than 0.1 ms, and in return nothing has to survive a
fork, nothing is shared between callers, and callers in several threads cannot get into each other's way
(numba's own workqueue layer ends the process when they do).
"""

from __future__ import annotations

import _thread
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
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

    Pieces are handed out as threads become free, large ones first (half of an equal share of what is left)
    and single steps at the end: few calls, and a thread that starts late or is held up elsewhere does not
    hold up the rest. The first exception of any thread is raised here, after all of them have stopped.
    """
    if threads == 1 or stop - start <= step:
        return [work(a, b) for a, b in _steps(start, stop, step)]
    take = threading.Lock()
    results: list[Result] = []
    failed = False
    done = start

    def next_piece() -> tuple[int, int] | None:
        nonlocal done
        with take:
            first = done
            fair = first + (stop - first) // (2 * threads)
            done = min(stop, max((first // step + 1) * step, fair // step * step))
            return (first, done) if first < stop else None

    def drain() -> None:
        nonlocal failed
        try:
            while not failed and (piece := next_piece()) is not None:
                results.append(work(*piece))
        except BaseException:
            failed = True  # the others need not go on
            raise

    together(drain, min(threads, -(-(stop - start) // step)))
    return results


def together(work: Callable[[], None], threads: int) -> None:
    """Call `work` once in each of at most so many threads, this one among them.

    Fewer if the system gives no more: `work` takes what is left to do, so this thread alone could do it all.
    The first exception is raised here, of any of them or of waiting for them, when all have ended.
    """
    failures: list[BaseException] = []

    def attempt() -> None:
        try:
            work()
        except BaseException as failure:  # raised again below, by the caller's thread
            failures.append(failure)

    helpers: list[threading.Lock] = []
    with suppress(RuntimeError):  # no thread could be started
        while len(helpers) < threads - 1:
            helpers.append(_begin(attempt))
    attempt()
    while helpers:
        try:
            helpers[-1].acquire()
            helpers.pop()
        except BaseException as interruption:  # they are still at work on what the caller gave them
            failures.append(interruption)
    if failures:
        raise failures[0]


def _steps(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    edges = [start, *range((start // step + 1) * step, stop, step), stop]
    return itertools.pairwise(edges) if stop > start else iter(())


def _begin(work: Callable[[], None]) -> threading.Lock:
    """Start a thread and return a lock that can be had when it is over.

    threading.Thread would wait until the new thread runs; the caller had better work in the meantime.
    """
    over = threading.Lock()
    over.acquire()

    def then_release() -> None:
        try:
            work()
        finally:
            over.release()

    _thread.start_new_thread(then_release, ())
    return over
