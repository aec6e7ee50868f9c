"""Ctrl-C: the first stops at the next safe point, the second immediately. Neither loses a record."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Stopped(KeyboardInterrupt):
    """The user asked to stop, and every finished round is on disk."""


class Interrupt:
    """While it is in use, SIGINT and SIGTERM make the next `safe_point` raise Stopped."""

    def __init__(self, notice: Callable[[str], None] = lambda text: None) -> None:
        self._notice = notice
        self._wanted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self._wanted:
            raise KeyboardInterrupt
        self._wanted = True
        self._notice("stopping at the next safe point; press Ctrl-C again to stop immediately")

    def safe_point(self) -> None:
        """Raise Stopped here if the user asked for it."""
        if self._wanted:
            raise Stopped("stopped by the user")
