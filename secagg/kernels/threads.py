"""One range of work over several threads, for kernels and libraries that let go of the GIL.

Helpers wait for the next call, because to start one costs the caller 0.05 ms and to wake one half of that. A
helper belongs to one call at a time, so callers in several threads cannot get into each other's way (numba's
own workqueue layer ends the process when they do), and a forked child begins without any.
"""

from __future__ import annotations

import _thread
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

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


Task: TypeAlias = tuple[Callable[[], None], threading.Lock]  # what to do, and what to release when it is over

_idle: list[SimpleQueue[Task]] = []  # of helpers that have nothing to do: where each takes its tasks from
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a child has none of its parent's threads


def _begin(work: Callable[[], None]) -> threading.Lock:
    """Let a helper begin with this, one that waits or a new one; the lock can be had when it is over."""
    try:
        tasks = _idle.pop()
    except IndexError:
        tasks = SimpleQueue()
        _thread.start_new_thread(_serve, (tasks,))
    over = threading.Lock()
    over.acquire()
    tasks.put((work, over))
    return over


def _serve(tasks: SimpleQueue[Task]) -> None:
    """The life of a helper. Work does not raise: `together` has seen to that."""
    while True:
        work, over = tasks.get()
        work()
        del work  # and with it what the caller gave
        _idle.append(tasks)
        over.release()
