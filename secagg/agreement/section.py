"""One optional section of the terms. Each has a module of its own; `sections` lists them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from secagg.codec import Codec


@dataclass(frozen=True)
class Section:
    """How the value of one section becomes bytes and lines of a file, and back."""

    number: int
    version: int
    name: str  # of the field in `Terms`, and of the table in the file
    layout: Codec
    flat: Callable[[Any], Any]  # the value as `layout` encodes it
    build: Callable[[Any], Any]  # the value from what `layout` read; WireError if it cannot be one
    read: Callable[[object], Any]  # the value from the table of the file; UsageError if it cannot be one
    lines: Callable[[Any], Iterator[str]]  # the table of the file
