"""`share reproduce`: list the panels, train their curves, and write them beside the published ones."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from typing import Any

from fl.errors import ConfigError
from fl.reporting.table import aligned
from fl.reproduction.compare import HEADS, as_json, cells
from fl.reproduction.measured import joined
from fl.reproduction.panels import PANELS, Panel, chosen, every_curve
from fl.reproduction.published import published

UNITS = {"s": 1, "m": 60, "h": 3600}


def reproduce(options: Namespace) -> int:
    """Run the command. Returns 0 if every curve has its rounds, and 1 if the time ran out before."""
    if options.rounds < 1:
        raise ConfigError(f"--rounds: expected at least 1, got {options.rounds}")
    if not options.names and not options.only_write:
        print(json.dumps(listed(), indent=1) if options.json else _listing())
        return 0
    complete = options.only_write or _train(options)
    shown = chosen(options.names) if options.only_write and options.names else every_curve().values()
    runs = joined(shown, options.out, options.join)
    if not runs:
        raise ConfigError(f"{options.out}: no curve has a round yet; run without --only-write, or for a longer --time")
    from fl.reproduction.page import write_all

    rows = write_all(PANELS, runs, options.out)
    if options.json:
        print(json.dumps(as_json(rows, runs), indent=1))
    else:
        print("\n".join(aligned([HEADS[:-1], *(cells(row)[:-1] for row in rows)])))
        print(f"page: {options.out / 'reproduction.html'}")
        if not complete:
            print("the time is used up; the same command continues")
    return 0 if complete else 1


def _train(options: Namespace) -> bool:
    from fl.reporting.progress import display
    from fl.reproduction.run import Budget, train_curves

    budget = Budget(seconds(options.time) if options.time else None)
    settings = [*options.set, f"secure={'true' if options.secure else 'false'}"]
    return train_curves(
        chosen(options.names), options.out, rounds=options.rounds, settings=settings, budget=budget, show=display
    )


def seconds(text: str) -> float:
    """A time such as 90s, 150m or 2h in seconds.

    >>> seconds("150m")
    9000.0
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh])", text)
    if not found:
        raise ConfigError(f"--time: expected a number with s, m or h, such as 150m, got {text!r}")
    return float(found[1]) * UNITS[found[2]]


def listed() -> list[dict[str, Any]]:
    """All panels with their curves, in plain values."""
    return [
        {"panel": p.name, "figure": p.figure, "curves": [c.name for c in p.curves], "published": _count(p)}
        for p in PANELS
    ]


def _count(panel: Panel) -> int:
    return sum(curve.published in published() for curve in panel.curves)


def _listing() -> str:
    lines = [f"{p.name:<36} {p.figure}; {len(p.curves)} curves, {_count(p)} with published numbers" for p in PANELS]
    return "\n".join([*lines, "run one: share reproduce NAME --rounds 10; its curves: share reproduce --json"])
