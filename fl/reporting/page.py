"""The page of a report: one HTML file from a template, without scripts or links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CURVE_COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6")
COLOURS = {  # CSS class: (on light paper, on dark paper)
    "c0": ("#2563eb", "#6ea2ff"),
    "c1": ("#e2680c", "#ff9a4d"),
    "c2": ("#0d9268", "#3fcf9d"),
    "c3": ("#8b46d8", "#c08bff"),
    "c4": ("#c81e4a", "#ff7a94"),
    "c5": ("#0b87a5", "#45c4e0"),
    "c6": ("#96710b", "#d8b443"),
    "used": ("#0d9268", "#3fcf9d"),
    "caught": ("#2563eb", "#6ea2ff"),
    "wasted": ("#c9a227", "#d8b443"),
    "poisoned": ("#d3213d", "#ff6b81"),
    "closed": ("#8a94a2", "#6b7686"),
    "lost": ("#434c58", "#aab4c2"),
}


class Alert(str):
    """A table cell that is shown as a warning."""

    alert = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page. `numbers` are the columns that are aligned to the right."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()


def curve_colour(index: int) -> str:
    """The colour of the curve with this index."""
    return CURVE_COLOURS[index % len(CURVE_COLOURS)]


def render(**content: Any) -> str:
    """The page with this content. Every text is escaped; only charts are inserted as markup."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fl.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(colours=COLOURS, **content)
