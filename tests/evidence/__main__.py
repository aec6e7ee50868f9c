"""Collect fresh evidence for every claim of the register, and write a page about it.

    python -m tests.evidence                  # quick: the suite, and what fits into the rest of 12 minutes
    python -m tests.evidence full             # hours: every check disabled, ten thousand runs, a million inputs
    python -m tests.evidence quick --seed 7   # another sample

The folder of --out has the state of the run. The same command continues a run that was killed. At the end it has
evidence.html and evidence.json. The exit code is 0 if everything that ran held (`full`: and everything ran), 1 if
something did not hold, 2 if the command is wrong.
"""

import argparse
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

from rich.console import Console

from tests.evidence.pieces import Piece, pieces
from tests.evidence.report import collect, duration, write
from tests.evidence.run import MINUTES, new_progress, programs_beside, run_pieces, run_suite
from tests.evidence.state import OtherTreeError, State, tree_hash


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.evidence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("effort", nargs="?", choices=sorted(MINUTES, reverse=True), default="quick")
    parser.add_argument("--out", type=Path, default=Path("evidence"), help="folder (default: evidence)")
    parser.add_argument("--seed", type=int, default=1, help="draws the sample, the runs and the inputs (default 1)")
    parser.add_argument("--minutes", type=float, help="time for quick (default 12)")
    parser.add_argument("--page", action="store_true", help="only write the page, from what the folder has")
    return parser.parse_args(words)


def stopped(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(words: Sequence[str]) -> int:
    options, console = arguments(words), Console()
    try:
        state = State(options.out, options.effort, options.seed, tree_hash())
    except OtherTreeError as bad:
        console.print(f"error: {bad}", style="red")
        return 2

    def draw() -> list[Piece]:
        return pieces(options.effort, options.seed, options.out)

    signal.signal(signal.SIGTERM, stopped)
    if not options.page:
        state.keep(load=[*state.run.get("load", []), *map(float, os.getloadavg()[:1])])
        try:
            with new_progress() as progress:
                with programs_beside(state, progress, draw) if options.effort == "quick" else nullcontext():
                    run_suite(state, progress, options.effort)
                run_pieces(state, progress, draw(), options.minutes or MINUTES[options.effort])
        except KeyboardInterrupt:
            state.keep()
            console.print("Stopped. The same command continues this run.")
            return 130
        state.keep(load=[*state.run["load"], os.getloadavg()[0]])
    found = collect(state, dict(Counter(piece.part for piece in draw())))
    page, data = write(found, options.out)
    counts = ", ".join(f"{count} {name}" for name, count in found["claims"].items() if count)
    console.print(f"claims: {counts}\n{page}\n{data}\n{duration(found['seconds'])}", highlight=False)
    return 0 if found["held"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
