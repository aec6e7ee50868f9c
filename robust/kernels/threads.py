"""Cutting columns into pieces and sharing them among threads.

Where a piece begins and ends depends on the matrix alone, so results do not depend on the number of
threads. Threads are started for each call and joined before it returns: there is no pool to leak, to
survive a fork half alive, or to clash with the caller's own threads. Kernels release the GIL.
"""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable
from contextlib import suppress

_limit = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """The largest number of threads that one call may use."""
    return _limit


def set_threads(count: int) -> None:
    """Let each call use at most this many threads; the default is the number of usable cores."""
    global _limit
    if count < 1:
        raise ValueError(f"at least one thread is needed, got {count}")
    _limit = count


def spread(work: Callable[[int, int, int], None], columns: int, step: int) -> None:
    """Call work(number, start, stop) for every piece of at most `step` columns, on several threads."""
    count = -(-columns // step)
    numbers = iter(range(count))
    turn = threading.Lock()
    failures: list[BaseException] = []

    def take() -> int | None:
        with turn:
            return next(numbers, None)

    def labour() -> None:
        try:
            while (number := take()) is not None:
                work(number, number * step, min((number + 1) * step, columns))
        except BaseException as failure:  # handed to the caller below; never lost in a thread
            failures.append(failure)

    helpers: list[threading.Lock] = []
    with suppress(RuntimeError):  # no thread could be started: those there are do all the work
        while len(helpers) < min(_limit, count) - 1:
            helpers.append(_begin(labour))
    labour()
    while helpers:
        try:
            helpers[-1].acquire()
            helpers.pop()
        except BaseException as interruption:  # they still write into the result
            failures.append(interruption)
    if failures:
        raise failures[0]


def _begin(work: Callable[[], None]) -> threading.Lock:
    """Start a thread and return a lock that can be had when it is over.

    threading.Thread would wait until the new thread runs; the caller had better work meanwhile.
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
