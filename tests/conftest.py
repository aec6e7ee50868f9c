"""What makes the suite short: the order of the tests, where their files are, and threads that do not compete.

- The longest tests come first, so that no process waits for another at the end of a run in parallel.
- Temporary files are in memory where a machine has room for them: the tests write and sync tens of thousands of small
  files. TMPDIR or `--basetemp` choose another place.
- Processes that run tests in parallel share the processor's cores. Otherwise each has as many threads for linear
  algebra as there are cores, and threads that wait for each other took a quarter of the time.
- Processes that run the whole suite in parallel share what must be compiled: kernels, and test files (`sharing.py`).
- What exists once all tests are known is not looked at again by the garbage collector.
"""

import gc
import os
import tempfile
from pathlib import Path
from shutil import disk_usage

import pytest

FIRST = ("tests/test_wheel.py", "tests/flower/test_processes.py", "tests/fl/test_quickstart.py")
MEMORY, ROOM = Path("/dev/shm"), 4 * 2**30


def has_room(folder: Path) -> bool:
    """Whether files and programs can be written there, gigabytes of them."""
    if not (folder.is_dir() and os.access(folder, os.W_OK) and disk_usage(folder).free > ROOM):
        return False
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC


if "TMPDIR" not in os.environ and has_room(MEMORY):
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None  # found anew

if processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, str(max(1, (os.cpu_count() or 1) // processes)))


def pytest_sessionstart(session: pytest.Session) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, ...
    if worker and [Path(arg).resolve() for arg in session.config.args] == [Path(__file__).resolve().parent]:
        from tests import sharing  # imports numpy, after its number of threads is chosen above

        sharing.compile_kernels(int(worker[2:]))
        sharing.compile_tests(int(worker[2:]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


def pytest_collection_finish() -> None:
    gc.freeze()
