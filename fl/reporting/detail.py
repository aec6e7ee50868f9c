"""Accuracies per class and per client in a report, where a run recorded them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fl.reporting.learned import ACCURACY, show
from fl.reporting.page import Cell, Table
from fl.reporting.records import Recorded

MOST_CLASSES: Final = 20  # of a table; with more, those with the lowest accuracy


def by_class(run: Recorded) -> dict[str, Any] | None:
    """A table of the accuracy on each class after the last tested round; None if it is not recorded."""
    record = _last(run, "per_class")
    if record is None:
        return None
    each = list(enumerate(record["per_class"]))
    ranked = sorted((pair for pair in each if pair[1] is not None), key=lambda pair: pair[1])
    shown = each if len(each) <= MOST_CLASSES else ranked[:MOST_CLASSES]
    worst = ranked[0][0] if ranked else None
    rows = [[str(number), Cell(show(ACCURACY, value), alert=number == worst)] for number, value in shown]
    return {
        "round": record["round"],
        "left_out": len(each) - len(shown),
        "table": Table(["class", "accuracy"], rows, numbers=[1]),
    }


def by_client(run: Recorded) -> dict[str, Any] | None:
    """The spread of the accuracy over honest clients and over attackers; None if it is not recorded."""
    record = _last(run, "per_client")
    if record is None:
        return None
    bad = set(run.info.get("byzantine", ()))
    ranked = sorted(enumerate(record["per_client"]), key=lambda pair: pair[1])
    groups = {
        "honest clients": [each for each in ranked if each[0] not in bad],
        "attackers": [each for each in ranked if each[0] in bad],
    }
    kinds = [[name, str(len(group)), *_spread(group)] for name, group in groups.items() if group]
    names = ["", "number", "lowest", "a quarter below", "median", "a quarter above", "highest", "mean"]
    heads, *rows = map(list, zip(names, *kinds, strict=True))
    return {"round": record["round"], "table": Table(heads, rows, numbers=range(1, len(heads)))}


def _last(run: Recorded, key: str) -> Mapping[str, Any] | None:
    return next((record for record in reversed(run.rounds) if record.get(key)), None)


def _spread(ranked: Sequence[tuple[int, float]]) -> list[str]:
    """Lowest with its client, quartiles, highest with its client, and mean."""
    last = len(ranked) - 1
    low, first, middle, third, high = (ranked[round(last * part / 4)] for part in range(5))
    mean = sum(value for _, value in ranked) / len(ranked)
    return [
        f"{show(ACCURACY, low[1])} (client {low[0]})",
        *(show(ACCURACY, value) for _, value in (first, middle, third)),
        f"{show(ACCURACY, high[1])} (client {high[0]})",
        show(ACCURACY, mean),
    ]
