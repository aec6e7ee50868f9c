"""Runs the suite and the pieces of work, with progress, and keeps every outcome at once."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from queue import Queue

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tests.evidence.outcomes import DONE, FOLDER, TOTAL
from tests.evidence.pieces import Piece, end_with_parent, stop_programs
from tests.evidence.state import ROOT, State
from tests.sampled.tree import copy_tree

MINUTES = {"quick": 12.0, "full": 1e9}
LAST_MINUTE = 40.0  # seconds: `quick` begins no optional piece so close to its end
WORKERS = 2
# `full` runs the long tests too. These two run every mutation, which the pieces of work do one by one.
BY_PIECES = (
    "tests/test_mutations.py::test_every_check_has_a_test_that_fails_without_it",
    "tests/test_mutants.py::test_every_mutant_is_killed_by_its_test",
)
PARTS = {
    "generated": "generated runs",
    "hostile": "hostile runs of whole groups",
    "fuzz": "fuzzing",
    "mutation": "checks disabled",
    "mutant": "mutants of a review",
    "sampled": "mutants drawn at random",
}


def new_progress() -> Progress:
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"))


def suite_command(effort: str, tests: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(WORKERS), "-p", "no:cacheprovider"]
    command += ["-p", "tests.evidence.outcomes"]
    if effort == "full":
        command += ["-m", "long or not long", *(f"--deselect={name}" for name in BY_PIECES)]
    return [*command, *tests]


def run_suite(state: State, progress: Progress, effort: str, tests: Sequence[str] = ()) -> None:
    """Run the tests that have not passed yet."""
    folder = state.folder.resolve()
    passed = [test for test, one in state.outcomes().items() if one["outcome"] in ("passed", "skipped")]
    (folder / DONE).write_text("\n".join(passed))
    (folder / TOTAL).unlink(missing_ok=True)
    task, start = progress.add_task("tests", total=None, note="collecting"), time.monotonic()
    with (folder / "suite.log").open("w") as log:
        process = subprocess.Popen(
            suite_command(effort, tests),
            cwd=ROOT,
            env={**os.environ, FOLDER: str(folder)},
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
        )
        try:
            while process.returncode is None:
                show_suite(state, progress, task, len(passed))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)  # all outcomes are read each time
        finally:
            process.terminate()
            code = process.wait()
    show_suite(state, progress, task, len(passed))
    spent = state.run.get("suite seconds", 0.0) + time.monotonic() - start
    # 5: everything had passed before. Anything but failed tests means that the suite did not run to its end.
    ended = {0: "passed", 1: "failed", 5: "passed"}.get(code, f"did not finish: pytest ended with {code}")
    state.keep(**{"suite": ended, "suite seconds": round(spent, 1)})


def show_suite(state: State, progress: Progress, task: TaskID, before: int) -> None:
    outcomes = state.outcomes()
    failed = sum(one["outcome"] == "failed" for one in outcomes.values())
    path = state.folder / TOTAL
    total = before + int(path.read_text() or 0) if path.is_file() else None
    progress.update(task, completed=len(outcomes), total=total, note=f"[red]{failed} failed" if failed else "")


def run_pieces(state: State, progress: Progress, todo: Sequence[Piece], minutes: float) -> None:
    """Run the pieces that have no result yet, two at a time; optional ones while there is time."""
    rest = [piece for piece in todo if (piece.part, piece.name) not in state.results]
    tasks = {
        part: progress.add_task(
            text,
            total=sum(piece.part == part for piece in todo),
            completed=sum(key[0] == part for key in state.results),
            note="",
        )
        for part, text in PARTS.items()
        if any(piece.part == part for piece in todo)
    }
    if not rest:
        return
    copies: Queue[Path] = Queue()
    for number in range(WORKERS):
        copy_tree(state.folder / f"tree{number}")
        copies.put(state.folder / f"tree{number}")

    stopping = threading.Event()

    def work(piece: Piece) -> None:
        copy = copies.get()
        try:
            result = piece.run(copy.resolve())
        finally:
            copies.put(copy)
        # Ctrl-C ends the programs of the pieces too: what they did not finish says nothing, and runs again.
        if not result.good and stopping.wait(1.0):
            return
        state.add(result)
        bad = sum(not one.good for one in state.results.values() if one.part == piece.part)
        progress.update(tasks[piece.part], advance=1, note=f"[red]{bad} bad" if bad else "")

    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            running: set[Future[None]] = set()
            for piece in rest:
                if len(running) == WORKERS:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for one in done:
                        one.result()
                if not piece.optional or state.spent < minutes * 60 - LAST_MINUTE:
                    running.add(pool.submit(work, piece))
            for one in running:
                one.result()
        except BaseException:
            stopping.set()
            stop_programs()
            raise
