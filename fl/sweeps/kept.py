"""Whether runs that a sweep keeps were trained with the functions and data that it would train with now.

Settings are compared by `fl.sweeps.folder`. A setting such as `mine:rmse` only names a function: whether its code, or
what a function of data returns, is still the same is found out in a process of its own, which imports it. Of runs that
differ in nothing but settings of the package, one stands for all; the others must have recorded the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl.config.own import is_own
from fl.config.schema import Experiment, to_tables
from fl.errors import RecordError
from fl.reporting.begun import ATTRIBUTES, difference
from fl.reporting.records import recorded
from fl.reporting.results import FINISHED
from fl.sweeps.folder import BEGUN, RUNS, Checked, few, job
from fl.sweeps.pool import Job, work
from fl.training.channel import Message


def check_kept(
    place: Path, runs: Sequence[Checked], states: Mapping[str, str], at_once: int, warn: Callable[[str], None]
) -> None:
    """Raise RecordError if a run of the folder was trained with other functions or data of the user.

    What cannot be compared, because an import fails for example, is told to `warn`.
    """
    groups: dict[str, list[tuple[Checked, dict[str, str]]]] = {}
    for run in runs:
        if states[run.planned.id] in (FINISHED, BEGUN) and (names := own_names(run.experiment)):
            info = recorded(place / RUNS / run.planned.id).info
            if "code" in info:  # an earlier version did not record it
                key = repr((names, run.experiment.clients, to_tables(run.experiment.data)))
                groups.setdefault(key, []).append((run, info["code"]))
    changed = [
        f"{run.planned.id} (the code is not that of {members[0][0].planned.id})"
        for members in groups.values()
        for run, code in members[1:]
        if difference({"code": _functions(members[0][1])}, {}, _functions(code))
    ]

    def hear(job: Job, message: Message) -> None:
        if message["do"] == "failed":
            warn(f"{job.name} is kept, but whether its functions have changed is not known: {message['error']}")
        elif message["do"] == "compared" and message["problem"]:
            changed.append(f"{job.id} ({message['problem']})")

    first = [members[0][0] for members in groups.values()]
    work((job(run, place, at_once)._replace(compare=True) for run in first), at_once, hear)
    if changed:
        raise RecordError(
            f"{place} holds runs of other functions or data: {few(changed)}. Nothing was changed: put the functions "
            "and data back, choose another --out, or remove the folders of these runs, and the same command trains "
            "them again"
        )


def _functions(code: Mapping[str, str]) -> dict[str, str]:
    """The fingerprints without that of the model's attributes, which may depend on the seed."""
    return {name: each for name, each in code.items() if name != ATTRIBUTES}


def own_names(e: Experiment) -> list[str]:
    """The functions of the user that an experiment names."""
    return [name for name in _names(e) if is_own(name)]


def _names(e: Experiment) -> Iterator[Any]:
    yield from (e.data.name, e.model, e.task.loss, *e.task.metrics)
    yield from (e.aggregation.rule, *e.aggregation.before, e.attack.name)
