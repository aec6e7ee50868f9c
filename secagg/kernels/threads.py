"""One range of work over several threads, for kernels and libraries that release the GIL.

Idle threads wait for the next call: waking one costs half of the 0.05 ms of starting one. A thread works for one call
at a time, so calls from several threads do not interfere (numba's own workqueue layer ends the process in that case).
"""

import _thread
import itertools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

from secagg.arguments import whole

Result = TypeVar("Result")


def cores() -> int:
    """The number of processors that this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count(threads: int | None) -> int:
    """The caller's number of threads, or one per core."""
    return cores() if threads is None else whole("threads", threads, least=1)


def spread(work: Callable[[int, int], Result], start: int, stop: int, *, step: int, threads: int) -> list[Result]:
    """Call `work(a, b)` for pieces that cover [start, stop), cut at multiples of `step`.

    A free thread takes the next piece: large pieces first (half of an equal share of the rest), single steps at the
    end, so that a slow thread does not delay the others. The results are in no particular order. The first exception of
    any thread is raised here when all threads have stopped.
    """
    if threads == 1 or stop - start <= step:
        edges = [start, *range((start // step + 1) * step, stop, step), stop]
        return [work(a, b) for a, b in itertools.pairwise(edges) if a < b]
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
            failed = True  # stops the others
            raise

    together(drain, min(threads, -(-(stop - start) // step)))
    return results


def together(work: Callable[[], None], threads: int) -> None:
    """Call `work` once in each of up to `threads` threads, including this one.

    There may be fewer if the system starts no more, so `work` must take whatever is left to do. The first
    exception, of any thread or of waiting for one, is raised here when all have ended.
    """
    failures: list[BaseException] = []

    def attempt() -> None:
        try:
            work()
        except BaseException as failure:  # raised below, in the caller's thread
            failures.append(failure)

    running: list[threading.Lock] = []
    with suppress(RuntimeError):  # no thread could be started
        while len(running) < threads - 1:
            running.append(_start(attempt))
    attempt()
    while running:
        try:
            running[-1].acquire()
            running.pop()
        except BaseException as interruption:  # the threads still use the caller's data
            failures.append(interruption)
    if failures:
        raise failures[0]


Task: TypeAlias = tuple[Callable[[], None], threading.Lock]  # the work, and the lock to release after it

_idle: list[SimpleQueue[Task]] = []  # the task queue of each idle thread
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a child has none of its parent's threads


def _start(work: Callable[[], None]) -> threading.Lock:
    """Run work on an idle or new thread; the lock is released when it is done."""
    try:
        tasks = _idle.pop()
    except IndexError:
        tasks = SimpleQueue()
        _thread.start_new_thread(_serve, (tasks,))
    done = threading.Lock()
    done.acquire()
    tasks.put((work, done))
    return done


def _serve(tasks: SimpleQueue[Task]) -> None:
    """The loop of a thread. The work does not raise: `together` catches its exceptions."""
    while True:
        work, done = tasks.get()
        work()
        del work  # releases the caller's data
        _idle.append(tasks)
        done.release()
