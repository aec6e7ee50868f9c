"""What hub and sites report: structured log lines, and a status file that `secagg status` reads."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from secagg.errors import JournalError
from secagg.net.files import replace_file

LOGGER: Final = logging.getLogger("secagg.net")
LOGGER.addHandler(logging.NullHandler())  # a program that sets up no logging sees no lines of a library
STATUS: Final = "status.json"
Listener = Callable[[str, dict[str, Any]], None]


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, event, and what belongs to it."""

    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "values", {}),
        }
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values, default=str)


class Events:
    """Sends each event to the log, to a listener (a progress display), and keeps the status file up to date."""

    def __init__(self, folder: Path, role: str, listener: Listener | None = None) -> None:
        self._path, self._listener = folder / STATUS, listener
        self._status: dict[str, Any] = {"role": role}

    def tell(
        self, event: str, *, level: int = logging.INFO, only_here: Mapping[str, Any] | None = None, **values: Any
    ) -> None:
        """Log an event. The listener gets `only_here` too: what may stand on a terminal but not in a log."""
        LOGGER.log(level, event, extra={"values": values})
        if self._listener is not None:
            self._listener(event, {**values, **(only_here or {})})

    def status(self, **values: Any) -> None:
        """Change the status file. It is for people: a full disk does not stop a round here."""
        self._status |= values | {"updated": round(time.time(), 3)}
        try:
            replace_file(self._path, [json.dumps(self._status, default=str).encode()], durable=False)
        except JournalError as bad:
            LOGGER.warning("status not written", extra={"values": {"reason": str(bad)}})
