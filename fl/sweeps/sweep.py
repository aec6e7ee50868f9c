"""A whole sweep: check all runs, train those that are not finished, write what came out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fl import exports
from fl.config.grid import Sweep, from_mapping, read_sweep
from fl.config.read import write_tables
from fl.errors import ConfigError
from fl.reporting.banner import seen
from fl.reporting.full import writing
from fl.reporting.measures import leverage_if_unchanged
from fl.reporting.records import locked, recorded, write, write_json
from fl.reporting.results import FINISHED, LeftOut, Results
from fl.reporting.sweep_page import sweep_page
from fl.reporting.sweep_picture import draw_sweep
from fl.reporting.sweep_progress import SweepProgress
from fl.reporting.table import aligned
from fl.sweeps import folder
from fl.sweeps.estimate import Estimate, cannot_run, estimate, several
from fl.sweeps.folder import RUNS, SKIP, Checked, Runs, leave_out, refuse_all
from fl.sweeps.kept import check_kept
from fl.sweeps.pool import Job, work
from fl.training.channel import Message
from secagg.simulation import cores


@dataclass(frozen=True)
class Swept:
    """A sweep that has ended: its results, the runs that failed with their errors, and its folder.

    >>> from fl.reporting.compared import KNOWN
    >>> done = Swept(Results("none", (), KNOWN["accuracy"], ()), failed={}, folder=Path("sweeps/none"))
    >>> done.results.finished
    0
    """

    results: Results
    failed: Mapping[str, str]
    folder: Path

    def __str__(self) -> str:
        notes = [*self.results.footnotes, *_left_out(self.results.impossible)]
        return "\n".join([*aligned(self.results.table()), *(f"- {note}" for note in notes)])


def sweep(
    what: Path | str | Mapping[str, Any],
    *,
    out: Path | str,
    jobs: int | None = None,
    settings: Sequence[str] = (),
    show: SweepProgress | None = None,
) -> Swept:
    """Train every combination of a sweep file, or of tables with the same keys, in one folder.

    Runs that the folder already holds are kept, and those that were interrupted continue. `jobs` is how many train at
    once: by default one per core. A run that fails does not stop the others. `out` then holds tables and a report.

    >>> import tempfile
    >>> place = tempfile.mkdtemp()
    >>> small = {"rounds": 1, "model": "linear", "clients": 12, "secure": False, "data": {"examples": 240}}
    >>> done = sweep({"experiment": small, "grid": {"seed": [0, 1], "aggregation.rule": ["median", "mean"]}}, out=place)
    >>> [(cell.labels["rule"], cell.finished) for cell in done.results.cells]
    [('median', 2), ('mean', 2)]
    """
    asked = _read(what, settings)
    runs = folder.checked(asked)
    for run in runs.possible:
        exports.check(run.experiment)
    place = Path(out)
    if (place / "config.toml").exists():
        raise ConfigError(f"{place} holds a single run; choose another --out for a sweep")
    with writing(place):
        (place / RUNS).mkdir(parents=True, exist_ok=True)
    with locked(place):
        before = folder.states(place, runs.possible)
        show = show or SweepProgress()
        for sentence in _told(place, runs, before):
            show.note(sentence)
        check_kept(place, runs.possible, before, _at_once(runs.possible, jobs), show.warn)
        folder.write_copy(asked, place)
        left = [run for run in runs.possible if before[run.planned.id] != FINISHED]
        rounds = {run.planned.id: _rounds_left(place, run) for run in left}
        keeper, at_once = _Keeper(show, rounds, asked.skip_impossible), _at_once(left, jobs)
        show.begin(asked.name, len(runs.possible), sum(rounds.values()), len(left))
        try:
            work((folder.job(run, place, at_once) for run in left), at_once, keeper.hear)
        finally:
            show.end()
            found = folder.results(asked, place, runs, keeper.failed)
            if any(outcome.summary for outcome in found.outcomes):
                with writing(place):
                    save(asked, found, place)
    if not found.outcomes:
        refuse_all(found.impossible[0].name, found.impossible[0].why)
    return Swept(found, keeper.failed, place)


def forecast(
    what: Path | str | Mapping[str, Any], *, out: Path | str, jobs: int | None = None, settings: Sequence[str] = ()
) -> Estimate:
    """How long `sweep` would take with the same arguments, from measured rounds. Nothing is written."""
    asked = _read(what, settings)
    found = folder.checked(asked)
    before = folder.states(Path(out), found.possible)
    refused = folder.LEFT_OUT if asked.skip_impossible else None
    runs = [run for run in found.possible if before[run.planned.id] != refused]
    left = {run.planned.id: 0 if before[run.planned.id] == FINISHED else _rounds_left(Path(out), run) for run in runs}
    todo = [run for run in runs if left[run.planned.id]]
    left_out = len(found.impossible) + len(found.possible) - len(runs)
    return replace(estimate(asked.axes, todo, left, _at_once(todo or runs, jobs)), left_out=left_out)


def save(asked: Sweep, found: Results, place: Path) -> None:
    """Write the tables, the page and the picture."""
    write(place / "runs.csv", found.runs_csv().encode())
    write(place / "table.csv", found.table_csv().encode())
    if found.attacks:
        write(place / "worst.csv", found.worst_csv().encode())
    write_json(place / "results.json", found.to_json())
    done = [recorded(place / RUNS / outcome.id) for outcome in found.outcomes if outcome.summary]
    page = sweep_page(
        found,
        [seen(run.name, run.experiment, run.summary, leverage_if_unchanged(run)) for run in done],
        toml=write_tables(folder.described(asked)),
        info=done[0].info,
    )
    write(place / "report.html", page.encode())
    draw_sweep(found, place / "report.png")


def _read(what: Path | str | Mapping[str, Any], settings: Sequence[str]) -> Sweep:
    return from_mapping(what, settings) if isinstance(what, Mapping) else read_sweep(what, settings)


def _told(place: Path, runs: Runs, before: Mapping[str, str]) -> Iterable[str]:
    """What a user should know before the first run begins."""
    counts = {state: list(before.values()).count(state) for state in dict.fromkeys(before.values())}
    if set(counts) != {folder.NEW}:
        yield f"{place}: " + ", ".join(f"{several(count, 'run')} {state}" for state, count in counts.items())
    if others := folder.strangers(place, runs.possible):
        told = f"{several(len(others), 'folder')} that {'is' if len(others) == 1 else 'are'} not part of this sweep"
        yield f"{place / RUNS} also holds {told}, such as {others[0]}: left alone, and not in its tables"
    yield from _left_out([LeftOut(each.planned.labels, each.why) for each in runs.impossible])


def _left_out(impossible: Sequence[LeftOut]) -> Iterable[str]:
    """A line about the combinations that cannot run, if there are any."""
    if impossible:
        yield f"{cannot_run(len(impossible))}; the first: {impossible[0].name}: {impossible[0].why}"


def _rounds_left(place: Path, run: Checked) -> int:
    records = place / RUNS / run.planned.id / "config.toml"
    done = len(recorded(records.parent).rounds) if records.exists() else 0
    return max(run.experiment.rounds - done, 0)


def _at_once(runs: Sequence[Checked], jobs: int | None) -> int:
    """How many runs train at once: one per core, or one where they share a GPU."""
    if jobs is not None:
        if not isinstance(jobs, int) or jobs < 1:
            raise ConfigError(f"jobs: expected a whole number, at least 1, got {jobs!r}")
        return jobs
    devices = {run.experiment.machine.device for run in runs}
    return 1 if devices - {"cpu"} and _on_gpu(devices) else max(1, min(cores(), len(runs)))


def _on_gpu(devices: set[str]) -> bool:
    import torch  # here, because this process does without it

    return devices != {"auto", "cpu"} & devices or torch.cuda.is_available()


class _Keeper:
    """Hears what happens to the runs: passes it on to the display, and keeps the errors.

    `rounds` are those that each run has to train.
    """

    def __init__(self, show: SweepProgress, rounds: Mapping[str, int], skip_impossible: bool) -> None:
        self._show, self._skip_impossible = show, skip_impossible
        self._rounds = dict(rounds)
        self._warned: set[str] = set()
        self.failed: dict[str, str] = {}

    def hear(self, job: Job, message: Message) -> None:
        match message["do"]:
            case "round":
                self._rounds[job.id] -= 1
                self._show.round(job.name)
            case "warned":
                text = message["text"].removeprefix(f"{job.name}: ")
                if text not in self._warned:  # once, not once per run
                    self._warned.add(text)
                    self._show.warn(f"{text} (first reported for {job.name})")
            case "finished":
                self._show.finished(job.name)
            case "impossible" if self._skip_impossible and job.folder:
                leave_out(Path(job.folder), message["error"])
                self._show.dropped(max(self._rounds[job.id], 0))
                self._show.left_out(job.name, message["error"])
            case "failed" | "impossible":
                hint = SKIP if message["do"] == "impossible" else ""
                self.failed[job.id] = message["error"] + hint
                self._show.dropped(max(self._rounds[job.id], 0))
                self._show.failed(job.name, self.failed[job.id])
