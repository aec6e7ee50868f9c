"""A training of what a user has in Python: a model, the data of each client, and functions to learn and measure by."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fl.config.checks import experiment
from fl.config.own import short_name
from fl.config.schema import Experiment
from fl.data import Examples, from_clients
from fl.errors import ConfigError
from fl.reporting.progress import Progress
from fl.reporting.records import planned_rounds
from fl.training.arguments import check_model, check_out, check_shown
from fl.training.loop import Trained, run
from fl.training.models import Factory
from fl.training.objective import Function
from fl.training.round import Callback

Pair = tuple[Any, Any]
Metrics = Mapping[str, str | Function] | Sequence[str | Function]


def train(
    model: str | Factory | nn.Module,
    clients: Iterable[Examples | Pair],
    test: Examples | Pair,
    *,
    classes: int | None = None,
    validation: Examples | Pair | None = None,
    loss: str | Function | None = None,
    metrics: Metrics | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    show: Progress | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Trained:
    """Train your own model on your own data with SHARE.

    `model` is a torch module, a function of (input shape, outputs), or a name of `models`. Each client's data, the test
    data and `validation` (what the server keeps for rules that need it) are pairs (inputs, labels) of tensors or
    arrays. Labels that are floats are targets: set `task`, or give a `loss` of (outputs, targets) per example and
    `metrics` by name, which are measured beside those of `task`. `settings` are the keys of docs/configuration.md, with
    tables as dictionaries. `out` is the folder in which the run is recorded; `resume=True` resumes the run in that
    folder, to as many rounds as it was to have if `rounds` is left out. `callbacks` as in `run`.

    >>> clients = [(torch.randn(8, 2), torch.arange(8) % 2) for _ in range(12)]
    >>> train("linear", clients, test=clients[0], rounds=1, clusters={"size": 4}).summary["exposed"]
    []
    """
    check_out(out, resume=resume)
    check_shown(show, callbacks)
    check_model(model)
    _check_clients(clients)
    parts = [as_examples(part, f"client {i}") for i, part in enumerate(clients)]
    held = None if validation is None else as_examples(validation, "validation")
    tested = as_examples(test, "test")
    count = classes or outputs([*parts, tested])
    try:
        data = from_clients(parts, tested, count, held)
    except ValueError as error:
        raise ConfigError(f"clients: {error}") from None
    share = {} if held is None else {"validation": min(0.5, len(held) / (len(held) + len(data.train)))}
    named = {"name": "python:data", **share, **settings.pop("data", {})}
    called = model if isinstance(model, str) else f"python:{_name(model)}"
    task = _task_table(settings.pop("task", {}), loss, metrics, tested.labels.is_floating_point())
    if resume and out is not None:
        settings.setdefault("rounds", planned_rounds(out))
    chosen = experiment({"clients": len(parts), "model": called, "data": named, "task": task, **settings})
    measured = _measured(chosen, metrics)
    return run(
        chosen,
        data=data,
        model=_factory(model),
        loss=None if isinstance(loss, str) else loss,
        metrics=measured,
        out=out,
        resume=resume,
        show=show,
        callbacks=callbacks,
    )


def _check_clients(clients: Any) -> None:
    if isinstance(clients, DataLoader | Dataset):
        raise ConfigError(
            f"clients: expected a list with the pair (inputs, labels) of each client, got one "
            f"{type(clients).__name__}, whose parts are no clients; divide its examples, for 30 clients: inputs, "
            f"labels = {_in_one(clients, 'it')}; clients = list(zip(inputs.tensor_split(30), labels.tensor_split(30)))"
        )
    if not isinstance(clients, Iterable) or isinstance(clients, Mapping | str | Tensor | np.ndarray):
        raise ConfigError(
            f"clients: expected a list with the pair (inputs, labels) of each client, got {type(clients).__name__}"
        )


def _in_one(examples: Any, name: str) -> str:
    """Code that reads all examples of a loader or data set into two tensors."""
    if isinstance(examples, DataLoader):
        return f"map(torch.cat, zip(*{name}))"
    return f"next(iter(torch.utils.data.DataLoader({name}, batch_size=len({name}))))"


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _by_name(metrics: Metrics) -> dict[str, str | Function]:
    """Metrics as a dictionary; in a list, one has the name that a configuration would give it."""
    if isinstance(metrics, Mapping):
        found = dict(metrics)
    elif isinstance(metrics, list | tuple):
        found = {}
        for metric in metrics:
            name = short_name(metric) if isinstance(metric, str) else _name(metric)
            if found.setdefault(name, metric) != metric:
                raise ConfigError(
                    f"metrics: two functions would both be recorded as {name}; give a dictionary, with a name for each"
                )
    else:
        raise ConfigError(
            "metrics: expected a dictionary of functions by name, or a list of names or functions, got "
            f"{type(metrics).__name__}"
        )
    for name, metric in found.items():
        if not isinstance(name, str) or not (isinstance(metric, str) or callable(metric)):
            raise ConfigError(
                f"metrics: expected a name and a function of (outputs, targets), got {name!r}: {metric!r}"
            )
    return found


def _task_table(given: Any, loss: str | Function | None, metrics: Metrics | None, floats: bool) -> Any:
    """The table `task` with the loss and metrics that were given as arguments; nothing that it names is dropped."""
    if not isinstance(given, Mapping):
        return given  # `experiment` says what is wrong
    table = dict(given)
    if loss is not None and "loss" in table:
        raise ConfigError("loss: given twice, as an argument and as task.loss; leave one out")
    if loss is not None:
        table["loss"] = loss if isinstance(loss, str) else f"python:{_name(loss)}"
    if metrics is not None:
        own = [metric if isinstance(metric, str) else f"python:{name}" for name, metric in _by_name(metrics).items()]
        named = table.get("metrics", [])
        table["metrics"] = [*named, *own] if isinstance(named, list | tuple) else named
    elif "metrics" not in table and floats and loss is not None and not isinstance(loss, str):
        table["metrics"] = []  # accuracy, the default, is not for targets
    return table


def _measured(chosen: Experiment, metrics: Metrics | None) -> dict[str, str | Function] | None:
    """All metrics by name, if some of them are arguments; otherwise the experiment has them all."""
    if metrics is None:
        return None
    own, paths = _by_name(metrics), chosen.task.metrics
    named = {short_name(path): path for path in paths[: len(paths) - len(own)]}
    for name in own:
        if name in named:
            raise ConfigError(f"metrics: {name!r} is given twice, as an argument and in task.metrics; leave one out")
    return {**named, **own}


def outputs(parts: Sequence[Examples]) -> int:
    """The number of classes, or of targets per example."""
    labels = [part.labels for part in parts]
    if labels[0].is_floating_point():
        return math.prod(labels[0].shape[1:])
    return 1 + max(int(some.max()) for some in labels)


def _factory(model: str | Factory | nn.Module) -> str | Factory:
    if not isinstance(model, nn.Module):
        return model
    original = copy.deepcopy(model)
    return lambda shape, classes: copy.deepcopy(original)


def as_examples(part: Examples | Pair, whose: str) -> Examples:
    """Examples from a pair (inputs, labels), in the types that training uses."""
    if not isinstance(part, Examples):
        part = _from_pair(getattr(part, "tensors", part), whose)  # a TensorDataset has such a pair
    if len(part) == 0:
        way = "give at least one" if whose == "test" else f"leave {whose} out"
        raise ConfigError(f"data of {whose}: there are no examples; {way}")
    return part


def _from_pair(part: Any, whose: str) -> Examples:
    if not isinstance(part, tuple | list) or len(part) != 2:
        hint = ""
        if isinstance(part, DataLoader | Dataset):
            hint = f"; read it once: inputs, labels = {_in_one(part, 'it')}"
        raise ConfigError(
            f"data of {whose}: expected a pair (inputs, labels) of tensors or arrays, got {type(part).__name__}{hint}"
        )
    try:
        inputs, labels = (torch.as_tensor(np.asarray(each) if not isinstance(each, Tensor) else each) for each in part)
        if inputs.dtype in (torch.float64, torch.float16, torch.bfloat16):
            inputs = inputs.to(torch.float32)
        elif inputs.dtype in (torch.int32, torch.int16, torch.int8):
            inputs = inputs.to(torch.int64)
        for name, each in (("inputs", inputs), ("labels", labels)):
            if each.is_complex():
                raise ValueError(f"{name}: expected real numbers, got {each.dtype}; split them into two values")
        if inputs.shape[:1] == labels.shape[:1] == (0,):  # whatever their types: the caller refuses them
            return Examples(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))
        floats = labels.is_floating_point() or labels.dim() > 1
        return Examples(inputs, labels.to(torch.float32 if floats else torch.int64))
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(f"data of {whose}: {error}") from None
