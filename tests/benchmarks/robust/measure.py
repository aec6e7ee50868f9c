"""Measure times in turns, memory, and the first use in a new process."""

import contextlib
import ctypes
import importlib.metadata
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import robust
from tests.benchmarks.robust.peers import in_byzfl, in_torch, load_byzfl, load_torch, seconds
from tests.benchmarks.robust.plain import Call, Matrix, in_numpy, parameters
from tests.benchmarks.robust.results import FirstUse, Memory, Report, Timing, judge

ROOT = Path(robust.__file__).parent.parent
TURN = 0.1  # seconds that a call has in every round, or one run
PATIENCE = 3.0  # seconds for one call in all, or one run
LIMIT = 30.0  # seconds that one call of a peer may take, by the estimates in `peers`


def bad_rows(rule: str, n: int) -> int:
    """f for this benchmark: a fifth of the rows, or what an exact search does in reasonable time."""
    if rule == "smea":
        return 2 if n <= 20 else 1
    return min(n // 5, 4 if rule == "mda" else n)


def clock(call: Call, x: Any) -> tuple[float, float]:
    """Milliseconds of wall-clock time, and of computing time on all cores."""
    start, cores = time.perf_counter(), time.process_time()
    call(x)
    return (time.perf_counter() - start) * 1e3, (time.process_time() - cores) * 1e3


def in_turns(calls: dict[str, tuple[Call, Callable[[], Any]]], rounds: int) -> dict[str, float]:
    """Best and typical (median) time of each call. Each has a turn in every round; slow ones stop early."""
    best = dict.fromkeys(calls, math.inf)
    spent = dict.fromkeys(calls, 0.0)
    every: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (call, fresh) in calls.items():
            turn = 0.0
            while turn < TURN * 1e3 and spent[name] < PATIENCE * 1e3:
                took, computing = clock(call, fresh())
                best[name] = min(best[name], took)
                every[name].append(took)
                best[name + "_cores"] = min(best.get(name + "_cores", math.inf), computing)
                turn += took
                spent[name] += took
    return best | {f"{name}_typical": statistics.median(times) for name, times in every.items() if times}


def status(key: str) -> float:
    """A line of /proc/self/status, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return math.nan


def peak_memory(call: Call, x: Any) -> float:
    """MB that a call needs above what the process holds already, including its result."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # freed memory that is still held would hide what the call uses
    try:
        before = status("VmRSS:")
        Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    except OSError:
        return math.nan
    call(x)
    return status("VmHWM:") - before


def on_two(x: Matrix, work: Callable[[slice], Any]) -> Call:
    """Work on the two halves of a matrix, on two threads."""
    half = len(x) // 2

    def call(_: Matrix) -> None:
        helper = threading.Thread(target=work, args=(slice(0, half),))
        helper.start()
        work(slice(half, None))
        helper.join()

    return call


def readings(x: Matrix) -> dict[str, tuple[Call, Callable[[], Any]]]:
    """Reading once, on one thread and on two: the faster one counts."""
    return {"read": (lambda m: m.max(), lambda: x), "read on two": (on_two(x, lambda part: x[part].max()), lambda: x)}


def measure_memory(x: Matrix, rounds: int) -> Memory:
    """Reading once and copying once, each on one thread or on two, the faster one."""
    target = np.empty_like(x)
    best = in_turns(
        {
            **readings(x),
            "copy": (lambda m: np.copyto(target, m), lambda: x),
            "copy on two": (on_two(x, lambda part: np.copyto(target[part], x[part])), lambda: x),
        },
        rounds,
    )
    return Memory(*x.shape, min(best["read"], best["read on two"]), min(best["copy"], best["copy on two"]))


def measure_rule(
    rule: str, x: Matrix, rounds: int, torch: Any = None, byzfl: Any = None, limit: float = LIMIT
) -> Timing:
    n, width = x.shape
    f = bad_rows(rule, n)
    found = Timing(rule, n, width, f)
    ours = {**robust.AGGREGATORS, **robust.PRE_AGGREGATORS}[rule]
    changes_input = rule in {"clipping", "arc"}  # in ByzFL: it gets a copy, made outside the timing

    def run(m: Matrix) -> Any:
        return ours(m, **parameters(rule, n, f, width))

    found.output = run(x).nbytes / 2**20  # also compiles, before anything is timed

    def affordable(peer: str, call: Call | None) -> Call | None:
        needed = seconds(peer, rule, n, f, width)
        if call is None or needed <= limit:
            return call
        found.left_out.append(f"{peer} would take about {needed:,.0f} s")
        return None

    calls: dict[str, tuple[Call, Callable[[], Any]]] = {"ours": (run, lambda: x)}
    if rule == "median":  # reading takes its turns beside it
        calls |= readings(x)
    if plain := affordable("numpy", in_numpy(rule, n, f, width)):
        calls["numpy"] = (plain, lambda: x)
    if native := in_torch(rule, n, f, torch):
        calls["torch"] = (native, lambda: torch.from_numpy(x))
    if peer := affordable("ByzFL", in_byzfl(rule, n, f, width, byzfl)):
        calls["byzfl"] = (peer, lambda: x.copy() if changes_input else x)
        if torch is not None and rule != "median":  # torch.quantile refuses inputs of this size
            calls["byzfl_torch"] = (peer, lambda: torch.from_numpy(x.copy() if changes_input else x))
    best = in_turns(calls, rounds)
    best["read"] = min(best.get("read", math.inf), best.pop("read on two", math.inf))
    if rule == "median":
        found.ours_typical = best["ours_typical"]
        found.read_typical = min(best["read_typical"], best["read on two_typical"])
    for name in ("ours_cores", "read", *(call for call in calls if call in best)):
        setattr(found, name, best[name])
    found.peak = peak_memory(run, x)
    if peer:
        found.byzfl_peak = peak_memory(peer, x.copy() if changes_input else x)
    return found


FRESH = """
import sys, time
start = time.perf_counter()
import numpy, robust
x = numpy.random.default_rng(0).standard_normal((60, 2000)).astype('f')
rule, f = {rule!r}, {f}
found = {{**robust.AGGREGATORS, **robust.PRE_AGGREGATORS}}[rule]
options = dict(
    f=f, trusted=0, loss=lambda g: float(g[0]), gradient=numpy.full(2000, -1e-3, dtype='f'),
    radius=20.0, size=2, rng=numpy.random.default_rng(0), server=numpy.full(2000, 1e-3, dtype='f'),
)
found(x, **{{name: options[name] for name in found.parameters if name in options}})
print(time.perf_counter() - start, time.process_time())
"""


def measure_first_use(rule: str) -> FirstUse:
    found = {**robust.AGGREGATORS, **robust.PRE_AGGREGATORS}[rule]
    code = FRESH.format(rule=rule, f=min(bad_rows(rule, 60), found.largest_f(60)))

    def once(**environment: str) -> list[float]:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return [float(number) for number in done.stdout.split()]

    with tempfile.TemporaryDirectory() as empty:
        uncached = once(NUMBA_CACHE_DIR=empty)
        return FirstUse(rule, *min(once(NUMBA_CACHE_DIR=empty) for _ in range(3)), *uncached)


def machine() -> dict[str, str]:
    found = {"python": platform.python_version(), "cores": str(len(os.sched_getaffinity(0)))}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            found["processor"] = line.split(":", 1)[1].strip()
            break
    for name in ("numpy", "numba", "torch", "byzfl"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    found["load at start"] = f"{os.getloadavg()[0]:.1f}"
    return found


def measure(
    shapes: list[tuple[int, int]],
    rounds: int,
    progress: Callable[[str], None],
    limit: float = LIMIT,
    rules: Sequence[str] = (*robust.AGGREGATORS, *robust.PRE_AGGREGATORS),
) -> Report:
    report = Report(machine())
    torch, byzfl = load_torch(), load_byzfl()
    for n, width in shapes:
        x = np.random.default_rng(0).standard_normal((n, width), dtype=np.float32)
        progress(f"{n} x {width}: memory")
        report.memory.append(measure_memory(x, max(rounds, 5)))
        for rule in rules:
            progress(f"{n} x {width}: {rule}")
            report.timings.append(measure_rule(rule, x, rounds, torch, byzfl, limit))
    for rule in rules:
        progress(f"first use: {rule}")
        report.first_use.append(measure_first_use(rule))
    report.bars = judge(report)
    report.machine["load at end"] = f"{os.getloadavg()[0]:.1f}"
    return report
