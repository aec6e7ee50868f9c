"""A whole training: data for the clients, rounds until it is time to stop, and records to resume from."""

import copy
import math
import reprlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

import robust
import secagg
from fl import exports
from fl.config.own import check_modules, find_modules
from fl.config.rules import attack_warning, left_over_warning, needs_validation
from fl.config.schema import BACKDOOR, LABEL_FLIP, Experiment, to_tables
from fl.data import DataSet, Federated, federate, flip_labels, load, plant_backdoor
from fl.errors import ConfigError
from fl.reporting.measures import summarise
from fl.reporting.progress import Progress
from fl.reporting.records import Folder, now, versions
from fl.secure.layout import Layout
from fl.secure.population import Population
from fl.training.arguments import check_model, check_out, check_run
from fl.training.code import fingerprints
from fl.training.devices import find_device
from fl.training.interrupt import Interrupt, Stopped
from fl.training.models import Factory, Vector, fingerprint, unflatten
from fl.training.notices import Notices
from fl.training.objective import Function
from fl.training.randomness import attackers
from fl.training.round import Callback, Played, Setting, play
from fl.training.server import Memory, blank
from fl.training.targets import check_targets, metrics_of
from fl.training.task import LocalTraining, Task
from fl.training.worker import peak_memory
from fl.training.workers import open_trainer
from secagg.simulation import cores


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A finished training: the model's vector, a record per round, the summary, and the folder of records.

    >>> import fl
    >>> trained = fl.run(fl.experiment(rounds=1, model="linear", secure=False, machine={"workers": 0}))
    >>> len(trained.history), trained.summary["exposed"]
    (1, [])
    """

    experiment: Experiment
    task: Task = field(repr=False)
    x: Vector = field(repr=False)
    history: list[dict[str, Any]] = field(repr=False)
    summary: dict[str, Any]
    folder: Path | None

    @property
    def accuracy(self) -> float:
        """Accuracy on the test examples after the last round; NaN if the task measures none."""
        found = self.summary["accuracy"]
        return math.nan if found is None else float(found)

    @property
    def model(self) -> nn.Module:
        """The trained model, ready for use."""
        return _module(self.task, self.x).eval()


def prepare(experiment: Experiment) -> Federated:
    """The data of an experiment, divided among its clients after the server's validation set is taken out."""
    settings = experiment.data
    roles = settings.roles
    if settings.name == "shakespeare" and roles is None and settings.partition == "role":
        roles = experiment.clients
    try:
        return federate(
            shortened(load(settings.name, roles=roles), experiment),
            clients=experiment.clients,
            seed=experiment.seed,
            partition=settings.partition,
            shards_per_client=settings.shards_per_client,
            alpha=settings.alpha,
            validation=settings.validation,
        )
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"data: {error}") from error


def poisoned(experiment: Experiment, data: Federated, byzantine: Collection[int]) -> Federated:
    """The data after an attack on them, by these clients."""
    attack = experiment.attack
    try:
        if attack.name == LABEL_FLIP:
            return flip_labels(data, byzantine)
        if attack.name == BACKDOOR:
            options: dict[str, Any] = dict(attack.options)
            return plant_backdoor(data, byzantine, seed=experiment.seed, **options)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"attack: {error}") from None
    return data


def shortened(data: DataSet, experiment: Experiment) -> DataSet:
    """The data with as many random examples as the configuration asks for."""
    random = np.random.default_rng([experiment.seed, *b"shortened"])
    roles, parts = data.roles, {"train": data.train, "test": data.test}
    for name, count in (("train", experiment.data.examples), ("test", experiment.data.test_examples)):
        if count is not None and count < len(parts[name]):
            chosen = np.sort(random.permutation(len(parts[name]))[:count]).astype(np.int64)
            parts[name] = parts[name].take(chosen)
            if name == "train" and roles is not None:
                roles = tuple((role, np.flatnonzero(np.isin(chosen, rows))) for role, rows in roles)
    return replace(data, train=parts["train"], test=parts["test"], roles=roles)


def run(
    experiment: Experiment,
    *,
    data: Federated | None = None,
    model: str | Factory | None = None,
    loss: Function | None = None,
    metrics: Mapping[str, str | Function] | None = None,
    folder: Folder | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    show: Progress | None = None,
    callbacks: Sequence[Callback] = (),
) -> Trained:
    """Train as the experiment says. With `out`, the name of a folder, rounds are recorded there.

    `resume=True` resumes the run in that folder. A `folder` is one that is open already. `loss` and `metrics` are
    functions in the place of those that the experiment names. Each of the `callbacks` is called after every round, when
    its record is on disk, with the record and the model's vector; if one returns a text, the training stops for that
    reason.

    >>> import fl, torch
    >>> trained = fl.run(fl.experiment(rounds=1, model="linear", secure=False, machine={"workers": 0}))
    >>> trained.model(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 10])
    """
    check_run(experiment, folder, show, callbacks)
    check_out(out, resume=resume, folder=folder)
    if model is not None:
        check_model(model)
    opened: AbstractContextManager[Folder | None] = nullcontext(folder)
    if out is not None:
        opened = Folder.resume(out, e=experiment) if resume else Folder.create(out, experiment)
    with opened as place:
        return _run(experiment, data, model, loss, metrics, place, show or Progress(), callbacks)


def _run(
    experiment: Experiment,
    data: Federated | None,
    model: str | Factory | None,
    loss: Function | None,
    metrics: Mapping[str, str | Function] | None,
    folder: Folder | None,
    show: Progress,
    callbacks: Sequence[Callback],
) -> Trained:
    find_modules(experiment.machine.modules)  # other configurations may have been read since
    byzantine = attackers(experiment)
    federated = prepare(experiment) if data is None else data
    if len(federated.clients) != experiment.clients:
        raise ConfigError(f"clients: {experiment.clients}, but there are data for {len(federated.clients)} clients")
    if experiment.method != "fedavg" and needs_validation(experiment.aggregation.rule) and not federated.validation:
        need = f"{experiment.aggregation.rule} judges updates on examples of the server, and the data have none"
        raise ConfigError(f"data.validation: {need}; set it, or give `validation`")
    federated = poisoned(experiment, federated, byzantine)
    _check_machine(experiment)
    local, machine = LocalTraining(**to_tables(experiment.local)), experiment.machine
    task = Task(
        model or experiment.model,
        federated,
        local,
        experiment.seed,
        loss or experiment.task.loss,
        metrics_of(experiment) if metrics is None else metrics,
    )
    check_targets(task, experiment.task)
    try:
        trainer = open_trainer(task, device=machine.device, workers=machine.workers)
    except ConfigError:
        raise
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"model: {error}") from error
    with announce_compilation(show.note), Interrupt(show.note) as interrupt, trainer:
        check_modules()
        population = Population(experiment, [int(size) for size in federated.sizes], len(trainer.initial()))
        show_warnings(experiment, population.layout, show)
        told = [*exports.wanted(experiment, folder.path if folder else None), *callbacks]
        setting = Setting(experiment, trainer, population, byzantine, show, interrupt, told)
        try:
            return train_rounds(setting, task, folder, partial(play, setting, population))
        finally:
            if folder and (found := population.evidence()):
                folder.keep_evidence(*found)


@contextmanager
def announce_compilation(notice: Callable[[str], None]) -> Iterator[None]:
    """Give notice once if kernels of `secagg` or `robust` are compiled here: a first run would seem to hang."""
    compiled: list[str] = []

    def once(name: str) -> None:
        if not compiled:
            notice("compiling kernels for this machine; they are kept for the next time")
        compiled.append(name)

    robust.on_compile(once)
    try:
        with secagg.announce_compilation(once):
            yield
    finally:
        robust.on_compile(None)


def _check_machine(experiment: Experiment) -> None:
    if find_device(experiment.machine.device).type != "cpu" and experiment.machine.workers:
        raise ConfigError("machine.workers: a GPU trains clients together in one process; use 0")


def show_warnings(experiment: Experiment, layout: Layout, show: Progress) -> None:
    """Warn if the server learns single updates, if attackers may be too many for the rule, and of clients left over.

    A training without a display warns through `warnings`.
    """
    warnings = [attack_warning(experiment, layout.clusters), left_over_warning(experiment)]
    if experiment.method == "no-share":
        warnings.append("NO SECURE AGGREGATION: the server sees every update (privacy.expose_every_client)")
    elif experiment.privacy.audit != "enforce":
        warnings.append("NOBODY IS PROTECTED: the exposure audit only reports (privacy.audit)")
    for warning in filter(None, reversed(warnings)):
        show.warn(f"{experiment.name}: {warning}")


Player = Callable[[int, Vector, Memory], Played]  # a round from its number, the model and the server's memory


def train_rounds(setting: Setting, task: Task, folder: Folder | None, play: Player) -> Trained:
    """Play and record rounds until it is time to stop, from the folder's last checkpoint if there is one."""
    experiment, show = setting.experiment, setting.show
    start = time.perf_counter()
    if folder:
        prints = {"data_fingerprint": task.data.fingerprint(), "model_fingerprint": fingerprint(task.build())}
        code = fingerprints(experiment, task)
        folder.check_same(prints, code)
    checkpoint = folder.load() if folder else None
    if folder:
        folder.keep_settings()
    if checkpoint is None:
        x, history = setting.trainer.initial(), []
        memory = blank(x, experiment.server, experiment.clients if experiment.local.scaffold else 0)
        if folder:
            folder.describe({**_info(setting, x), **prints, "code": code})
    else:
        x, memory, history = checkpoint.x, checkpoint.memory, list(checkpoint.history)
    notices = Notices(experiment, setting.byzantine)
    for record in history:
        setting.cohort.suspects.remember(record)
        notices.remember(record)
    done = len(history)
    show.begin(experiment.name, experiment.rounds, done)
    reason = stop_reason(experiment, history)
    try:
        while done < experiment.rounds and not reason:
            played = play(done, x, memory)
            x, memory, done = played.x, played.memory, done + 1
            history.append(played.record)
            setting.cohort.suspects.remember(played.record)
            reason = stop_reason(experiment, history)
            if folder:
                folder.append(played.record)
                if done % experiment.machine.checkpoint_every == 0 or done == experiment.rounds or reason:
                    folder.checkpoint(done, x, memory)
            show.round(played.record)
            for warning in notices.of(played.record):
                show.warn(f"{experiment.name}: {warning}")
            if said := call_back(setting.callbacks, played.record, x):
                reason = reason or said
                if folder:
                    folder.checkpoint(done, x, memory)
            if done < experiment.rounds and not reason:
                setting.interrupt.safe_point()
    except Stopped:
        if folder and done and done % experiment.machine.checkpoint_every:
            folder.checkpoint(done, x, memory)
        raise
    finally:
        show.end()
    summary = {
        **summarise(experiment, history),
        "stopped": reason,
        "seconds_of_this_process": time.perf_counter() - start,
        "peak_memory_mb": peak_memory() + setting.trainer.peak_memory,
        "ended": now(),
    }
    exports.end(setting.callbacks)
    if folder:
        folder.finish(_parameters(task, x), summary)
    return Trained(experiment, task, x, history, summary, folder.path if folder else None)


def call_back(callbacks: Sequence[Callback], record: Mapping[str, Any], x: Vector) -> str:
    """Call all callbacks with copies of a round's record and of the model. Returns the first reason to stop, if any."""
    reasons = []
    for callback in callbacks:
        answer = callback(copy.deepcopy(dict(record)), x.copy())
        if answer is not None and not isinstance(answer, str):
            name = getattr(callback, "__name__", type(callback).__name__)
            wanted = "None to go on, or a text with the reason to stop"
            raise ConfigError(f"callbacks: expected that {name} returns {wanted}, got {reprlib.repr(answer)}")
        reasons.append(answer or "")
    return next(filter(None, reasons), "")


def stop_reason(experiment: Experiment, history: Sequence[Mapping[str, Any]]) -> str:
    """Why training stops before its last round (Algorithm 1, line 6); empty while it continues."""
    measured = [record for record in history if record["accuracy"] is not None or record["loss"] is not None]
    if not measured:
        return ""
    latest, stop = measured[-1], experiment.stop
    if stop.accuracy is not None and latest["accuracy"] is not None and latest["accuracy"] >= stop.accuracy:
        return f"accuracy {latest['accuracy']:.4f} reached the goal of {stop.accuracy}"
    if stop.patience is not None:
        best = min(measured, key=lambda record: math.inf if record["loss"] is None else record["loss"])["round"]
        if latest["round"] - best >= stop.patience:
            return f"no lower loss since round {best}"
    return ""


def _info(setting: Setting, x: Vector) -> dict[str, Any]:
    score = setting.trainer.evaluate(x)
    layout, weights = setting.cohort.layout, setting.cohort.weights.values()
    return {
        "started": now(),
        "versions": versions(),
        "cores": cores(),
        **setting.trainer.machine,
        "parameters": len(x),
        "byzantine": sorted(setting.byzantine),
        "cells": list(layout.cells),
        "clusters": layout.clusters,
        "weights": {"least": min(weights), "most": max(weights)},
        "initial": {"accuracy": score.accuracy, "loss": score.loss},
    }


def _parameters(task: Task, x: Vector) -> dict[str, NDArray[Any]]:
    """The trained vector as named parameters, as `load_state_dict` takes them."""
    trained = ((name, p) for name, p in _module(task, x).named_parameters() if p.requires_grad)
    return {name: np.ascontiguousarray(p.detach().numpy()) for name, p in trained}


def _module(task: Task, x: Vector) -> nn.Module:
    module = task.build()
    unflatten(x, module)
    return module
