"""What a person sees while a run goes on: one line that moves on a terminal, one line per round elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

BLOCKS = " ▏▎▍▌▋▊▉█"
SPARKS = "▁▂▃▄▅▆▇█"


class Silent:
    """Shows nothing. The others speak where this is silent."""

    def begin(self, name: str, rounds: int, done: int) -> None:
        """A run of so many rounds starts, or goes on after `done`."""

    def phase(self, name: str, done: int, total: int) -> None:
        """Inside a round: `done` of `total` steps of a phase."""

    def round(self, record: Mapping[str, Any]) -> None:
        """A round is over and on disk."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def end(self) -> None:
        """The run is over, however it ended."""


class Lines(Silent):
    """For logs: a line per round."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._name, self._rounds = "", 0

    def begin(self, name: str, rounds: int, done: int) -> None:
        self._name, self._rounds = name, rounds
        if done:
            self.note(f"{name}: going on after round {done}")

    def round(self, record: Mapping[str, Any]) -> None:
        self._say(f"{self._name}: round {record['round']}/{self._rounds}  {told(record)}")

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Live(Lines):
    """For a terminal: the current line is rewritten, with a bar, the phase and the accuracy so far."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._accuracies: list[float] = []
        self._round, self._drawn, self._start = 0, 0.0, time.monotonic()

    def begin(self, name: str, rounds: int, done: int) -> None:
        super().begin(name, rounds, done)
        self._accuracies, self._round, self._start = [], done, time.monotonic()

    def phase(self, name: str, done: int, total: int) -> None:
        if time.monotonic() - self._drawn > 0.05 or done == total:
            part = done / total if total else 1.0
            self._draw(f"{name} {done}/{total}" if total > 1 else name, part)

    def round(self, record: Mapping[str, Any]) -> None:
        self._round = record["round"]
        if record.get("accuracy") is not None:
            self._accuracies.append(record["accuracy"])
        if record.get("skipped"):
            self.note(f"round {record['round']}: {record['skipped']}")
        self._draw("", 0.0)

    def note(self, text: str) -> None:
        self._clear()
        super().note(text)

    def end(self) -> None:
        self._draw("done" if self._round >= self._rounds else "stopped", 0.0)
        self._stream.write("\n")
        self._stream.flush()

    def _draw(self, phase: str, part: float) -> None:
        self._drawn = time.monotonic()
        done = (self._round + 0.95 * part) / self._rounds if self._rounds else 1.0
        seconds = int(self._drawn - self._start)
        text = (
            f"{self._name:<12.24} {bar(done, 20)} round {min(self._round + 1, self._rounds)}/{self._rounds}"
        )
        if self._accuracies:
            text += f"  accuracy {self._accuracies[-1]:6.1%} {spark(self._accuracies, 20)}"
        text += f"  {seconds // 60}:{seconds % 60:02d}  {phase}"
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r\x1b[2K" + text[:width])
        self._stream.flush()

    def _clear(self) -> None:
        self._stream.write("\r\x1b[2K")


def display(stream: TextIO | None = None) -> Lines:
    """Live on a terminal, lines elsewhere."""
    stream = stream or sys.stderr
    return Live(stream) if stream.isatty() else Lines(stream)


def bar(part: float, width: int) -> str:
    eighths = round(min(max(part, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (BLOCKS[rest] if rest else "")).ljust(width, "░")


def spark(values: list[float], width: int) -> str:
    """The last values between 0 and 1, as small columns."""
    return "".join(SPARKS[min(int(value * len(SPARKS)), len(SPARKS) - 1)] for value in values[-width:])


def told(record: Mapping[str, Any]) -> str:
    """A round in one line."""
    parts = []
    if record.get("accuracy") is not None:
        parts.append(f"accuracy {record['accuracy']:.1%}")
    clusters = record["clusters"]
    opened = sum(cluster["state"] == "opened" for cluster in clusters)
    parts.append(f"{opened} of {len(clusters)} sums opened")
    exposed = len(record["exposure"]["exposed"])
    if exposed:
        parts.append(f"{exposed} clients EXPOSED")
    if record["dropouts"]:
        parts.append(f"{len(record['dropouts'])} dropped out")
    if record["blamed"]:
        parts.append("cheated: " + ", ".join(record["blamed"]))
    seconds = record["seconds"]
    parts.append(f"{seconds['total']:.1f} s ({seconds['secure']:.1f} s secure aggregation)")
    if record.get("skipped"):
        parts.append(record["skipped"])
    return ", ".join(parts)
