"""Files of JSON lines that survive a kill: a line that was cut is left out, and the next one begins a new line."""

import json
from pathlib import Path
from typing import Any


def append(path: Path, entry: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(f"\n{json.dumps(entry)}")


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, or none if there is no file."""
    found = []
    for text in path.read_text().split("\n") if path.is_file() else []:
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found
