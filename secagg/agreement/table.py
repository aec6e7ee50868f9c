"""A table of a TOML file: each key has a type, and an unknown key is refused with the nearest known one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection
from typing import Any

from secagg.arguments import MOST_ROUND
from secagg.errors import UsageError


class Table:
    """A table of a file. Each key is taken once, with its type; what is left over at the end is refused."""

    def __init__(self, values: object, where: str, keys: Collection[str]) -> None:
        if not isinstance(values, dict):
            raise UsageError(f"{where}: expected a table [{where}], got {show(values)}")
        self.where, self._values = where, values
        for key in values:
            if key not in keys:
                close = difflib.get_close_matches(key, keys, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(sorted(keys))}"
                raise UsageError(f"{self.path(key)}: unknown key; {hint}")

    def path(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def raw(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._typed(key, str, "text", default))

    def whole(self, key: str, default: int | None = None, *, most: int = MOST_ROUND) -> int:
        value: int = self._typed(key, int, "a whole number", default)
        if not 0 <= value <= most:
            raise UsageError(f"{self.path(key)}: expected 0 to {most}, got {value}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise UsageError(f"{self.path(key)}: expected true or false, got {show(value)}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        return float(self._typed(key, int | float, "a number", default))

    def choice(self, key: str, choices: Collection[str], default: str | None = None) -> Any:
        value = self._typed(key, str, f"one of {', '.join(choices)}", default)
        if value not in choices:
            close = difflib.get_close_matches(value, choices, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"{self.path(key)}: expected one of {', '.join(choices)}, got {value!r}{hint}")
        return value

    def hex(self, key: str, size: int | None = None, *, most: int | None = None) -> bytes:
        """Bytes of this size, or at least one and at most so many."""
        text = self._typed(key, str, _digits(size), None)
        try:
            data = bytes.fromhex(text)
        except ValueError:
            data = b""
        if text != data.hex() or not (len(data) == size if most is None else 0 < len(data) <= most):
            raise UsageError(f"{self.path(key)}: expected {_digits(size)}, got {show(text)}")
        return data

    def _typed(self, key: str, kind: Any, expected: str, default: Any) -> Any:
        value = self._values.get(key, default)
        if value is None:
            raise UsageError(f"{self.path(key)}: expected {expected}, but the key is missing")
        if isinstance(value, bool) or not isinstance(value, kind):
            raise UsageError(f"{self.path(key)}: expected {expected}, got {show(value)}")
        return value


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _digits(size: int | None) -> str:
    return "lower-case hexadecimal digits" if size is None else f"{2 * size} lower-case hexadecimal digits"


def show(value: object) -> str:
    """What came, short enough for one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
