"""What was measured of a curve: from the folder of its run, or from the `reproduction.json` of another folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from fl.config.schema import RUN_ONLY, Experiment, to_tables
from fl.errors import RecordError
from fl.reporting.measures import accuracies, summarise
from fl.reporting.records import Recorded, recorded
from fl.reproduction.panels import Curve

LEARNED: Final = ("clients", "data", "local", "model", "task")  # with others, accuracies mean something else
THEIRS: Final = "tests.paper."  # modules that stand for what the authors did otherwise, on the same data


class Measured(NamedTuple):
    """The accuracies of a curve by round, and how it was trained."""

    rounds: int
    accuracies: tuple[tuple[int, float], ...]
    changed: tuple[str, ...]  # tables and keys in which the run differs from its curve
    comparable: bool  # whether it learns what the authors' run learns
    clients: int
    exposed: int | None  # of them, over all rounds, if updates stood still; None if it was not computed
    facts: str


def measured(curve: Curve, run: Recorded) -> Measured:
    """What the run of a curve has shown so far."""
    changed = _changed(run.experiment, curve.experiment())
    found = tuple((int(number), value) for number, value in accuracies(run))
    comparable, clients = _comparable(run.experiment, changed), run.experiment.clients
    exposed = summarise(run.experiment, run.rounds)["exposed_over_training"]
    return Measured(len(run.rounds), found, tuple(changed), comparable, clients, exposed, facts(run))


def trained(curves: Iterable[Curve], out: Path) -> dict[str, Measured]:
    """The curves that have a run with at least one round in a folder, by their names."""
    there = [curve for curve in curves if (out / curve.name / "rounds.jsonl").exists()]
    found = {curve: recorded(out / curve.name) for curve in there}
    return {curve.name: measured(curve, run) for curve, run in found.items() if run.rounds}


def joined(curves: Iterable[Curve], out: Path, files: Sequence[Path]) -> dict[str, Measured]:
    """The curves of a folder and of the `reproduction.json` of other folders; of each curve the longest."""
    curves = list(curves)
    names, found = {curve.name for curve in curves}, trained(curves, out)
    for file in files:
        for name, other in _read(file).items():
            if name in names and (name not in found or other.rounds > found[name].rounds):
                found[name] = other
    return found


def _read(file: Path) -> dict[str, Measured]:
    try:
        entries = json.loads(file.read_bytes())
        if not isinstance(entries, list):
            raise TypeError
        return {entry["curve"]: _entry(entry) for entry in entries}
    except OSError as error:
        raise RecordError(f"{file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise RecordError(f"{file}: expected a reproduction.json that `share reproduce` wrote") from None


def _entry(entry: dict[str, Any]) -> Measured:
    points = tuple((int(number), float(value)) for number, value in entry["accuracies"])
    exposed = entry["exposed"] if entry["exposed"] is None else int(entry["exposed"])
    how = (tuple(entry["changed"]), bool(entry["comparable"]), int(entry["clients"]), exposed, entry["facts"])
    return Measured(int(entry["rounds"]), points, *how)


def facts(run: Recorded) -> str:
    """How a curve was trained, in one sentence."""
    e, first = run.experiment, run.rounds[0]
    seconds = sum(record["seconds"]["total"] for record in run.rounds) / len(run.rounds)
    sums = len(first["clusters"])
    how = "real secure aggregation" if e.secure else "secure = false (the same bits)"
    return (
        f"{len(run.rounds)} of {e.rounds} rounds, seed {e.seed}, {how}, "
        f"{sums} sum{'s' if sums > 1 else ''} in a round, {seconds:.0f} s a round, "
        f"torch {run.info.get('versions', {}).get('torch', '?')}"
    )


def _changed(ours: Experiment, theirs: Experiment) -> list[str]:
    """The tables and keys in which a run differs from its curve, without those that change no result."""
    one, other = to_tables(ours), to_tables(theirs)
    return [name for name in one if name not in RUN_ONLY and one[name] != other.get(name)]


def _comparable(ours: Experiment, changed: Sequence[str]) -> bool:
    """Whether a run with these changes learns what the authors' run learns: another seed, or their partition."""
    other = set(LEARNED).intersection(changed)
    return not other or (other == {"data"} and ours.data.name.startswith(THEIRS))
