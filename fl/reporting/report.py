"""Recorded runs as one page and one picture: what was learned, what the server saw, what it cost.

This reads only what `records` wrote and needs no torch.
"""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fl.errors import RecordError
from fl.reporting.charts import Line, curve_colour
from fl.reporting.full import writing
from fl.reporting.picture import draw
from fl.reporting.records import Recorded, recorded, write
from fl.reporting.sections import page


def report(
    folders: Sequence[Path | str], out: Path, *, picture: Path | None = None, references: Sequence[Line] = ()
) -> list[Recorded]:
    """Write the page, and the picture if a path is given for it. Returns the runs that have a round."""
    for folder in folders:
        if (Path(folder) / "sweep.toml").exists():
            raise RecordError(f"{folder} holds a sweep, with a report.html of its own; name its runs: {folder}/runs/*")
    found = [recorded(folder) for folder in {Path(folder).resolve(): folder for folder in folders}.values()]
    runs = told_apart([run for run in found if run.rounds])
    if not runs:
        raise RecordError(f"no round has been recorded in {', '.join(str(folder) for folder in folders)}")
    text = html(runs, references, waiting=len(found) - len(runs))
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write(out, text.encode())
    if picture is not None:
        with writing(picture):
            draw(runs, picture, _published(runs, references))
    return runs


def html(runs: Sequence[Recorded], references: Sequence[Line] = (), *, waiting: int = 0) -> str:
    """The page as text. `waiting` is how many more runs have no round yet."""
    return page(runs, _published(runs, references), waiting)


def told_apart(runs: Sequence[Recorded]) -> list[Recorded]:
    """The runs, where those of one name have their folder in it: its last part, or more parts if these are equal."""
    parts = [run.folder.resolve().parts for run in runs]
    found = []
    for run, path in zip(runs, parts, strict=True):
        alike = [other for other, each in zip(parts, runs, strict=True) if each.name == run.name]
        deep = next((n for n in range(1, len(path)) if sum(o[-n:] == path[-n:] for o in alike) == 1), len(path))
        found.append(replace(run, label=f"{run.name} ({'/'.join(path[-deep:])})") if len(alike) > 1 else run)
    return found


def read_reference(path: Path | str, curve: str) -> Line:
    """A published curve from a CSV file with the columns curve_id, round and test_acc."""
    try:
        with Path(path).open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("curve_id") == curve]
        points = tuple((float(row["round"]), float(row["test_acc"])) for row in rows)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from None
    except (KeyError, ValueError, TypeError):
        expected = "columns curve_id, round and test_acc, with numbers in the last two"
        raise RecordError(f"{path}: expected {expected}") from None
    if not points:
        raise RecordError(f"{path} has no curve {curve!r}")
    return Line(curve, points, dashed=True)


def _published(runs: Sequence[Recorded], references: Sequence[Line]) -> list[Line]:
    """The references up to the last round of the runs. If there is one per run, they share its colour."""
    last = max(record["round"] for run in runs for record in run.rounds)
    start = 0 if len(references) == len(runs) else len(runs)
    points = [[point for point in reference.points if point[0] <= last] for reference in references]
    return [references[i]._replace(points=points[i], colour=curve_colour(start + i)) for i in range(len(references))]
