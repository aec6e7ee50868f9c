"""Where the line goes that says a kernel is being compiled (without importing the compiler)."""

from __future__ import annotations

import sys
from collections.abc import Callable

_callback: Callable[[str], None] | None = None


def on_compile(callback: Callable[[str], None] | None) -> None:
    """Send the line that says what is being compiled to `callback`; None puts it back on stderr."""
    global _callback
    _callback = callback


def announce(message: str) -> None:
    """Say it, to the callback or on stderr."""
    if _callback is None:
        print(message, file=sys.stderr)
    else:
        _callback(message)
