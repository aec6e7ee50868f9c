"""Some rows of a site's data: of each column the numbers, the texts, or what is missing, each read once."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Final

from secagg.agreement.statistics.columns import Floats, Mask

ROWS_AT_ONCE: Final = 2**15


def not_found(column: str, names: Sequence[str]) -> str:
    """The names that came instead of a column, and the one that was probably meant."""
    same = [name for name in names if name.casefold() == column.casefold()]
    close = same or difflib.get_close_matches(column, names, 1)
    return f"got {', '.join(names[:20])}{f'; did you mean {close[0]!r}?' if close else ''}"


class Chunk:
    """The rows that are in memory at a time."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._numbers: dict[str, Floats] = {}
        self._present: dict[str, Mask] = {}

    def numbers(self, column: str) -> Floats:
        """The numbers in a column; a missing one is NaN. UsageError, with its place, for anything else."""
        if column not in self._numbers:
            self._numbers[column] = self._read_numbers(column)
        return self._numbers[column]

    def present(self, column: str) -> Mask:
        """Which rows have a value."""
        if column not in self._present:
            self._present[column] = self._read_present(column)
        return self._present[column]

    def texts(self, column: str, known: Collection[str]) -> list[str | None]:
        """The texts in a column; a missing one is None, but a known one is never missing."""
        return self._read_texts(column, known)

    def where(self, place: int) -> str:
        """The place of a row, as the site's operator finds it."""
        raise NotImplementedError

    def _read_numbers(self, column: str) -> Floats:
        raise NotImplementedError

    def _read_present(self, column: str) -> Mask:
        raise NotImplementedError

    def _read_texts(self, column: str, known: Collection[str]) -> list[str | None]:
        raise NotImplementedError
