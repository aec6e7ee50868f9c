"""Tables and bounds on speed, as text or Markdown."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from secagg.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A small table. `name` names its place in a document; the first column is left-aligned."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def as_text(self) -> str:
        widths = [max(len(row[k]) for row in (self.header, *self.rows)) for k in range(len(self.header))]

        def line(row: Sequence[str]) -> str:
            cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            return "  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip()

        notes = [textwrap.fill(note, 110) for note in self.notes]
        lines = [self.header] if any(self.header) else []
        return "\n".join([self.title, *map(line, [*lines, *self.rows]), *notes])

    def as_markdown(self) -> str:
        rule = [":--", *("--:" for _ in self.header[1:])]
        lines = ["| " + " | ".join(row) + " |" for row in (self.header, rule, *self.rows)]
        notes = [f"\n{note}" for note in self.notes]
        return "\n".join([f"{self.title}\n", *lines, *notes])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A figure and its bound."""

    name: str
    value: float
    bound: float
    at_most: bool = False  # otherwise at least

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound


def bar_table(bars: Iterable[Bar]) -> Table:
    return Table(
        name="bars",
        title="Speed and its bounds",
        header=("bound on", "measured", "bound", "kept"),
        rows=tuple(
            (
                bar.name,
                f"{bar.value:.2f}",
                f"{'at most' if bar.at_most else 'at least'} {bar.bound:g}",
                "yes" if bar.met else "NO",
            )
            for bar in bars
        ),
    )


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- bench {name} -->", f"<!-- /bench {name} -->"


def rewrite(document: Path, tables: Iterable[Table]) -> None:
    """Write each table between its two marks in a Markdown file. Other tables stay as they are."""
    text = document.read_text(encoding="utf-8")
    by_name: Mapping[str, list[Table]] = {}
    for table in tables:
        by_name = {**by_name, table.name: [*by_name.get(table.name, []), table]}
    for name, group in by_name.items():
        begin, end = _marks(name)
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise UsageError(f"{document} has no place for table {name!r}: add the lines {begin} and {end}")
        before, rest = text.split(begin)
        after = rest.split(end)[1]
        body = "\n\n".join(table.as_markdown() for table in group)
        text = f"{before}{begin}\n{body}\n{end}{after}"
    document.write_text(text, encoding="utf-8")
