"""Examples in memory: a data set, before and after it is divided among clients.

Inputs keep the type in which they were published (mostly bytes) and become floats one minibatch at a time.
CIFAR-10 then takes 154 MB instead of 614 MB, and the conversion is cheap compared with training.
Nothing here starts a process or reads a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scaling:
    """Converts stored inputs to floats: (x / top - mean) / std, with one mean and std per channel."""

    top: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(f"expected one mean and one std per channel, got {self.mean} and {self.std}")
        if self.top <= 0 or min(self.std) <= 0:
            raise ValueError(f"top and std must be positive, got {self.top} and {self.std}")

    def apply(self, inputs: Tensor) -> Tensor:
        mean, std = _channels(self, inputs.dim() - 2, inputs.device)
        return inputs.to(torch.float32).div_(self.top).sub_(mean).div_(std)


@lru_cache(maxsize=16)
def _channels(scaling: Scaling, axes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and std as tensors that broadcast over images. Cached, because copying to a GPU blocks."""
    both = torch.tensor((scaling.mean, scaling.std), dtype=torch.float32, device=device)
    mean, std = both.reshape(2, -1, *(1,) * axes)
    return mean, std


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Inputs and labels, one row per example.

    Inputs are floats as the model expects them, or small integers. With `scaling`, integers become floats;
    without it, they are tokens for an embedding. Labels are class numbers, or floats: targets of a regression, or 0 and
    1 for several labels per example.

    >>> examples = Examples(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    >>> len(examples), examples.shape
    (4, (2,))
    """

    inputs: Tensor
    labels: Tensor
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        classes = self.labels.dtype == torch.int64 and self.labels.dim() == 1
        if not classes and not (self.labels.dtype == torch.float32 and self.labels.dim() >= 1):
            raise ValueError(
                "labels: expected a vector of int64 (class numbers) or float32 (targets, also several per example), "
                f"got {tuple(self.labels.shape)} of {self.labels.dtype}"
            )
        if self.inputs.dim() < 2 or len(self.inputs) != len(self.labels):
            raise ValueError(f"expected one input row per label, got {tuple(self.inputs.shape)} and {len(self)} labels")
        if self.inputs.dtype not in (torch.float32, torch.uint8, torch.int64):
            raise ValueError(f"inputs: expected float32, uint8 or int64, got {self.inputs.dtype}")
        if self.scaling is not None:
            if self.inputs.dtype != torch.uint8:
                raise ValueError(f"scaling needs uint8 inputs, got {self.inputs.dtype}")
            if len(self.scaling.mean) != self.inputs.shape[1]:
                raise ValueError(f"scaling has {len(self.scaling.mean)} channels, inputs {self.inputs.shape[1]}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of the rows `index` as float32 or int64 tokens, and their labels."""
        inputs = self.inputs[index]
        if self.scaling is not None:
            inputs = self.scaling.apply(inputs)
        elif inputs.dtype == torch.uint8:
            inputs = inputs.to(torch.int64)
        return inputs, self.labels[index]

    def take(self, index: Index) -> Examples:
        """A copy of the rows `index`."""
        rows = torch.from_numpy(np.ascontiguousarray(index, dtype=np.int64)).to(self.labels.device)
        return replace(self, inputs=self.inputs[rows], labels=self.labels[rows])

    def to(self, device: torch.device | str) -> Examples:
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """A data set as published: training and test examples.

    `roles` are natural clients (Shakespeare's characters), each with its rows of `train`.

    >>> examples = Examples(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    >>> DataSet("mine", train=examples, test=examples, classes=2).roles is None
    True
    """

    name: str
    train: Examples
    test: Examples
    classes: int
    roles: tuple[tuple[str, Index], ...] | None = None

    def __post_init__(self) -> None:
        for part, examples in (("train", self.train), ("test", self.test)):
            if len(examples) == 0:
                raise ValueError(f"{self.name}: no {part} examples")
            if examples.labels.is_floating_point():
                continue
            low, high = int(examples.labels.min()), int(examples.labels.max())
            if low < 0 or high >= self.classes:
                raise ValueError(f"{self.name}: {part} labels from {low} to {high}, {self.classes} classes")
        if self.train.shape != self.test.shape:
            raise ValueError(f"{self.name}: train inputs {self.train.shape}, test inputs {self.test.shape}")


@dataclass(frozen=True, slots=True, eq=False)
class Federated:
    """A data set divided among clients: client i trains on the rows `clients[i]` of `train`.

    `validation` holds the examples that the server keeps for Zeno and Zeno++. No client has them. `backdoor` holds test
    examples with the mark of a backdoor attack, and the class that the attackers want for them.

    >>> examples = Examples(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    >>> Federated(examples, (np.array([0]), np.array([1, 2, 3])), test=examples, classes=2).sizes.tolist()
    [1, 3]
    """

    train: Examples
    clients: tuple[Index, ...]
    test: Examples
    classes: int
    validation: Examples | None = None
    backdoor: Examples | None = None

    def __post_init__(self) -> None:
        if not self.clients:
            raise ValueError("expected at least one client, got none")
        for client, rows in enumerate(self.clients):
            if rows.dtype != np.int64 or rows.ndim != 1:
                raise ValueError(f"client {client}: expected a vector of int64, got {rows.ndim} axes of {rows.dtype}")
            if len(rows) == 0:
                raise ValueError(f"client {client} has no examples; use fewer clients or another partition")
            if rows.min() < 0 or rows.max() >= len(self.train):
                raise ValueError(f"client {client} has rows outside the {len(self.train)} training examples")
        for part, examples in (("test", self.test), ("validation", self.validation), ("backdoor", self.backdoor)):
            if examples is not None:
                _same_labels(f"the {part} examples", examples.labels, "the clients", self.train.labels)

    @property
    def sizes(self) -> Index:
        """n_i: the number of examples of each client."""
        return np.array([len(rows) for rows in self.clients], dtype=np.int64)

    def fingerprint(self) -> str:
        """A hash of all examples and of who holds which, to see whether a resumed run has the same data."""
        found = hashlib.sha256(repr((self.classes, self.sizes.tolist())).encode())
        for part in (self.train, self.test, self.validation, self.backdoor):
            for tensor in () if part is None else (part.inputs, part.labels):
                found.update(repr((tensor.dtype, tuple(tensor.shape), part and part.scaling)).encode())
                found.update(tensor.cpu().contiguous().numpy().data)
        for rows in self.clients:
            found.update(np.ascontiguousarray(rows).data)
        return found.hexdigest()


def from_clients(
    clients: Sequence[Examples], test: Examples, classes: int, validation: Examples | None = None
) -> Federated:
    """Combine data sets that already belong to clients."""
    if not clients:
        raise ValueError("expected at least one client, got none")
    if isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes < 1:
        raise ValueError(f"classes: expected a whole number of at least 1, got {classes!r}")
    if len({(c.shape, c.inputs.dtype, c.scaling) for c in clients}) > 1:
        raise ValueError("the inputs of all clients must have one shape, type and scaling")
    for client, examples in enumerate(clients):
        _same_labels(f"client {client}", examples.labels, "client 0", clients[0].labels)
    held = {"test": test} if validation is None else {"test": test, "validation": validation}
    for part, examples in held.items():
        _same_inputs(f"the {part} examples", examples, clients[0])
    numbered = {f"client {client}": examples for client, examples in enumerate(clients)}
    numbered |= {f"the {part} examples": examples for part, examples in held.items()}
    for whose, examples in numbered.items():
        _labels_in_range(whose, examples.labels, classes)
    train = Examples(torch.cat([c.inputs for c in clients]), torch.cat([c.labels for c in clients]), clients[0].scaling)
    return Federated(train, tuple(consecutive([len(c) for c in clients])), test, classes, validation)


def _same_inputs(whose: str, examples: Examples, wanted: Examples) -> None:
    """Refuse inputs of another kind than those of the clients: the model could not read them."""
    both = (examples, wanted)
    floats = [each.inputs.is_floating_point() or each.scaling is not None for each in both]
    if examples.shape != wanted.shape or floats[0] != floats[1]:
        got, asked = (f"shape {each.shape} and type {each.inputs.dtype}" for each in both)
        raise ValueError(
            f"{whose}: the inputs have {got}, those of the clients {asked}; give all in one shape and type"
        )


def _labels_in_range(whose: str, labels: Tensor, classes: int) -> None:
    """Refuse class numbers for which the model has no output. One output is a logit, of the classes 0 and 1."""
    if labels.is_floating_point() or len(labels) == 0:
        return
    low, high, last = int(labels.min()), int(labels.max()), max(classes, 2) - 1
    if low < 0 or high > last:
        raise ValueError(
            f"{whose}: expected labels from 0 to {last}, because integers are class numbers, got {low} to {high}; "
            "number the classes from 0, set `classes` to their number, or give targets of a regression as floats"
        )


def _same_labels(whose: str, labels: Tensor, others: str, wanted: Tensor) -> None:
    """Refuse labels of another kind: torch would turn class numbers into floats, or fail far from here."""
    if labels.dtype != wanted.dtype or labels.shape[1:] != wanted.shape[1:]:
        kinds = [
            ("floats" if each.is_floating_point() else "class numbers (integers)")
            + (f" of shape {tuple(each.shape[1:])} per example" if each.dim() > 1 else "")
            for each in (labels, wanted)
        ]
        raise ValueError(
            f"{whose}: the labels are {kinds[0]}, those of {others} {kinds[1]}; give all in one type and shape"
        )


def consecutive(sizes: Sequence[int]) -> list[Index]:
    """The rows 0, 1, 2, ... cut into consecutive parts of these sizes."""
    return [np.arange(start, end, dtype=np.int64) for start, end in pairwise(np.cumsum([0, *sizes]))]
