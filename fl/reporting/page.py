"""The look of a report: one style sheet, no script, readable in the light and in the dark, and on paper."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --raised: #f6f7f9; --ink: #16202c; --quiet: #5b6776; --rule: #dde2e8;
  --c0: #2563eb; --c1: #e2680c; --c2: #0d9268; --c3: #8b46d8; --c4: #c81e4a; --c5: #0b87a5; --c6: #96710b;
  --good: #0d9268; --right: #2563eb; --waste: #c9a227; --bad: #d3213d; --shut: #8a94a2; --gone: #434c58;
  --warn-paper: #fdecee; --warn-ink: #97152b; --fine-paper: #e8f6f0; --fine-ink: #0b5f45; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #11161d; --raised: #1a212b; --ink: #e4e9f0; --quiet: #98a4b3; --rule: #2c3644;
  --c0: #6ea2ff; --c1: #ff9a4d; --c2: #3fcf9d; --c3: #c08bff; --c4: #ff7a94; --c5: #45c4e0; --c6: #d8b443;
  --good: #3fcf9d; --right: #6ea2ff; --waste: #d8b443; --bad: #ff6b81; --shut: #6b7686; --gone: #aab4c2;
  --warn-paper: #3a1820; --warn-ink: #ffb3c0; --fine-paper: #10302a; --fine-ink: #8fe5c6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 36px 28px 80px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 44px 0 6px; padding-top: 18px; border-top: 1px solid var(--rule); }
h3 { font-size: 16px; margin: 26px 0 4px; }
p { margin: 6px 0 12px; max-width: 74ch; } .quiet { color: var(--quiet); }
.tiles { display: grid; gap: 12px; margin: 22px 0;
  grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); }
.tile { background: var(--raised); border: 1px solid var(--rule); border-radius: 10px; padding: 12px 14px; }
.tile b { display: block; font-size: 26px; line-height: 1.2; font-weight: 650; letter-spacing: -0.02em; }
.tile span { color: var(--quiet); font-size: 13px; } .tile small { display: block; color: var(--quiet); }
.banner { border-radius: 10px; padding: 12px 16px; margin: 16px 0; }
.banner.warn { background: var(--warn-paper); color: var(--warn-ink); }
.banner.fine { background: var(--fine-paper); color: var(--fine-ink); }
.scroll { overflow-x: auto; margin: 10px 0 14px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--quiet); font-weight: 600; border-bottom: 1px solid var(--rule); }
th, td { padding: 6px 12px 6px 0; vertical-align: top; } td { border-bottom: 1px solid var(--rule); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.warn { color: var(--bad); font-weight: 600; } td.name { font-weight: 600; }
.chart { overflow-x: auto; margin: 8px 0 12px; }
svg { width: 100%; min-width: 640px; height: auto; display: block; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--ink); }
svg text.tick { fill: var(--quiet); font-size: 11.5px; } svg text.name { font-weight: 600; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .curve { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
svg .dot { stroke: none; } svg .bar, svg .field { stroke: none; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; font-size: 13px; color: var(--quiet); }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--quiet); }
pre { background: var(--raised); border: 1px solid var(--rule); border-radius: 8px; padding: 12px;
  overflow-x: auto; font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
code { font: 0.92em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media print { main { padding: 0; } h2 { break-after: avoid; } svg, table { break-inside: avoid; } }
"""

COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6")
_NAMED = (*COLOURS, "good", "right", "waste", "bad", "shut", "gone")
_PAINT = "".join(
    f"svg .curve.{c}{{stroke:var(--{c})}}"
    f"svg .dot.{c},svg .bar.{c},svg .field.{c},svg text.name.{c}{{fill:var(--{c})}}"
    f".legend i.{c}{{background:var(--{c})}}"
    for c in _NAMED
)


def page(title: str, subtitle: str, body: Sequence[str]) -> str:
    """A whole HTML document that needs nothing else."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{STYLE}{_PAINT}</style></head>\n<body><main>"
        f"<h1>{escape(title)}</h1><p class='quiet'>{escape(subtitle)}</p>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def tile(value: str, label: str, detail: str = "") -> str:
    small = f"<small>{escape(detail)}</small>" if detail else ""
    return f"<div class='tile'><span>{escape(label)}</span><b>{escape(value)}</b>{small}</div>"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Cells are text and are escaped; a cell that starts with "!" is shown as a warning."""
    found = ["<div class='scroll'><table><thead><tr>"]
    found += [f"<th{' class=n' if i in numbers else ''}>{escape(head)}</th>" for i, head in enumerate(heads)]
    found.append("</tr></thead><tbody>")
    for row in rows:
        found.append("<tr>")
        for i, cell in enumerate(row):
            kinds = ["n"] * (i in numbers) + ["warn"] * cell.startswith("!") + ["name"] * (i == 0)
            mark = f' class="{" ".join(kinds)}"' if kinds else ""
            found.append(f"<td{mark}>{escape(cell.removeprefix('!'))}</td>")
        found.append("</tr>")
    found.append("</tbody></table></div>")
    return "".join(found)


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """(CSS class, meaning) of each colour."""
    inside = "".join(f"<span><i class='{colour}'></i>{escape(text)}</span>" for colour, text in entries)
    return f"<div class='legend'>{inside}</div>"


def banner(text: str, *, warn: bool) -> str:
    return f"<div class='banner {'warn' if warn else 'fine'}'>{escape(text)}</div>"
