"""Progress of a training or a download: a bar on a terminal, plain lines elsewhere.

`rich` draws the bar and is imported only where there is a terminal. It has no thread, because a simulation forks.
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from fl.errors import TrainingWarning
from fl.reporting import learned

if TYPE_CHECKING:
    from rich import progress as rich_progress

SPARKS = "▁▂▃▄▅▆▇█"
REDRAW_SECONDS = 0.05
WIDE = 120  # columns of a terminal that has room for everything
CUT = (
    "the attack was clipped like the updates of honest clients; a real attacker need not clip, so it could be "
    "stronger: use a larger privacy.clip"
)
LAST_PHASE = 0.95  # a round that is about to end fills this much of its part of the bar


class Progress:
    """The interface between a training and its display. This class shows nothing, and warns through `warnings`."""

    until: int | None = None  # the round after which the training will stop, if not after the last one
    _told_closed = _told_clipped = False

    def begin(self, name: str, rounds: int, done: int) -> None:
        """A training of `rounds` rounds starts; `done` of them were finished earlier."""

    def phase(self, name: str, done: int, total: int) -> None:
        """A round is in this phase, with `done` of `total` steps finished."""

    def round(self, record: Mapping[str, Any]) -> None:
        """A round has ended and its record is on disk."""
        for told in self._to_tell(record):
            self.warn(told)

    def _to_tell(self, record: Mapping[str, Any]) -> Iterator[str]:
        """What a user should not miss of a round: that it was skipped, and once that sums stay closed."""
        if record.get("skipped"):
            yield f"round {record['round']}: {record['skipped']}"
        if record.get("closed") and not self._told_closed:
            self._told_closed = True
            yield f"round {record['round']}: {record['closed']}"
        if record.get("attack_clipped") and not self._told_clipped:
            self._told_clipped = True
            yield CUT  # the same words for every run of a sweep, which says them once

    def note(self, text: str) -> None:
        """Show a message."""

    def warn(self, text: str) -> None:
        """Show a message that nobody should miss. Where nothing is shown, it is a Python warning."""
        warnings.warn(text, TrainingWarning, stacklevel=2)

    def end(self) -> None:
        """The training has ended, normally or not."""


class LineProgress(Progress):
    """One line per round, for logs."""

    def __init__(self, stream: TextIO | None = None, prefix: str = "") -> None:
        self._stream = stream or sys.stderr
        self._prefix = prefix
        self._name, self._rounds = "", 0

    def begin(self, name: str, rounds: int, done: int) -> None:
        self._name, self._rounds = name, min(rounds, self.until or rounds)
        if done:
            self.note(f"{name}: continuing after round {done}")

    def round(self, record: Mapping[str, Any]) -> None:
        self.note(f"{self._name}: round {record['round']}/{self._rounds}  {describe_round(record)}")

    def warn(self, text: str) -> None:
        self.note(f"warning: {text}")

    def note(self, text: str) -> None:
        print(self._prefix + text, file=self._stream, flush=True)


class LiveProgress(LineProgress):
    """One line that is redrawn: name, bar, round, the task's main measure so far, time and phase."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._bar: rich_progress.Progress | None = None
        self._measured: list[float] = []
        self._measure = ""
        self._round, self._drawn = 0, 0.0

    def begin(self, name: str, rounds: int, done: int) -> None:
        super().begin(name, rounds, done)
        self._measured, self._round = [], done
        self._bar = _training_bar(self._stream)
        self._bar.add_task(name[:24].ljust(10), total=self._rounds, completed=done, round="", measured="", phase="")
        self._bar.start()
        self._draw()

    def phase(self, name: str, done: int, total: int) -> None:
        if time.monotonic() - self._drawn > REDRAW_SECONDS or done == total:
            self._draw(f"{name} {done}/{total}" if total > 1 else name, done / total if total else 1.0)

    def round(self, record: Mapping[str, Any]) -> None:
        self._round = record["round"]
        if (found := learned.headline(record)) is not None:
            self._measured = [*self._measured, found[1]] if found[0] == self._measure else [found[1]]
            self._measure = found[0]
        for told in self._to_tell(record):
            self.note(told)
        self._draw()

    def note(self, text: str) -> None:
        if self._bar is None:
            super().note(text)
        else:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        if self._bar is not None:
            self._draw("done" if self._round >= self._rounds else "stopped")
            self._bar.stop()
            self._bar = None

    def _draw(self, phase: str = "", part: float = 0.0) -> None:
        if self._bar is None:
            return
        self._drawn, measured = time.monotonic(), ""
        if self._measured:
            width, name = 20 if self._bar.console.width >= WIDE else 8, self._measure
            spark = sparkline(self._measured, width, shares=name in learned.SHARES)
            measured = f"{name} {learned.show(name, self._measured[-1]):>6} {spark}"
        self._bar.update(
            self._bar.task_ids[0],
            completed=self._round + LAST_PHASE * part,
            round=f"round {min(self._round + 1, self._rounds)}/{self._rounds}",
            measured=measured,
            phase=phase,
        )
        self._bar.refresh()


def display() -> LineProgress:
    """The live display on a terminal, lines elsewhere."""
    return LiveProgress() if can_redraw() else LineProgress()


@contextmanager
def download_display() -> Iterator[Callable[[str, int, int | None], None]]:
    """A function of (file name, bytes received, bytes expected or None) that shows a bar per file."""
    if not can_redraw():
        yield lambda name, received, expected: None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    files: dict[str, rich_progress.TaskID] = {}
    with bar_on(sys.stderr, *columns) as bar:

        def show(name: str, received: int, expected: int | None) -> None:
            if name not in files:
                files[name] = bar.add_task(name)
            bar.update(files[name], completed=received, total=expected, refresh=True)

        yield show


def can_redraw() -> bool:
    """Whether stderr is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def bar_on(stream: TextIO, *columns: rich_progress.ProgressColumn) -> rich_progress.Progress:
    """A bar that is redrawn on request only."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(file=stream)
    return Bar(*columns, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)


def _training_bar(stream: TextIO) -> rich_progress.Progress:
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    class Phase(ProgressColumn):
        """The last column. On a narrow terminal it alone is shortened."""

        def render(self, task: Task) -> Text:
            return Text(task.fields["phase"], style="dim", no_wrap=True, overflow="ellipsis")

    name, bar = TextColumn("{task.description}", style="bold", markup=False), BarColumn(bar_width=20)
    texts = TextColumn("{task.fields[round]}"), TextColumn("{task.fields[measured]}", markup=False)
    display = bar_on(stream, name, bar, *texts, TimeElapsedColumn(), Phase(Column(no_wrap=False)))
    if display.console.width < WIDE:
        bar.bar_width = 10
    return display


def sparkline(values: list[float], width: int, *, shares: bool = True) -> str:
    """The last `width` values as small columns: shares between 0 and 1, others between their least and largest."""
    shown = [value for value in values[-width:] if math.isfinite(value)]
    low, high = (0.0, 1.0) if shares or not shown else (min(shown), max(shown))
    heights = [(value - low) / (high - low) if high > low else 0.0 for value in shown]
    return "".join(SPARKS[min(int(height * len(SPARKS)), len(SPARKS) - 1)] for height in heights)


def describe_share(share: float) -> str:
    """A fraction in per cent; a small one as what it is below."""
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"


def describe_most(share: float) -> str:
    """The largest of several fractions in per cent."""
    return f"up to {share:.1%}" if share >= 0.001 else "less than 0.1%"


def encrypted(record: Mapping[str, Any]) -> bool:
    """Whether cryptography ran in a round: in the clear, nothing is sent."""
    return bool((record.get("cryptography") or {}).get("bytes_up"))


def describe_round(record: Mapping[str, Any]) -> str:
    """The record of a round in one line."""
    clusters, seconds = record["clusters"], record["seconds"]
    opened = sum(cluster["state"] == "opened" for cluster in clusters)
    exposed, left_out = len(record["exposure"]["exposed"]), record.get("left_out", {})
    dropouts = sum(str(entry["client"]) not in left_out for entry in record["dropouts"])
    parts = [
        learned.show_all(learned.values(record)),
        f"{opened} of {len(clusters)} sums opened",
        f"{exposed} clients EXPOSED" if exposed else "",
        f"{dropouts} dropped out" if dropouts else "",
        f"{describe_share(record['clipped'])} of coordinates clipped" if record.get("clipped") else "",
        f"{describe_share(record['attack_clipped'])} of the attack clipped" if record.get("attack_clipped") else "",
        "cheated: " + ", ".join(record["blamed"]) if record["blamed"] else "",
        "left out: " + ", ".join(left_out) if left_out else "",
        f"{seconds['total']:.1f} s ({seconds['secure']:.1f} s {'secure ' if encrypted(record) else ''}aggregation)",
        record.get("skipped"),
        record.get("closed"),
    ]
    return ", ".join(filter(None, parts))
