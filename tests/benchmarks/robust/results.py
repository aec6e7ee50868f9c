"""The figures of a run: times, memory, first use, and the bars."""

import math
from dataclasses import dataclass, field

STANDARD = ((20, 2_156_490), (60, 1_000_000), (200, 100_000))


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
    read: float = math.inf  # reading the matrix once, in turns with the rule; for the median only
    ours_typical: float = math.inf  # the median of all turns, not the best; for the median only
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
    """Seconds from `import robust` to the first result in a new process: wall-clock and computing time."""

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


def judge(report: Report) -> list[Bar]:
    """The bars: ratios within this run."""
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
