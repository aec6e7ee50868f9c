"""The page, the pictures and the tables of a reproduction, from the records of its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from fl.reporting.charts import COLOURS, Line, legend_of, lines, shares_up_to
from fl.reporting.page import Table, render
from fl.reporting.records import write
from fl.reporting.table import as_csv, as_markdown
from fl.reproduction import safety
from fl.reproduction.compare import HEADS, Row, as_json, cells, short, table
from fl.reproduction.measured import Measured
from fl.reproduction.panels import Panel
from fl.reproduction.published import published
from fl.reproduction.roles import role

TEXTS: Final = ("curve", "panel", "explanation")  # columns of words; the others have numbers
NAMES: Final = (  # what the names of curves are made of, and what each part means
    ("foe", "The attack Fall of Empires: attackers send beta times the mean of their own updates."),
    ("beta", "The factor of this attack: -10, or -1 where the name says beta-1."),
    ("q3, q6, q12", "The number of attackers among all clients, such as 3 of 60."),
    ("m1, m3, m5, m10", "The number of clients in a cluster. With 1, the server sees single updates."),
    ("R1, R5, R10, R20", "Reclusterings: how many times a round divides all clients into clusters."),
    ("SHARE, noSHARE", "With ten reclusterings in clusters, or the same robust rule on single updates."),
    ("safe", "The main curve of the panel in fixed whole clusters. The paper has no such curve."),
    ("fixed5", "Fixed clusters of 5 clients, which the paper has."),
    ("no-defence", "FedAvg: one sum of all clients, with the attack."),
    ("no-attack", "FedAvg: one sum of all clients, without an attack."),
    ("2 or 5 labels", "Every client has examples of so many classes only; NI2 and NI5 in published names."),
    (
        "LF, FoE10, SH, SH10, NI2, NI5, NI5L",
        "In published names: label flipping, Fall of Empires with beta = -10, Shakespeare, "
        "non-IID clients, and label flipping with non-IID clients.",
    ),
)


def write_all(panels: Sequence[Panel], runs: Mapping[str, Measured], out: Path) -> list[Row]:
    """Write the page, both tables and a picture per panel. Returns the rows of the table of curves."""
    panels = _worth_showing(panels, runs)
    rows = table(panels, runs)
    out.mkdir(parents=True, exist_ok=True)
    write(out / "reproduction.csv", as_csv(Row._fields, _short(rows)).encode())
    write(out / "reproduction.json", json.dumps(as_json(rows, runs), indent=1).encode() + b"\n")
    write(out / "reproduction.md", as_markdown(HEADS, [cells(row) for row in rows], texts=TEXTS).encode())
    paid = safety.prices(panels, runs)
    write(out / "safety.csv", as_csv(safety.Price._fields, _short(paid)).encode())
    write(out / "safety.md", as_markdown(safety.HEADS, [safety.cells(row) for row in paid], texts=TEXTS).encode())
    write(out / "reproduction.html", page(panels, runs, rows).encode())
    for panel in panels:
        draw(panel, runs, rows, out / f"{panel.name}.png")
    return rows


def _short(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [[short(value) for value in row] for row in rows]


def _worth_showing(panels: Sequence[Panel], runs: Mapping[str, Measured]) -> list[Panel]:
    """The panels with a trained curve that no panel before has: some curves stand in several."""
    shown: list[Panel] = []
    seen: set[str] = set()
    for panel in panels:
        trained = {curve.name for curve in panel.curves if curve.name in runs}
        if trained - seen:
            shown.append(panel)
            seen |= trained
    return shown


def curves_of(panel: Panel, runs: Mapping[str, Measured], rows: Sequence[Row]) -> list[Line]:
    """Our curves of a panel, and dashed in the same colour those that they are compared with, up to our last round.

    A colour has one meaning in all panels.
    """
    comparable, drawn = {row.curve for row in rows if row.published}, []
    for curve in (curve for curve in panel.curves if curve.name in runs):
        colour, _ = role(curve)
        ours = [(float(number), value) for number, value in runs[curve.name].accuracies]
        drawn.append(Line(curve.name, ours, colour))
        last = max((number for number, _ in ours), default=0)
        theirs = [(float(number), value) for number, value in published().get(curve.published, ()) if number <= last]
        if theirs and curve.name in comparable:
            drawn.append(Line(f"{curve.published}, published", theirs, colour, dashed=True))
    return drawn


def page(panels: Sequence[Panel], runs: Mapping[str, Measured], rows: Sequence[Row]) -> str:
    """One HTML page without scripts or links."""
    shown = [
        {
            "name": panel.name,
            "figure": panel.figure,
            "chart": _chart(curves_of(panel, runs, rows)),
            "legend": legend_of(curves_of(panel, runs, rows)),
            "facts": [(curve.name, runs[curve.name].facts) for curve in panel.curves if curve.name in runs],
        }
        for panel in panels
    ]
    title = "The paper's figures, run again"
    found = dict(sorted(role(curve) for panel in panels for curve in panel.curves if curve.name in runs))
    paid = [safety.cells(row) for row in safety.prices(panels, runs)]
    content = {
        **{"heads": HEADS, "rows": [cells(row) for row in rows], "roles": found.items(), "names": NAMES},
        "safety": Table(safety.HEADS, paid, numbers=range(1, len(safety.HEADS))) if paid else None,
    }
    return render("reproduction.html", title=title, panels=shown, **content)


def _chart(curves: Sequence[Line]) -> Markup:
    most = max((value for curve in curves for _, value in curve.points), default=1.0)
    return lines(curves, y_label="test accuracy", scale=shares_up_to(most))


def draw(panel: Panel, runs: Mapping[str, Measured], rows: Sequence[Row], path: Path) -> None:
    """The picture of a panel."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.4), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    curves = curves_of(panel, runs, rows)
    for curve in curves:
        style: dict[str, Any] = {"linestyle": "--", "linewidth": 1.2} if curve.dashed else {"marker": "."}
        axis.plot(*zip(*curve.points, strict=True), color=COLOURS[curve.colour][0], label=curve.name, **style)
    high = max((value for curve in curves for _, value in curve.points), default=1.0)
    axis.set(
        title=f"{panel.name}: {panel.figure}", xlabel="round", ylabel="test accuracy", ylim=(0, min(1, high + 0.08))
    )
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(fontsize=7, loc="best")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    figure.savefig(path, dpi=110)
