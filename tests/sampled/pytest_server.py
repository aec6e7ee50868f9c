"""Runs pytest many times in one copy of the tree: what all runs import is imported once, and each run is a fork.

    python -m tests.sampled.pytest_server      # in the copy; a line of JSON in, a line of JSON out

A run gets test files or tests in their order, stops at the first failure, and stops when its budget of processor time
is used. A single test that uses far more than it should ends the process: the system's own timers do that, because a
compiled loop that never ends gives Python no turn to act on a signal.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HEAVY = (
    "numpy",
    "numba",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "nacl.bindings",
    "hypothesis",
    "msgspec",
)
HEAVY_TOO = ("hypothesis.extra.numpy", "matplotlib.figure", "rich.progress", "jinja2", "safetensors.torch", "torch")
ENDLESS, SILENT = 100, 900  # seconds of processor time, and of any time, for one test
TOO_LONG, BROKEN = 97, 98  # exit codes
TIMERS = (signal.SIGPROF, signal.SIGALRM)  # of processor time and of any time
ANSWER, RUNNING = Path("answer.json").absolute(), Path("running.txt").absolute()  # what came out; the test that runs


def cost() -> float:
    """Processor time of this process and of those that it started and waited for."""
    return sum(os.times()[:4])


class Watch:
    """Notes what each test costs and which one failed, and ends the run in time."""

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self.failed = ""
        self.ran: dict[str, float] = {}
        self.stopped = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        start = cost()
        RUNNING.write_text(item.nodeid)
        signal.setitimer(signal.ITIMER_PROF, ENDLESS)
        signal.alarm(SILENT)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            self.ran[item.nodeid] = round(cost() - start, 2)
            if sum(self.ran.values()) > self._budget:
                self.stopped = True
                item.session.shouldstop = "the budget is used"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid or "an import"


def run(tests: list[str], budget: float) -> dict[str, Any]:
    """In the child: run pytest and say what came out."""
    for number in TIMERS:
        signal.signal(number, signal.SIG_DFL)
    watch = Watch(budget)
    signal.setitimer(signal.ITIMER_PROF, ENDLESS)  # also while tests are collected: imports may never end
    signal.alarm(SILENT)
    code = pytest.main(
        ["-q", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", *tests], [watch]
    )
    return {"code": int(code), "failed": watch.failed, "ran": watch.ran, "stopped": watch.stopped}


def end_with_parent() -> None:
    """A killed run leaves no process behind in a copy that another run continues with."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, of Linux


def fork(tests: list[str], budget: float) -> dict[str, Any]:
    """Run pytest in a fork that has a session of its own, so that all its processes end with it."""
    ANSWER.unlink(missing_ok=True)
    RUNNING.write_text("")
    child = os.fork()
    if child == 0:
        os.setsid()
        end_with_parent()
        log = os.open("pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            ANSWER.write_text(json.dumps(run(tests, budget)))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(BROKEN)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        found: dict[str, Any] = json.loads(ANSWER.read_text())
        return found
    if -code in TIMERS:
        return {"code": TOO_LONG, "failed": RUNNING.read_text(), "ran": {}, "stopped": False}
    return {"code": code, "failed": "", "ran": {}, "stopped": False}


def main() -> None:
    end_with_parent()
    for name in (*HEAVY, *HEAVY_TOO):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        wanted = json.loads(line)
        print(json.dumps(fork(wanted["tests"], wanted["budget"])), flush=True)


if __name__ == "__main__":
    main()
