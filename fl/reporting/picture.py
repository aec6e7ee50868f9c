"""A report as one PNG: the main measure, clusters of the first defended run, seconds, and leverage."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl.reporting import learned
from fl.reporting.charts import COLOURS, Line
from fl.reporting.measures import OUTCOMES, outcomes, seconds_per_round
from fl.reporting.records import Recorded
from fl.reporting.sections import FEW, PHASES, curve_legend, main_curves, own_parts, phase_name, scale_for

MOST_BARS = 12  # runs in the chart of seconds
PAINT = {name: light for name, (light, _) in COLOURS.items()}


def draw(runs: Sequence[Recorded], path: Path, references: Sequence[Line] = ()) -> None:
    """Write the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    (measured, clusters), (seconds, leverage) = axes = figure.subplots(2, 2)
    measure, curves = learned.main_measure(runs[0]), main_curves(runs)
    alike = [
        curve if learned.main_measure(run) == measure else curve._replace(points=())
        for run, curve in zip(runs, curves, strict=True)
    ]
    for curve in alike:
        _draw_line(measured, curve, marker=".", linewidth=1.5 if len(runs) <= FEW else 0.8)
    published = references if measure == learned.ACCURACY else ()
    for curve in published:
        _draw_line(measured, curve, linestyle="--")
    measured.set(title=f"Test {measure}", xlabel="round", **({"ylim": (0, 1)} if measure in learned.SHARES else {}))
    legend = [
        *curve_legend(runs, alike, scale_for(measure, alike)),
        *((line.colour, f"{line.name} (published, dashed)") for line in published),
    ]
    _name(measured, legend)
    run = next((run for run in runs if run.experiment.defended), runs[0])
    by_round = [outcomes([record]) for record in run.rounds]
    kinds = [([counts[name] for counts in by_round], meaning, name) for name, meaning in OUTCOMES.items()]
    _draw_stacks(clusters, [record["round"] for record in run.rounds], kinds)
    clusters.set(title=f"Clusters of the run: {_short(run.name, 28)}", xlabel="round")
    clusters.yaxis.get_major_locator().set_params(integer=True)
    for axis in (measured, clusters, leverage):
        axis.xaxis.get_major_locator().set_params(integer=True)
    shown = (
        runs if len(runs) <= MOST_BARS else sorted(runs, key=lambda run: -seconds_per_round(run, "total"))[:MOST_BARS]
    )
    phases = [
        ([seconds_per_round(run, name) for run in shown], phase_name(meaning, shown), colour)
        for name, meaning, colour in PHASES
    ]
    _draw_stacks(seconds, range(len(shown)), phases, across=True)
    names = dict(zip([run.name for run in runs], own_parts(runs)[0], strict=True))
    seconds.set_yticks(range(len(shown)), [_short(names[run.name], 52) for run in shown], fontsize=8)
    seconds.set(title="Seconds per round" + (f", the {MOST_BARS} slowest runs" if len(shown) < len(runs) else ""))
    seconds.invert_yaxis()
    for run, curve in zip(runs, curves, strict=True):
        points = [(record["round"], record["exposure"]["most_leverage"]) for record in run.rounds]
        _draw_line(leverage, Line(run.name, points, curve.colour), linewidth=1.5 if len(runs) <= FEW else 0.8)
    leverage.set(title="Most that a round reveals of one update (1: exposed)", xlabel="round", ylim=(0, 1.03))
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e4e7eb", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.title.set_fontsize(11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _draw_line(axis: Any, curve: Line, **style: Any) -> None:
    if curve.points:
        axis.plot(*zip(*curve.points, strict=True), color=PAINT[curve.colour], **style)


def _name(axis: Any, legend: Sequence[tuple[str, str]]) -> None:
    """A legend below the axis, so that it covers no curve."""
    for colour, meaning in legend:
        axis.plot([], [], color=PAINT[colour], label=_short(meaning, 44))
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)


def _short(name: str, length: int = 36) -> str:
    """The beginning and the end of a long name: the names of a sweep's runs differ in both."""
    half = (length - 1) // 2
    return name if len(name) <= length else f"{name[:half]}…{name[-half:]}"


def _draw_stacks(axis: Any, places: Any, layers: Sequence[tuple[Any, str, str]], across: bool = False) -> None:
    """Bars of several layers, each layer a tuple (amounts, meaning, colour)."""
    reached = np.zeros(len(places))
    for amounts, meaning, colour in layers:
        style = {"color": PAINT[colour], "label": meaning}
        if any(amounts):
            if across:
                axis.barh(places, amounts, left=reached, height=0.6, **style)
            else:
                axis.bar(places, amounts, bottom=reached, width=0.85, **style)
            reached = reached + amounts
    where = (0.5, -0.1 if across else -0.16)
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=where, ncols=3, frameon=False)


def draw_plan(answer: Any, path: Path) -> None:
    """Draw an answer of `fl.planner`: the leverage of a round's sums against the probability that the rule holds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = {"fixed": "#7c3aed", "random": "#2563eb", "transversal": "#0d9268", "atoms": "#e2680c"}
    question, best = answer.question, answer.recommended
    figure = Figure(figsize=(9, 5.6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.axhspan(question.holds, 1.02, xmin=0, color="#e8f6f0", zorder=0)
    axis.axhline(question.holds, color="#0d9268", linewidth=0.8, linestyle="--")
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": "#5b6776"}
    for c in answer.candidates:
        if c.opened:
            colour = colours[c.schedule]
            fill, alpha = ("none", 0.5) if c.ruled_out else (colour, 0.85)
            axis.scatter(c.leverage, c.holds, s=40 + 25 * c.groupings, c=fill, edgecolors=colour, alpha=alpha)
        if c.holds > 0.02 and c is not best:
            axis.annotate(f"{c.size}/{c.groupings}", (c.leverage, c.holds), xytext=(7, 5), **style)
    for schedule, colour in colours.items():
        axis.scatter([], [], s=90, c=colour, label=schedule)
    if best:
        style = {"textcoords": "offset points", "fontsize": 9, "fontweight": "bold"}
        style["arrowprops"] = {"arrowstyle": "->", "color": "#16202c"}
        axis.annotate(f"recommended:\n{best.name}", (best.leverage, best.holds), xytext=(18, -46), **style)
    numbers = f"{question.clients} clients, {question.byzantine} Byzantine, {question.dropout:.0%} dropouts"
    axis.set(
        xlabel="leverage: fraction of an update that a round's sums explain (lower is more private)",
        ylabel=f"probability that {question.rule} holds in a round",
        ylim=(-0.03, 1.04),
        title=f"{numbers}; points are m/R",
    )
    axis.legend(loc="center right", fontsize=9, title="schedule (hollow: ruled out)")
    axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
