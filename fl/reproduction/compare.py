"""Our curves beside the published ones: at which round, by how much, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from fl.reproduction.explained import EXPLAINED
from fl.reproduction.measured import Measured
from fl.reproduction.panels import Curve, Panel
from fl.reproduction.published import published

CLOSE: Final = 0.02  # a difference up to here is what two runs of the same experiment can have
UNEXPLAINED: Final = "unexplained"


class Gap(NamedTuple):
    """How far one curve is above another one, over all rounds that both have."""

    rounds: int  # the last of them
    difference: float  # after it
    largest: float
    largest_round: int
    mean: float


def differences(one: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    """One curve minus another one, in every round that both have."""
    return {number: one[number] - other[number] for number in sorted(one.keys() & other.keys())}


def gap(differences: Mapping[int, float]) -> Gap:
    """The differences of at least one round in short.

    >>> gap({1: 0.25, 2: -0.5, 3: 0.0})
    Gap(rounds=3, difference=0.0, largest=-0.5, largest_round=2, mean=-0.08333333333333333)
    """
    end, worst = max(differences), max(differences, key=lambda number: abs(differences[number]))
    mean = sum(differences.values()) / len(differences)
    return Gap(end, differences[end], differences[worst], worst, mean)


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


def compare(panel: str, curve: Curve, run: Measured) -> Row:
    """Ours and theirs, round by round."""
    ours, rounds, changed, comparable = dict(run.accuracies), run.rounds, run.changed, run.comparable
    theirs = dict(published().get(curve.published, ())) if comparable else {}
    apart = differences(ours, theirs)
    if not apart:
        last = ours[max(ours)] if ours else None
        why = "fixed whole clusters: not in the paper" if curve.safe else "no published numbers"
        why = _other(changed, comparable) if changed else curve.note or why
        return Row(panel, curve.name, "", rounds, None, last, None, None, None, None, None, why)
    end, difference, largest, where, mean = gap(apart)
    both = (curve.published, rounds, end, ours[end], theirs[end])
    why = _other(changed, comparable) if changed else explanation(curve, apart)
    return Row(panel, curve.name, *both, difference, largest, where, mean, why)


def _other(changed: Sequence[str], comparable: bool) -> str:
    end = "" if comparable else ": not comparable"
    return f"other settings than the paper's ({', '.join(changed)}){end}"


def explanation(curve: Curve, differences: Mapping[int, float]) -> str:
    """Why a curve differs: that it is close, what is known of it, and the rounds of which nobody knows."""
    if curve.note:
        return curve.note
    far = [number for number in sorted(differences) if abs(differences[number]) > CLOSE]
    if not far:
        return "within 2 points in every round"
    known = EXPLAINED.get(curve.name)
    unknown = [number for number in far if known is None or number not in known.rounds]
    parts = [known.why] if known is not None and len(unknown) < len(far) else []
    if unknown:
        rounds = "round" if len(unknown) == 1 else "rounds"
        parts.append(f"{UNEXPLAINED} in {rounds} {', '.join(map(str, unknown))}")
    return "; ".join(parts)


def table(panels: Sequence[Panel], runs: Mapping[str, Measured]) -> list[Row]:
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


def at_round(value: float | None, number: int | None) -> str:
    """A difference with the round that it is from."""
    return points(value) + (f" (round {number})" if number else "")


HEADS: Final = ("curve", "rounds", "theirs", "ours", "difference", "mean", "largest", "explanation")


def cells(row: Row) -> list[str]:
    """A row as texts, in the order of HEADS."""
    shown = [percent(row.theirs), percent(row.ours), points(row.difference), points(row.mean)]
    shown.append(at_round(row.largest, row.largest_round))
    return [row.curve, str(row.rounds), *shown, row.explanation]


def as_json(rows: Sequence[Row], runs: Mapping[str, Measured]) -> list[dict[str, Any]]:
    """The rows, each with what was measured in every round, so that another folder can join them."""
    return [{name: short(value) for name, value in (row._asdict() | runs[row.curve]._asdict()).items()} for row in rows]


def short(value: Any) -> Any:
    """A number with the six digits that a file of results keeps."""
    return round(value, 6) if isinstance(value, float) else value
