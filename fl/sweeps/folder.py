"""The folder of a sweep: which runs are finished, which are begun, and which cannot be here.

It holds `sweep.toml` (what was asked for), the folder `runs` with one folder per run as `fl.reporting.records`
describes it, and the results: `runs.csv`, `table.csv`, `worst.csv`, `results.json`, `report.html` and `report.png`.
The folders of the runs are all that counts: the rest follows from them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from fl.config.checks import experiment
from fl.config.grid import Planned, Sweep
from fl.config.read import put
from fl.config.schema import BACKDOOR, Experiment
from fl.errors import ConfigError, RecordError
from fl.reporting.records import Recorded, changed_keys, recorded
from fl.reporting.results import BACKDOOR_SUCCESS, FINISHED, Outcome, Results, measured
from fl.sweeps.pool import Job

RUNS: Final = "runs"
ERROR: Final = "error.txt"  # in the folder of a run that failed: the traceback
NEW, BEGUN, FAILED = "new", "begun", "failed"
SHOWN: Final = 3  # of a list of runs in a message


class Checked(NamedTuple):
    """A run whose configuration can run."""

    planned: Planned
    experiment: Experiment


class Impossible(NamedTuple):
    """A run whose configuration is refused, and why."""

    planned: Planned
    why: str


@dataclass(frozen=True)
class Runs:
    """The runs of a sweep: those that can run, and those that are left out."""

    possible: list[Checked]
    impossible: list[Impossible]


def checked(sweep: Sweep) -> Runs:
    """Check every run before any begins. An impossible one is an error, unless the sweep says to skip it."""
    possible: list[Checked] = []
    impossible: list[Impossible] = []
    for planned in sweep.runs():
        try:
            possible.append(Checked(planned, experiment(planned.tables)))
        except ConfigError as error:
            if not sweep.skip_impossible:
                hint = "; to leave out such combinations, set skip_impossible = true"
                raise ConfigError(f"{planned.name}: {error}{hint}") from None
            impossible.append(Impossible(planned, str(error)))
    if not possible:
        raise ConfigError(f"no combination can run; the first: {impossible[0].planned.name}: {impossible[0].why}")
    metrics = {metric for run in possible for metric in measures_of(run.experiment)}
    if sweep.measure not in metrics | {"accuracy", "loss"}:
        known = ", ".join(sorted(metrics | {"loss"}))
        raise ConfigError(f"measure: expected one of {known}, got {sweep.measure!r}")
    return Runs(possible, impossible)


def measures_of(e: Experiment) -> Iterator[str]:
    """What the records of an experiment measure beside accuracy and loss."""
    yield from (metric.rpartition(":")[2] for metric in e.task.metrics)
    if e.attack.name == BACKDOOR:
        yield BACKDOOR_SUCCESS
    if e.task.per_class:
        yield "worst class"
    if e.task.per_client:
        yield "worst client"


def states(place: Path, runs: Sequence[Checked]) -> dict[str, str]:
    """New, begun, failed or finished, for each run. Raises if the folder holds a run with other settings."""
    found, foreign = {}, []
    for run in runs:
        folder = place / RUNS / run.planned.id
        if not any((folder / name).exists() for name in ("rounds.jsonl", "checkpoint.json", "summary.json")):
            found[run.planned.id] = FAILED if (folder / ERROR).exists() else NEW
            continue
        before = recorded(folder)
        if why := _differs(before, run.experiment):
            foreign.append(f"{run.planned.id} ({why})")
        done = before.summary and (before.summary["rounds"] >= run.experiment.rounds or before.summary["stopped"])
        found[run.planned.id] = FINISHED if done else FAILED if (folder / ERROR).exists() else BEGUN
    if foreign:
        more = f" and {len(foreign) - SHOWN} more" if len(foreign) > SHOWN else ""
        raise RecordError(
            f"{place} holds runs of this name with other settings: {'; '.join(foreign[:SHOWN])}{more}. Nothing was "
            "changed: choose another --out for the changed sweep, or remove these folders"
        )
    return found


def _differs(before: Recorded, wanted: Experiment) -> str:
    """Why a recorded run is not part of a run as wanted; empty if it is, or if it can be continued to become so."""
    e = before.experiment
    if e.fingerprint != wanted.fingerprint:
        return f"{', '.join(changed_keys(e, wanted)) or 'rounds'} changed"
    if e.stop != wanted.stop:
        return "stop changed"
    if e.machine.evaluate_every != wanted.machine.evaluate_every:
        return "machine.evaluate_every changed"
    if len(before.rounds) > wanted.rounds:
        return f"it has {len(before.rounds)} rounds, and the sweep asks for {wanted.rounds}"
    return ""


def job(run: Checked, place: Path | None, at_once: int) -> Job:
    """The run as a job, in its folder or only to be measured. Beside others it trains in one process of its own."""
    tables = run.planned.tables
    if at_once > 1:
        tables = {**tables, "machine": {**tables.get("machine", {}), "workers": 0}}
    folder = None if place is None else str((place / RUNS / run.planned.id).resolve())
    return Job(run.planned.id, run.planned.name, tables, folder)


def strangers(place: Path, runs: Sequence[Checked]) -> list[str]:
    """Folders of runs that the sweep does not have."""
    known = {run.planned.id for run in runs}
    folder = place / RUNS
    return sorted(entry.name for entry in folder.iterdir() if entry.name not in known) if folder.is_dir() else []


def results(sweep: Sweep, place: Path, runs: Sequence[Checked]) -> Results:
    """What the folder holds of these runs. Only finished runs count."""
    found = states(place, runs)
    outcomes = []
    for run in runs:
        name, labels, state = run.planned.id, run.planned.labels, found[run.planned.id]
        if state == FINISHED:
            before = recorded(place / RUNS / name)
            outcomes.append(Outcome(name, labels, state, measured(before, sweep.measure), before.summary))
        else:
            outcomes.append(Outcome(name, labels, state))
    return Results(sweep.name, sweep.axes, sweep.measure, outcomes)


def described(sweep: Sweep) -> dict[str, Any]:
    """The sweep as tables that read back as the same sweep."""
    tables: dict[str, Any] = {"name": sweep.name, "measure": sweep.measure, "skip_impossible": sweep.skip_impossible}
    base, modules = copy.deepcopy(dict(sweep.base)), sweep.runs()[0].tables.get("machine", {}).get("modules")
    if modules:
        put(base, "machine.modules", modules)
    return tables | {
        "experiment": base,
        "variants": {axis.name: {value.label: dict(value.changes) for value in axis.values} for axis in sweep.axes},
    }
