"""Small charts as SVG text, drawn with CSS classes so that the page decides on colours (and on dark mode).

No script and no font of its own: a report stays one file that any browser shows. Hover texts are `<title>`s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 940


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: its points, a CSS class for its colour, and whether it is dashed (others' numbers)."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a stacked bar."""

    name: str
    amount: float
    colour: str


@dataclass(frozen=True, slots=True)
class Square:
    """One field of a grid: a CSS class, how strong (0 to 1), and what it says on hover."""

    colour: str
    told: str
    strength: float = 1.0


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover low to high in about `count` steps."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw)
    first = math.floor(low / step) * step
    found, value = [], first
    while value < high + step * 0.999:
        found.append(round(value, 10))
        value += step
    return found


def whole_ticks(low: float, high: float, count: int) -> list[float]:
    """The ticks that are whole numbers, inside the range."""
    return [mark for mark in ticks(low, high, count) if low <= mark <= high and mark == int(mark)]


def _text(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _box(kind: str, x: float, y: float, width: float, height: float, told: str, more: str = "") -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{more}>'
        f"<title>{escape(told)}</title></rect>"
    )


def _across(y: float, left: float, right: float) -> str:
    return f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _open(width: int, height: float, what: str) -> str:
    return (
        f'<div class="chart"><svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(what)}">'
    )


def lines(
    curves: Sequence[Line],
    *,
    y_label: str,
    x_label: str,
    percent: bool = False,
    top: float | None = None,
    height: int = 320,
) -> str:
    """Curves over a common x axis of whole numbers."""
    left, right, above, below = 56, 150, 14, 42
    every = [point for curve in curves for point in curve.points]
    if not every:
        return "<p class='quiet'>nothing was measured yet</p>"
    last = max(max(x for x, _ in every), 1)
    first = min(min(x for x, _ in every), last - 1)
    marks = ticks(0.0, top if top is not None else max(max(y for _, y in every), 1e-9))
    high = marks[-1] if top is None else top

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + (x - first) / (last - first) * (WIDTH - left - right)
        return across, above + (1 - min(y, high) / high) * (height - above - below)

    out = [_open(WIDTH, height, y_label)]
    for mark in marks:
        if mark <= high * 1.0001:
            _, y = at(first, mark)
            text = f"{mark:.0%}" if percent else f"{mark:g}"
            out += [_across(y, left, WIDTH - right), _text("tick", left - 8, y + 4, text, "end")]
    for mark in whole_ticks(first, last, 8):
        out.append(_text("tick", at(mark, 0)[0], height - below + 18, f"{mark:g}", "middle"))
    out.append(_text("label", left + (WIDTH - left - right) / 2, height - 6, x_label, "middle"))
    ends: list[tuple[float, Line]] = []
    for curve in curves:
        if curve.points:
            out += _curve(curve, [at(x, y) for x, y in curve.points], x_label, percent)
            ends.append((at(*curve.points[-1])[1], curve))
    out += _names_at_the_end(ends, WIDTH - right + 10, percent, height)
    return "".join([*out, "</svg></div>"])


def _curve(curve: Line, places: Sequence[tuple[float, float]], x_label: str, percent: bool) -> list[str]:
    path = " ".join(f"{'L' if i else 'M'}{x:.1f},{y:.1f}" for i, (x, y) in enumerate(places))
    dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
    out = [f'<path class="curve {curve.colour}" d="{path}"{dash}/>']
    radius = 1.6 if curve.dashed else 2.4
    for (px, py), (x, y) in zip(curve.points, places, strict=True):
        shown = f"{py:.2%}" if percent else f"{py:.4g}"
        out.append(
            f'<circle class="dot {curve.colour}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">'
            f"<title>{escape(curve.name)}, {escape(x_label)} {px:g}: {shown}</title></circle>"
        )
    return out


def _names_at_the_end(ends: list[tuple[float, Line]], x: float, percent: bool, height: int) -> list[str]:
    """Each curve's name beside its last point, pushed apart where they would overlap."""
    ends.sort(key=lambda end: end[0])
    placed: list[float] = []
    for y, _ in ends:
        placed.append(max(y, placed[-1] + 30 if placed else 14))
    overflow = placed[-1] + 20 - height if placed else 0
    if overflow > 0:
        placed = [max(14.0, y - overflow) for y in placed]
    out = []
    for y, (_, curve) in zip(placed, ends, strict=True):
        value = curve.points[-1][1]
        name = curve.name if len(curve.name) <= 20 else curve.name[:19] + "…"
        out.append(_text(f"name {curve.colour}", x, y + 1, name))
        out.append(_text("tick", x, y + 14, f"{value:.1%}" if percent else f"{value:.3g}"))
    return out


def stacked(rows: Sequence[tuple[str, Sequence[Part]]], *, unit: str) -> str:
    """Horizontal bars of parts, one row each, on a common scale."""
    longest = max((sum(part.amount for part in parts) for _, parts in rows), default=0.0)
    if longest <= 0:
        return "<p class='quiet'>nothing was measured</p>"
    left, right, step = 170, 90, 38
    out = [_open(WIDTH, step * len(rows) + 8, f"bars in {unit}")]
    for i, (name, parts) in enumerate(rows):
        y, x = i * step + 6, float(left)
        out.append(_text("label", left - 10, y + 18, name if len(name) <= 24 else name[:23] + "…", "end"))
        for part in parts:
            long = part.amount / longest * (WIDTH - left - right)
            if long > 0:
                told = f"{name}: {part.name} {part.amount:.3g} {unit}"
                out.append(_box(f"bar {part.colour}", x, y, max(long, 0.5), 26, told, ' rx="2"'))
                x += long
        total = sum(part.amount for part in parts)
        out.append(_text("tick", x + 8, y + 18, f"{total:.3g} {unit}"))
    return "".join([*out, "</svg></div>"])


def columns(stacks: Sequence[Sequence[Part]], *, first: int, x_label: str, height: int = 220) -> str:
    """Vertical stacked bars, one per round."""
    most = max((sum(part.amount for part in parts) for parts in stacks), default=0.0)
    if most <= 0:
        return "<p class='quiet'>nothing was opened</p>"
    left, below = 56, 40
    wide = min(60.0, (WIDTH - left - 10) / len(stacks))
    out = [_open(WIDTH, height, f"bars per {x_label}")]
    for mark in ticks(0, most, 4):
        if mark <= most:
            y = 8 + (1 - mark / most) * (height - below - 8)
            out += [_across(y, left, WIDTH - 10), _text("tick", left - 8, y + 4, f"{mark:g}", "end")]
    for i, parts in enumerate(stacks):
        y = float(height - below)
        for part in parts:
            tall = part.amount / most * (height - below - 8)
            if tall > 0:
                y -= tall
                told = f"{x_label} {first + i}: {part.amount:g} {part.name}"
                out.append(
                    _box(f"bar {part.colour}", left + i * wide + 0.5, y, max(wide - 1.5, 0.8), tall, told)
                )
    for mark in whole_ticks(first, first + len(stacks) - 1, 10):
        out.append(_text("tick", left + (mark - first + 0.5) * wide, height - 22, f"{mark:g}", "middle"))
    out.append(_text("label", left + wide * len(stacks) / 2, height - 4, x_label, "middle"))
    return "".join([*out, "</svg></div>"])


def grid(rows: Sequence[tuple[str, Sequence[Square | None]]], *, first: int, x_label: str) -> str:
    """Squares: one row per name, one column per round; a named row starts a block of its own."""
    count = max((len(squares) for _, squares in rows), default=0)
    if not count:
        return "<p class='quiet'>no rounds yet</p>"
    left = 110
    side = min(30.0, (WIDTH - left - 6) / count)
    tall = max(min(side, 18.0), 7.0)
    blocks = max(sum(bool(name) for name, _ in rows) - 1, 0)
    out = [_open(WIDTH, tall * len(rows) + 8 * blocks + 44, f"clusters per {x_label}")]
    y = 4.0
    for i, (name, squares) in enumerate(rows):
        if name:
            y += 8 if i else 0
            out.append(_text("tick", left - 8, y + tall / 2 + 4, name, "end"))
        for j, square in enumerate(squares):
            if square is not None:
                faint = 0.25 + 0.75 * min(max(square.strength, 0.0), 1.0)
                more = f' rx="1.5" fill-opacity="{faint:.2f}"'
                where = left + j * side, y, max(side - 1.5, 0.8), tall - 1.5
                out.append(_box(f"field {square.colour}", *where, square.told, more))
        y += tall
    for mark in whole_ticks(first, first + count - 1, 10):
        out.append(_text("tick", left + (mark - first + 0.5) * side, y + 16, f"{mark:g}", "middle"))
    out.append(_text("label", left + count * side / 2, y + 34, x_label, "middle"))
    return "".join([*out, "</svg></div>"])
