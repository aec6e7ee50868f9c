"""The charts of a report, as SVG text.

They are drawn by hand because matplotlib's SVG would lose the hover texts, the page's own fonts and the colours that
follow its light and dark modes.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

WIDTH = 440  # units of every chart: about the pixels of a phone, so that its text can be read there
MOST_DOTS = 1500  # points of a chart that get a dot with a hover text


COLOURS = {  # CSS class: (on light paper, on dark paper). No two are alike, also for colour-blind readers.
    "c0": ("#2563eb", "#6ea2ff"),  # c0 to c6: curves in their order
    "c1": ("#d25d03", "#f08e3e"),
    "c2": ("#6527b4", "#a96fd5"),
    "c3": ("#0b87a5", "#45c4e0"),
    "c4": ("#7a4b1e", "#c9986a"),
    "c5": ("#81992e", "#cddd5f"),
    "c6": ("#111827", "#f1f5f9"),
    "c7": ("#d4409e", "#f67bbf"),  # one more, where curves have colours by their meaning
    "used": ("#0d9268", "#3fcf9d"),  # green: clean; pale: filtered out
    "wasted": ("#a5dec3", "#316656"),
    "poisoned": ("#d3213d", "#ff6b81"),  # red: poisoned; pale: filtered out
    "caught": ("#f3a09f", "#792c37"),
    "closed": ("#b7bfca", "#566172"),
    "lost": ("#6c757e", "#a1aaad"),
    "most": ("#07545d", "#a9f0f9"),  # leverage
    "exposed": ("#9f02a5", "#e470ed"),
    "e0": ("#a96719", "#fde149"),  # e0 to e2: epsilon
    "e1": ("#8f3200", "#ebaf00"),
    "e2": ("#b28d00", "#a16105"),
    "p0": ("#3b4560", "#ecf7d0"),  # p0 to p4: parts of a round
    "p1": ("#38699f", "#9ec0e8"),
    "p2": ("#42a2e0", "#5a3a50"),
    "p3": ("#ae948a", "#5a70a5"),
    "p4": ("#9adfff", "#0b3f65"),
}


class Line(NamedTuple):
    """One curve: its points, the CSS class of its colour, whether it is dashed, and (x, low, high) of a band."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = ""
    dashed: bool = False
    band: Sequence[tuple[float, float, float]] = ()


class Scale(NamedTuple):
    """The marks of an axis, whose ends are those of the chart, and how values are written."""

    marks: Sequence[float]
    text: str = "{:.0%}"
    exact: str = "{:.2%}"

    @property
    def low(self) -> float:
        return self.marks[0]

    @property
    def high(self) -> float:
        return self.marks[-1]


def shares_up_to(most: float) -> Scale:
    """The scale of shares that are all below a value, so that small ones can be told apart."""
    marks = ticks(0.0, min(max(most, 0.1), 1.0))
    return Scale(marks, "{:.0%}" if all(mark == round(mark, 2) for mark in marks) else "{:.1%}")


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
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)  # 0.6 / 0.1 is a little less than 6
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


SHARES = Scale(ticks(0.0, 1.0))
MOST = 1e300  # larger values stand at the edge of a chart


def scale_of(values: Iterable[float]) -> Scale:
    """A scale that holds these values, which are no shares."""
    found = [min(max(value, -MOST), MOST) for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(found), max(found)
    largest = max(abs(low), abs(high))
    if high - low <= max(largest * 1e-6, 1 / MOST):  # a chart of equal values has them in the middle
        low, high = low - (largest / 2 or 0.5), high + (largest / 2 or 0.5)
    marks = ticks(low, high)
    steps = largest / (marks[1] - marks[0]) + 1
    digits = max(4, math.ceil(math.log10(steps)) + 1)  # so that no two marks look the same
    return Scale(marks, f"{{:.{digits}g}}", f"{{:.{digits + 1}g}}")


def lines(curves: Sequence[Line], *, y_label: str, height: int = 220, scale: Scale = SHARES) -> Markup:
    """Curves over the rounds. Their names are in a legend beside the chart."""
    labels = [scale.text.format(mark) for mark in scale.marks]
    left, right, above, below = max(40.0, 10 + 6.7 * max(map(len, labels))), 12, 10, 36
    rounds = [x for curve in curves for x, _ in curve.points]
    if not rounds:
        return _nothing("nothing was measured yet")
    last = max(*rounds, 1)
    first = min(*rounds, last - 1)

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + (x - first) / (last - first) * (WIDTH - left - right)
        share = (y - scale.low) / (scale.high - scale.low)
        return across, above + (1 - min(max(share, 0.0), 1.0)) * (height - above - below)

    out = []
    for mark, label in zip(scale.marks, labels, strict=True):
        _, y = place(first, mark)
        out += [_grid_line(y, left, WIDTH - right), _text("tick", left - 6, y + 4, label, "end")]
    for mark in _whole_ticks(first, last, 8):
        out.append(_text("tick", place(mark, 0)[0], height - below + 15, f"{mark:g}", "middle"))
    out.append(_text("label", left + (WIDTH - left - right) / 2, height - 5, "round", "middle"))
    for curve in curves:
        if curve.band:
            edge = [place(x, high) for x, _, high in curve.band] + [place(x, low) for x, low, _ in curve.band[::-1]]
            out.append(Markup('<path class="band {}" d="{}Z"/>').format(curve.colour, _path(edge)))
    thin, dots = len(curves) > 7, len(rounds) <= MOST_DOTS
    for curve in curves:
        if curve.points:
            out += _curve(curve, [place(x, y) for x, y in curve.points], scale, thin, dots)
    return _svg(height, y_label, out)


def _path(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{'L' if i else 'M'}{x:.1f},{y:.1f}" for i, (x, y) in enumerate(places))


def _curve(
    curve: Line, places: Sequence[tuple[float, float]], scale: Scale, thin: bool, dots: bool
) -> Iterable[Markup]:
    dash = Markup(' stroke-dasharray="5 4"') if curve.dashed else ""
    kind = f"curve thin {curve.colour}" if thin else f"curve {curve.colour}"
    yield Markup('<path class="{}" d="{}"{}><title>{}</title></path>').format(kind, _path(places), dash, curve.name)
    dot = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>')
    for (number, value), (x, y) in zip(curve.points, places, strict=True):
        if dots:
            hover = f"{curve.name}, round {number:g}: {scale.exact.format(value)}"
            yield dot.format(curve.colour, x, y, 1.2 if curve.dashed or thin else 2, hover)


def legend_of(curves: Sequence[Line], scale: Scale = SHARES) -> list[tuple[str, str]]:
    """(CSS classes of the mark, text) of each curve: its name and its last value."""
    return [
        (
            f"{curve.colour} dashed" if curve.dashed else curve.colour,
            f"{curve.name}: {scale.exact.format(curve.points[-1][1])}",
        )
        for curve in curves
        if curve.points
    ]


def bar(name: str, parts: Sequence[Part], *, unit: str) -> Markup:
    """A horizontal bar of several parts, under its name and total."""
    total = sum(part.amount for part in parts)
    if total <= 0:
        return _nothing("nothing was measured")
    x, y = 2.0, 22
    out = [_text("label", 2, 14, f"{name}: {total:.3g} {unit}")]
    for part in parts:
        length = part.amount / total * (WIDTH - 4)
        if length > 0:
            hover = f"{part.name}: {part.amount:.3g} {unit}"
            out.append(_box(f"bar {part.colour}", x, y, max(length, 0.5), 22, hover, corner=2))
            x += length
    return _svg(50, f"bars in {unit}", out)


def columns(stacks: Sequence[Sequence[Part]], *, first: int, height: int = 200) -> Markup:
    """Vertical stacked bars, one per round."""
    most = max((sum(part.amount for part in parts) for parts in stacks), default=0.0)
    if most <= 0:
        return _nothing("nothing was opened")
    left, below = 40, 36
    width = min(40.0, (WIDTH - left - 8) / len(stacks))
    out = []
    for mark in ticks(0, most, 4):
        if mark <= most:
            y = 8 + (1 - mark / most) * (height - below - 8)
            out += [_grid_line(y, left, WIDTH - 8), _text("tick", left - 6, y + 4, f"{mark:g}", "end")]
    for i, parts in enumerate(stacks):
        x, y = left + i * width + 0.5, float(height - below)
        for part in parts:
            tall = part.amount / most * (height - below - 8)
            if tall > 0:
                y -= tall
                hover = f"round {first + i}: {part.amount:g} {part.name}"
                out.append(_box(f"bar {part.colour}", x, y, max(width - 1.0, 0.8), tall, hover))
    out += _round_axis(left, width, len(stacks), first, height - 20)
    return _svg(height, "clusters per round", out)


class Row(NamedTuple):
    """One row of a grid: its label, its squares, and the title of the block that begins with it."""

    label: str
    squares: Sequence[Square | None]
    block: str = ""


def grid(rows: Sequence[Row], *, first: int) -> Markup:
    """Squares: one row per cluster, one column per round."""
    count = max((len(row.squares) for row in rows), default=0)
    if not count:
        return _nothing("no rounds yet")
    left = 74  # for "cluster 100" in a wide font
    side = min(26.0, (WIDTH - left - 4) / count)
    tall = max(min(side, 15.0), 6.0)
    every = 1 if tall >= 10 else 5  # labels of smaller rows would overlap
    out, y, before = [], 4.0, 0
    for i, row in enumerate(rows):
        if row.block:
            y += 16 if not i else 22
            out.append(_text("label", 0, y - 5, row.block))
            before = i
        if (i - before) % every == 0:
            out.append(_text("tick", left - 6, y + tall / 2 + 3.5, row.label, "end"))
        for j, square in enumerate(row.squares):
            if square is not None:
                opacity = 0.3 + 0.7 * min(max(square.strength, 0.0), 1.0)
                where = left + j * side, y, max(side - 1.2, 0.8), tall - 1.2
                out.append(_box(f"field {square.colour}", *where, square.hover, 1.5, opacity))
        y += tall
    out += _round_axis(left, side, count, first, y + 14)
    return _svg(y + 36, "clusters per round", out)


def _round_axis(left: float, step: float, count: int, first: int, y: float) -> list[Markup]:
    """Round numbers below columns of equal width, and the name of the axis below them."""
    marks = _whole_ticks(first, first + count - 1, 10)
    out = [_text("tick", left + (mark - first + 0.5) * step, y, f"{mark:g}", "middle") for mark in marks]
    return [*out, _text("label", left + count * step / 2, y + 16, "round", "middle")]


def _whole_ticks(low: float, high: float, count: int) -> list[float]:
    return [mark for mark in ticks(low, high, count) if low <= mark <= high and mark == int(mark)]


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
