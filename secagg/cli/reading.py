"""Read the files that a command names, with the file's name before every error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from secagg.agreement import file
from secagg.errors import UsageError

Found = TypeVar("Found")


def text(path: Path) -> str:
    """The text of a file in TOML."""
    if path.stat().st_size > file.MOST_BYTES:
        raise UsageError(f"expected a file of at most {file.MOST_BYTES} bytes, got {path.stat().st_size}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError("expected an agreement or settings in TOML, in UTF-8") from None


def named(path: Path, read: Callable[[str], Found]) -> Found:
    """What `read` makes of the text of this file."""
    try:
        return read(text(path))
    except UsageError as bad:
        raise UsageError(f"{path}: {bad}") from None
