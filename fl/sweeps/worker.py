"""What a process of a sweep runs: one training after the other, each in the folder of its run.

The process imports torch once. It answers each request with messages about its rounds, and a last one that says how the
training ended.
"""

import os
import socket
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fl.config.checks import experiment
from fl.config.schema import Export, to_tables
from fl.errors import ConfigError, OwnError, ShareError
from fl.reporting.begun import difference
from fl.reporting.full import advised
from fl.reporting.progress import Progress
from fl.reporting.records import Folder, holds_run, recorded
from fl.sweeps.folder import ERROR, WHY
from fl.training.channel import Message, answer_all, send
from fl.training.code import fingerprints
from fl.training.interrupt import Stopped
from fl.training.loop import poisoned, prepare, run
from fl.training.models import fingerprint
from fl.training.randomness import attackers
from fl.training.targets import metrics_of
from fl.training.task import LocalTraining, Task
from secagg import AgreementRefused


def serve(descriptor: int, parent: int) -> None:
    """Train what the parent asks for, until it closes the socket."""
    os.dup2(2, 1)  # what functions of a user print must not mix with what the command prints
    channel = socket.socket(fileno=descriptor)
    torch.set_num_threads(1)
    answer_all(channel, parent, lambda message, _: _answer(message, channel))


def _answer(message: Message, channel: socket.socket) -> Message:
    place = None if message["folder"] is None else Path(message["folder"])
    try:
        if place is None:
            return measure(message["experiment"])
        if message["compare"]:
            return compare(message["experiment"], place)
        train(message["experiment"], place, Reporter(channel))
        return {"do": "finished"}
    except (Exception, Stopped) as error:  # a signal to this process alone stops only its run
        text = (
            advised(error)
            if isinstance(error, ShareError | Stopped)
            else traceback.format_exception_only(error)[-1].strip()
        )
        if message["compare"]:
            return {"do": "failed", "error": text}
        if place is not None:
            with suppress(OSError):
                place.mkdir(parents=True, exist_ok=True)
                (place / ERROR).write_text("".join(traceback.format_exception(error)), "utf-8")
        by_settings = isinstance(error, ConfigError | AgreementRefused) and not isinstance(error, OwnError)
        refused = by_settings and (place is None or not holds_run(place))
        return {"do": "impossible" if refused else "failed", "error": text}


def train(tables: Mapping[str, Any], place: Path, show: Progress) -> None:
    """Train in a new folder, or continue in one that an earlier process left.

    What a start left that ended before its first round binds nobody: the settings may have changed since then.
    """
    chosen, stale = experiment(tables), (ERROR, WHY)  # of an earlier start, perhaps with other settings
    opened = Folder.resume(place, e=chosen) if holds_run(place) else Folder.create(place, chosen, stale=stale)
    with opened as folder:
        for name in stale:
            (place / name).unlink(missing_ok=True)
        run(chosen, folder=folder, show=show)


def compare(tables: Mapping[str, Any], place: Path) -> Message:
    """What differs between the recorded run and one that began now: its data, its model, functions of the user."""
    e = experiment(tables)
    data, local = poisoned(e, prepare(e), attackers(e)), LocalTraining(**to_tables(e.local))
    task = Task(e.model, data, local, e.seed, e.task.loss, metrics_of(e))
    prints = {"data_fingerprint": data.fingerprint(), "model_fingerprint": fingerprint(task.build())}
    problem = difference(recorded(place).info, prints, fingerprints(e, task))
    return {"do": "compared", "problem": problem.partition(";")[0]}


def measure(tables: Mapping[str, Any], rounds: int = 2) -> Message:
    """Seconds before the first round and seconds of the last of some rounds. Nothing is written."""
    start, first = time.perf_counter(), 0.0
    chosen = experiment(tables).replace(export=Export())
    wanted = min(rounds, chosen.rounds)

    def enough(record: Mapping[str, Any], _: object) -> str | None:
        nonlocal first
        first = first or time.perf_counter() - start - record["seconds"]["total"]
        return "measured" if record["round"] >= wanted else None

    done = run(chosen, show=Silent(), callbacks=[enough])
    spent = time.perf_counter() - start
    return {"do": "measured", "setup": first, "round": done.history[-1]["seconds"]["total"], "spent": spent}


class Silent(Progress):
    """Shows nothing and warns of nothing: a measured round is thrown away."""

    def warn(self, text: str) -> None:
        pass


class Reporter(Progress):
    """Tells the parent of rounds and warnings."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def begin(self, name: str, rounds: int, done: int) -> None:
        send(self._channel, {"do": "begun", "rounds": rounds, "done": done})

    def round(self, record: Mapping[str, Any]) -> None:
        super().round(record)
        send(self._channel, {"do": "round", "round": record["round"], "seconds": record["seconds"]["total"]})

    def warn(self, text: str) -> None:
        send(self._channel, {"do": "warned", "text": text})
