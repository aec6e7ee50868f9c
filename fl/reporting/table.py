"""Tables for a terminal, for a spreadsheet and for a document."""

import csv
import io
from collections.abc import Collection, Iterable, Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table as lines: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def left_aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    """Rows of a table as lines, all columns to the left."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in texts]


def as_csv(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for a spreadsheet. A cell that is None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    return text.getvalue()


def as_markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: Collection[str]) -> str:
    """A table for a document. The columns with these heads hold texts; the others hold numbers, to the right.

    >>> print(as_markdown(["curve", "rounds"], [["a", "10"]], texts=["curve"]), end="")
    | curve | rounds |
    |---|--:|
    | a | 10 |
    """
    rules = ["---" if head in texts else "--:" for head in heads]
    lines = ["| " + " | ".join(heads) + " |", "|" + "|".join(rules) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"
