"""How many group sums the audit still opens when clients drop out, and how long the audit takes.

    python -m tests.benchmarks exposure                  # print the tables
    python -m tests.benchmarks exposure --write docs     # and write them, with the picture, into the docs

Every run is checked with singular values, which share no code with the audit: no client is ever exposed.
"""

from __future__ import annotations

import hashlib
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from secagg.errors import UsageError
from secagg.exposure.audit import Policy, audit
from secagg.exposure.incidence import Incidence
from secagg.exposure.rowspace import RowSpace
from secagg.exposure.schedules import Schedule, keep_whole_atoms
from tests.secagg.attack import solve

CLIENTS = 60
SIZES = (3, 5, 6, 10, 12)
GROUPINGS = (1, 2, 3, 5, 10)
RATES = (0.0, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30)
ATOMS = {6: 3, 10: 5, 12: 6}
SCHEDULES = ("random", "transversal", "atoms")
POLICY = Policy()
WHY = {
    "transversal": "It has at most min(m, c) different groupings.",
    "atoms": "A group must hold at least two atoms of at least three clients.",
}


@dataclass(frozen=True)
class Cell:
    """Averages over the runs of one schedule, size, number of groupings and dropout rate."""

    opened: float
    kept: float
    runs: int


def schedule(name: str, size: int, groupings: int) -> Schedule | str:
    """The schedule, or the reason why there is none."""
    if name == "atoms" and size not in ATOMS:
        return f"{size} is not a multiple, from 2 on, of an atom of at least {POLICY.anonymity}"
    try:
        drawn = Schedule(name=name, size=size, groupings=groupings, atom=ATOMS[size] if name == "atoms" else 0)
        drawn.check(CLIENTS)
    except UsageError as refused:
        return str(refused)
    return drawn


def draws(label: str, run: int) -> np.random.Generator:
    return np.random.default_rng(list(hashlib.sha256(f"{label} {run}".encode()).digest()))


def measure(plan: Schedule, rate: float, runs: int) -> Cell:
    """Draw, let clients drop out independently, audit, and check that no client is exposed."""
    opened, kept, roster, seed = [], [], range(CLIENTS), hashlib.sha256(b"bench_exposure").digest()
    for run in range(runs):
        rng = draws(f"{plan} {rate}", run)
        survivors = frozenset(i for i in roster if rng.random() >= rate)
        atoms = plan.atoms(roster, seed, run)
        counted = keep_whole_atoms(atoms, survivors, POLICY.anonymity) if atoms else survivors
        draw = plan.draw(roster, seed, run)
        verdict = audit(
            draw, counted, POLICY, plan_hash=run.to_bytes(8, "big"), atoms=atoms,
            columns=plan.columns(roster, seed, run),
        )  # fmt: skip
        members = {(g, k): counted.intersection(draw[g][k]) for g, k in verdict.opened}
        found = solve(members, {row: np.empty(0) for row in members}) if members else {}
        assert not found, (plan, rate, run, sorted(found))
        opened.append(len(verdict.opened) / sum(map(len, draw)))
        kept.append(len(counted) / max(1, len(survivors)))
    return Cell(float(np.mean(opened)), float(np.mean(kept)), runs)


def everything(runs: int) -> Iterator[tuple[str, int, int, list[Cell] | str]]:
    for name in SCHEDULES:
        for size in SIZES:
            for groupings in GROUPINGS:
                plan = schedule(name, size, groupings)
                if isinstance(plan, str):
                    yield name, size, groupings, plan
                else:
                    yield name, size, groupings, [measure(plan, rate, runs) for rate in RATES]


def tables(results: list[tuple[str, int, int, list[Cell] | str]]) -> str:
    """Markdown: one table per schedule; for atoms, also the share of survivors that still count."""
    lines = []
    for name in SCHEDULES:
        title = f"`{name}`, % of group sums opened"
        if name == "atoms":
            title += " (and % of the survivors that still count)"
        lines += ["", f"**{title}**", "", "| m | R | " + " | ".join(f"{rate:.0%}" for rate in RATES) + " |"]
        lines.append("|" + "---|" * (len(RATES) + 2))
        refused: dict[str, list[str]] = {}
        for _, size, groupings, cells in (result for result in results if result[0] == name):
            if isinstance(cells, str):
                refused.setdefault(f"m = {size}", []).append(str(groupings))
                continue
            shown = [
                f"{100 * cell.opened:.0f}" + (f" ({100 * cell.kept:.0f})" if name == "atoms" else "") for cell in cells
            ]
            size_shown = f"{size} (atoms of {ATOMS[size]})" if name == "atoms" else str(size)
            lines.append(f"| {size_shown} | {groupings} | " + " | ".join(shown) + " |")
        if refused:
            cases = "; ".join(f"{size} with R = {', '.join(Rs)}" for size, Rs in refused.items())
            lines += ["", f"Cannot be drawn for 60 clients: {cases}. {WHY[name]}"]
    return "\n".join(lines).strip()


def picture(results: list[tuple[str, int, int, list[Cell] | str]], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    panels = figure.subplots(len(SCHEDULES), len(SIZES), sharex=True, sharey=True)
    for name, size, groupings, cells in results:
        panel = panels[SCHEDULES.index(name), SIZES.index(size)]
        if not isinstance(cells, str):
            shade = GROUPINGS.index(groupings) / (len(GROUPINGS) - 1)
            panel.plot(
                [100 * rate for rate in RATES], [100 * cell.opened for cell in cells],
                color=(0.1 + 0.8 * shade, 0.3, 0.8 - 0.6 * shade), label=f"R = {groupings}", linewidth=1.4,
            )  # fmt: skip
        panel.set_title(f"{name}, m = {size}", fontsize=9)
        panel.grid(alpha=0.3)
        panel.set_ylim(-3, 103)
    panels[0, 3].legend(fontsize=7, loc="lower left")
    for row in panels:
        row[0].set_ylabel("group sums opened, %")
        for panel in row:
            if not panel.lines:
                panel.text(15, 50, "cannot be drawn", ha="center", fontsize=8)
    for panel in panels[-1]:
        panel.set_xlabel("dropouts, %")
    figure.savefig(file, dpi=90)


def timings() -> str:
    lines = []
    for n, size, groupings in ((60, 3, 10), (500, 10, 5), (1000, 5, 10)):
        draw = Schedule(name="random", size=size, groupings=groupings).draw(range(n), bytes(32), 0)
        best, exposed = float("inf"), float("inf")
        for attempt in range(4):
            start = time.perf_counter()
            verdict = audit(draw, range(n), POLICY, plan_hash=bytes([attempt]))
            best = min(best, time.perf_counter() - start)
            start = time.perf_counter()
            rows = Incidence(draw, range(n), plan_hash=bytes([attempt]))
            space = RowSpace(n, rows.field)
            for row in rows.index.values():
                space.add(row)
            assert space.exposed() == verdict.would_expose
            exposed = min(exposed, time.perf_counter() - start)
        lines.append(f"| {n} | {size} | {groupings} | {n // size * groupings} | {exposed:.3f} s | {best:.2f} s |")
    head = "| n | m | R | rows | exposed set alone | whole audit |\n|---|---|---|---|---|---|"
    return head + "\n" + "\n".join(lines)


def insert(file: Path, name: str, text: str) -> None:
    """Replace the text between the markers of this name."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, rest = file.read_text().split(begin)
    file.write_text(before + begin + "\n" + text + "\n" + end + rest.split(end)[1])


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=25, help="runs per cell")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="rewrite exposure.md and its picture")


def main(options: Namespace) -> int:
    results = list(everything(options.runs))
    runs = sum(cell.runs for *_, cells in results if not isinstance(cells, str) for cell in cells)
    said = f"{runs} runs; in none of them did the opened sums expose anyone."
    print(tables(results), said, timings(), sep="\n\n")
    if options.write:
        insert(options.write / "exposure.md", "rows opened", tables(results) + "\n\n" + said)
        insert(options.write / "exposure.md", "timings", timings())
        picture(results, options.write / "exposure-rows.png")
    return 0
