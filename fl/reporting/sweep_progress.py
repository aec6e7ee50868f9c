"""Progress of a sweep as a whole: a bar on a terminal; elsewhere a line per finished run, or per minute."""

from __future__ import annotations

import sys
import time
import warnings
from typing import TYPE_CHECKING, Final, TextIO

from fl.errors import TrainingWarning
from fl.reporting.progress import bar_on, can_redraw

if TYPE_CHECKING:
    from rich import progress as rich_progress

QUIET: Final = 60.0  # seconds after which a log has another line


class SweepProgress:
    """The interface between a sweep and its display. This class shows nothing, and warns through `warnings`."""

    def begin(self, name: str, runs: int, rounds: int, left: int) -> None:
        """A sweep of `runs` runs starts; `left` of them have `rounds` rounds to train."""

    def round(self, run: str) -> None:
        """A run has finished a round."""

    def finished(self, run: str) -> None:
        """A run is finished."""

    def failed(self, run: str, error: str) -> None:
        """A run has failed. The others go on."""
        self.warn(f"{run} failed: {error}")

    def left_out(self, run: str, why: str) -> None:
        """A run cannot run and is left out. The others go on."""
        self.note(f"{run} cannot run and is left out: {why}")

    def dropped(self, rounds: int) -> None:
        """So many rounds will not be trained: their run has failed, or is left out."""

    def note(self, text: str) -> None:
        """Show a message."""

    def warn(self, text: str) -> None:
        """Show a message that nobody should miss. Where nothing is shown, it is a Python warning."""
        warnings.warn(text, TrainingWarning, stacklevel=2)

    def end(self) -> None:
        """The sweep has ended, normally or not."""


class SweepLines(SweepProgress):
    """For logs: a line at the beginning, one per run that has ended, and one after a minute without any."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._runs = self._done = self._rounds = self._played = 0
        self._first: float | None = None  # when the first round had ended: before that, processes start
        self._told = 0.0

    def begin(self, name: str, runs: int, rounds: int, left: int) -> None:
        self._runs, self._done, self._rounds, self._told = runs, runs - left, rounds, time.monotonic()
        if left:
            self._announce(f"{name}: {left} of {runs} runs to train, {rounds} rounds; processes start")

    def round(self, run: str) -> None:
        now = time.monotonic()
        self._played += 1
        self._first = now if self._first is None else self._first
        if now - self._told >= QUIET:
            self._announce(f"[{self._done}/{self._runs}] {self._played} of {self._rounds} rounds{self._left()}")

    def finished(self, run: str) -> None:
        self._done += 1
        self._tell(f"[{self._done}/{self._runs}] {run}: finished{self._left()}")

    def failed(self, run: str, error: str) -> None:
        self._done += 1
        self._tell(f"[{self._done}/{self._runs}] {run}: FAILED; the error is told at the end")

    def left_out(self, run: str, why: str) -> None:
        self._done += 1
        self._tell(f"[{self._done}/{self._runs}] {run}: cannot run, left out: {why}")

    def dropped(self, rounds: int) -> None:
        self._rounds -= rounds

    def _announce(self, text: str) -> None:
        """Tell what a bar shows anyway."""
        self._tell(text)

    def _tell(self, text: str) -> None:
        self._told = time.monotonic()
        self.note(text)

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        self.note(f"warning: {text}")

    def _left(self) -> str:
        """How long the rest takes, if rounds go on as they did."""
        if self._first is None or not 1 < self._played < self._rounds:
            return ""
        seconds = (time.monotonic() - self._first) * (self._rounds - self._played) / (self._played - 1)
        return f"; about {seconds / 60:.1f} min left"


class SweepBar(SweepLines):
    """One line that is redrawn: runs, rounds, time, and the run that told something last."""

    _bar: rich_progress.Progress | None = None

    def begin(self, name: str, runs: int, rounds: int, left: int) -> None:
        super().begin(name, runs, rounds, left)
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        texts = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[runs]} runs")
        last = TextColumn("{task.fields[run]}", style="dim", markup=False)
        self._bar = bar_on(
            self._stream, *texts, BarColumn(bar_width=20), TimeElapsedColumn(), TimeRemainingColumn(), last
        )
        self._bar.add_task(name, total=max(rounds, 1), runs=f"{self._done}/{runs}", run="starting")
        self._bar.start()

    def _announce(self, text: str) -> None:
        pass

    def round(self, run: str) -> None:
        super().round(run)
        self._draw(run)

    def finished(self, run: str) -> None:
        self._done += 1
        self._draw(run)

    def failed(self, run: str, error: str) -> None:
        super().failed(run, error)
        self._draw(run)

    def left_out(self, run: str, why: str) -> None:
        super().left_out(run, why)
        self._draw(run)

    def note(self, text: str) -> None:
        if self._bar is None:
            super().note(text)
        else:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, run: str) -> None:
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(
                task,
                completed=self._played,
                total=max(self._rounds, 1),
                runs=f"{self._done}/{self._runs}",
                run=run,
                refresh=True,
            )


def sweep_display() -> SweepLines:
    """The bar on a terminal, lines elsewhere."""
    return SweepBar() if can_redraw() else SweepLines()
