"""Files of JSON lines that survive a kill: a line that was cut is left out, and the next one begins a new line."""

import json
from pathlib import Path
from typing import Any


def append(path: Path, entry: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(f"\n{json.dumps(entry)}")


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, or none if there is no file."""
    return read_from(path, 0)[0]


def read_from(path: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """The whole lines from a place in a file on, and the place where the last line begins: it may still grow."""
    if not path.is_file():
        return [], 0
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    found = []
    for text in data.split(b"\n"):
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found, start + data.rfind(b"\n") + 1
