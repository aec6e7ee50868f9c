"""Compiled code and threads: right for every shape, safe to cache, and compilation is reported."""

import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import robust
from robust.kernels import threads as parallel

ROOT = Path(robust.__file__).parent.parent
USE = "import numpy, robust; print(robust.mean(numpy.arange(30.).reshape(5, 6))[0])"


@pytest.mark.parametrize("width", [1, 7, 8, 31, 32, 33, 63, 64, 65, 1000, 4097])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 24, 61])
def test_every_width_and_number_of_rows(n: int, width: int) -> None:
    x = np.random.default_rng([n, width]).standard_normal((n, width)).astype(np.float32)
    assert np.allclose(robust.median(x), np.median(x, axis=0), atol=1e-6)
    f = (n - 1) // 3
    ordered = np.sort(x, axis=0)[f : n - f]
    assert np.allclose(robust.trimmed_mean(x, f=f), ordered.mean(axis=0, dtype=np.float64), atol=1e-6)
    assert np.allclose(robust.mean(x), x.mean(axis=0, dtype=np.float64), atol=1e-6)


def test_a_bad_value_in_any_place_is_noticed() -> None:
    for width in (1, 33, 100):
        for place in {0, width // 2, width - 1}:
            for row in range(13):
                x = np.zeros((13, width), dtype=np.float32)
                x[row, place] = np.nan
                for rule in (robust.median, robust.mean, robust.geometric_median, robust.norm_bounded_mean):
                    assert rule.detail(x).ignored == (row,)


def test_many_threads_may_call_at_once() -> None:
    x = np.random.default_rng(0).standard_normal((20, 50_000)).astype(np.float32)
    expected = robust.median(x), robust.krum(x, f=4)
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda _: (robust.median(x), robust.krum(x, f=4)), range(20)))
    assert len(found) == 20
    assert all(np.array_equal(both, expected) for both in found)


def test_every_piece_is_done_once_and_failures_reach_the_caller() -> None:
    done = []
    parallel.spread(lambda number, start, stop: done.append((number, start, stop)), 10, 3)
    assert sorted(done) == [(0, 0, 3), (1, 3, 6), (2, 6, 9), (3, 9, 10)]

    def fail(number: int, start: int, stop: int) -> None:
        raise KeyError(number)

    with pytest.raises(KeyError):
        parallel.spread(fail, 10, 3)
    with pytest.raises(ValueError, match="at least one thread"):
        parallel.set_threads(0)


def test_threads_that_cannot_start_or_are_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pieces are done in any case, and no thread works on the result after the call."""
    caller, done, begin = threading.get_ident(), [], parallel._start
    monkeypatch.setattr(parallel, "_limit", 3)

    def work(number: int, start: int, stop: int) -> None:
        if threading.get_ident() != caller:
            time.sleep(0.1)
        done.append(number)

    class Interrupted:
        def __init__(self, over: threading.Lock) -> None:
            self.over, self.times = over, 0

        def acquire(self) -> None:
            self.times += 1
            if self.times == 1:
                raise KeyboardInterrupt
            self.over.acquire()

    monkeypatch.setattr(parallel, "_start", lambda work: Interrupted(begin(work)))
    with pytest.raises(KeyboardInterrupt):
        parallel.spread(work, 10, 1)
    assert sorted(done) == list(range(10))

    def refuse(work: object, arguments: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.undo()
    monkeypatch.setattr(parallel, "_limit", 3)
    monkeypatch.setattr("_thread.start_new_thread", refuse)
    done.clear()
    parallel.spread(work, 10, 1)
    assert done == list(range(10))


def test_a_forked_child_can_aggregate() -> None:
    """A child does not need the parent's threads."""
    code = (
        "import os, numpy, robust\n"
        "x = numpy.random.default_rng(0).standard_normal((9, 200000)).astype('f')\n"
        "first = robust.median(x)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if (robust.median(x) == first).all() else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert fresh(code).stdout.strip() == "0"


def fresh(code: str, root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process that imports the package from `root`."""
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "PYTHONPATH": str(root), **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )


def test_number_of_linear_algebra_threads_does_not_matter() -> None:
    """Some rules solve n by n problems with numpy's BLAS, which has threads of its own."""
    code = (
        "import hashlib, numpy, robust\n"
        "cases = ('caf', 200, {'f': 40}), ('smea', 60, {'f': 1}), ('geometric_median', 200, {})\n"
        "for rule, n, options in cases:\n"
        "    x = numpy.random.default_rng(n).standard_normal((n, 300)).astype('f')\n"
        "    found = robust.aggregate(rule, x, **options)\n"
        "    print(hashlib.sha256(found.vector.tobytes() + found.weights.tobytes()).hexdigest())\n"
    )
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    one, two = (fresh(code, **dict.fromkeys(names, count)).stdout for count in ("1", "2"))
    assert len(one.split()) == 3
    assert one == two


def test_importing_is_quick_and_alone() -> None:
    code = (
        "import sys, robust, robust.tolerance\n"
        "robust.tolerance.clean_clusters(60, 12, 3)\n"
        "print(sorted({'numba', 'torch', 'secagg', 'fl', 'scipy'} & set(sys.modules)))"
    )
    assert fresh(code).stdout.strip() == "[]"


def test_first_compilation_says_so_and_the_next_process_finds_it_cached(tmp_path: Path) -> None:
    private = tmp_path / "cache"
    private.mkdir(mode=0o700)
    first = fresh(USE, NUMBA_CACHE_DIR=str(private))
    assert "robust: compiling sum_rows for this machine (kept in" in first.stderr
    second = fresh(USE, NUMBA_CACHE_DIR=str(private))
    assert second.stderr == ""
    assert first.stdout == second.stdout == "12.0\n"


def test_compilation_can_be_reported_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    code = "import robust; robust.on_compile(lambda line: print('got', line)); " + USE
    found = fresh(code, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert found.stderr == ""
    assert "got robust: compiling sum_rows" in found.stdout


def test_kernels_work_without_a_writable_cache(tmp_path: Path) -> None:
    """Files in the place of the cache directories: root could write to read-only ones."""
    shutil.copytree(ROOT / "robust", tmp_path / "robust", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "robust" / "kernels" / "__pycache__").touch()
    (tmp_path / "home").touch()
    home = str(tmp_path / "home")
    found = fresh(USE, tmp_path, HOME=home, XDG_CACHE_HOME=home, PYTHONDONTWRITEBYTECODE="1")
    assert "not kept: no safe cache directory" in found.stderr
    assert found.stdout == "12.0\n"


def test_a_change_of_any_kernel_file_makes_the_cache_stale(tmp_path: Path) -> None:
    """Numba checks only the file of the kernel, but the network is in another file."""
    shutil.copytree(ROOT / "robust", tmp_path / "robust", ignore=shutil.ignore_patterns("__pycache__"))
    assert "compiling" in fresh(USE, tmp_path).stderr
    assert "compiling" not in fresh(USE, tmp_path).stderr
    source = tmp_path / "robust" / "kernels" / "network.py"
    later = time.time() + 3600
    os.utime(source, (later, later))
    assert "compiling" in fresh(USE, tmp_path).stderr


def test_a_disabled_compiler_is_named() -> None:
    code = f"try:\n    {USE}\nexcept RuntimeError as error:\n    print(error)"
    assert "unset NUMBA_DISABLE_JIT" in fresh(code, NUMBA_DISABLE_JIT="1").stdout
