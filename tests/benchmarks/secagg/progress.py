"""Progress of a long measurement: one live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from typing import TextIO

WIDTH = 20


class Progress:
    """Tasks with estimated seconds. The time of finished tasks corrects the estimate of the rest."""

    def __init__(self, stream: TextIO, total: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._total = max(total, 1e-9)
        self._clock = clock
        self._begun = clock()
        self._done = 0.0  # estimated seconds of what is finished
        self._task = ""
        self._seconds = 0.0
        self._drawn = float("-inf")

    def begin(self, task: str, seconds: float) -> None:
        """Start the next task, which should take so many seconds."""
        self._done += self._seconds
        self._task, self._seconds = task, seconds
        if self._live:
            self._draw(0.0)
        else:
            print(f"{self._percent(0.0):3.0f}% {task}{self._left(0.0)}", file=self._stream, flush=True)

    def at(self, fraction: float) -> None:
        """Update the finished fraction of the task. Cheap enough for every message."""
        if self._live and self._clock() - self._drawn > 0.1:
            self._draw(fraction)

    def say(self, line: str) -> None:
        """Print a line above the live one."""
        self._erase()
        print(line, file=self._stream, flush=True)

    def end(self) -> None:
        self._erase()

    def _percent(self, fraction: float) -> float:
        return min(100.0, 100 * (self._done + fraction * self._seconds) / self._total)

    def _left(self, fraction: float) -> str:
        finished = self._done + fraction * self._seconds
        passed = self._clock() - self._begun
        pace = passed / finished if finished > 1 else 1.0
        left = max(0.0, self._total - finished) * pace
        return f", about {_duration(left)} left" if left >= 1 else ""

    def _draw(self, fraction: float) -> None:
        self._drawn = self._clock()
        full = round(WIDTH * self._percent(fraction) / 100)
        bar = "#" * full + "." * (WIDTH - full)
        line = f"[{bar}] {self._percent(fraction):3.0f}% {self._task}{self._left(fraction)}"
        print(f"\r\x1b[K{line}", end="", file=self._stream, flush=True)

    def _erase(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=self._stream, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
