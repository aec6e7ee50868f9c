"""A sweep as one PNG: the heat map of means and worst cases, and curves with confidence bands."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from fl.reporting.charts import COLOURS
from fl.reporting.results import Results
from fl.reporting.sweep_page import Heat, Panel, main_heat, panels, scale_for, shades

MOST_PANELS = 12
PAINT = {name: light for name, (light, _) in COLOURS.items()}


def draw_sweep(found: Results, path: Path) -> None:
    """Write the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown, legend = panels(found)
    shown, of_all, heat = shown[:MOST_PANELS], len(shown), main_heat(found)
    across = min(4, max(1, len(shown)))
    down = max(1, math.ceil(len(shown) / across))
    tall = 0.8 + 0.42 * len(heat.rows)
    figure = Figure(figsize=(max(8.0, 3.4 * across), tall + 0.6 + 2.6 * down), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    both: Any = figure.subfigures(2, 1, height_ratios=(tall, 0.6 + 2.6 * down))
    upper, lower = both
    _draw_heat(upper.subplots(), heat)
    axes = lower.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axis, panel in zip(axes.flat, shown, strict=False):
        _draw_panel(axis, panel)
    if of_all > len(shown):
        lower.suptitle(f"{len(shown)} of {of_all} groups of curves; the page has all of them", fontsize=10)
    scale = scale_for(found)
    axes.flat[0].set_ylim(scale.low, scale.high)
    axes.flat[0].yaxis.set_major_formatter(lambda value, _: scale.text.format(value))
    for axis in list(axes.flat)[len(shown) :]:
        axis.set_visible(False)
    for colour, meaning in legend:
        axes.flat[0].plot([], [], color=PAINT[colour], label=meaning)
    if legend:
        lower.legend(loc="outside lower center", ncols=min(4, len(legend)), fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _draw_heat(axis: Any, heat: Heat) -> None:
    from matplotlib.colors import to_rgb

    paints = [[shades(cell.heat)[0] for cell in cells] for _, cells in heat.rows]
    axis.imshow([[to_rgb(paint) for paint, _ in row] for row in paints], aspect="auto")
    for i, (_, cells) in enumerate(heat.rows):
        for j, cell in enumerate(cells):
            text = f"{cell} {cell.detail}".strip()
            axis.text(j, i, text, ha="center", va="center", fontsize=8, color=paints[i][j][1])
    axis.set_xticks(range(len(heat.heads)), heat.heads, fontsize=8)
    axis.set_yticks(range(len(heat.rows)), [label for label, _ in heat.rows], fontsize=8)
    axis.set_ylabel(heat.corner, fontsize=8)
    axis.xaxis.tick_top()
    axis.set_title(heat.title, fontsize=10, loc="left")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)


def _draw_panel(axis: Any, panel: Panel) -> None:
    for curve in panel.curves:
        if curve.points:
            axis.plot(*zip(*curve.points, strict=True), color=PAINT[curve.colour], linewidth=1.4)
        if curve.band:
            rounds, low, high = zip(*curve.band, strict=True)
            axis.fill_between(rounds, low, high, color=PAINT[curve.colour], alpha=0.15, linewidth=0)
    axis.set_title(panel.title, fontsize=9)
    axis.set_xlabel("round", fontsize=8)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e4e7eb", linewidth=0.8)
