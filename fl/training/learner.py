"""Local training of a client (Algorithm 1 of SHARE, lines "Client"), and what a server measures of a model.

Everything is a function of (seed, round, client) and of flat float32 vectors, whichever process trains a client, in
whatever order. On a CPU the result has the same bits only if one torch thread computes it, because sums split over
threads round differently. `Learner` uses one thread; processes give parallelism (`fl.training.workers`).
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from fl.data.examples import Examples, Federated, Index
from fl.errors import TrainingError
from fl.training.models import Factory, Matrix, Vector, build, flatten, join, parameters, split, unflatten

EVALUATION_BATCH = 200  # examples in one forward pass; fixed, because the sum of the losses rounds by batch
BatchScores = list[tuple[float, int, int]]  # the sum of losses, number right and number of examples of each batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """ClientOptimize of Algorithm 1: minibatch SGD over the client's own examples.

    `epochs` is K counted in passes over the data, as in the paper. Momentum starts from zero every round. The last
    minibatch of an epoch holds what is left, even a single example; `drop_last` skips it, unless it is the only one.
    """

    epochs: int = 2
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}")
        if not self.lr > 0 or not 0 <= self.momentum < 1 or not self.weight_decay >= 0:
            raise ValueError(
                "expected lr > 0, 0 <= momentum < 1 and weight_decay >= 0, "
                f"got {self.lr}, {self.momentum} and {self.weight_decay}"
            )

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

    def build(self) -> nn.Module:
        return build(self.model, self.data.train.shape, self.data.classes, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Score:
    """Accuracy and mean loss on a number of examples."""

    accuracy: float
    loss: float
    examples: int


def client_stream(seed: int, round_: int, client: int) -> tuple[np.random.Generator, int]:
    """A client's randomness for one round: a generator for minibatches, and a seed for torch (dropout)."""
    digest = hashlib.sha256(b"fl/local/v1:%d:%d:%d" % (seed, round_, client)).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big")), int.from_bytes(digest[16:23], "big")


def minibatches(rows: Index, local: LocalTraining, generator: np.random.Generator) -> Iterator[Index]:
    """The rows of each minibatch of a round, in order of use. Every epoch has its own shuffle."""
    per_epoch = local.steps(len(rows)) // local.epochs
    for _ in range(local.epochs):
        order = generator.permutation(rows)
        for step in range(per_epoch):
            yield order[step * local.batch_size : (step + 1) * local.batch_size]


class TrainerBase:
    """What a Learner and a Pool share: the task, its initial vector, and use in a `with` statement."""

    def __init__(self, task: Task, module: nn.Module) -> None:
        self.task = task
        self._initial = flatten(module)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what the trainer has started."""

    @property
    def dimension(self) -> int:
        return len(self._initial)

    def initial(self) -> Vector:
        """x^0: the parameters that the task's seed gives."""
        return self._initial.copy()


class Learner(TrainerBase):
    """The model and data of one process: trains clients, and measures vectors.

    `together` is how many clients are trained at once with stacked weights (torch.func), which pays on a GPU. 1 trains
    one client after the other, the default on a CPU, where it is faster. Both give the same updates except for
    rounding: within 1e-5 of an update's largest coordinate where the model is smooth. Where rounding decides which of
    two equal values a max pool takes, one client in a few dozen differs by about a per cent. Models that torch cannot
    stack (LSTM, dropout, batch norm) are trained one client after the other, and `not_together` says why.
    """

    def __init__(self, task: Task, *, device: torch.device | str = "cpu", together: int | None = None) -> None:
        self._module = task.build()
        super().__init__(task, self._module)
        self.device = torch.device(device)
        self._module.to(self.device)
        kernels = [p for p in parameters(self._module) if p.dim() == 4 and self.device.type == "cpu"]
        for p in kernels:
            p.data = p.data.contiguous(memory_format=torch.channels_last)
        self._channels_last = bool(kernels)
        self._parameters: list[Tensor] = [*parameters(self._module)]
        self._momenta = [torch.zeros_like(p) for p in self._parameters]
        self._buffers = {name: buffer.cpu().clone() for name, buffer in self._module.named_buffers()}
        self._train = task.data.train.to(self.device)
        held = {"test": task.data.test, "validation": task.data.validation}
        self._parts = {name: examples.to(self.device) for name, examples in held.items() if examples is not None}
        self.together = together or (1 if self.device.type == "cpu" else 16)
        self.not_together = "" if self.together == 1 else self._stacking_problem()
        if self.not_together:
            self.together = 1

    @property
    def at_once(self) -> int:
        """How many clients to train in one call, to see progress without losing speed."""
        return max(16, self.together)

    @property
    def machine(self) -> dict[str, Any]:
        """What trains, for the record of a run."""
        return {"workers": 0, "device": str(self.device), "together": self.not_together or self.together}

    def train(self, start: Vector, clients: Sequence[int], *, round_index: int, out: Matrix | None = None) -> Matrix:
        """x_{i,K} - x^t of each client, as rows in the order of `clients`."""
        check_clients(clients, len(self.task.data.clients))
        updates = _rows(out, len(clients), self.dimension)
        flat = _tensor(start).to(self.device)
        devices, done = [self.device] if self.device.type == "cuda" else [], 0
        with _one_thread(self.device), torch.random.fork_rng(devices=devices):
            while done < len(clients):
                some = clients[done : done + self.together]
                rows = torch.from_numpy(updates[done : done + len(some)])
                try:
                    if self.together > 1:
                        self._train_together(flat, some, round_index, rows)
                    else:
                        self._train_one(flat, some[0], round_index, rows[0])
                except Exception as error:
                    if isinstance(error, torch.OutOfMemoryError) and self.together > 1:
                        self.together //= 2  # fewer clients at once need less memory
                        continue
                    names = ", ".join(map(str, some))
                    raise TrainingError(f"client {names}: {type(error).__name__}: {error}") from error
                done += len(some)
            self._check_buffers()
        return updates

    def evaluate(self, vector: Vector, part: str = "test") -> Score:
        """Accuracy and mean loss of a vector on the `test` or `validation` examples."""
        return total_score(self.batch_scores(vector, part))

    def batch_scores(self, vector: Vector, part: str, first: int = 0, last: int | None = None) -> BatchScores:
        """The scores of the batches from first to last - 1."""
        examples = self._part(part)
        scores = []
        with self._measuring(vector), torch.no_grad():
            for index in self._batches(None, len(examples))[first:last]:
                logits, labels = self._forward(examples, index)
                loss = cross_entropy(logits, labels, reduction="sum")
                right = (logits.argmax(dim=1) == labels).sum()
                scores.append((loss.item(), int(right.item()), len(index)))
        return scores

    def losses(self, vectors: Matrix, rows: Index | None = None, *, at: Vector | None = None) -> NDArray[np.float64]:
        """f_s of each vector (one per row of the matrix): the mean loss on the validation examples `rows`.

        Without `rows` all examples are used. Zeno scores an update g by the loss at x + g (Xie et al. 2019,
        Def. 2): with `at` = x the vectors are such updates, and no matrix of candidate models is needed.
        """
        examples = self._part("validation")
        batches = self._batches(rows, len(examples))
        found = np.empty(len(vectors))
        for i, vector in enumerate(vectors):
            with self._measuring(vector if at is None else at + vector), torch.no_grad():
                total = 0.0
                for some in batches:
                    logits, labels = self._forward(examples, some)
                    total += cross_entropy(logits, labels, reduction="sum").item()
            found[i] = total / sum(map(len, batches))
        return found

    def gradient(self, vector: Vector, rows: Index | None = None) -> Vector:
        """The gradient of f_s at a vector, for Zeno++ (Algorithm 2 of SHARE), over the same examples."""
        examples = self._part("validation")
        batches = self._batches(rows, len(examples))
        count = sum(map(len, batches))
        with self._measuring(vector):
            for some in batches:
                logits, labels = self._forward(examples, some)
                torch.autograd.backward(cross_entropy(logits, labels, reduction="sum") / count)
            found: Vector = join(self._gradients()).cpu().numpy()
        return found

    def _train_one(self, start: Tensor, client: int, round_index: int, out: Tensor) -> None:
        local = self.task.local
        generator, torch_seed = client_stream(self.task.seed, round_index, client)
        torch.manual_seed(torch_seed)
        self._start_from(start)
        self._module.train()
        # What torch.optim.SGD(fused=True) runs. Its class imports the compiler: 1.6 s per process.
        rates: dict[str, Any] = {"lr": local.lr, "momentum": local.momentum, "weight_decay": local.weight_decay}
        sgd = partial(torch._fused_sgd_, **rates, dampening=0.0, nesterov=False, maximize=False)
        for step, rows in enumerate(minibatches(self.task.data.clients[client], local, generator)):
            logits, labels = self._forward(self._train, torch.from_numpy(rows).to(self.device))
            torch.autograd.backward(cross_entropy(logits, labels))
            sgd(self._parameters, self._gradients(), self._momenta, is_first_step=step == 0)
        out.copy_(join(self._parameters).sub_(start))

    def _train_together(self, start: Tensor, clients: Sequence[int], round_index: int, out: Tensor) -> None:
        """Train clients stacked along a new first axis. Short minibatches are padded, with weight zero."""
        local, count = self.task.local, len(clients)
        plans = []
        for client in clients:
            generator, _ = client_stream(self.task.seed, round_index, client)
            plans.append(list(minibatches(self.task.data.clients[client], local, generator)))
        self._module.train()
        names = [name for name, p in self._module.named_parameters() if p.requires_grad]
        before = split(start, self._module)
        stacked = [part.expand(count, *part.shape).clone() for part in before]
        momenta = [torch.zeros_like(p) for p in stacked]
        for step in range(max(map(len, plans))):
            batches = [plan[step] if step < len(plan) else plan[0][:0] for plan in plans]
            lengths = np.array([[len(batch)] for batch in batches])
            width = int(lengths.max())
            index = np.repeat([plan[0][:1] for plan in plans], width, axis=1)
            for row, batch in zip(index, batches, strict=True):
                row[: len(batch)] = batch
            weight = (np.arange(width) < lengths) / np.maximum(lengths, 1)
            inputs, labels = self._train.batch(torch.from_numpy(index.reshape(-1)).to(self.device))
            gradients = self._stacked_gradients(
                dict(zip(names, stacked, strict=True)),
                inputs.reshape(count, width, *inputs.shape[1:]),
                labels.reshape(count, width),
                torch.from_numpy(weight).to(self.device, torch.float32),
            )
            active = torch.from_numpy(lengths[:, 0] > 0).to(self.device)
            for p, momentum, name in zip(stacked, momenta, names, strict=True):
                moving = active.reshape(count, *[1] * (p.dim() - 1))
                new = momentum.mul(local.momentum).add_(gradients[name]).add_(p, alpha=local.weight_decay)
                torch.where(moving, new, momentum, out=momentum)
                torch.where(moving, p.sub(momentum, alpha=local.lr), p, out=p)
        for part, p, old in zip(split(out, self._module), stacked, before, strict=True):
            part.copy_(p.sub_(old))

    def _stacked_gradients(
        self, stacked: dict[str, Tensor], inputs: Tensor, labels: Tensor, weight: Tensor
    ) -> dict[str, Tensor]:
        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor, w: Tensor) -> Tensor:
            logits = functional_call(self._module, parameters, (x,))
            return (cross_entropy(logits, y, reduction="none") * w).sum()

        found: dict[str, Tensor] = vmap(grad(loss), randomness="error")(stacked, inputs, labels, weight)
        return found

    def _stacking_problem(self) -> str:
        """Why torch cannot stack this model, found by trying two clients of one example; empty if it can."""
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in self._module.modules()):
            return "batch norm mixes the examples of a minibatch with the padding of stacked minibatches"
        if any(isinstance(part, nn.RNNBase) for part in self._module.modules()):
            return "torch cannot stack recurrent layers"
        inputs, labels = self._train.batch(torch.zeros(2, dtype=torch.int64, device=self.device))
        named = self._module.named_parameters()
        stacked = {name: p.detach().expand(2, *p.shape) for name, p in named if p.requires_grad}
        try:
            self._module.train()
            self._stacked_gradients(stacked, inputs[:, None], labels[:, None], torch.ones(2, 1, device=self.device))
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return ""

    def _forward(self, examples: Examples, index: Tensor) -> tuple[Tensor, Tensor]:
        inputs, labels = examples.batch(index)
        if self._channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return self._module(inputs), labels

    def _gradients(self) -> list[Tensor]:
        """Take the gradients that backward() left; zero for a parameter that the loss did not use."""
        found = []
        for p in self._parameters:
            found.append(torch.zeros_like(p) if p.grad is None else p.grad)
            p.grad = None
        return found

    def _part(self, part: str) -> Examples:
        if part not in self._parts:
            raise ValueError(f"this task has no {part} examples, only {', '.join(self._parts)}")
        return self._parts[part]

    def _batches(self, rows: Index | None, count: int) -> tuple[Tensor, ...]:
        """These rows, or all `count` of them, in batches of an evaluation."""
        index = torch.arange(count) if rows is None else torch.from_numpy(np.asarray(rows, dtype=np.int64))
        if len(index) == 0:
            raise ValueError("a loss needs at least one example")
        return torch.split(index.to(self.device), EVALUATION_BATCH)

    @contextmanager
    def _measuring(self, vector: Vector) -> Iterator[None]:
        self._start_from(_tensor(vector))
        self._module.eval()
        with _one_thread(self.device):
            yield

    def _start_from(self, vector: Tensor) -> None:
        for p in self._parameters:
            p.grad = None  # an error in the middle of a client may have left one
        unflatten(vector, self._module)

    def _check_buffers(self) -> None:
        for name, buffer in self._module.named_buffers():
            if not torch.equal(buffer.cpu(), self._buffers[name]):
                raise TrainingError(
                    f"buffer {name} changed in training, but only parameters are part of an update; use a "
                    "model that keeps no running statistics"
                )


def batch_count(examples: int) -> int:
    return -(-examples // EVALUATION_BATCH)


def total_score(batches: BatchScores) -> Score:
    """The score of all batches together, added in their order."""
    loss, right, examples = 0.0, 0, 0
    for batch_loss, batch_right, count in batches:
        loss, right, examples = loss + batch_loss, right + batch_right, examples + count
    return Score(right / examples, loss / examples, examples)


def check_clients(clients: Sequence[int], count: int) -> None:
    if len(clients) == 0:
        raise ValueError("there are no clients to train")
    if wrong := [client for client in clients if not 0 <= client < count]:
        raise ValueError(f"no client {wrong[0]}: the clients are 0 to {count - 1}")


def _rows(out: Matrix | None, count: int, length: int) -> Matrix:
    if out is None:
        return np.empty((count, length), dtype=np.float32)
    if out.shape != (count, length) or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(f"out must be a float32 matrix of {count} x {length}, got {out.shape} of {out.dtype}")
    return out


def _tensor(vector: Vector) -> Tensor:
    if vector.dtype != np.float32 or vector.ndim != 1:
        raise ValueError(f"expected a flat float32 vector, got {vector.ndim} axes of {vector.dtype}")
    # torch has no read-only tensors, and warns about read-only arrays.
    return torch.from_numpy(vector if vector.flags.writeable else vector.copy())


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    if device.type != "cpu":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
