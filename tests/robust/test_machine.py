"""Threads and compiled code: how many are started, which failure is reported, and which directory is safe."""

import os
import stat
import threading
import types
from pathlib import Path

import pytest

from robust.kernels import jit, threads


@pytest.mark.parametrize(
    ("limit", "columns", "step", "started"),
    [(1, 10, 1, 0), (2, 10, 1, 1), (3, 10, 1, 2), (3, 10, 5, 1), (3, 10, 10, 0), (3, 11, 10, 1), (5, 3, 1, 2)],
)
def test_no_more_threads_than_pieces_and_the_caller_is_one_of_them(
    limit: int, columns: int, step: int, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    real = threads._start
    monkeypatch.setattr(threads, "_limit", limit)
    monkeypatch.setattr(threads, "_start", lambda work: begun.append(work) or real(work))
    done: list[tuple[int, int, int]] = []
    threads.spread(lambda *piece: done.append(piece), columns, step)
    assert len(begun) == started
    assert sorted(done) == [(k, start, min(start + step, columns)) for k, start in enumerate(range(0, columns, step))]


def test_at_least_one_thread_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_limit", 7)
    threads.set_threads(1)
    assert threads._limit == 1
    for count in (0, -1):
        with pytest.raises(ValueError, match=f"^at least one thread is needed, got {count}$"):
            threads.set_threads(count)
    assert threads._limit == 1


def test_the_first_failure_is_the_one_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_limit", 1)
    done: list[int] = []

    def work(number: int, start: int, stop: int) -> None:
        done.append(number)
        if number >= 2:
            raise KeyError(number)

    with pytest.raises(KeyError, match="2"):
        threads.spread(work, 9, 1)
    assert done == [0, 1, 2]


def test_a_thread_that_was_started_releases_its_lock_when_it_ends() -> None:
    go, seen = threading.Event(), list[bool]()

    def work() -> None:
        go.wait(60)
        seen.append(True)
        raise SystemExit  # ends a thread quietly

    running = threads._start(work)
    assert running.locked()
    go.set()
    assert running.acquire(timeout=60)
    assert seen == [True]


class Place:
    """A directory with an owner and a mode, below another."""

    def __init__(self, owner: int, mode: int, above: "Place | None" = None) -> None:
        self._found = types.SimpleNamespace(st_uid=owner, st_mode=mode | stat.S_IFDIR)
        self._above = above

    def resolve(self) -> "Place":
        return self

    @property
    def parents(self) -> "list[Place]":
        return [] if self._above is None else [self._above, *self._above.parents]

    def stat(self) -> object:
        return self._found


ME, OTHER, STICKY = 1000, 1001, stat.S_ISVTX


@pytest.mark.parametrize(
    ("owner", "mode", "above", "private"),
    [
        (ME, 0o700, (0, 0o755), True),
        (0, 0o755, (0, 0o755), True),
        (ME, 0o700, (ME, 0o755), True),
        (ME, 0o700, (0, STICKY | 0o777), True),  # as /tmp is
        (ME, 0o770, (0, 0o755), False),
        (ME, 0o702, (0, 0o755), False),
        (ME, STICKY | 0o777, (0, 0o755), False),  # others could add a file
        (ME, 0o700, (0, 0o777), False),
        (ME, 0o700, (0, 0o775), False),
        (ME, 0o700, (OTHER, 0o755), False),
        (OTHER, 0o700, (0, 0o755), False),
    ],
)
def test_a_cache_is_used_only_where_nobody_else_can_write(
    owner: int, mode: int, above: tuple[int, int], private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: ME, raising=False)
    assert jit.is_private(Place(owner, mode, Place(*above))) is private  # type: ignore[arg-type]
    monkeypatch.delattr(os, "getuid")
    assert jit.is_private(Place(OTHER, 0o777)) is True  # type: ignore[arg-type]


def test_code_in_an_index_older_than_a_source_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the directory of the sources, and only for the kernel that is asked for."""
    (tmp_path / "__pycache__").mkdir()
    for name, when in (("one.py", 100), ("two.py", 200)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (when, when))
    ages = {"one.work-1.nbi": 199, "one.work-2.nbi": 200, "one.work-3.nbi": 201, "one.other-1.nbi": 1}
    for name, when in ages.items():
        (tmp_path / "__pycache__" / name).touch()
        os.utime(tmp_path / "__pycache__" / name, (when, when))

    def made(**options: object) -> object:
        assert options == {"cache": True, "nogil": True}
        stats = types.SimpleNamespace(cache_path=str(tmp_path / "__pycache__"))
        return lambda function: types.SimpleNamespace(stats=stats)

    function = types.SimpleNamespace(
        __name__="work", __code__=types.SimpleNamespace(co_filename=str(tmp_path / "one.py"))
    )
    monkeypatch.setattr("numba.njit", made)
    assert jit._cached(function, {"nogil": True}) is not None  # type: ignore[arg-type]
    kept = sorted(file.name for file in (tmp_path / "__pycache__").iterdir())
    assert kept == ["one.other-1.nbi", "one.work-2.nbi", "one.work-3.nbi"]


def test_another_directory_must_be_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "one.py").touch()
    stats = types.SimpleNamespace(cache_path=str(elsewhere))
    monkeypatch.setattr("numba.njit", lambda **_: lambda function: types.SimpleNamespace(stats=stats))
    function = types.SimpleNamespace(
        __name__="work", __code__=types.SimpleNamespace(co_filename=str(tmp_path / "one.py"))
    )
    for private in (True, False):
        monkeypatch.setattr(jit, "is_private", lambda where, private=private: private)
        assert (jit._cached(function, {}) is not None) is private  # type: ignore[arg-type]


def test_a_kernel_is_compiled_once_for_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[object, str, dict[str, object]]] = []

    def compile_it(function: object, signature: str, options: dict[str, object]) -> object:
        built.append((function, signature, options))
        return lambda x: x + 1

    def work(x: int) -> int:
        return x

    monkeypatch.setattr(jit, "_compile", compile_it)
    kernel = jit.compiled("int64(int64)", fastmath=frozenset({"contract"}))(work)
    assert built == []
    assert [kernel(1), kernel(5)] == [2, 6]
    assert built == [(work, "int64(int64)", {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}})]
