"""Work is cut without gaps or overlaps, done by several threads, and its errors are not lost."""

import _thread
import threading
import time
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import UsageError
from secagg.kernels import threads as parallel


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(0, 300), st.integers(1, 100), st.integers(1, 5))
def test_pieces_cover_the_range_once_and_are_cut_at_multiples(start: int, length: int, step: int, threads: int) -> None:
    pieces = sorted(parallel.spread(lambda a, b: (a, b), start, start + length, step=step, threads=threads))
    assert [x for a, b in pieces for x in range(a, b)] == list(range(start, start + length))
    assert all(a % step == 0 for a, _ in pieces[1:])
    assert all(a < b for a, b in pieces)


def test_as_many_threads_as_asked_work_at_the_same_time() -> None:
    meeting = threading.Barrier(3)  # passes only when three are inside at once
    parallel.spread(lambda a, b: meeting.wait(timeout=20), 0, 3, step=1, threads=3)


def test_one_thread_means_the_caller() -> None:
    names = parallel.spread(lambda a, b: threading.current_thread(), 0, 5, step=1, threads=1)
    assert set(names) == {threading.current_thread()}


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_any_piece_reaches_the_caller(threads: int) -> None:
    def work(a: int, b: int) -> None:
        if a <= 7 < b:
            raise ZeroDivisionError("piece 7")

    with pytest.raises(ZeroDivisionError, match="piece 7"):
        parallel.spread(work, 0, 20, step=1, threads=threads)


def test_idle_threads_wait_for_the_next_call_and_keep_nothing_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_idle", [])

    def call() -> tuple[set[int], weakref.ref[threading.Barrier]]:
        meeting, seen = threading.Barrier(3), set()

        def work() -> None:
            meeting.wait(timeout=20)
            seen.add(threading.get_ident())

        parallel.together(work, 3)
        return seen, weakref.ref(meeting)

    first, given = call()
    assert given() is None
    assert len(parallel._idle) == 2
    assert call()[0] == first  # the same two, and the caller


def test_together_is_once_in_every_thread_and_the_first_error_reaches_the_caller() -> None:
    meeting, seen = threading.Barrier(3), []

    def work() -> None:
        meeting.wait(timeout=20)
        seen.append(threading.get_ident())

    parallel.together(work, 3)
    assert len(set(seen)) == 3
    assert threading.get_ident() in seen

    def fail() -> None:
        raise ZeroDivisionError("in any of them")

    with pytest.raises(ZeroDivisionError, match="in any"):
        parallel.together(fail, 3)


def test_fewer_threads_than_asked_for_do_all_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    real, begun = _thread.start_new_thread, []

    def one_only(work: Callable[[], None], arguments: tuple[()]) -> int:
        if begun:
            raise RuntimeError("can't start new thread")
        begun.append(work)
        return real(work, arguments)

    monkeypatch.setattr(parallel, "_idle", [])
    monkeypatch.setattr(_thread, "start_new_thread", one_only)
    pieces = parallel.spread(lambda a, b: (a, b), 0, 100, step=1, threads=4)
    assert sorted(x for a, b in pieces for x in range(a, b)) == list(range(100))
    assert len(begun) == 1


def test_an_interruption_waits_for_the_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the caller waits: the threads still write into the caller's data."""
    caller, done, real = threading.get_ident(), [], parallel._start

    class Interrupted:
        def __init__(self, over: threading.Lock) -> None:
            self.over, self.times = over, 0

        def acquire(self) -> None:
            self.times += 1
            if self.times == 1:
                raise KeyboardInterrupt
            self.over.acquire()

    def work() -> None:
        if threading.get_ident() != caller:
            time.sleep(0.2)
            done.append(True)

    monkeypatch.setattr(parallel, "_start", lambda work: Interrupted(real(work)))
    with pytest.raises(KeyboardInterrupt):
        parallel.together(work, 3)
    assert len(done) == 2


def test_thread_counts() -> None:
    assert parallel.thread_count(None) == parallel.cores() >= 1
    assert parallel.thread_count(3) == 3
    with pytest.raises(UsageError, match="at least 1"):
        parallel.thread_count(0)
