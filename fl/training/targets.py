"""Whether the labels of a task fit its loss and what it measures. A mismatch is refused before anything is trained."""

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor, nn

from fl.config.own import own_place, short_name
from fl.config.schema import Experiment, Objective
from fl.data import Federated
from fl.errors import ConfigError, OwnError
from fl.training.models import MODELS
from fl.training.objective import ACCURACY, f1
from fl.training.task import BINARY, SQUARED, Task

TAKEN: Final = ("accuracy", "loss", "backdoor success", "worst class", "worst client")  # names of a record's own values


def metrics_of(experiment: Experiment) -> dict[str, str]:
    """The metrics of a configuration by name; one of your own has the name of its function."""
    found: dict[str, str] = {}
    for path in experiment.task.metrics:
        name = short_name(path)
        if found.get(name, path) != path:
            raise ConfigError(f"task.metrics: {found[name]} and {path} would both be recorded as {name}; rename one")
        found[name] = path
    return found


def check_targets(task: Task, wanted: Objective) -> None:
    """Raise ConfigError if the labels do not fit the loss, or if a measure would not mean what its name says."""
    for name, metric in task.metrics.items():
        if name in TAKEN and metric != name:
            raise ConfigError(f"task.metrics: records have a value of their own named {name!r}; rename your metric")
    labels = task.data.train.labels
    if task.loss == "cross-entropy":
        _check_class_numbers(labels)
    if task.loss == BINARY:
        _check_zero_to_one(task.data)
    if wanted.per_class and (labels.is_floating_point() or task.loss == SQUARED):
        raise ConfigError(
            "task.per_class: this task predicts no class numbers, because its labels are floats or its loss is "
            "squared-error; set it to false"
        )
    deciding = [name for name, metric in task.metrics.items() if metric in (ACCURACY, "f1", f1)]
    for key, measure in [("task.metrics", name) for name in deciding] + [("task.per_client", "it")] * wanted.per_client:
        if task.loss == SQUARED:
            raise ConfigError(
                f"{key}: {measure} needs a class per example, and squared-error learns numbers; use "
                '"r2", "mean-absolute-error" or your own metric, or learn classes with cross-entropy (one output per '
                "class) or binary-cross-entropy (one logit)"
            )
        if any(some.is_floating_point() and not _zero_or_one(some) for _, some in _all_labels(task.data)):
            raise ConfigError(
                f"{key}: {measure} needs class numbers, or 0 and 1 as labels, and these targets are other floats; use "
                '"r2", "mean-absolute-error" or your own'
            )


def check_outputs(task: Task, module: nn.Module, device: torch.device) -> None:
    """Raise ConfigError if the model fails on two examples of the data, or returns no row for each of them.

    If the model is the user's own, it is an OwnError. A lack of memory says nothing about the model.
    """
    kind = ConfigError if isinstance(task.model, str) and task.model in MODELS else OwnError
    shape = task.data.train.shape
    inputs, _ = task.data.train.batch(torch.zeros(2, dtype=torch.int64))
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(inputs.to(device))
    except Exception as error:
        if isinstance(error, MemoryError) or "memory" in str(error):
            raise
        first = next(iter(str(error).splitlines()), "")
        why = f"{type(error).__name__}: {first}{own_place(error)}"
        raise kind(f"model: it fails on a batch of two examples of shape {shape}: {why}") from error
    if not isinstance(outputs, Tensor):
        raise kind(
            f"model: it returns {type(outputs).__name__}, expected a tensor with one row per example; wrap it in a "
            "module whose forward() returns only the outputs"
        )
    got = tuple(outputs.shape)
    if got[:1] != (2,):
        raise kind(f"model: for two examples of shape {shape} it returns shape {got}, expected (2, ...)")
    if task.loss == "cross-entropy" and len(got) != 2:
        raise kind(
            f"model: it returns shape {got[1:]} for an example of shape {shape}, and cross-entropy needs one value per "
            "class; start the model with nn.Flatten(), for example"
        )
    for part, labels in _all_labels(task.data) if task.loss == "cross-entropy" else ():
        if (most := int(labels.max())) >= got[1]:
            raise kind(
                f"model: it returns {got[1]} values per example, and labels of the {part} examples go up to {most}; "
                "cross-entropy needs one output of the model per class: give the model more outputs, or, for one "
                f'logit, set task.loss to "{BINARY}"'
            )


def _check_class_numbers(labels: Tensor) -> None:
    several = '"binary-cross-entropy" (several labels)'
    if labels.dim() > 1:
        each = tuple(labels.shape[1:])
        one = "; give a vector: labels[:, 0]" if each == (1,) else f", or set the loss to {several}"
        raise ConfigError(
            f"task.loss: the labels have shape {each} per example, and cross-entropy needs one class number per "
            f"example{one}"
        )
    if labels.is_floating_point():
        raise ConfigError(
            "task.loss: the labels are floats, and cross-entropy needs class numbers; give integers as labels, or set "
            f'the loss to "squared-error" (regression), {several} or your own'
        )


def _check_zero_to_one(data: Federated) -> None:
    for part, labels in _all_labels(data):
        low, high = labels.min().item(), labels.max().item()
        if not 0 <= low <= high <= 1:
            raise ConfigError(
                f"task.loss: {BINARY} needs labels from 0 to 1, and those of the {part} examples go from {low:g} to "
                f"{high:g}; convert them, or use cross-entropy for more than two classes"
            )


def _all_labels(data: Federated) -> Iterator[tuple[str, Tensor]]:
    for part, examples in (("training", data.train), ("test", data.test), ("validation", data.validation)):
        if examples is not None and len(examples):
            yield part, examples.labels


def _zero_or_one(labels: Tensor) -> bool:
    return bool(((labels == 0) | (labels == 1)).all())
