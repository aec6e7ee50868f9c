"""Peak memory of this process and its children, sampled by a thread.

Linux counts proportional set sizes (PSS): a page shared by k processes counts 1/k in each, so the sum over
processes counts every page once. Reading them stops a process for milliseconds: a watched run is not timed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_PROC = Path("/proc")


def held() -> int | None:
    """Bytes that this process and its children hold now; None if the system does not say."""
    try:
        return sum(_pss(pid) for pid in (os.getpid(), *_children(os.getpid())))
    except (OSError, ValueError):
        return None


def _pss(pid: int) -> int:
    for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise ValueError("no Pss in smaps_rollup")


def _children(pid: int) -> Iterator[int]:
    for task in (_PROC / str(pid) / "task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)


class Watch:
    """A context that records the largest value of `held` in `peak`."""

    def __init__(self, interval: float = 0.02) -> None:
        self.before = held()
        self.peak = self.before
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @property
    def above(self) -> int | None:
        """Bytes of the peak above the value at the start."""
        return None if self.peak is None or self.before is None else self.peak - self.before

    def _look(self) -> None:
        while not self._stop.wait(self._interval):
            now = held()  # None if a child ended during the reading
            if now is not None and self.peak is not None:
                self.peak = max(self.peak, now)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
