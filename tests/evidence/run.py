"""Runs the suite and the pieces of work, with progress, and keeps every outcome at once."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tests.evidence.outcomes import DONE, FOLDER, OUTCOMES, TOTAL
from tests.evidence.pieces import Piece, end_with_parent, stop_programs
from tests.evidence.state import ROOT, State
from tests.sampled.tree import copy_tree

MINUTES = {"quick": 12.0, "full": 1e9}
LAST_MINUTE = 40.0  # seconds: `quick` begins no optional piece so close to its end
WORKERS = 2  # processes; with three, the suite needs a sixth more processor time on two cores
# `full` runs the long tests too. These two run every mutation, which the pieces of work do one by one.
BY_PIECES = (
    "tests/test_mutations.py::test_every_check_has_a_test_that_fails_without_it",
    "tests/test_mutants.py::test_every_mutant_is_killed_by_its_test",
)
BESIDE = ("generated", "hostile", "fuzz")  # what runs beside the suite
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
    task, start = row(progress, "tests", note="collecting"), time.monotonic()
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


def row(progress: Progress, text: str, *, total: int | None = None, completed: int = 0, note: str = "") -> TaskID:
    """The row of the display with this text, a new one if there is none."""
    for task in progress.tasks:
        if task.description == text:
            return task.id
    return progress.add_task(text, total=total, completed=completed, note=note)


class Bench:
    """Runs pieces of work, keeps their results and shows how many there are."""

    def __init__(
        self, state: State, progress: Progress, todo: Sequence[Piece], stopping: threading.Event | None = None
    ) -> None:
        self.state, self.progress, self.stopping = state, progress, stopping or threading.Event()
        self.rows = {
            part: row(
                progress,
                text,
                total=sum(piece.part == part for piece in todo),
                completed=sum(key[0] == part for key in state.results),
            )
            for part, text in PARTS.items()
            if any(piece.part == part for piece in todo)
        }
        self.rest = [piece for piece in todo if (piece.part, piece.name) not in state.results]

    def copy(self, number: int) -> Path:
        """A copy of the tree, for pieces that change a source."""
        folder = self.state.folder.resolve() / f"tree{number}"
        copy_tree(folder)
        return folder

    def run(self, piece: Piece, copy: Path) -> None:
        result = piece.run(copy)
        # Ctrl-C ends the programs of the pieces too: what they did not finish says nothing, and runs again.
        if not result.good and self.stopping.wait(1.0):
            return
        self.state.add(result)
        bad = sum(not one.good for one in self.state.results.values() if one.part == piece.part)
        self.progress.update(self.rows[piece.part], advance=1, note=f"[red]{bad} bad" if bad else "")

    def stop(self) -> None:
        self.stopping.set()
        stop_programs()


@contextmanager
def programs_beside(state: State, progress: Progress, draw: Callable[[], Sequence[Piece]]) -> Iterator[None]:
    """While the body runs the suite, run the pieces that always run and change no source, one at a time.

    The suite does not keep two cores busy. These pieces have the lowest priority, and begin when half of the tests have
    run: by then the kernels are compiled, so no test waits for a low-priority process that compiles. What has not begun
    when the suite ends is left to `run_pieces`, and so are the mutations: a test that fails only because it got no time
    would look like a check that works.
    """
    row(progress, "tests", note="collecting")  # the first row
    ended, stopping, before = threading.Event(), threading.Event(), lines_of(state)

    def work() -> None:
        give_way()
        bench = Bench(state, progress, draw(), stopping)
        sure = [piece for piece in bench.rest if piece.part in BESIDE and not piece.optional]
        while sure and not half_done(state, before):
            if ended.wait(1.0):
                return
        for piece in sure:
            if not ended.is_set():
                bench.run(piece, ROOT)

    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(work)
        try:
            yield
            ended.set()
            beside.result()
        except BaseException:
            ended.set()
            stopping.set()
            stop_programs()
            raise


def give_way() -> None:
    """The lowest priority for this thread and the processes that it starts, where threads have their own (Linux)."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def lines_of(state: State) -> int:
    path = state.folder / OUTCOMES
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def half_done(state: State, before: int) -> bool:
    """Whether half of the tests of this session have run, if there were so many outcomes before it."""
    try:
        total = int((state.folder / TOTAL).read_text() or 0)
    except FileNotFoundError:
        return False
    return 2 * (lines_of(state) - before) >= total > 0


def run_pieces(state: State, progress: Progress, todo: Sequence[Piece], minutes: float) -> None:
    """Run the pieces that have no result yet, two at a time; optional ones while there is time."""
    bench = Bench(state, progress, todo)
    if not bench.rest:
        return
    copies: Queue[Path] = Queue()
    for number in range(WORKERS):
        copies.put(bench.copy(number))

    def work(piece: Piece) -> None:
        copy = copies.get()
        try:
            bench.run(piece, copy)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            running: set[Future[None]] = set()
            for piece in bench.rest:
                if len(running) == WORKERS:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for one in done:
                        one.result()
                if not piece.optional or state.spent < minutes * 60 - LAST_MINUTE:
                    running.add(pool.submit(work, piece))
            for one in running:
                one.result()
        except BaseException:
            bench.stop()
            raise
