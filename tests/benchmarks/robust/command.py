"""Measure every rule of robust beside plain numpy, torch and ByzFL, on the same matrices in one run.

Times are the best of several, taken in turns, so that a busy moment affects all alike; slow calls are
repeated less often. torch and byzfl are measured where they are installed. A peer is left out if one call
would take longer than the limit, by an estimate; a line below the table says so. The run ends with the bars,
and with exit code 1 if one is missed. It takes about a quarter of an hour, most of it in slow peers. Use a
machine that has nothing else to do: rules use all cores, so other work slows them more than peers that use
one core. The column "core ms" is the computing time of all cores together; the rest of a time was waiting.
"""

import json
import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict

import robust
from tests.benchmarks.robust.measure import LIMIT, measure
from tests.benchmarks.robust.plain import parameters
from tests.benchmarks.robust.results import STANDARD, Report

EVERY = (*robust.AGGREGATORS, *robust.PRE_AGGREGATORS)


def add_arguments(parser: ArgumentParser) -> None:
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
    parser.add_argument("--rule", action="append", choices=EVERY, help="this rule instead of all; may be repeated")


def main(options: Namespace) -> int:
    """Measure and print; 1 if a bar is missed."""

    def progress(step: str) -> None:
        print(f"\r{step:<50}", end="", file=sys.stderr, flush=True)

    report = measure(options.shape or list(STANDARD), options.rounds, progress, options.limit, options.rule or EVERY)
    progress("")
    print(file=sys.stderr)
    if options.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        print("\n".join(as_text(report)))
    return 1 if any(bar.met is False for bar in report.bars) else 0


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
