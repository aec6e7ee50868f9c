"""Train curves of the paper one after another, a slice of time at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.reporting.progress import Progress
from fl.reporting.records import Folder, changed_keys, recorded
from fl.reproduction.panels import Curve
from fl.training.loop import run

FULL = "the budget of time is used up"
ENOUGH = "as many rounds as asked for"


class Budget:
    """Seconds from now on, or none. `left` decides before a round whether there is time for one like the last.

    >>> Budget(None).left(1e9), Budget(0.0).left(1.0)
    (True, False)
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self, needed: float) -> bool:
        return self._end is None or time.monotonic() + needed <= self._end


def train_curves(
    curves: Sequence[Curve],
    out: Path,
    *,
    rounds: int,
    settings: Sequence[str] = (),
    budget: Budget | None = None,
    show: Callable[[], Progress] = Progress,
) -> bool:
    """Train each curve to so many rounds in a folder of its name. Returns whether all of them got there.

    A folder that holds rounds is continued. The configuration keeps the number of rounds of the paper: a later call
    with more rounds continues where this one ended, with the same bits as one long run.
    """
    budget = budget or Budget(None)
    return all(_train(curve, out / curve.name, rounds, settings, budget, show()) for curve in curves)


def rounds_done(folder: Path) -> int:
    """How many rounds a folder has; 0 if there is none."""
    return len(recorded(folder).rounds) if (folder / "config.toml").exists() else 0


def _train(curve: Curve, place: Path, rounds: int, settings: Sequence[str], budget: Budget, show: Progress) -> bool:
    experiment = curve.experiment(settings)
    wanted = min(rounds, experiment.rounds)
    if rounds_done(place) >= wanted:
        _check_same(place, recorded(place).experiment, experiment)
        return True
    if not budget.left(0.0):
        return False

    def stop(record: Mapping[str, Any], x: object) -> str:
        if record["round"] >= wanted:
            return ENOUGH
        return "" if budget.left(record["seconds"]["total"]) else FULL

    show.until = wanted
    begun = (place / "rounds.jsonl").exists()
    with Folder.resume(place, e=experiment) if begun else Folder.create(place, experiment) as folder:
        trained = run(experiment, folder=folder, show=show, callbacks=[stop])
    return len(trained.history) >= wanted


def _check_same(place: Path, begun: Experiment, asked: Experiment) -> None:
    if begun.fingerprint != asked.fingerprint:
        changed = ", ".join(changed_keys(begun, asked))
        raise ConfigError(f"{place} was trained with other settings: {changed} changed. Choose another --out")
