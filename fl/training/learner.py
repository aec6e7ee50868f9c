"""Local training of a client (Algorithm 1 of SHARE, lines "Client"), and what a server measures of a model.

Everything is a function of (seed, round, client) and of flat float32 vectors, whichever process trains a client, in
whatever order. On a CPU the result has the same bits only if one torch thread computes it, because sums split over
threads round differently. `Learner` uses one thread; processes give parallelism (`fl.training.workers`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fl.data.examples import Examples, Index
from fl.errors import TrainingError
from fl.training.convolution import accelerate
from fl.training.models import Matrix, Vector, flatten, join, parameters, split, unflatten
from fl.training.objective import ACCURACY, advice, decided
from fl.training.targets import check_outputs
from fl.training.task import LocalTraining, Task, client_stream, minibatches, seed_torch

__all__ = ["Learner", "LocalTraining", "Score", "Task", "TrainerBase", "client_stream", "minibatches"]

EVALUATION_BATCH = 200  # examples in one forward pass; fixed, because the sum of the losses rounds by batch
BatchScores = list[tuple[float, float, int]]  # the sum of losses, number right and number of examples of each batch


@dataclass(frozen=True, slots=True)
class Score:
    """Accuracy, mean loss and other metrics on a number of examples. A task may have no accuracy."""

    accuracy: float | None
    loss: float
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)


class TrainerBase:
    """What a Learner and a Pool share: the task, its initial vector, and use in a `with` statement."""

    def __init__(self, task: Task, module: nn.Module) -> None:
        self.task = task
        self._initial = flatten(module)

    def check_model(self, device: torch.device) -> None:
        """Raise ConfigError if another copy of the model cannot take the data. torch's state does not change."""
        with _one_thread(device), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            check_outputs(self.task, self.task.build().to(device), device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what the trainer has started."""

    @property
    def dimension(self) -> int:
        return len(self._initial)

    @property
    def peak_memory(self) -> float:
        """The most memory of other processes that train, in MB."""
        return 0.0

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
        self._objective = task.objective()
        self.device = torch.device(device)
        self._module.to(self.device)
        self.check_model(self.device)
        kernels = [p for p in parameters(self._module) if p.dim() == 4 and self.device.type == "cpu"]
        for p in kernels:
            p.data = p.data.contiguous(memory_format=torch.channels_last)
        self._channels_last = bool(kernels)
        self._parameters: list[Tensor] = [*parameters(self._module)]
        self._momenta = [torch.zeros_like(p) for p in self._parameters]
        self._buffers = {name: buffer.cpu().clone() for name, buffer in self._module.named_buffers()}
        self._train = task.data.train.to(self.device)
        data = task.data
        held = {"test": data.test, "validation": data.validation, "backdoor": data.backdoor}
        self._parts = {name: examples.to(self.device) for name, examples in held.items() if examples is not None}
        self.together = together or (1 if self.device.type == "cpu" else 16)
        if self.device.type == "cpu":
            accelerate(self._module)
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

    def train(
        self,
        start: Vector,
        clients: Sequence[int],
        *,
        round_index: int,
        out: Matrix | None = None,
        shift: Matrix | None = None,
    ) -> Matrix:
        """x_{i,K} - x^t of each client, as rows in the order of `clients`; `shift` has what each adds to gradients."""
        check_clients(clients, len(self.task.data.clients))
        updates = _rows(out, len(clients), self.dimension)
        moved = None if shift is None else torch.from_numpy(_rows(shift, len(clients), self.dimension))
        flat = _tensor(start).to(self.device)
        devices, done = [self.device] if self.device.type == "cuda" else [], 0
        with _one_thread(self.device), torch.random.fork_rng(devices=devices):
            while done < len(clients):
                some = clients[done : done + self.together]
                rows = torch.from_numpy(updates[done : done + len(some)])
                more = None if moved is None else moved[done : done + len(some)].to(self.device)
                try:
                    if self.together > 1:
                        self._train_together(flat, some, round_index, rows, more)
                    else:
                        self._train_one(flat, some[0], round_index, rows[0], None if more is None else more[0])
                except Exception as error:
                    if isinstance(error, torch.OutOfMemoryError) and self.together > 1:
                        self.together //= 2  # fewer clients at once need less memory
                        continue
                    names = ", ".join(map(str, some))
                    raise TrainingError(f"client {names}: {type(error).__name__}: {error}{advice(error)}") from error
                done += len(some)
            self._check_buffers()
        return updates

    def evaluate(self, vector: Vector, part: str = "test") -> Score:
        """Accuracy and mean loss of a vector on the `test` or `validation` examples."""
        return total_score(self.task, self.batch_scores(vector, part), self.metrics(vector, part))

    def metrics(self, vector: Vector, part: str = "test") -> dict[str, float]:
        """The metrics other than accuracy, which need the outputs of all examples at once."""
        if not self._objective.metrics:
            return {}
        examples = self._part(part)
        with self._measuring(vector), torch.no_grad():
            found = [self._forward(examples, index) for index in self._batches(None, len(examples))]
        outputs, targets = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
        return self._objective.measured(outputs, targets)

    def batch_scores(self, vector: Vector, part: str, first: int = 0, last: int | None = None) -> BatchScores:
        """The scores of the batches from first to last - 1."""
        examples = self._part(part)
        scores = []
        with self._measuring(vector), torch.no_grad():
            for index in self._batches(None, len(examples))[first:last]:
                logits, labels = self._forward(examples, index)
                loss = self._objective.total(logits, labels)
                right = self._objective.right(logits, labels) if self._objective.counts_right else 0
                scores.append((loss.item(), right, len(index)))
        return scores

    def class_accuracies(self, vector: Vector) -> list[float | None]:
        """The accuracy on the test examples of each class; None for a class that has none."""
        examples, count = self._part("test"), self.task.data.classes
        right, every = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        with self._measuring(vector), torch.no_grad():
            for index in self._batches(None, len(examples)):
                outputs, labels = self._forward(examples, index)
                found, targets = decided(outputs, labels)
                hits, wanted = (found == targets).cpu().numpy(), targets.cpu().numpy()
                every += np.bincount(wanted, minlength=count)
                right += np.bincount(wanted[hits], minlength=count)
        return [float(hit / total) if total else None for hit, total in zip(right, every, strict=True)]

    def client_accuracies(self, vector: Vector, clients: Sequence[int]) -> list[float]:
        """The accuracy on the own examples of each of these clients, which only a simulation has."""
        found = []
        with self._measuring(vector), torch.no_grad():
            for client in clients:
                rows = self.task.data.clients[client]
                parts = [self._forward(self._train, index) for index in self._batches(rows, len(rows))]
                found.append(sum(self._objective.right(*part) for part in parts) / len(rows))
        return found

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
                    total += self._objective.total(logits, labels).item()
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
                torch.autograd.backward(self._objective.total(logits, labels) / count)
            found: Vector = join(self._gradients()).cpu().numpy()
        return found

    def server_update(self, vector: Vector, *, round_index: int) -> Vector:
        """What a client with the validation examples would send, for FLTrust."""
        found = np.empty(self.dimension, dtype=np.float32)
        devices = [self.device] if self.device.type == "cuda" else []
        with _one_thread(self.device), torch.random.fork_rng(devices=devices):
            start = _tensor(vector).to(self.device)
            self._train_one(start, len(self.task.data.clients), round_index, torch.from_numpy(found))
        return found

    def _train_one(
        self, start: Tensor, client: int, round_index: int, out: Tensor, shift: Tensor | None = None
    ) -> None:
        """Train a client; the number after the last client is the server with its validation examples."""
        local, clients = self.task.local, self.task.data.clients
        examples, own = self._train, clients[client] if client < len(clients) else None
        if own is None:
            examples = self._part("validation")
            own = np.arange(len(examples), dtype=np.int64)
        generator, torch_seed = client_stream(self.task.seed, round_index, client)
        seed_torch(torch_seed, self.device)
        self._start_from(start)
        self._module.train()
        # What torch.optim.SGD(fused=True) runs. Its class imports the compiler: 1.6 s per process.
        before = split(start, self._module) if local.proximal else []
        added = [] if shift is None else split(shift, self._module)
        momenta = self._momenta if local.momentum else []
        rates: dict[str, Any] = {
            "lr": local.rate(round_index),
            "momentum": local.momentum,
            "weight_decay": local.weight_decay,
        }
        sgd = partial(torch._fused_sgd_, **rates, dampening=0.0, nesterov=False, maximize=False)
        for step, rows in enumerate(minibatches(own, local, generator)):
            logits, labels = self._forward(examples, torch.from_numpy(rows).to(self.device), training=True)
            torch.autograd.backward(self._objective.mean(logits, labels))
            gradients = self._gradients()
            for gradient, p, old in zip(gradients, self._parameters, before, strict=False):
                gradient.add_(p.detach() - old, alpha=local.proximal)
            for gradient, more in zip(gradients, added, strict=False):
                gradient.add_(more)
            sgd(self._parameters, gradients, momenta, is_first_step=step == 0)
        out.copy_(join(self._parameters).sub_(start))

    def _train_together(
        self, start: Tensor, clients: Sequence[int], round_index: int, out: Tensor, shift: Tensor | None
    ) -> None:
        """Train clients stacked along a new first axis. Short minibatches are padded, with weight zero."""
        local, count = self.task.local, len(clients)
        rate, plans = local.rate(round_index), []
        for client in clients:
            generator, _ = client_stream(self.task.seed, round_index, client)
            plans.append(list(minibatches(self.task.data.clients[client], local, generator)))
        self._module.train()
        names = [name for name, p in self._module.named_parameters() if p.requires_grad]
        before = split(start, self._module)
        stacked = [part.expand(count, *part.shape).clone() for part in before]
        momenta = [torch.zeros_like(p) for p in stacked]
        added = [torch.zeros_like(p[:1]) for p in stacked] if shift is None else split(shift, self._module)
        for step in range(max(map(len, plans))):
            batches = [plan[step] if step < len(plan) else plan[0][:0] for plan in plans]
            lengths = np.array([[len(batch)] for batch in batches])
            width = int(lengths.max())
            index = np.repeat([plan[0][:1] for plan in plans], width, axis=1)
            for row, batch in zip(index, batches, strict=True):
                row[: len(batch)] = batch
            weight = ((np.arange(width) < lengths) / np.maximum(lengths, 1)).astype(np.float32)  # a Mac has no float64
            inputs, labels = self._train.batch(torch.from_numpy(index.reshape(-1)).to(self.device))
            gradients = self._stacked_gradients(
                dict(zip(names, stacked, strict=True)),
                inputs.reshape(count, width, *inputs.shape[1:]),
                labels.reshape(count, width, *labels.shape[1:]),
                torch.from_numpy(weight).to(self.device),
            )
            active = torch.from_numpy(lengths[:, 0] > 0).to(self.device)
            for p, momentum, name, old, more in zip(stacked, momenta, names, before, added, strict=True):
                moving = active.reshape(count, *[1] * (p.dim() - 1))
                new = momentum.mul(local.momentum).add_(gradients[name]).add_(p, alpha=local.weight_decay)
                new.add_(p - old, alpha=local.proximal).add_(more)
                torch.where(moving, new, momentum, out=momentum)
                torch.where(moving, p.sub(momentum, alpha=rate), p, out=p)
        for part, p, old in zip(split(out, self._module), stacked, before, strict=True):
            part.copy_(p.sub_(old))

    def _stacked_gradients(
        self, stacked: dict[str, Tensor], inputs: Tensor, labels: Tensor, weight: Tensor
    ) -> dict[str, Tensor]:
        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor, w: Tensor) -> Tensor:
            with self._mixed():
                logits = functional_call(self._module, parameters, (x,))
            return (self._objective.each(logits.float(), y) * w).sum()

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

    def _mixed(self) -> AbstractContextManager[object]:
        """Mixed precision, if the task trains with it."""
        if self.task.local.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.task.local.precision))

    def _forward(self, examples: Examples, index: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        inputs, labels = examples.batch(index)
        if self._channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        if not training:
            return self._module(inputs), labels
        with self._mixed():
            outputs = self._module(inputs)
        return outputs.float(), labels

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


def total_score(task: Task, batches: BatchScores, metrics: Mapping[str, float]) -> Score:
    """The score of all batches together, added in their order."""
    loss, right, examples = 0.0, 0.0, 0
    for batch_loss, batch_right, count in batches:
        loss, right, examples = loss + batch_loss, right + batch_right, examples + count
    accuracy = right / examples if ACCURACY in task.metrics.values() else None
    return Score(accuracy, loss / examples, examples, metrics)


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
