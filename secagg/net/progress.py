"""What people see while rounds run: one line that changes on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

from secagg.net.events import LOGGER, JsonLines


class Progress:
    """Listens to the events of a hub or a site. `close` ends the line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._width = 0
        if not self._live:
            handler = logging.StreamHandler(self._stream)
            handler.setFormatter(JsonLines())
            LOGGER.handlers[:] = [handler]
            LOGGER.setLevel(logging.INFO)
            LOGGER.propagate = False

    def __call__(self, event: str, values: dict[str, Any]) -> None:
        if self._live and (line := _line(event, values)):
            shown = line[:160]
            self._stream.write("\r" + shown.ljust(self._width))
            self._stream.flush()
            self._width = len(shown)

    def close(self) -> None:
        if self._live and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


def _line(event: str, values: dict[str, Any]) -> str:
    """One event in a few words; nothing for those that people need not see."""
    match event:
        case "stage":
            return f"round {values['round']}: {values['stage']}"
        case "waiting":
            names = ", ".join(values["waiting_for"][:8])
            more = len(values["waiting_for"]) - 8
            return f"round {values['round']}: {values['stage']}, waiting for {names}" + (
                f" and {more} more" if more > 0 else ""
            )
        case "round":
            return f"round {values['round']}: computing"
        case "answered":
            return "answered; waiting for the hub"
        case "refused" | "not counted" | "hub not reached":
            return f"{event}: {values['reason']}"
        case "listening":
            return f"listening on port {values['port']}, waiting for sites"
        case "started":
            return "connecting to " + ", ".join(values["hubs"])
        case _:
            return ""
