"""What people see while rounds run: one line that changes on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys
import warnings
from types import TracebackType
from typing import Any, Final, TextIO

from secagg.net.events import LOGGER, JsonLines

_LOGGERS: Final = (LOGGER, logging.getLogger("asyncio"), logging.getLogger("aiohttp"))


class Progress:
    """Listens to the events of a hub or a site while the `with` lasts. `close` ends the line.

    Log records and warnings of this process go the same way: none of them is printed as Python would.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._width = 0
        self._before: list[tuple[logging.Logger, list[logging.Handler], int, bool]] = []

    def __enter__(self) -> Progress:
        handler: logging.Handler = _Errors(self) if self._live else logging.StreamHandler(self._stream)
        handler.setFormatter(JsonLines())
        self._before = [(one, one.handlers[:], one.level, one.propagate) for one in _LOGGERS]
        for one in _LOGGERS:
            one.handlers[:], one.propagate = [handler], False
            one.setLevel(logging.INFO if one is LOGGER else logging.WARNING)
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.showwarning = lambda message, category, *where, **more: self.warn(str(message))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._warnings.__exit__(kind, error, trace)
        for one, handlers, level, propagate in self._before:
            one.handlers[:], one.propagate = handlers, propagate
            one.setLevel(level)

    def __call__(self, event: str, values: dict[str, Any]) -> None:
        if self._live and (line := _line(event, values)):
            shown = line[:160]
            self._stream.write("\r" + shown.ljust(self._width))
            self._stream.flush()
            self._width = len(shown)

    def say(self, text: str) -> None:
        """One line that stays, on a terminal. Elsewhere the log has it."""
        if self._live:
            self.close()
            print(f"secagg: {text}", file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """A warning about the data of this site, without any value of it."""
        LOGGER.warning("warning", extra={"values": {"reason": text}})
        self.say(f"warning: {text}")

    def close(self) -> None:
        if self._live and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


class _Errors(logging.Handler):
    """On a terminal, only errors are shown, in one line each; events have their own line."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.ERROR)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        found = record.exc_info[1] if record.exc_info else None
        why = f": {type(found).__name__}: {found}" if found is not None else ""
        self._progress.say(record.getMessage().splitlines()[0] + why)


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
        case "not ready":
            return f"waiting until the data can be used: {values['reason']}"
        case "ready":
            return "the data can be used again; waiting for the hub"
        case "hub not reached":
            return f"no hub yet, trying again: {values['reason']}"
        case "listening":
            return f"listening on port {values['port']}, waiting for sites"
        case "started":
            return "connecting to " + ", ".join(values["hubs"])
        case _:
            return ""
