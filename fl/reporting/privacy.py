"""The panel of a report on noise: what all rounds so far cost in epsilon, three figures together."""

from typing import Any

from fl.reporting.charts import Line, Scale, legend_of, lines, ticks
from fl.reporting.page import terms
from fl.reporting.records import Recorded

FIGURES = (
    ("assumed", "assumed colluders", "e0"),
    ("everybody", "everybody adds noise", "e1"),
    ("local", "own noise alone", "e2"),
)


def panel(run: Recorded) -> dict[str, Any] | None:
    """The three figures after each round as curves, and after the last one as numbers; None without noise."""
    spent = [(record["round"], record["epsilon"]) for record in run.rounds if record.get("epsilon")]
    if not spent:
        return None
    curves = [
        Line(meaning, [(number, found[name]) for number, found in spent if found[name] is not None], colour)
        for name, meaning, colour in FIGURES
    ]
    last, privacy = spent[-1][1], run.experiment.privacy
    return {
        "figures": {name: "infinite" if last[name] is None else f"{last[name]:.3g}" for name, _, _ in FIGURES},
        "delta": f"{last['delta']:g}",
        "rounds": spent[-1][0],
        "colluders": privacy.noise_colluders,
        "norm_clip": privacy.norm_clip,
        "wanted": privacy.epsilon,
        "chart": lines(curves, y_label="epsilon so far", height=180, scale=_scale(curves)),
        "legend": legend_of(curves, _scale(curves)),
        "terms": terms("epsilon"),
    }


def _scale(curves: list[Line]) -> Scale:
    top = max((value for curve in curves for _, value in curve.points), default=1.0) or 1.0
    return Scale(ticks(0.0, top), "{:.3g}", "{:.3g}")
