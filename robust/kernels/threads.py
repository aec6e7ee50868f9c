"""Cut the columns into pieces and share them among threads.

The pieces depend on the matrix alone, so results do not depend on the number of threads. Threads are started
for each call and joined before it returns. There is no pool that could leak, break after a fork, or compete
with the caller's own threads. Kernels release the GIL.
"""

import _thread
import os
import threading
from collections.abc import Callable
from contextlib import suppress

_limit = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(count: int) -> None:
    """Let each call use at most this many threads; the default is the number of usable cores.

    >>> import robust
    >>> robust.set_threads(2)
    """
    global _limit
    if count < 1:
        raise ValueError(f"at least one thread is needed, got {count}")
    _limit = count


def spread(work: Callable[[int, int, int], None], columns: int, step: int) -> None:
    """Call work(number, start, stop) for every piece of at most `step` columns, on several threads."""
    count = -(-columns // step)
    numbers = iter(range(count))
    taking = threading.Lock()
    failures: list[BaseException] = []

    def take() -> int | None:
        with taking:
            return next(numbers, None)

    def run() -> None:
        try:
            while (number := take()) is not None:
                work(number, number * step, min((number + 1) * step, columns))
        except BaseException as failure:  # raised again in the caller's thread below
            failures.append(failure)

    running: list[threading.Lock] = []
    with suppress(RuntimeError):  # no more threads can be started: the ones that run do all the work
        while len(running) < min(_limit, count) - 1:
            running.append(_start(run))
    run()
    while running:
        try:
            running[-1].acquire()
            running.pop()
        except BaseException as interruption:  # wait all the same: the threads still write into the result
            failures.append(interruption)
    if failures:
        raise failures[0]


def _start(work: Callable[[], None]) -> threading.Lock:
    """Start a thread without waiting until it runs; return a lock that is released when it ends."""
    running = threading.Lock()
    running.acquire()

    def run() -> None:
        try:
            work()
        finally:
            running.release()

    _thread.start_new_thread(run, ())
    return running
