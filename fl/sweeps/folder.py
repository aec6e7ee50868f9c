"""The folder of a sweep: which runs are finished, which are begun, and which cannot be here.

It holds `sweep.toml` (what was asked for), the folder `runs` with one folder per run as `fl.reporting.records`
describes it, and the results: `runs.csv`, `table.csv`, `worst.csv`, `results.json`, `report.html` and `report.png`.
The folders of the runs are all that counts: the rest follows from them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from fl.config.checks import experiment
from fl.config.grid import Planned, Sweep
from fl.config.read import put, write_tables
from fl.config.schema import Experiment
from fl.errors import ConfigError, OwnError, RecordError
from fl.reporting import learned
from fl.reporting.compared import Measure, compared
from fl.reporting.full import writing
from fl.reporting.records import Recorded, changed_keys, holds_run, recorded, write
from fl.reporting.results import FINISHED, NO_VALUE, LeftOut, Outcome, Results
from fl.sweeps.pool import Job

RUNS: Final = "runs"
COPY: Final = "sweep.toml"  # what was asked for
HEAD: Final = "# What `share sweep` was asked for. `share sweep` of this file continues the runs beside it.\n"
ERROR: Final = "error.txt"  # in the folder of a run that failed: the traceback
WHY: Final = "impossible.txt"  # in the folder of a run that was left out when it began: why
NEW, BEGUN, FAILED, LEFT_OUT = "new", "begun", "failed", "left out"
SKIP: Final = "; to leave out such combinations, set skip_impossible = true"
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
    """The runs of a sweep: those that can run, those that are left out, and what is compared."""

    possible: list[Checked]
    impossible: list[Impossible]
    measure: Measure


def checked(sweep: Sweep) -> Runs:
    """Check every run before any begins. An impossible one is an error, unless the sweep says to skip it.

    A function of the user that cannot be found is always an error: no combination is at fault.
    """
    possible: list[Checked] = []
    impossible: list[Impossible] = []
    for planned in sweep.runs():
        try:
            possible.append(Checked(planned, experiment(planned.tables)))
        except OwnError as error:
            raise OwnError(f"{planned.name}: {error}") from error
        except ConfigError as error:
            impossible.append(Impossible(planned, str(error)))
    if not possible:
        refuse_all(impossible[0].planned.name, impossible[0].why)
    if impossible and not sweep.skip_impossible:
        raise ConfigError(f"{impossible[0].planned.name}: {impossible[0].why}{SKIP}")
    measure = compared(sweep.measure, sweep.better, [(run.planned.name, run.experiment) for run in possible])
    return Runs(possible, impossible, measure)


def refuse_all(first: str, why: str) -> NoReturn:
    """Raise the error of a sweep that has no run. `first` is the name of its first combination."""
    raise ConfigError(f"no combination can run; the first: {first}: {why}")


def folder_of(file: Path) -> Path | None:
    """The folder of a sweep, if the file is the copy in it: the same sweep then continues."""
    return file.parent if file.name == COPY and _is_copy(file) else None


def _is_copy(file: Path) -> bool:
    try:
        return file.read_text("utf-8").startswith(HEAD)
    except (OSError, UnicodeDecodeError):
        return False


def write_copy(sweep: Sweep, place: Path) -> None:
    """Write what was asked for. A file of the user is not replaced."""
    file = place / COPY
    if sweep.place is not None and file.exists() and sweep.place.resolve() == file.resolve() and not _is_copy(file):
        raise ConfigError(f"{file} would be replaced by the sweep's own copy of it: rename it, or choose another --out")
    with writing(file):
        write(file, (HEAD + write_tables(described(sweep))).encode())


def states(place: Path, runs: Sequence[Checked]) -> dict[str, str]:
    """New, begun, failed, left out or finished, for each run. One that was left out with other settings is new.

    Raises if the folder holds a run with other settings, or one whose files contradict each other.
    """
    found, foreign, damaged = {}, [], []
    for run in runs:
        folder = place / RUNS / run.planned.id
        if not holds_run(folder):
            left_out = LEFT_OUT if _was_left_out(folder, run.experiment) else NEW
            found[run.planned.id] = FAILED if (folder / ERROR).exists() else left_out
            continue
        try:
            before = recorded(folder)
        except (RecordError, ConfigError) as error:
            damaged.append(getattr(error, "problem", str(error)))
            continue
        if why := _differs(before, run.experiment):
            foreign.append(f"{run.planned.id} ({why})")
        done = before.summary and (before.summary["rounds"] >= run.experiment.rounds or before.summary["stopped"])
        found[run.planned.id] = FINISHED if done else FAILED if (folder / ERROR).exists() else BEGUN
    if damaged:
        raise RecordError(
            f"{place} holds runs that cannot count as they are: {few(damaged)}. Nothing was changed: put the recorded "
            "files back, or remove the folders of these runs, and the same command trains them again"
        )
    if foreign:
        raise RecordError(
            f"{place} holds runs of this name with other settings: {few(foreign)}. Nothing was changed: choose "
            "another --out for the changed sweep, or remove these folders"
        )
    return found


def _was_left_out(folder: Path, wanted: Experiment) -> bool:
    """Whether a run was left out with these settings. Of a configuration that cannot be read, nobody knows."""
    if not (folder / WHY).exists():
        return False
    try:
        return recorded(folder).experiment.fingerprint == wanted.fingerprint
    except (RecordError, ConfigError):
        return False


def leave_out(folder: Path, why: str) -> None:
    """Note in the folder of a run that it cannot run: it has not failed."""
    write(folder / WHY, why.encode())
    (folder / ERROR).unlink(missing_ok=True)


def few(entries: Sequence[str]) -> str:
    """The first of some entries, and how many more there are."""
    more = f" and {len(entries) - SHOWN} more" if len(entries) > SHOWN else ""
    return "; ".join(entries[:SHOWN]) + more


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


def results(sweep: Sweep, place: Path, runs: Runs, failed: Mapping[str, str] | None = None) -> Results:
    """What the folder holds of these runs. Only finished runs count. `failed` has errors by the id of the run."""
    found, errors = states(place, runs.possible), failed or {}
    outcomes = []
    left_out = {run.planned.id: run.why for run in runs.impossible}
    for run in runs.possible:
        name, labels, state = run.planned.id, run.planned.labels, found[run.planned.id]
        if state == LEFT_OUT and sweep.skip_impossible:
            left_out[name] = (place / RUNS / name / WHY).read_text("utf-8")
        elif state == FINISHED:
            before = recorded(place / RUNS / name)
            points = learned.points(before, runs.measure.name)
            if not points or points[-1][0] < len(before.rounds):
                state = NO_VALUE
            outcomes.append(Outcome(name, labels, state, points, before.summary))
        else:
            error = errors.get(name) or (_last_line(place / RUNS / name / ERROR) if state == FAILED else "")
            outcomes.append(Outcome(name, labels, state, error=error))
    impossible = [LeftOut(each.labels, left_out[each.id]) for each in sweep.runs() if each.id in left_out]
    return Results(sweep.name, sweep.axes, runs.measure, outcomes, impossible)


def _last_line(file: Path) -> str:
    """The error itself, of a traceback that an earlier command left."""
    return (file.read_text("utf-8").strip().splitlines() or [""])[-1]


def described(sweep: Sweep) -> dict[str, Any]:
    """The sweep as tables that read back as the same sweep."""
    given = {"measure": sweep.measure, "better": sweep.better}
    tables: dict[str, Any] = {"name": sweep.name, **{name: value for name, value in given.items() if value is not None}}
    tables["skip_impossible"] = sweep.skip_impossible
    base = copy.deepcopy(dict(sweep.base))
    found = (run.tables.get("machine", {}).get("modules") for run in sweep.runs())
    if modules := next(filter(None, found), None):  # a run has them if it names a function of somebody's own
        put(base, "machine.modules", modules)
    return tables | {
        "experiment": base,
        "variants": {axis.name: {value.label: dict(value.changes) for value in axis.values} for axis in sweep.axes},
    }
