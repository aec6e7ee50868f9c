"""The page of a sweep: heat maps of means and worst cases, and curves with confidence bands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from fl.config.grid import Axis
from fl.reporting.banner import Seen, banner
from fl.reporting.charts import SHARES, Line, Scale, curve_colour, lines, scale_of
from fl.reporting.page import Cell, Table, render
from fl.reporting.results import Cell as Combination
from fl.reporting.results import Mean, Results, Worst, grouped

MOST_CURVES = 7  # in one chart
MOST_CHARTS = 24  # beyond these, the tables must do
LEAST_SPAN = 0.25  # of accuracies from the faintest to the strongest colour
PAINTS = (("#f6f7f9", "#1d4ed8"), ("#1a212b", "#3b74f0"))  # behind heat maps, faintest and strongest: light and dark
INKS = ("#000000", "#ffffff")  # one of them has 4.5:1 on any colour


class Heat(NamedTuple):
    """A heat map: its title, the heads of its columns, and rows of a label and cells."""

    title: str
    heads: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    corner: str = ""  # what the labels of the rows are

    @property
    def is_empty(self) -> bool:
        return all(cell.heat is None for _, cells in self.rows for cell in cells)


class Ends(NamedTuple):
    """The values that have the faintest and the strongest colour; all are equal if both are the same."""

    low: float
    high: float


class Panel(NamedTuple):
    """One chart of a grid: the setting that all its curves share, and the curves."""

    title: str
    curves: Sequence[Line]


def sweep_page(found: Results, runs: Sequence[Seen], *, toml: str, info: Mapping[str, Any]) -> str:
    """The page as text. `runs` are the finished runs."""
    scale = scale_for(found)
    shown, legend = panels(found)
    pairs = [heat for heat in _pair_heats(found) if not heat.is_empty]
    return render(
        "sweep.html",
        title=f"Sweep: {found.name}",
        found=found,
        axes=[(axis.name, _keys(axis), ", ".join(axis.labels), _role(axis)) for axis in found.axes],
        banner=banner(runs) if runs else None,
        failed=sum(bool(outcome.error) for outcome in found.outcomes),
        errors=_reasons("error", [(outcome.name, outcome.error) for outcome in found.outcomes if outcome.error]),
        left_out=_reasons("why", [(each.name, each.why) for each in found.impossible]),
        heats=[main_heat(found), *pairs[:MOST_CHARTS]],
        more_heats=max(len(pairs) - MOST_CHARTS, 0),
        shades=shades,
        scale_words=_scale_words(found),
        panels=[(panel.title, _chart(panel, found.measure.name, scale)) for panel in shown[:MOST_CHARTS]],
        more=max(len(shown) - MOST_CHARTS, 0),
        legend=legend,
        measure=found.measure,
        toml=toml,
        info=info,
    )


def _reasons(head: str, entries: Sequence[tuple[str, str]]) -> Table:
    """A line per reason, with how many runs have it and which."""
    rows = [[text, str(len(names)), "; ".join(names)] for text, names in grouped(entries)]
    return Table([head, "runs", "which"], rows, numbers=(1,))


def scale_for(found: Results) -> Scale:
    """The same scale for all charts of a sweep."""
    if found.measure.in_percent:
        return SHARES
    return scale_of(mean.value for cell in found.cells for _, mean in cell.curve)


def _keys(axis: Axis) -> str:
    """The keys that an axis changes, if its name does not say them."""
    keys = sorted(axis.keys)
    return "" if keys == [axis.name] else ", ".join(keys)


def _scale_words(found: Results) -> str:
    """What the colours of the heat maps mean."""
    ends = _ends(found)
    if ends is None:
        return ""
    if ends.low == ends.high:
        return "There is only one value, so the colours say nothing."
    return f"The faintest colour is {found.show(ends.low)}, the strongest {found.show(ends.high)}."


def shades(heat: float | None) -> list[tuple[str, str]]:
    """The paint and the ink of a cell, for light pages and for dark ones. The ink is what can be read better."""
    found = []
    for faint, strong in PAINTS:
        share = 0.04 + 0.84 * (heat or 0.0)
        parts = [(1 - share) * a + share * b for a, b in zip(_rgb(faint), _rgb(strong), strict=True)]
        paint = "#" + "".join(f"{round(part):02x}" for part in parts)
        found.append((paint, max(INKS, key=lambda ink: _contrast(ink, paint))))
    return found


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _contrast(one: str, other: str) -> float:
    """The contrast of two colours as in WCAG 2."""
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (
        part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in _rgb(colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _role(axis: Axis) -> str:
    return "averaged" if axis.is_seed else "the worst case is over these" if axis.is_attack else ""


def _chart(panel: Panel, measure: str, scale: Scale) -> Markup:
    return lines(panel.curves, y_label=f"{measure}, {panel.title}", height=200, scale=scale)


def panels(found: Results) -> tuple[list[Panel], list[tuple[str, str]]]:
    """Charts of at most a few curves each, and the one legend for all of them."""
    axes = [axis for axis in found.axes if not axis.is_seed]
    colours = next((axis for axis in found.others if 1 < len(axis.values) <= MOST_CURVES), None)
    labels = colours.labels if colours else ("",)
    groups: dict[str, list[Line]] = {}
    for cell in found.cells:
        title = ", ".join(f"{axis.name} {cell.labels[axis.name]}" for axis in axes if axis is not colours)
        name = cell.labels[colours.name] if colours else found.measure.name
        colour = curve_colour(labels.index(name) if colours else 0)
        if cell.curve:
            groups.setdefault(title, []).append(_curve(cell, name, colour))
    legend = [(curve_colour(i), f"{colours.name} {label}") for i, label in enumerate(labels)] if colours else []
    return [Panel(title or "all runs", curves) for title, curves in groups.items()], legend


def _curve(cell: Combination, name: str, colour: str) -> Line:
    points = [(number, mean.value) for number, mean in cell.curve]
    band = [(n, mean.low, mean.high) for n, mean in cell.curve if mean.low is not None and mean.high is not None]
    return Line(name, points, colour, band=band)


def _heat_cell(found: Results, mean: Mean | None, detail: str = "", worst: bool = False) -> Cell:
    if mean is None:
        return Cell("-", detail=detail)
    low, high = _ends(found) or Ends(mean.value, mean.value)
    share = (mean.value - low) / (high - low) if high > low else 0.5
    interval = found.show_mean(mean).partition(" ")[2]
    return Cell(found.show(mean.value), alert=worst, detail=detail or interval, heat=round(min(max(share, 0), 1), 3))


def _ends(found: Results) -> Ends | None:
    """The ends of the scale of colours, if there is any value."""
    values = [cell.mean.value for cell in found.cells if cell.mean is not None]
    if not values:
        return None
    low, high = min(values), max(values)
    if found.measure.in_percent and high - low < LEAST_SPAN:  # small differences stay small
        low = min(max((low + high - LEAST_SPAN) / 2, 0.0), 1.0 - LEAST_SPAN)
        high = low + LEAST_SPAN
    return Ends(low, high)


def main_heat(found: Results) -> Heat:
    """The other axes down and the attacks across, with the worst attack of each row marked and repeated in front."""
    across, down = list(_combinations(found.attacks)), list(_combinations(found.others))
    cells = {tuple(cell.labels.items()): cell for cell in found.cells}
    worst = {tuple(entry.labels.items()): entry for entry in found.worst}
    order = [axis.name for axis in found.axes if not axis.is_seed]
    rows = []
    for row in down:
        line = []
        for column in across:
            labels = {**row, **column}
            cell = cells.get(tuple((name, labels[name]) for name in order))
            entry = worst.get(tuple(row.items()))
            name = ", ".join(column.values())
            marked = entry is not None and entry.mean is not None and entry.attack == name
            line.append(_heat_cell(found, cell.mean if cell else None, _few(cell), marked))
        if found.worst:
            entry = worst.get(tuple(row.items()))
            line.insert(0, _heat_cell(found, entry.mean if entry else None, _few(entry)))
        rows.append((", ".join(row.values()) or "all", line))
    heads = [", ".join(column.values()) or found.measure.name for column in across]
    heads = ["worst", *heads] if found.worst else heads  # in front: a telephone shows a few columns
    return Heat(f"{found.measure.name} after the last round", heads, rows, found.down_head)


def _few(entry: Worst | Combination | None) -> str:
    """How many seeds a mean has, if some are missing."""
    return f"{entry.finished} of {entry.wanted} seeds" if entry and entry.mean and entry.finished < entry.wanted else ""


def _pair_heats(found: Results) -> Iterator[Heat]:
    """For every pair of other axes: one down and one across, one map per combination of the rest."""
    for down, across in itertools.combinations([axis for axis in found.others if len(axis.values) > 1], 2):
        rest = [axis for axis in found.others if axis not in (down, across)]
        for fixed in _combinations(rest):
            rows = []
            for label in down.labels:
                wanted = [{**fixed, down.name: label, across.name: other} for other in across.labels]
                entries = [_worst_of(found, labels) for labels in wanted]
                rows.append((label, [_heat_cell(found, each.mean if each else None, _few(each)) for each in entries]))
            where = f"; {', '.join(f'{name} {label}' for name, label in fixed.items())}" if fixed else ""
            what = "worst case" if found.worst else found.measure.name
            yield Heat(f"{what}: {down.name} down, {across.name} across{where}", across.labels, rows, down.name)


def _worst_of(found: Results, labels: Mapping[str, str]) -> Worst | Combination | None:
    entries: Sequence[Worst | Combination] = found.worst or found.cells
    return next((entry for entry in entries if dict(entry.labels) == labels), None)


def _combinations(axes: Sequence[Axis]) -> Iterator[dict[str, str]]:
    for chosen in itertools.product(*(axis.labels for axis in axes)):
        yield {axis.name: label for axis, label in zip(axes, chosen, strict=True)}
