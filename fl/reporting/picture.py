"""A report as one PNG: accuracy, clusters of the first defended run, seconds, and leverage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl.reporting.charts import Line
from fl.reporting.measures import OUTCOMES, accuracies, outcomes, seconds_per_round
from fl.reporting.page import COLOURS, curve_colour
from fl.reporting.records import Recorded
from fl.reporting.sections import PHASES

PAINT = {name: light for name, (light, _) in COLOURS.items()}


def draw(runs: Sequence[Recorded], path: Path, references: Sequence[Line] = ()) -> None:
    """Write the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    _draw_accuracy(axes[0, 0], runs, references)
    _draw_clusters(axes[0, 1], next((run for run in runs if run.experiment.defended), runs[0]))
    _draw_seconds(axes[1, 0], runs)
    for i, run in enumerate(runs):
        points = [(record["round"], record["exposure"]["most_leverage"]) for record in run.rounds]
        axes[1, 1].plot(*zip(*points, strict=True), color=PAINT[curve_colour(i)], label=run.name)
    title = "Largest part of one update that the sums reveal (1: exposed)"
    axes[1, 1].set(title=title, xlabel="round", ylim=(0, 1.03))
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e4e7eb", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.title.set_fontsize(11)
    axes[0, 1].yaxis.get_major_locator().set_params(integer=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _draw_accuracy(axis: Any, runs: Sequence[Recorded], references: Sequence[Line]) -> None:
    for i, run in enumerate(runs):
        points = accuracies(run)
        axis.plot(*zip(*points, strict=True), marker=".", color=PAINT[curve_colour(i)], label=run.name)
    for curve in references:
        x, y = [x for x, _ in curve.points], [y for _, y in curve.points]
        axis.plot(x, y, linestyle="--", color=PAINT[curve.colour], label=f"{curve.name} (published)")
    axis.set(title="Test accuracy", xlabel="round", ylim=(0, 1))
    axis.legend(fontsize=8, loc="best")


def _draw_clusters(axis: Any, run: Recorded) -> None:
    numbers = [record["round"] for record in run.rounds]
    by_round = [outcomes([record]) for record in run.rounds]
    floor = np.zeros(len(numbers))
    for colour, meaning in OUTCOMES.items():
        counts = np.array([found[colour] for found in by_round])
        if counts.any():
            axis.bar(numbers, counts, bottom=floor, color=PAINT[colour], width=0.85, label=meaning)
            floor = floor + counts
    axis.set(title=f"Clusters of {run.name}", xlabel="round")
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)


def _draw_seconds(axis: Any, runs: Sequence[Recorded]) -> None:
    names = [run.name for run in runs]
    start = np.zeros(len(runs))
    for name, meaning, colour in PHASES:
        amounts = np.array([seconds_per_round(run, name) for run in runs])
        if amounts.any():
            axis.barh(names, amounts, left=start, color=PAINT[colour], label=meaning, height=0.6)
            start = start + amounts
    axis.set(title="Seconds per round")
    axis.invert_yaxis()
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, frameon=False)
