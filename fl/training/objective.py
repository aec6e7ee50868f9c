"""What is learned: the loss of training, and the metrics of testing.

A loss of your own is a function of (outputs, targets) that returns one value per example. A metric of your own is a
function of (outputs, targets) of all test examples that returns one number. Outputs are what the model returns; targets
are class numbers, or floats. Where a model returns one output per example, it is the logit of class 1 against class 0.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from fl.config.own import imported, is_own
from fl.errors import ConfigError, TrainingError

Function = Callable[[Tensor, Tensor], Any]
ACCURACY: Final = "accuracy"


def _like(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and targets as floats of one shape, so that nothing is broadcast by accident."""
    targets = targets.to(outputs.dtype)
    if outputs.numel() != targets.numel():
        got, wanted = tuple(outputs.shape[1:]), tuple(targets.shape[1:])
        raise ValueError(
            f"the model returns {got} per example, the targets are {wanted}; this loss needs one output per target"
        )
    return outputs.reshape(targets.shape), targets


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of class numbers."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the values of an example, for regression."""
    found, wanted = _like(outputs, targets)
    return (found - wanted).square().flatten(1).mean(1) if found.dim() > 1 else (found - wanted).square()


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the labels of an example, each 0 or 1, for multi-label classification."""
    found, wanted = _like(outputs, targets)
    each = functional.binary_cross_entropy_with_logits(found, wanted, reduction="none")
    return each.flatten(1).mean(1) if each.dim() > 1 else each


def is_logit(outputs: Tensor, targets: Tensor) -> bool:
    """Whether each example has one output for its one class number: a logit, whose sign tells class 1 from class 0."""
    return targets.dim() == 1 and outputs.numel() == targets.numel()


def decided(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Predictions and targets as numbers: the largest class, or 0 or 1 by the sign of each label's logit."""
    if not targets.is_floating_point() and not is_logit(outputs, targets):
        return outputs.argmax(dim=1), targets
    found, wanted = _like(outputs, targets)
    return (found > 0).to(targets.dtype), wanted.to(targets.dtype)


def f1(outputs: Tensor, targets: Tensor) -> float:
    """The mean over classes (or labels) of 2 TP / (2 TP + FP + FN), without those that never occur.

    One logit per example is one label: the F1 of class 1.
    """
    found, wanted = decided(outputs, targets)
    if targets.is_floating_point() or is_logit(outputs, targets):
        pairs = [(found.reshape(len(found), -1)[:, k] > 0, wanted.reshape(len(wanted), -1)[:, k] > 0)
                 for k in range(wanted.reshape(len(wanted), -1).shape[1])]  # fmt: skip
    else:
        pairs = [(found == k, wanted == k) for k in range(outputs.shape[1])]
    counts = [(int((a & b).sum()), int(a.sum()) + int(b.sum())) for a, b in pairs]
    scores = [2 * hits / both for hits, both in counts if both]
    return sum(scores) / len(scores) if scores else 0.0


def mean_absolute_error(outputs: Tensor, targets: Tensor) -> float:
    found, wanted = _like(outputs, targets)
    return float((found - wanted).abs().mean())


def r2(outputs: Tensor, targets: Tensor) -> float:
    """The part of the variance of the targets that the outputs explain: 1 - SSE / SST."""
    found, wanted = (part.double() for part in _like(outputs, targets))
    spread = float((wanted - wanted.mean(0)).square().sum())
    return 1 - float((found - wanted).square().sum()) / spread if spread else 0.0


LOSSES: Final[dict[str, Function]] = {
    "cross-entropy": cross_entropy,
    "squared-error": squared_error,
    "binary-cross-entropy": binary_cross_entropy,
}
METRICS: Final[dict[str, Function]] = {"f1": f1, "mean-absolute-error": mean_absolute_error, "r2": r2}


class Objective:
    """The loss of a task, per example, as a mean to train with and as a sum to measure with."""

    def __init__(self, loss: str | Function, metrics: Mapping[str, str | Function]) -> None:
        self._plain = loss == "cross-entropy"
        self.function = _function(loss, LOSSES, "task.loss")
        self.metrics = {n: _function(m, METRICS, "task.metrics") for n, m in metrics.items() if m != ACCURACY}
        self.counts_right = ACCURACY in metrics.values()

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = self.function(outputs, targets)
        if not isinstance(found, Tensor) or found.shape != outputs.shape[:1]:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"the loss must return one value per example, {len(outputs)} here; got {got}")
        return found

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets) if self._plain else self.each(outputs, targets).mean()

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self._plain:
            return functional.cross_entropy(outputs, targets, reduction="sum")
        return self.each(outputs, targets).sum()

    def right(self, outputs: Tensor, targets: Tensor) -> float:
        """How many examples are right; of several labels, the fraction that is right."""
        found, wanted = decided(outputs, targets)
        hits = found == wanted
        return int(hits.sum()) if hits.dim() == 1 else float(hits.flatten(1).cpu().double().mean(1).sum())

    def measured(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        with torch.no_grad():
            return {name: _measured(name, metric, outputs, targets) for name, metric in self.metrics.items()}


def _measured(name: str, metric: Function, outputs: Tensor, targets: Tensor) -> float:
    """What a metric returns, as a number. An error names the metric."""
    try:
        found = metric(outputs, targets)
    except Exception as error:
        raise TrainingError(f"metric {name}: {type(error).__name__}: {error}") from error
    shape = getattr(found, "shape", None)
    try:
        if shape is not None and math.prod(shape) != 1:
            raise TypeError
        return float(found.detach() if isinstance(found, Tensor) else found)
    except (TypeError, ValueError):
        got = type(found).__name__ if shape is None else f"a {type(found).__name__} of shape {tuple(shape)}"
        raise TrainingError(f"metric {name}: expected one number for all test examples, got {got}") from None


def advice(error: Exception) -> str:
    """What to do about an error of torch that says little to a user."""
    if isinstance(error, ValueError) and "more than 1 value per channel" in str(error):
        return (
            "; a norm over the minibatch, or over groups of one value, cannot train on a minibatch of one example: use "
            "LayerNorm, or GroupNorm with fewer groups than channels, or have no such minibatch: local.batch_size of "
            "at least 2, and local.drop_last = true if every client has at least as many examples"
        )
    if isinstance(error, IndexError) and str(error).startswith("Target "):
        return (
            "; cross-entropy needs one output of the model per class: give the model more outputs, or, for one logit, "
            'set task.loss to "binary-cross-entropy"'
        )
    return ""


def _function(name: str | Function, known: Mapping[str, Function], key: str) -> Function:
    if not isinstance(name, str):
        return name
    if name in known:
        return known[name]
    if not is_own(name):
        raise ConfigError(f"{key}: expected one of {', '.join(known)}, or module:function, got {name!r}")
    return imported(name, key)
