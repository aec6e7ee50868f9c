"""What fixed whole clusters cost: the main curve of each panel beside the same training with the safe default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fl.reproduction.compare import at_round, differences, gap, percent, points
from fl.reproduction.measured import Measured
from fl.reproduction.panels import Curve, Panel
from fl.reproduction.roles import SAFE, role


class Price(NamedTuple):
    """The main curve of a panel and its safe curve after the last round that both have; differences are safe - main."""

    panel: str
    main: str
    safe: str
    rounds: int
    main_accuracy: float
    safe_accuracy: float
    difference: float
    largest: float
    largest_round: int
    mean: float
    main_exposed: str
    safe_exposed: str


def safe_curve(panel: Panel) -> Curve | None:
    """The curve in fixed whole clusters: one of our own, or one of the paper's."""
    return next((curve for curve in panel.curves if role(curve) == SAFE), None)


def prices(panels: Sequence[Panel], runs: Mapping[str, Measured]) -> list[Price]:
    """One row for each panel of which both curves were trained, with at least one round in common."""
    found = []
    for panel in panels:
        main, safe = panel.curves[0], safe_curve(panel)
        if safe is None or main.name not in runs or safe.name not in runs:
            continue
        pair = runs[main.name], runs[safe.name]
        ours, fixed = (dict(run.accuracies) for run in pair)
        if apart := differences(fixed, ours):
            end, difference, largest, where, mean = gap(apart)
            both, exposed = (ours[end], fixed[end]), [_exposed(run) for run in pair]
            names = (panel.name, main.name, safe.name)
            found.append(Price(*names, end, *both, difference, largest, where, mean, *exposed))
    return found


def _exposed(run: Measured) -> str:
    if run.exposed is None:
        return "not computed"
    return f"{run.exposed} of {run.clients}" if run.exposed else "none"


HEADS: Final = (
    *("panel", "rounds", "as in the paper", "fixed", "difference", "mean", "largest"),
    *("exposed as in the paper", "exposed if fixed"),
)


def cells(price: Price) -> list[str]:
    """A row as texts, in the order of HEADS."""
    accuracies = percent(price.main_accuracy), percent(price.safe_accuracy)
    apart = points(price.difference), points(price.mean), at_round(price.largest, price.largest_round)
    return [price.panel, str(price.rounds), *accuracies, *apart, price.main_exposed, price.safe_exposed]
