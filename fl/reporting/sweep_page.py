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


class Heat(NamedTuple):
    """A heat map: its title, the heads of its columns, and rows of a label and cells."""

    title: str
    heads: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]


class Panel(NamedTuple):
    """One chart of a grid: the setting that all its curves share, and the curves."""

    title: str
    curves: Sequence[Line]


def sweep_page(found: Results, runs: Sequence[Seen], *, toml: str, info: Mapping[str, Any]) -> str:
    """The page as text. `runs` are the finished runs."""
    scale = scale_for(found)
    shown, legend = panels(found)
    return render(
        "sweep.html",
        title=f"Sweep: {found.name}",
        found=found,
        axes=[(axis.name, ", ".join(axis.labels), _role(axis)) for axis in found.axes],
        banner=banner(runs) if runs else None,
        failed=sum(bool(outcome.error) for outcome in found.outcomes),
        errors=_reasons("error", [(outcome.name, outcome.error) for outcome in found.outcomes if outcome.error]),
        left_out=_reasons("why", [(each.name, each.why) for each in found.impossible]),
        heats=[main_heat(found), *_pair_heats(found)],
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
    values = [cell.mean.value for cell in found.cells if cell.mean is not None]
    low, high = min(values), max(values)
    if found.measure.in_percent:
        low = min(low, high - LEAST_SPAN)  # small differences stay small
    share = (mean.value - low) / (high - low) if high > low else 0.5
    interval = found.show_mean(mean).partition(" ")[2]
    return Cell(found.show(mean.value), alert=worst, detail=detail or interval, heat=round(min(max(share, 0), 1), 3))


def main_heat(found: Results) -> Heat:
    """The other axes down and the attacks across, with the worst attack of each row marked and repeated at the end."""
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
            few = f"{cell.finished} of {cell.wanted} seeds" if cell and cell.finished < cell.wanted else ""
            line.append(_heat_cell(found, cell.mean if cell else None, few, marked))
        if found.worst:
            entry = worst.get(tuple(row.items()))
            line.append(_heat_cell(found, entry.mean if entry else None))
        rows.append((", ".join(row.values()) or "all", line))
    heads = [", ".join(column.values()) or found.measure.name for column in across] + (["worst"] if found.worst else [])
    return Heat(f"{found.measure.name} after the last round", heads, rows)


def _pair_heats(found: Results) -> Iterator[Heat]:
    """For every pair of other axes: one down and one across, one map per combination of the rest."""
    for down, across in itertools.combinations([axis for axis in found.others if len(axis.values) > 1], 2):
        rest = [axis for axis in found.others if axis not in (down, across)]
        for fixed in _combinations(rest):
            rows = []
            for label in down.labels:
                wanted = [{**fixed, down.name: label, across.name: other} for other in across.labels]
                rows.append((label, [_heat_cell(found, _worst_of(found, labels)) for labels in wanted]))
            where = f"; {', '.join(f'{name} {label}' for name, label in fixed.items())}" if fixed else ""
            what = "worst case" if found.worst else found.measure.name
            yield Heat(f"{what}: {down.name} down, {across.name} across{where}", across.labels, rows)


def _worst_of(found: Results, labels: Mapping[str, str]) -> Mean | None:
    entries: Sequence[Worst | Combination] = found.worst or found.cells
    return next((entry.mean for entry in entries if dict(entry.labels) == labels), None)


def _combinations(axes: Sequence[Axis]) -> Iterator[dict[str, str]]:
    for chosen in itertools.product(*(axis.labels for axis in axes)):
        yield {axis.name: label for axis, label in zip(axes, chosen, strict=True)}
