"""The charts of a report, as SVG text.

They are drawn by hand because matplotlib's SVG would lose the hover texts, the page's own fonts and the colours that
follow its light and dark modes.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

WIDTH = 940


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


class Line(NamedTuple):
    """One curve: its points, the CSS class of its colour, and whether it is dashed (published numbers)."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = ""
    dashed: bool = False


class Scale(NamedTuple):
    """The vertical scale of curves: its top, and how values are written at ticks, ends of curves and as hover texts."""

    top: float = 1.0
    tick: str = "{:.0%}"
    end: str = "{:.1%}"
    hover: str = "{:.2%}"


PERCENT = Scale()


class Part(NamedTuple):
    """One part of a stacked bar."""

    name: str
    amount: float
    colour: str


class Square(NamedTuple):
    """One square of a grid: the CSS class of its colour, its hover text, and its opacity from 0 to 1."""

    colour: str
    hover: str
    strength: float = 1.0


def curve_colour(index: int) -> str:
    return f"c{index % 7}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover low to high in about `count` steps."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw)
    return [round(i * step, 10) for i in range(math.floor(low / step), math.ceil(high / step + 0.999))]


def lines(curves: Sequence[Line], *, y_label: str, height: int = 320, scale: Scale = PERCENT) -> Markup:
    """Curves over the rounds, of values from 0 to the top of the scale."""
    left, right, above, below = 56, 150, 14, 42
    rounds = [x for curve in curves for x, _ in curve.points]
    if not rounds:
        return _nothing("nothing was measured yet")
    last = max(*rounds, 1)
    first = min(*rounds, last - 1)

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + (x - first) / (last - first) * (WIDTH - left - right)
        return across, above + (1 - min(y / scale.top, 1.0)) * (height - above - below)

    out = []
    for mark in (mark for mark in ticks(0.0, scale.top) if mark <= scale.top):
        _, y = place(first, mark)
        out += [_grid_line(y, left, WIDTH - right), _text("tick", left - 8, y + 4, scale.tick.format(mark), "end")]
    for mark in _whole_ticks(first, last, 8):
        out.append(_text("tick", place(mark, 0)[0], height - below + 18, f"{mark:g}", "middle"))
    out.append(_text("label", left + (WIDTH - left - right) / 2, height - 6, "round", "middle"))
    drawn = [curve for curve in curves if curve.points]
    for curve in drawn:
        out += _curve(curve, [place(x, y) for x, y in curve.points], scale)
    out += _curve_names([(place(*curve.points[-1])[1], curve) for curve in drawn], WIDTH - right + 10, height, scale)
    return _svg(height, y_label, out)


def _curve(curve: Line, places: Sequence[tuple[float, float]], scale: Scale) -> list[Markup]:
    path = " ".join(f"{'L' if i else 'M'}{x:.1f},{y:.1f}" for i, (x, y) in enumerate(places))
    dash = Markup(' stroke-dasharray="5 4"') if curve.dashed else ""
    out = [Markup('<path class="curve {}" d="{}"{}/>').format(curve.colour, path, dash)]
    dot = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>')
    for (number, value), (x, y) in zip(curve.points, places, strict=True):
        hover = f"{curve.name}, round {number:g}: {scale.hover.format(value)}"
        out.append(dot.format(curve.colour, x, y, 1.6 if curve.dashed else 2.4, hover))
    return out


def _curve_names(ends: list[tuple[float, Line]], x: float, height: int, scale: Scale) -> list[Markup]:
    """The name of each curve beside its last point, moved apart where names would overlap."""
    ends.sort(key=lambda end: end[0])
    places: list[float] = []
    for y, _ in ends:
        places.append(max(y, places[-1] + 30 if places else 14))
    overflow = max(0.0, places[-1] + 20 - height)
    out = []
    for y, (_, curve) in zip(places, ends, strict=True):
        y = max(14.0, y - overflow)
        out.append(_text(f"name {curve.colour}", x, y + 1, _shortened(curve.name, 20)))
        out.append(_text("tick", x, y + 14, scale.end.format(curve.points[-1][1])))
    return out


def bar(name: str, parts: Sequence[Part], *, unit: str) -> Markup:
    """A horizontal bar of several parts."""
    total = sum(part.amount for part in parts)
    if total <= 0:
        return _nothing("nothing was measured")
    left, right, y = 170, 90, 6
    x = float(left)
    out = [_text("label", left - 10, y + 18, _shortened(name, 24), "end")]
    for part in parts:
        length = part.amount / total * (WIDTH - left - right)
        if length > 0:
            hover = f"{name}: {part.name} {part.amount:.3g} {unit}"
            out.append(_box(f"bar {part.colour}", x, y, max(length, 0.5), 26, hover, corner=2))
            x += length
    out.append(_text("tick", x + 8, y + 18, f"{total:.3g} {unit}"))
    return _svg(46, f"bars in {unit}", out)


def columns(stacks: Sequence[Sequence[Part]], *, first: int, height: int = 220) -> Markup:
    """Vertical stacked bars, one per round."""
    most = max((sum(part.amount for part in parts) for parts in stacks), default=0.0)
    if most <= 0:
        return _nothing("nothing was opened")
    left, below = 56, 40
    width = min(60.0, (WIDTH - left - 10) / len(stacks))
    out = []
    for mark in ticks(0, most, 4):
        if mark <= most:
            y = 8 + (1 - mark / most) * (height - below - 8)
            out += [_grid_line(y, left, WIDTH - 10), _text("tick", left - 8, y + 4, f"{mark:g}", "end")]
    for i, parts in enumerate(stacks):
        x, y = left + i * width + 0.5, float(height - below)
        for part in parts:
            tall = part.amount / most * (height - below - 8)
            if tall > 0:
                y -= tall
                hover = f"round {first + i}: {part.amount:g} {part.name}"
                out.append(_box(f"bar {part.colour}", x, y, max(width - 1.5, 0.8), tall, hover))
    out += _round_axis(left, width, len(stacks), first, height - 22)
    return _svg(height, "bars per round", out)


def grid(rows: Sequence[tuple[str, Sequence[Square | None]]], *, first: int) -> Markup:
    """Squares: one row per name, one column per round. A row that has a name begins a new block."""
    count = max((len(squares) for _, squares in rows), default=0)
    if not count:
        return _nothing("no rounds yet")
    left = 110
    side = min(30.0, (WIDTH - left - 6) / count)
    tall = max(min(side, 18.0), 7.0)
    out, y = [], 4.0
    for i, (name, squares) in enumerate(rows):
        if name:
            y += 8 if i else 0
            out.append(_text("tick", left - 8, y + tall / 2 + 4, name, "end"))
        for j, square in enumerate(squares):
            if square is not None:
                opacity = 0.25 + 0.75 * min(max(square.strength, 0.0), 1.0)
                where = left + j * side, y, max(side - 1.5, 0.8), tall - 1.5
                out.append(_box(f"field {square.colour}", *where, square.hover, 1.5, opacity))
        y += tall
    out += _round_axis(left, side, count, first, y + 16)
    return _svg(y + 40, "clusters per round", out)


def _round_axis(left: float, step: float, count: int, first: int, y: float) -> list[Markup]:
    """Round numbers below columns of equal width, and the name of the axis below them."""
    marks = _whole_ticks(first, first + count - 1, 10)
    out = [_text("tick", left + (mark - first + 0.5) * step, y, f"{mark:g}", "middle") for mark in marks]
    return [*out, _text("label", left + count * step / 2, y + 18, "round", "middle")]


def _whole_ticks(low: float, high: float, count: int) -> list[float]:
    return [mark for mark in ticks(low, high, count) if low <= mark <= high and mark == int(mark)]


def _shortened(name: str, length: int) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


def _nothing(text: str) -> Markup:
    return Markup('<p class="quiet">{}</p>').format(text)


def _svg(height: float, label: str, parts: Iterable[Markup]) -> Markup:
    head = Markup('<div class="chart"><svg viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">')
    return head.format(WIDTH, height, label) + Markup("").join(parts) + Markup("</svg></div>")


def _text(kind: str, x: float, y: float, text: str, anchor: str = "start") -> Markup:
    element = Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
    return element.format(kind, x, y, anchor, text)


def _box(
    kind: str, x: float, y: float, width: float, height: float, hover: str, corner: float = 0, opacity: float = 1
) -> Markup:
    element = Markup(
        '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="{}" fill-opacity="{:.2f}">'
        "<title>{}</title></rect>"
    )
    return element.format(kind, x, y, width, height, corner, opacity, hover)


def _grid_line(y: float, left: float, right: float) -> Markup:
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
    return line.format(left, right, y, y)
