"""Every rule of robust, beside plain numpy, torch and ByzFL, on the same matrices in one run.

    python tests/benchmarks/bench_robust.py [--json] [--rounds N] [--limit SECONDS] [--shape ROWSxCOLUMNS ...]

Times are the best of several, taken in turns so that a busy moment hits all alike; what is slow is repeated
less often. torch and byzfl are measured where they are installed. A peer of which one call would take
longer than the limit, by an estimate, is left out, and that is said below the table. Ends with the bars, and
with exit code 1 if one is missed. Takes about a quarter of an hour, most of it in the slow peers. Run it
on a machine that has nothing else to do: rules use all cores, so a busy neighbour hurts them more than peers
that use one. The column "core ms", the computing time of all cores together, says how much of a time was
waiting.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import robust

ROOT = Path(robust.__file__).parent.parent
STANDARD = ((20, 2_156_490), (60, 1_000_000), (200, 100_000))
TURN = 0.1  # seconds that a call has in every round, or one run
PATIENCE = 3.0  # seconds for one call in all, or one run
LIMIT = 30.0  # seconds that one call of a peer may take, by the estimates below

Matrix = NDArray[np.float32]
Call = Callable[[Matrix], Any]


@dataclass
class Timing:
    """One rule on one matrix. Times in milliseconds, memory in MB above what the process held before."""

    rule: str
    rows: int
    columns: int
    f: int
    ours: float = math.inf
    ours_cores: float = math.inf
    numpy: float = math.inf
    torch: float = math.inf
    byzfl: float = math.inf
    byzfl_torch: float = math.inf
    peak: float = math.nan
    byzfl_peak: float = math.nan
    read: float = math.inf  # reading the matrix once, in turns with the rule; of the median only
    ours_typical: float = math.inf  # not the best but the middle of all turns; of the median only
    read_typical: float = math.inf
    output: float = 0.0
    left_out: list[str] = field(default_factory=list)  # peers that would take longer than the limit

    @property
    def gb_per_s(self) -> float:
        return 4e-6 * self.rows * self.columns / self.ours


@dataclass
class Memory:
    """What reading and copying the same matrix takes, in milliseconds."""

    rows: int
    columns: int
    read: float
    copy: float


@dataclass
class FirstUse:
    """Seconds from `import robust` to the first result in a new process, by the clock and of computing."""

    rule: str
    cached: float
    cached_cpu: float
    uncached: float
    uncached_cpu: float


@dataclass
class Bar:
    name: str
    wanted: str
    found: float
    met: bool | None  # None: the peer is not installed, or the shape was not measured


@dataclass
class Report:
    machine: dict[str, str]
    timings: list[Timing] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    first_use: list[FirstUse] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)


# ---- what is measured


def parameters(rule: str, n: int, f: int, width: int) -> dict[str, Any]:
    """Parameters of a rule or pre-aggregation step for this benchmark."""
    special: dict[str, dict[str, Any]] = {
        "monna": {"f": f, "trusted": 0},
        "zeno": {"loss": lambda g: float(g[0])},  # the loss is the caller's; this measures the rest
        "zeno++": {"gradient": np.full(width, -1e-3, dtype=np.float32)},
        "clipping": {"radius": math.sqrt(width) / 2},
        "bucketing": {"size": 2, "rng": np.random.default_rng(0)},
    }
    if rule in special:
        return special[rule]
    takes = {**robust.AGGREGATORS, **robust.PRE_AGGREGATORS}[rule].parameters
    return {"f": f} if "f" in takes else {}


def bad_rows(rule: str, n: int) -> int:
    """f for this benchmark: a fifth of the rows, or what an exact search can do in reasonable time."""
    if rule == "smea":
        return 2 if n <= 20 else 1
    return min(n // 5, 4 if rule == "mda" else n)


def distances(x: Matrix) -> NDArray[np.float32]:
    gram = x @ x.T
    norms = gram.diagonal()
    return np.maximum(norms[:, None] + norms - 2 * gram, 0)


def plain_krum(x: Matrix, f: int) -> NDArray[np.int64]:
    return np.argsort(np.sort(distances(x), axis=1)[:, 1 : len(x) - f - 1].sum(axis=1), kind="stable")


def plain_meamed(x: Matrix, keep: int) -> Any:
    off = np.abs(x - np.median(x, axis=0))
    return np.take_along_axis(x, np.argpartition(off, keep - 1, axis=0)[:keep], axis=0).mean(axis=0)


def plain_bulyan(x: Matrix, f: int) -> Any:
    squared, left, chosen = distances(x), list(range(len(x))), []
    for _ in range(len(x) - 2 * f):
        part = np.sort(squared[np.ix_(left, left)], axis=1)
        best = int(np.argmin(part[:, 1 : max(len(left) - f - 1, 2)].sum(axis=1)))
        chosen.append(left.pop(best))
    return plain_meamed(x[chosen], len(x) - 4 * f)


def plain_geometric_median(x: Matrix) -> Any:
    z, before = x.mean(axis=0), np.inf
    while True:
        lengths = np.linalg.norm(x - z, axis=1)
        if lengths.sum() > before * (1 - 1e-6):
            return z
        before = lengths.sum()
        weights = 1 / np.maximum(lengths, 1e-6)
        z = (weights / weights.sum()) @ x


def plain_caf(x: Matrix, f: int) -> Any:
    n, counts, best, result = len(x), np.ones(len(x), dtype=np.float32), np.inf, x.mean(axis=0)
    while counts.sum() > n - 2 * f:
        weights = counts / counts.sum()
        centred = x - weights @ x
        root = np.sqrt(weights)
        gram = centred @ centred.T
        values, vectors = np.linalg.eigh(root[:, None] * gram * root)
        if values[-1] < best:
            best, result = values[-1], weights @ x
        along = (gram @ (root * vectors[:, -1])) ** 2
        counts = np.where(counts > 0, counts * np.maximum(1 - along / along[counts > 0].max(), 0), 0)
    return result


def plain_subsets(x: Matrix, f: int, cost: Callable[[Any], float]) -> Any:
    squared = distances(x)
    best = min(combinations(range(len(x)), len(x) - f), key=lambda s: cost(squared[np.ix_(s, s)]))
    return x[list(best)].mean(axis=0)


def largest_eigenvalue(squared: Any) -> float:
    centre = np.eye(len(squared)) - 1 / len(squared)
    return float(np.linalg.eigvalsh(centre @ squared @ centre / -2)[-1])


def plain_centered_clipping(x: Matrix) -> Any:
    v = np.median(x, axis=0)
    radius = np.median(np.linalg.norm(x - v, axis=1))
    for _ in range(3):
        off = x - v
        v = v + (off * np.minimum(1, radius / np.linalg.norm(off, axis=1))[:, None]).mean(axis=0)
    return v


def plain_clipping(x: Matrix, radius: float) -> Any:
    return x * np.minimum(1, radius / np.linalg.norm(x, axis=1))[:, None]


def plain_arc(x: Matrix, f: int) -> Any:
    n = len(x)
    norms = np.linalg.norm(x, axis=1)
    return x * np.minimum(1, np.sort(norms)[n - 2 * f * (n - f) // n - 1] / norms)[:, None]


def plain_nnm(x: Matrix, f: int) -> Any:
    nearest = np.argsort(distances(x), axis=1)[:, : len(x) - f]
    weights = np.zeros((len(x), len(x)), dtype=np.float32)
    np.put_along_axis(weights, nearest, np.float32(1 / (len(x) - f)), axis=1)
    return weights @ x


def plain_zeno(x: Matrix) -> Any:
    scores = [0 - float(g[0]) - 1e-4 * float(g @ g) for g in x]
    kept = np.array(scores) >= 0
    return x[kept].mean(axis=0) if kept.any() else np.zeros(x.shape[1])


def plain_zeno_plus_plus(x: Matrix, gradient: NDArray[np.float32]) -> Any:
    kept = -(x @ gradient) - 1e-4 * np.einsum("ij,ij->i", x, x) >= 0
    return x[kept].mean(axis=0) if kept.any() else np.zeros(x.shape[1])


# About how many seconds a call takes where that grows fast, from runs at sizes where it is short.
SECONDS: dict[tuple[str, str], Callable[[int, int, int], float]] = {
    ("numpy", "mda"): lambda n, f, width: math.comb(n, f) * 3e-5,
    ("numpy", "smea"): lambda n, f, width: math.comb(n, f) * (1e-4 + 5e-10 * n**3),
    ("numpy", "caf"): lambda n, f, width: 1e-11 * n**3 * width,
    ("ByzFL", "mda"): lambda n, f, width: math.comb(n, f) * 1e-4,
    ("ByzFL", "smea"): lambda n, f, width: math.comb(n, f) * 7e-9 * n * width,
    ("ByzFL", "caf"): lambda n, f, width: 2e-9 * n**2 * width,
    ("ByzFL", "nnm"): lambda n, f, width: 1.3e-8 * n * (n - f) * width,  # and 4 n (n - f) width bytes
}


def seconds(peer: str, rule: str, n: int, f: int, width: int) -> float:
    estimate = SECONDS.get((peer, rule))
    return estimate(n, f, width) if estimate else 0.0


def in_numpy(rule: str, n: int, f: int, width: int) -> Call | None:
    """The rule as one would write it in numpy without thinking about speed, if somebody did."""
    options = parameters(rule, n, f, width)
    calls: dict[str, Call] = {
        "mean": lambda x: x.mean(axis=0),
        "median": lambda x: np.median(x, axis=0),
        "trimmed_mean": lambda x: np.sort(x, axis=0)[f : n - f].mean(axis=0),
        "meamed": lambda x: plain_meamed(x, n - f),
        "geometric_median": plain_geometric_median,
        "krum": lambda x: x[plain_krum(x, f)[0]],
        "multi_krum": lambda x: x[plain_krum(x, f)[: n - f]].mean(axis=0),
        "bulyan": lambda x: plain_bulyan(x, f),
        "mda": lambda x: plain_subsets(x, f, lambda part: part.max()),
        "monna": lambda x: x[np.argsort(np.linalg.norm(x - x[0], axis=1))[: n - f]].mean(axis=0),
        "caf": lambda x: plain_caf(x, f),
        "smea": lambda x: plain_subsets(x, f, largest_eigenvalue),
        "centered_clipping": plain_centered_clipping,
        "norm_bounded_mean": lambda x: plain_clipping(x, np.median(np.linalg.norm(x, axis=1))).mean(axis=0),
        "zeno": plain_zeno,
        "zeno++": lambda x: plain_zeno_plus_plus(x, options["gradient"]),
        "clipping": lambda x: plain_clipping(x, options["radius"]),
        "arc": lambda x: plain_arc(x, f),
        "nnm": lambda x: plain_nnm(x, f),
        "bucketing": lambda x: (
            np.add.reduceat(x[np.random.default_rng(0).permutation(n)], np.arange(0, n, 2), axis=0)
            / np.float32(2)
        ),
    }
    return calls.get(rule)


def in_torch(rule: str, n: int, f: int, torch: Any) -> Call | None:
    """What torch has of its own; the matrix is shared, not copied."""
    if torch is None:
        return None
    calls: dict[str, Call] = {
        "mean": lambda x: x.mean(dim=0),
        "median": lambda x: torch.median(x, dim=0).values,
        "trimmed_mean": lambda x: torch.sort(x, dim=0).values[f : n - f].mean(dim=0),
    }
    return calls.get(rule)


def in_byzfl(rule: str, n: int, f: int, width: int, byzfl: Any) -> Call | None:
    """ByzFL's version, made anew for each call, as some keep state. Its geometric median takes 3 steps."""
    if byzfl is None:
        return None
    makers: dict[str, Callable[[], Call]] = {
        "mean": byzfl.Average,
        "median": byzfl.Median,
        "trimmed_mean": lambda: byzfl.TrMean(f),
        "meamed": lambda: byzfl.Meamed(f),
        "geometric_median": byzfl.GeometricMedian,
        "krum": lambda: byzfl.Krum(f),
        "multi_krum": lambda: byzfl.MultiKrum(f),
        "mda": lambda: byzfl.MDA(f),
        "monna": lambda: byzfl.MoNNA(f, 0),
        "caf": lambda: byzfl.CAF(f),
        "smea": lambda: byzfl.SMEA(f),
        "centered_clipping": lambda: byzfl.CenteredClipping(L=3, tau=math.sqrt(width)),
        "clipping": lambda: byzfl.Clipping(math.sqrt(width) / 2),
        "arc": lambda: byzfl.ARC(f),
        "nnm": lambda: byzfl.NNM(f),
        "bucketing": lambda: byzfl.Bucketing(2),
    }
    if rule not in makers:
        return None
    make = makers[rule]
    return lambda x: make()(x)


def load_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def load_byzfl() -> Any:
    """ByzFL's aggregators alone: its top level also imports a training framework and torchvision."""
    found = importlib.util.find_spec("byzfl")
    if found is None or found.submodule_search_locations is None:
        return None
    package = types.ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["byzfl"] = package
    try:
        return importlib.import_module("byzfl.aggregators")
    except ImportError:
        return None


# ---- how it is measured


def clock(call: Call, x: Any) -> tuple[float, float]:
    """Milliseconds of the clock, and of all cores together."""
    start, cores = time.perf_counter(), time.process_time()
    call(x)
    return (time.perf_counter() - start) * 1e3, (time.process_time() - cores) * 1e3


def in_turns(calls: dict[str, tuple[Call, Callable[[], Any]]], rounds: int) -> dict[str, float]:
    """Best time of each call, and its typical (median) time. In every round each has a turn; slow ones drop
    out after a while."""
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
    """MB that a call needs on top of what the process holds already, its result included."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # memory that was freed but not given back would hide what is used
    try:
        before = status("VmRSS:")
        Path("/proc/self/clear_refs").write_text("5")  # start a new high-water mark
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
    """Reading once, on one thread and on two: whichever is faster counts."""
    return {
        "read": (lambda m: m.max(), lambda: x),
        "read on two": (on_two(x, lambda part: x[part].max()), lambda: x),
    }


def measure_memory(x: Matrix, rounds: int) -> Memory:
    """Reading once and copying once, each on one thread or on two, whichever is faster."""
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
    changes_input = rule in {"clipping", "arc"}  # in ByzFL: it gets a copy, which is not timed

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
    if rule == "median":  # what it is compared with has its turns beside it
        calls |= readings(x)
    if plain := affordable("numpy", in_numpy(rule, n, f, width)):
        calls["numpy"] = (plain, lambda: x)
    if native := in_torch(rule, n, f, torch):
        calls["torch"] = (native, lambda: torch.from_numpy(x))
    if peer := affordable("ByzFL", in_byzfl(rule, n, f, width, byzfl)):
        calls["byzfl"] = (peer, lambda: x.copy() if changes_input else x)
        if torch is not None and rule != "median":  # torch.quantile refuses inputs of this size
            calls["byzfl_torch"] = (
                peer,
                lambda: torch.from_numpy(x.copy() if changes_input else x),
            )
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
    radius=20.0, size=2, rng=numpy.random.default_rng(0),
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


# ---- what is asked for


def judge(report: Report) -> list[Bar]:
    """The bars of the benchmark: ratios within this run."""
    timings = {(t.rule, t.rows, t.columns): t for t in report.timings}
    small, middle, large = STANDARD
    bars = []

    def at_least(name: str, shape: tuple[int, int], rule: str, peer: str, wanted: float) -> None:
        timing = timings.get((rule, *shape))
        ratio = getattr(timing, peer) / timing.ours if timing else math.inf
        known = math.isfinite(ratio)
        bars.append(Bar(name, f">= {wanted:g}", ratio, ratio >= wanted if known else None))

    def at_most(name: str, value: float, wanted: float) -> None:
        known = math.isfinite(value)
        bars.append(Bar(name, f"<= {wanted:g}", value, value <= wanted if known else None))

    at_least("median, 20 rows: times torch.median", small, "median", "torch", 40)
    at_least("median, 20 rows: times ByzFL", small, "median", "byzfl", 50)
    timing = timings.get(("median", *small))
    at_most(
        "median, 20 rows: times reading the input once, typical of each",
        timing.ours_typical / timing.read_typical if timing else math.nan,
        2,
    )
    at_most(
        "median, 20 rows: times reading the input once, best of each",
        timing.ours / timing.read if timing else math.nan,
        2,
    )
    at_least("median, 60 rows: times torch.median", middle, "median", "torch", 12)
    at_least("median, 200 rows: times torch.median", large, "median", "torch", 8)
    for shape, wanted in zip(STANDARD, (20, 4, 3), strict=True):
        at_least(f"trimmed mean, {shape[0]} rows: times ByzFL", shape, "trimmed_mean", "byzfl", wanted)
    for rule, wanted in (("krum", 4), ("multi_krum", 4), ("geometric_median", 4), ("caf", 4), ("nnm", 8)):
        at_least(f"{rule}, 20 rows: times ByzFL", small, rule, "byzfl", wanted)
    for rule in ("krum", "multi_krum", "geometric_median", "caf", "nnm"):
        timing = timings.get((rule, *small))
        extra = timing.peak - timing.output if timing else math.nan
        at_most(f"{rule}, 20 rows: MB beyond input and output", extra, 100)
    if report.first_use:
        at_most("first use, cached: seconds, slowest rule", max(u.cached for u in report.first_use), 1)
        at_most("first use, not cached: seconds, slowest rule", max(u.uncached for u in report.first_use), 10)
    return bars


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


# ---- how it is shown


def cell(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else "-"


def as_text(report: Report) -> Iterator[str]:
    yield ", ".join(f"{name} {value}" for name, value in report.machine.items())
    for memory in report.memory:
        size = 4e-6 * memory.rows * memory.columns
        yield ""
        rates = f"({size / memory.read:.0f} GB/s)", f"({2 * size / memory.copy:.0f} GB/s)"
        yield (
            f"{memory.rows} x {memory.columns:,}: reading once {memory.read:.1f} ms {rates[0]}, "
            f"copying {memory.copy:.1f} ms {rates[1]}"
        )
        yield ""
        yield "| rule | f | ms | core ms | GB/s | MB | numpy | torch | ByzFL | on torch | its MB | times |"
        yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
        left_out: list[str] = []
        for t in report.timings:
            if (t.rows, t.columns) == (memory.rows, memory.columns):
                cells = [
                    t.rule,
                    str(t.f) if "f" in parameters(t.rule, t.rows, t.f, t.columns) else "",
                    cell(t.ours, 1),
                    cell(t.ours_cores, 1),
                    cell(t.gb_per_s, 1),
                    cell(t.peak),
                    cell(t.numpy),
                    cell(t.torch),
                    cell(t.byzfl),
                    cell(t.byzfl_torch),
                    cell(t.byzfl_peak),
                    cell(t.byzfl / t.ours, 1),
                ]
                yield "| " + " | ".join(cells) + " |"
                left_out += [f"{t.rule}: {reason}" for reason in t.left_out]
        if left_out:
            yield ""
            yield f"Left out: {'; '.join(left_out)}."
    if report.first_use:
        yield ""
        yield "| first use of | cached s | of computing | not cached s | of computing |"
        yield "|---|--:|--:|--:|--:|"
        for use in report.first_use:
            times = (use.cached, use.cached_cpu, use.uncached, use.uncached_cpu)
            yield f"| {use.rule} | " + " | ".join(f"{seconds:.2f}" for seconds in times) + " |"
    yield ""
    yield "| bar | wanted | found | |"
    yield "|---|--:|--:|---|"
    for bar in report.bars:
        verdict = {True: "pass", False: "MISS", None: "not measured"}[bar.met]
        yield f"| {bar.name} | {bar.wanted} | {cell(bar.found, 2)} | {verdict} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure every rule of robust on this machine.")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--rounds", type=int, default=9, help="take the best of so many (default 9)")
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT,
        help=f"leave out a peer whose call would take more seconds (default {LIMIT:g})",
    )
    parser.add_argument(
        "--shape",
        action="append",
        type=lambda text: tuple(map(int, text.split("x"))),
        help="ROWSxCOLUMNS instead of the three standard ones; may be repeated",
    )
    every = (*robust.AGGREGATORS, *robust.PRE_AGGREGATORS)
    parser.add_argument(
        "--rule", action="append", choices=every, help="this rule instead of all; may be repeated"
    )
    options = parser.parse_args(arguments)

    def progress(step: str) -> None:
        print(f"\r{step:<50}", end="", file=sys.stderr, flush=True)

    report = measure(
        options.shape or list(STANDARD), options.rounds, progress, options.limit, options.rule or every
    )
    progress("")
    print(file=sys.stderr)
    if options.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        print("\n".join(as_text(report)))
    return 1 if any(bar.met is False for bar in report.bars) else 0


if __name__ == "__main__":
    sys.exit(main())
