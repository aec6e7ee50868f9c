"""What a process needs to train any client: the model, the data, the loss, and how a client trains."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import nn

from fl.data.examples import Federated, Index
from fl.errors import ConfigError
from fl.training.models import Factory, build
from fl.training.objective import ACCURACY, Function, Objective

SQUARED: Final = "squared-error"
BINARY: Final = "binary-cross-entropy"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """ClientOptimize of Algorithm 1: minibatch SGD over the client's own examples.

    `epochs` is K counted in passes over the data, as in the paper. Momentum starts from zero every round. The last
    minibatch of an epoch holds what is left, even a single example; `drop_last` skips it, unless it is the only one.
    `schedule`, `period` and `decay` say how the learning rate falls over rounds (`rate`). `proximal` is mu of FedProx
    (Li et al. 2020): mu (x - x^t) is added to every gradient. `scaffold` is explained in `fl.training.scaffold`. With
    `precision` = "bfloat16", the forward pass of training runs under torch.autocast; losses, gradients of parameters,
    updates and all measurements are float32.
    """

    epochs: int = 2
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    drop_last: bool = False
    schedule: str = "constant"
    period: int = 100
    decay: float = 0.1
    proximal: float = 0.0
    scaffold: bool = False
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}")
        if not self.lr > 0 or not 0 <= self.momentum < 1 or not self.weight_decay >= 0:
            raise ValueError(
                "expected lr > 0, 0 <= momentum < 1 and weight_decay >= 0, "
                f"got {self.lr}, {self.momentum} and {self.weight_decay}"
            )

    def rate(self, round_index: int) -> float:
        """The learning rate of a round, counted from 0.

        `step` multiplies it by `decay` every `period` rounds, and `exponential` a little in every round, to the same
        effect. `cosine` lowers it to `decay` times its value over `period` rounds, and then keeps it.
        """
        passed = round_index / self.period
        if self.schedule == "step":
            return self.lr * self.decay ** math.floor(passed)
        if self.schedule == "exponential":
            return float(self.lr * self.decay**passed)
        if self.schedule == "cosine":
            return self.lr * (self.decay + (1 - self.decay) * (1 + math.cos(math.pi * min(passed, 1.0))) / 2)
        return self.lr

    def steps(self, examples: int) -> int:
        """How many minibatches a client with this many examples takes in a round."""
        full, rest = divmod(examples, self.batch_size)
        return self.epochs * (full + (rest > 0 and not (self.drop_last and full > 0)))


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What is learned: everything that a process needs to train any client of a run."""

    model: str | Factory
    data: Federated
    local: LocalTraining
    seed: int
    loss: str | Function = "cross-entropy"
    metrics: Mapping[str, str | Function] = field(default_factory=lambda: {ACCURACY: ACCURACY})

    def __post_init__(self) -> None:
        steps = {self.local.steps(int(size)) for size in self.data.sizes} if self.local.scaffold else {0}
        if len(steps) > 1:
            raise ConfigError(
                f"local.scaffold: clients take from {min(steps)} to {max(steps)} steps in a round, but control "
                "variates need the same number for all; use data.partition iid or shards, with local.drop_last = true "
                "or another local.batch_size"
            )

    def objective(self) -> Objective:
        return Objective(self.loss, self.metrics)

    def build(self) -> nn.Module:
        return build(self.model, self.data.train.shape, self.outputs, seed=self.seed)

    @property
    def outputs(self) -> int:
        """What the model returns per example: one value per class or target; one logit or number for class numbers."""
        numbers = self.data.train.labels.dtype == torch.int64
        return 1 if numbers and self.loss in (SQUARED, BINARY) else self.data.classes


def client_stream(seed: int, round_: int, client: int) -> tuple[np.random.Generator, int]:
    """A client's randomness for one round: a generator for minibatches, and a seed for torch (dropout)."""
    digest = hashlib.sha256(b"fl/local/v1:%d:%d:%d" % (seed, round_, client)).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big")), int.from_bytes(digest[16:23], "big")


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed torch for this device alone: `torch.manual_seed` formats a traceback for GPUs that are not in use."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def minibatches(rows: Index, local: LocalTraining, generator: np.random.Generator) -> Iterator[Index]:
    """The rows of each minibatch of a round, in order of use. Every epoch has its own shuffle."""
    per_epoch = local.steps(len(rows)) // local.epochs
    for _ in range(local.epochs):
        order = generator.permutation(rows)
        for step in range(per_epoch):
            yield order[step * local.batch_size : (step + 1) * local.batch_size]
