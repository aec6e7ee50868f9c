"""A whole training: data to clients, rounds until enough, records that a killed process can go on from."""

from __future__ import annotations

import copy
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl.config.checks import experiment
from fl.config.schema import LABEL_FLIP, Experiment, to_tables
from fl.data import DataSet, Examples, Federated, federate, flip_labels, from_clients, load
from fl.errors import ConfigError
from fl.reporting.progress import Progress
from fl.reporting.records import Folder, now, versions
from fl.secure.layout import Population, announced
from fl.training.aggregation import worst_case
from fl.training.interrupt import Interrupt, Stopped
from fl.training.learner import Learner, LocalTraining, Task
from fl.training.models import Factory, split, unflatten
from fl.training.randomness import attackers
from fl.training.round import Played, Setting, play
from fl.training.workers import Pool, cores, open_trainer

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """How a training ended: the model's vector, a record per round, the summary, and where it was written."""

    experiment: Experiment
    task: Task = field(repr=False)
    x: Vector = field(repr=False)
    history: list[dict[str, Any]] = field(repr=False)
    summary: dict[str, Any]
    folder: Path | None

    @property
    def accuracy(self) -> float:
        """On the test examples, after the last round."""
        return float(self.summary["accuracy"])

    @property
    def model(self) -> nn.Module:
        """The trained model, ready for use."""
        module = self.task.build()
        unflatten(self.x, module)
        return module.eval()


def prepare(e: Experiment) -> Federated:
    """The data of an experiment, dealt to its clients; the server's validation set taken out before."""
    roles = e.data.roles
    if e.data.name == "shakespeare" and roles is None and e.data.partition == "role":
        roles = e.clients
    try:
        data = shortened(load(e.data.name, roles=roles), e)
        return federate(
            data,
            clients=e.clients,
            seed=e.seed,
            partition=e.data.partition,
            shards_per_client=e.data.shards_per_client,
            alpha=e.data.alpha,
            validation=e.data.validation,
        )
    except (ValueError, ImportError) as error:
        raise ConfigError(f"data: {error}") from error


def shortened(data: DataSet, e: Experiment) -> DataSet:
    """Only so many examples, chosen by lot, where the configuration asks for that."""
    lot = np.random.default_rng([e.seed, *b"shortened"])
    if e.data.examples is not None and e.data.examples < len(data.train):
        chosen = np.sort(lot.permutation(len(data.train))[: e.data.examples]).astype(np.int64)
        data = replace(data, train=data.train.take(chosen))
        if data.roles is not None:
            roles = tuple((name, np.flatnonzero(np.isin(chosen, rows))) for name, rows in data.roles)
            data = replace(data, roles=roles)
    if e.data.test_examples is not None and e.data.test_examples < len(data.test):
        chosen = np.sort(lot.permutation(len(data.test))[: e.data.test_examples]).astype(np.int64)
        data = replace(data, test=data.test.take(chosen))
    return data


def run(
    e: Experiment,
    *,
    data: Federated | None = None,
    model: str | Factory | None = None,
    folder: Folder | None = None,
    show: Progress | None = None,
) -> Trained:
    """Train as the experiment says. With a folder everything is recorded, and what is there is continued."""
    show = show or Progress()
    byzantine = attackers(e)
    dealt = prepare(e) if data is None else data
    if len(dealt.clients) != e.clients:
        raise ConfigError(f"clients: {e.clients}, but there are data for {len(dealt.clients)}")
    if e.attack.name == LABEL_FLIP:
        dealt = flip_labels(dealt, byzantine)
    _check_machine(e)
    task = Task(model or e.model, dealt, LocalTraining(**to_tables(e.local)), e.seed)
    try:
        trainer = open_trainer(task, device=e.machine.device, workers=e.machine.workers)
    except (ValueError, ImportError, RuntimeError) as error:
        raise ConfigError(f"model: {error}") from error
    with announced(show.note), Interrupt(show.note) as interrupt, trainer:
        population = Population(e, [int(size) for size in dealt.sizes])
        for warning in (exposing(e), worst_case(e, population.layout.clusters)):
            if warning:
                show.note(f"{e.name}: {warning}")
        setting = Setting(e, trainer, population, byzantine, show, interrupt)
        return train_rounds(setting, task, folder, play)


def _check_machine(e: Experiment) -> None:
    device, cuda = e.machine.device, torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise ConfigError("machine.device: torch sees no GPU here; use cpu or auto")
    if (device == "cuda" or (device == "auto" and cuda)) and e.machine.workers:
        raise ConfigError("machine.workers: a GPU trains clients together in one process; use 0")


def exposing(e: Experiment) -> str:
    """A warning, if the server learns single updates."""
    if e.method == "no-share":
        return "NO SECURE AGGREGATION: the server sees every update (privacy.expose_every_client)"
    if e.privacy.audit != "enforce":
        return "NOBODY IS PROTECTED: the exposure audit only reports (privacy.audit)"
    return ""


Player = Callable[[Setting, int, Vector, Vector], Played]


def train_rounds(setting: Setting, task: Task, folder: Folder | None, play: Player) -> Trained:
    """Rounds until enough, each recorded, from wherever the folder's last checkpoint is."""
    e, trainer, show = setting.experiment, setting.trainer, setting.show
    start = time.perf_counter()
    checkpoint = folder.load() if folder else None
    if checkpoint is None:
        x, history = trainer.initial(), []
        last = np.zeros_like(x)
        if folder:
            folder.describe(_info(setting, x))
    else:
        x, last, history = checkpoint.x, checkpoint.last, list(checkpoint.history)
    show.begin(e.name, e.rounds, len(history))
    done = len(history)
    reason = why_stop(e, history)
    try:
        while done < e.rounds and not reason:
            played = play(setting, done, x, last)
            x, last, done = played.x, played.update, done + 1
            history.append(played.record)
            reason = why_stop(e, history)
            if folder:
                folder.append(played.record)
                if done % e.machine.checkpoint_every == 0 or done == e.rounds or reason:
                    folder.checkpoint(done, x, last)
            show.round(played.record)
            if done < e.rounds and not reason:
                setting.interrupt.safe_point()
    except Stopped:
        if folder and done and done % e.machine.checkpoint_every:
            folder.checkpoint(done, x, last)
        raise
    finally:
        show.end()
    summary = summarise(e, history, reason, time.perf_counter() - start)
    if folder:
        folder.finish(_parameters(task, x), summary)
    return Trained(e, task, x, history, summary, folder.path if folder else None)


def why_stop(e: Experiment, history: Sequence[Mapping[str, Any]]) -> str:
    """The stopping criterion of Algorithm 1, line 6; empty while there is reason to go on."""
    measured = [(record["round"], record) for record in history if record["accuracy"] is not None]
    if not measured:
        return ""
    number, latest = measured[-1]
    if e.stop.accuracy is not None and latest["accuracy"] >= e.stop.accuracy:
        return f"accuracy {latest['accuracy']:.4f} reached the goal of {e.stop.accuracy}"
    if e.stop.patience is not None:
        best = min(
            measured, key=lambda entry: float("inf") if entry[1]["loss"] is None else entry[1]["loss"]
        )[0]
        if number - best >= e.stop.patience:
            return f"no lower loss since round {best}"
    return ""


def summarise(
    e: Experiment, history: Sequence[Mapping[str, Any]], reason: str, seconds: float
) -> dict[str, Any]:
    """A training in a few numbers."""
    accuracies = [record["accuracy"] for record in history if record["accuracy"] is not None]
    spent: dict[str, float] = {}
    for record in history:
        for name, amount in record["seconds"].items():
            spent[name] = spent.get(name, 0.0) + amount
    asked = sum(record["cryptography"]["clients"] for record in history)
    up = sum(sum(record["cryptography"]["bytes_up"].values()) for record in history)
    down = sum(sum(record["cryptography"]["bytes_down"].values()) for record in history)
    blamed: dict[str, str] = {}
    for record in history:
        blamed |= record["blamed"]
    return {
        "rounds": len(history),
        "accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        "last_10_accuracy": sum(accuracies[-10:]) / len(accuracies[-10:]) if accuracies else None,
        "stopped": reason,
        "exposed": sorted({client for record in history for client in record["exposure"]["exposed"]}),
        "least_anonymity": min(
            (r["exposure"]["anonymity"] for r in history if r["exposure"]["anonymity"] is not None),
            default=None,
        ),
        "blamed": blamed,
        "dropouts": sum(len(record["dropouts"]) for record in history),
        "skipped_rounds": [record["round"] for record in history if record["skipped"]],
        "seconds": spent,
        "seconds_of_this_process": seconds,
        "bytes_up_per_client": up / asked if asked else 0.0,
        "bytes_down_per_client": down / asked if asked else 0.0,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if _MAC else 2**10),
        "ended": now(),
    }


_MAC = sys.platform == "darwin"  # where ru_maxrss counts bytes


def _info(setting: Setting, x: Vector) -> dict[str, Any]:
    score = setting.trainer.evaluate(x)
    layout = setting.population.layout
    weights = setting.population.weights
    trainer = setting.trainer
    return {
        "started": now(),
        "versions": versions(),
        "cores": cores(),
        "workers": trainer.count if isinstance(trainer, Pool) else 0,
        "device": str(trainer.device) if isinstance(trainer, Learner) else "cpu",
        "together": (trainer.not_together or trainer.together) if isinstance(trainer, Learner) else 1,
        "parameters": len(x),
        "byzantine": sorted(setting.byzantine),
        "cells": list(layout.cells),
        "clusters": layout.clusters,
        "weights": {"least": min(weights), "most": max(weights)},
        "initial": {"accuracy": score.accuracy, "loss": score.loss},
    }


def _parameters(task: Task, x: Vector) -> dict[str, NDArray[Any]]:
    """The trained vector as named parameters, as `load_state_dict` wants them."""
    module = task.build()
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    parts = split(torch.from_numpy(x), module)
    return {name: np.ascontiguousarray(part.numpy()) for name, part in zip(names, parts, strict=True)}


# --- from Python --------------------------------------------------------------------------------------------

Pair = tuple[Any, Any]


def train(
    model: str | Factory | nn.Module,
    clients: Sequence[Examples | Pair],
    test: Examples | Pair,
    *,
    classes: int | None = None,
    validation: Examples | Pair | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    show: Progress | None = None,
    **settings: Any,
) -> Trained:
    """Train a model of yours on the data of clients of yours, with SHARE.

    `model` is a torch module, a function of (input shape, classes), or a name of `models`. Each client's
    data and the test data are pairs (inputs, labels) of tensors or arrays. `settings` are the keys of
    docs/configuration.md, tables as dictionaries:

        fl.train(net, clients, test, rounds=20, clusters={"size": 3}, aggregation={"rule": "krum", "f": 2})

    `validation` is what the server keeps for rules that need it. With `out` everything is recorded there;
    `resume=True` goes on with what is there.
    """
    parts = [as_examples(part, f"client {i}") for i, part in enumerate(clients)]
    held = None if validation is None else as_examples(validation, "validation")
    tested = as_examples(test, "test")
    count = classes or 1 + max(int(part.labels.max()) for part in (*parts, tested))
    try:
        data = from_clients(parts, tested, count, held)
    except ValueError as error:
        raise ConfigError(f"clients: {error}") from None
    if held is not None:
        share = len(held) / (len(held) + len(data.train))
        settings["data"] = {"validation": min(0.5, share), **settings.get("data", {})}
    named = {"name": "python:data", **settings.pop("data", {})}
    called = model if isinstance(model, str) else f"python:{getattr(model, '__name__', type(model).__name__)}"
    e = experiment({"clients": len(parts), "model": called, "data": named, **settings})
    folder = None
    if out is not None:
        folder = Folder.resume(out) if resume else Folder.create(out, e)
    try:
        return run(e, data=data, model=_factory(model), folder=folder, show=show)
    finally:
        if folder:
            folder.close()


def _factory(model: str | Factory | nn.Module) -> str | Factory:
    if not isinstance(model, nn.Module):
        return model
    original = copy.deepcopy(model)
    return lambda shape, classes: copy.deepcopy(original)


def as_examples(part: Examples | Pair, whose: str) -> Examples:
    if isinstance(part, Examples):
        return part
    try:
        inputs, labels = (
            torch.as_tensor(np.asarray(each) if not isinstance(each, Tensor) else each) for each in part
        )
        if inputs.dtype in (torch.float64, torch.float16, torch.bfloat16):
            inputs = inputs.to(torch.float32)
        elif inputs.dtype in (torch.int32, torch.int16, torch.int8):
            inputs = inputs.to(torch.int64)
        return Examples(inputs, labels.to(torch.int64))
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(f"data of {whose}: {error}") from None
