"""Our curves beside the published ones: at which round, by how much, and why."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from fl.config.schema import RUN_ONLY, Experiment, to_tables
from fl.reporting.measures import accuracies
from fl.reporting.records import Recorded, recorded
from fl.reproduction.explained import EXPLAINED
from fl.reproduction.panels import Curve, Panel
from fl.reproduction.published import published

CLOSE: Final = 0.02  # a difference up to here is what two runs of the same experiment can have
UNEXPLAINED: Final = "unexplained"
LEARNED: Final = ("clients", "data", "local", "model", "task")  # with others, accuracies mean something else
THEIRS: Final = "tests.paper."  # modules that stand for what the authors did otherwise, on the same data


class Row(NamedTuple):
    """One curve: ours and theirs after the last round that both have, and the largest difference up to there."""

    panel: str
    curve: str
    published: str
    rounds: int
    compared: int | None
    ours: float | None
    theirs: float | None
    difference: float | None
    largest: float | None
    largest_round: int | None
    mean: float | None
    explanation: str


def trained(curves: Iterable[Curve], out: Path) -> dict[str, Recorded]:
    """The runs that have at least one round, by the names of their curves."""
    found = {curve.name: recorded(out / curve.name) for curve in curves if (out / curve.name / "rounds.jsonl").exists()}
    return {name: run for name, run in found.items() if run.rounds}


def compare(panel: str, curve: Curve, run: Recorded) -> Row:
    """Ours and theirs, round by round."""
    ours = {int(number): value for number, value in accuracies(run)}
    changed = _changed(run.experiment, curve.experiment())
    comparable = _comparable(run.experiment, changed)
    theirs = dict(published().get(curve.published, ())) if comparable else {}
    both = sorted(ours.keys() & theirs.keys())
    rounds = len(run.rounds)
    if not both:
        last = ours[max(ours)] if ours else None
        why = "fixed whole clusters: not in the paper" if curve.safe else "no published numbers"
        why = _other(changed, comparable) if changed else curve.note or why
        return Row(panel, curve.name, "", rounds, None, last, None, None, None, None, None, why)
    differences = {number: ours[number] - theirs[number] for number in both}
    worst = max(both, key=lambda number: abs(differences[number]))
    end = both[-1]
    return Row(
        panel,
        curve.name,
        curve.published,
        rounds,
        end,
        ours[end],
        theirs[end],
        differences[end],
        differences[worst],
        worst,
        sum(differences.values()) / len(both),
        _other(changed, comparable) if changed else explanation(curve, differences[worst]),
    )


def _changed(ours: Experiment, theirs: Experiment) -> list[str]:
    """The tables and keys in which a run differs from its curve, without those that change no result."""
    one, other = to_tables(ours), to_tables(theirs)
    return [name for name in one if name not in RUN_ONLY and one[name] != other.get(name)]


def _comparable(ours: Experiment, changed: Sequence[str]) -> bool:
    """Whether a run with these changes learns what the authors' run learns: another seed, or their deal of the data."""
    other = set(LEARNED).intersection(changed)
    return not other or (other == {"data"} and ours.data.name.startswith(THEIRS))


def _other(changed: Sequence[str], comparable: bool) -> str:
    end = "" if comparable else ": not comparable"
    return f"other settings than the paper's ({', '.join(changed)}){end}"


def explanation(curve: Curve, largest: float) -> str:
    """Why a curve differs: what is known of it, that it is close, or that nobody knows."""
    if curve.note:
        return curve.note
    if curve.name in EXPLAINED:
        return EXPLAINED[curve.name]
    return "within 2 points in every round" if abs(largest) <= CLOSE else UNEXPLAINED


def table(panels: Sequence[Panel], runs: dict[str, Recorded]) -> list[Row]:
    """One row per curve that was trained. A curve that stands in several panels has one row, in the first."""
    rows: dict[str, Row] = {}
    for panel in panels:
        for curve in panel.curves:
            if curve.name in runs and curve.name not in rows:
                rows[curve.name] = compare(panel.name, curve, runs[curve.name])
    return list(rows.values())


def points(value: float | None) -> str:
    """A difference of accuracies in points of a per cent, with its sign."""
    return "-" if value is None else f"{100 * value:+.1f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


HEADS: Final = ("curve", "rounds", "theirs", "ours", "difference", "mean", "largest", "explanation")


def cells(row: Row) -> list[str]:
    """A row as texts, in the order of HEADS."""
    largest = points(row.largest) + (f" (round {row.largest_round})" if row.largest_round else "")
    shown = [percent(row.theirs), percent(row.ours), points(row.difference), points(row.mean), largest]
    return [row.curve, str(row.rounds), *shown, row.explanation]


def as_markdown(rows: Sequence[Row]) -> str:
    """The table for a document."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---|--:|--:|--:|--:|--:|--:|---|"]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def as_csv(rows: Sequence[Row]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows([_short(value) for value in row] for row in rows)
    return out.getvalue()


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{name: _short(value) for name, value in row._asdict().items()} for row in rows]


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
