"""The parts of `python -m tests.benchmarks`, in order, with an estimate of the remaining time."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TextIO

from secagg.crypto import hashing, prg
from secagg.errors import UsageError
from secagg.kernels.jit import announce
from secagg.kernels.threads import cores
from tests.benchmarks.secagg import flower, growth, primitives, round, runs
from tests.benchmarks.secagg.growth import Series, Slope
from tests.benchmarks.secagg.primitives import Report
from tests.benchmarks.secagg.progress import Progress
from tests.benchmarks.secagg.report import Bar, Table
from tests.benchmarks.secagg.runs import Run
from tests.benchmarks.secagg.work import Rates, Size, Work

ABOVE_FLOOR: Final = 1.4  # a typical run relative to its floor; used only for the estimate
PRIMITIVES_SECONDS: Final = 60.0
MASKS_SECONDS: Final = 12.0
FLOWER_SECONDS: Final = 15.0
FLOWER_REPEATS: Final = 3
WARM_UP: Final = (Size(clients=5, length=1000, dropped=1), Size(clients=6, length=1000, group=3, groupings=2))
ROUNDS: Final = 1 + 2 * 3  # four SHARE rounds and three times their keystream


@dataclass(slots=True)
class Findings:
    """All tables, bounds and figures."""

    tables: list[Table] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def measure(parts: Sequence[str], clients: Sequence[int], length: int, stream: TextIO) -> Findings:
    """Measure the chosen parts; progress goes to `stream`."""
    if min(clients) < 3 or length < 1:
        raise UsageError("a benchmark needs at least 3 clients and one number")
    with announce(lambda name: print(f"compiling {name} (once: it is cached)", file=stream, flush=True)):
        prg.backend()
        hashing.has_kernel()
        for size in WARM_UP:  # in this process, so that forked processes find all code loaded
            runs.measure_run(size, processes=1)
    return _Bench(clients, length, stream).measure(parts)


class _Bench:
    def __init__(self, clients: Sequence[int], length: int, stream: TextIO) -> None:
        self._rates = Rates.measure()
        self._sizes = [
            Size(clients=n, length=length, dropped=n * percent // 100) for n in clients for percent in runs.PERCENTS
        ]
        self._stream = stream
        self._runs: dict[Size, Run] = {}
        self._report: Report | None = None
        self._found = Findings()

    def measure(self, parts: Sequence[str]) -> Findings:
        steps = {
            "primitives": (self._primitives, PRIMITIVES_SECONDS),
            "runs": (self._all_runs, sum(map(self._expected, self._sizes))),
            "growth": (self._growth, sum(self._expected(size) for s in self._series() for size in s.sizes)),
            "round": (self._round, ROUNDS * self._expected(round.PAPER)),
            "flower": (self._flower, FLOWER_SECONDS + 2 * FLOWER_REPEATS * self._expected(self._flower_size)),
        }
        again = MASKS_SECONDS * (len(parts) - 1) * ("primitives" in parts)
        self._progress = Progress(self._stream, again + sum(steps[part][1] for part in parts))
        self._machine()
        try:
            for part in parts:
                steps[part][0]()
                self._masks_again(after=part)
        finally:
            self._progress.end()
        self._report_primitives()
        return self._found

    def _expected(self, size: Size) -> float:
        return ABOVE_FLOOR * self._rates.floor(Work.of(size)) / cores()

    def _run(self, size: Size) -> Run:
        if size not in self._runs:
            self._progress.begin(str(size), self._expected(size))
            self._runs[size] = runs.measure_run(size, on_progress=self._progress.at)
        return self._runs[size]

    def _machine(self) -> None:
        facts = primitives.machine() | {"load": f"{os.getloadavg()[0]:.1f}"}
        self._found.figures |= {"machine": facts, "rates": asdict(self._rates)}
        rates = self._rates
        self._found.tables.append(
            Table(
                name="machine",
                title="This machine, and what one core of it does",
                header=("", ""),
                rows=(
                    *((name, ", ".join(v) if isinstance(v, list) else str(v)) for name, v in facts.items()),
                    ("X25519 agreement", f"{rates.agree_us:.0f} us"),
                    ("Ed25519 verification", f"{rates.verify_us:.0f} us"),
                    ("Ed25519 signature", f"{rates.sign_us:.0f} us"),
                    ("masks made and added", f"{rates.mask_gb_per_s:.1f} GB/s"),
                    ("memory copied", f"{rates.copy_gb_per_s:.1f} GB/s"),
                ),
                notes=("load: the load average at the start; below 0.5 is quiet.",),
            )
        )

    def _primitives(self) -> None:
        steps = 8

        def begin(step: str) -> None:
            self._progress.begin(step, PRIMITIVES_SECONDS / steps)

        self._report = primitives.measure(progress=begin)

    def _masks_again(self, after: str) -> None:
        if self._report is not None and after != "primitives":
            self._progress.begin(f"masks again, after {after}", MASKS_SECONDS)
            self._report = primitives.measure_masks_again(self._report)

    def _report_primitives(self) -> None:
        """Add the tables of primitives after the last measurement of masks, behind the machine's table."""
        if (report := self._report) is not None:
            self._found.figures["primitives"] = report.as_dict()
            self._found.tables[1:1] = primitive_tables(report)
            self._found.bars[:0] = [Bar(name=b.name, value=b.value, bound=b.least) for b in report.bars]

    def _all_runs(self) -> None:
        measured = [self._run(size) for size in self._sizes]
        self._found.figures["runs"] = [asdict(one) for one in measured]
        self._found.tables += [runs.run_table(measured, self._rates), runs.stage_table(measured)]
        self._found.bars += runs.bars(measured)

    def _series(self) -> list[Series]:
        by_share: dict[int, list[Size]] = {}
        for size in self._sizes:
            by_share.setdefault(size.percent, []).append(size)
        more = [growth.client_series(sizes) for sizes in by_share.values() if len(sizes) > 1]
        return [*growth.extra_series(), *more]

    def _growth(self) -> None:
        slopes: list[Slope] = []
        for series in self._series():
            slopes += growth.fit(series, [self._run(size) for size in series.sizes])
        self._found.figures["growth"] = [asdict(one) for one in slopes]
        self._found.tables.append(growth.growth_table(slopes))
        self._found.bars += growth.bars(slopes)

    def _round(self) -> None:
        paper = round.PAPER
        self._progress.begin(f"SHARE round: {paper}", ROUNDS * self._expected(paper))
        one = round.measure_round(on_progress=self._progress.at)
        self._found.figures["round"] = asdict(one)
        self._found.tables.append(round.round_table(one))
        self._found.bars += round.bars(one)

    @property
    def _flower_size(self) -> Size:
        return Size(clients=flower.RECORDED_AT[0], length=flower.RECORDED_AT[1])

    def _flower(self) -> None:
        size = self._flower_size
        repeats = []
        for number in range(FLOWER_REPEATS):  # one process and the best of a few, as Flower's primitives
            self._progress.begin(f"{size}, one process, run {number + 1}", 2 * self._expected(size))
            repeats.append(runs.measure_run(size, processes=1, on_progress=self._progress.at))
        ours = min(repeats, key=lambda run: run.cpu_seconds)
        self._progress.begin("Flower's primitives", FLOWER_SECONDS)
        theirs = flower.measure_flower(size.clients, size.length, size.threshold)
        self._found.figures["flower"] = {
            "secagg_cpu_seconds": ours.cpu_seconds,
            "flower": asdict(theirs) | {"total": theirs.total} if theirs else None,
        }
        self._found.tables.append(flower.flower_table(ours, theirs))
        self._found.bars += flower.bars(ours, theirs)


def primitive_tables(report: Report) -> list[Table]:
    """Tables of masks, fixed point and sharing, each with its comparison."""
    makers: dict[tuple[str, int, int], dict[int, float]] = {(m.maker, m.words, m.keys): {} for m in report.masks}
    for m in report.masks:
        makers[m.maker, m.words, m.keys][m.threads] = m.gb_per_s
    threads = sorted({m.threads for m in report.masks})
    return [
        Table(
            name="masks",
            title="Masks made and added, GB/s of keystream; raw openssl makes it and adds nothing",
            header=("maker", "numbers", "keys", *(f"{t} thread{'s' * (t > 1)}" for t in threads)),
            rows=tuple(
                (maker, f"{words:,}", str(keys), *(f"{rates[t]:.1f}" for t in threads))
                for (maker, words, keys), rates in makers.items()
            ),
        ),
        Table(
            name="passes",
            title="Fixed point, GB/s read and written, beside numpy's copy",
            header=("pass", "numbers", "GB/s"),
            rows=tuple((p.what, f"{p.values:,}", f"{p.gb_per_s:.1f}") for p in report.passes),
        ),
        Table(
            name="sharing",
            title="Sharing one 32-byte secret, milliseconds",
            header=("maker", "holders", "threshold", "split", "coefficients", "combine"),
            rows=tuple(
                (
                    s.maker,
                    str(s.holders),
                    str(s.threshold),
                    f"{s.split_ms:.2f}",
                    f"{s.coefficients_ms:.2f}",
                    f"{s.combine_ms:.2f}",
                )
                for s in report.sharing
            ),
            notes=("Coefficients are computed once for all secrets with the same holders.",),
        ),
    ]
