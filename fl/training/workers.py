"""Several processes that train the clients of a round, with one torch thread each.

Two processes of one thread train the paper's network faster than one process of two. The result has the same bits
for any number of processes (`fl.training.learner`). How they work together:

- A worker is a fresh interpreter, not a fork: threads of OpenMP and numba do not survive a fork, and a child that
  `multiprocessing` spawns imports the user's script again. Requests are JSON over a socket pair; nothing is pickled.
- Data, the model's vector and the updates are in anonymous shared memory, passed as open files. Nothing has a name in
  the file system, so nothing is left behind.
- A worker ends when its parent does, even by `kill -9`: one of its threads watches the socket. It is in a process
  group of its own, so Ctrl-C at the terminal reaches only the parent, which ends the worker.
"""

from __future__ import annotations

import os
import selectors
import socket
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fl.data.examples import Index
from fl.errors import ConfigError, TrainingError, WorkerError
from fl.training.channel import Message, send
from fl.training.child import Child
from fl.training.devices import find_device
from fl.training.learner import Learner, Score, TrainerBase, batch_count, check_clients, total_score
from fl.training.models import Matrix, Vector, dimension
from fl.training.objective import ACCURACY
from fl.training.task import Task
from fl.training.worker import Shared, importable, pack
from secagg.simulation import cores

WORTH_WORKERS: Final = 1e9  # parameters times examples of a round, above which starting workers (seconds) pays


def open_trainer(task: Task, *, device: str = "cpu", workers: int | None = None) -> Trainer:
    """The best trainer for a task: workers on a CPU, one process on a GPU or where the work is small.

    `device` is a torch device or "auto". `workers` is a number, 0 for none, or None to decide here. The result does
    not depend on it.
    """
    if device == "auto":
        device = str(find_device(device))
    if torch.device(device).type != "cpu":
        if workers:
            raise ValueError(f"workers are for the CPU; on {device} use workers=0")
        return Learner(task, device=device)
    if task.local.precision != "float32":
        raise ConfigError(
            f"local.precision: {task.local.precision} is for GPUs, because many CPUs lack its instructions; set "
            "float32, or machine.device"
        )
    if workers is None:
        work = dimension(task.build()) * int(task.data.sizes.sum()) * task.local.epochs
        possible = importable(task) and hasattr(socket, "send_fds")
        workers = cores() if possible and work >= WORTH_WORKERS and cores() > 1 else 0
    return Pool(task, workers) if workers else Learner(task)


class Pool(TrainerBase):
    """The interface of `Learner`, with the work spread over processes.

    Workers start when they are first used, and again after an error or an interrupt ended them.
    """

    def __init__(self, task: Task, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"a pool needs at least one worker, got {workers}")
        if not importable(task):
            raise ValueError(
                "workers import the model, the loss and the metrics by name: put each function in a module and pass "
                'the function or "module:function", or use workers=0'
            )
        if not hasattr(socket, "send_fds"):
            raise ValueError("this system cannot share open files between processes; use workers=0")
        super().__init__(task, task.build())
        self.check_model(torch.device("cpu"))
        self.count = workers
        self._data, self._setup = pack(task)
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end_all, self._workers, os.getpid())

    def close(self) -> None:
        """End the workers."""
        _end_all(self._workers, os.getpid())

    @property
    def at_once(self) -> int:
        """How many clients to train in one call, to see progress without leaving workers idle."""
        return 4 * self.count

    @property
    def machine(self) -> dict[str, Any]:
        """What trains, for the record of a run."""
        return {"workers": self.count, "device": "cpu", "together": 1}

    @property
    def peak_memory(self) -> float:
        """The most memory that all workers have had, in MB. What they share counts in each."""
        return sum(worker.peak for worker in self._workers)

    def train(
        self,
        start: Vector,
        clients: Sequence[int],
        *,
        round_index: int,
        out: Matrix | None = None,
        shift: Matrix | None = None,
    ) -> Matrix:
        """As `Learner.train`. Without `out` the rows are in shared memory."""
        check_clients(clients, len(self.task.data.clients))
        x = self._share(start[None])
        updates = Shared(len(clients), self.dimension)
        shared = (x, updates) if shift is None else (x, updates, self._share(shift))
        requests = [
            _Request(
                {"do": "train", "round": round_index, "clients": [int(clients[row]) for row in rows], "rows": rows},
                shared,
                what=f"training client {', '.join(str(clients[row]) for row in rows)}",
            )
            for rows in self._chunks(clients)
        ]
        self._run(requests)
        if out is None:
            return updates.matrix
        out[...] = updates.matrix
        return out

    def evaluate(self, vector: Vector, part: str = "test") -> Score:
        """As `Learner.evaluate`, with the same bits: batch scores are added in the order of the batches."""
        data = self.task.data
        examples = {"test": data.test, "validation": data.validation, "backdoor": data.backdoor}.get(part)
        if examples is None:
            raise ValueError(f"this task has no {part} examples")
        x = self._share(vector[None])
        cuts = np.linspace(0, batch_count(len(examples)), 4 * self.count + 1).astype(int).tolist()
        requests = [
            _Request({"do": "scores", "part": part, "first": first, "last": last}, (x,), what="evaluating")
            for first, last in pairwise(cuts)
            if first < last
        ]
        if set(self.task.metrics.values()) - {ACCURACY}:  # by one worker, beside the others
            requests.insert(0, _Request({"do": "metrics", "part": part}, (x,), what="evaluating"))
        replies = self._run(requests)
        batches = [scores for reply in replies for scores in reply.get("scores", ())]
        return total_score(self.task, batches, replies[0].get("metrics", {}))

    def class_accuracies(self, vector: Vector) -> list[float | None]:
        """As `Learner.class_accuracies`, by one worker."""
        (reply,) = self._run([_Request({"do": "classes"}, (self._share(vector[None]),), what="evaluating")])
        found: list[float | None] = reply["accuracies"]
        return found

    def client_accuracies(self, vector: Vector, clients: Sequence[int]) -> list[float]:
        """As `Learner.client_accuracies`, with the clients spread over the workers."""
        x = self._share(vector[None])
        parts = [list(clients[first : first + 4]) for first in range(0, len(clients), 4)]
        requests = [_Request({"do": "clients", "clients": part}, (x,), what="evaluating") for part in parts]
        return [accuracy for reply in self._run(requests) for accuracy in reply["accuracies"]]

    def losses(self, vectors: Matrix, rows: Index | None = None, *, at: Vector | None = None) -> NDArray[np.float64]:
        """As `Learner.losses`; each vector is a request of its own."""
        shared = self._share(vectors)
        base = () if at is None else (self._share(at[None]),)
        index = None if rows is None else np.asarray(rows).tolist()
        requests = [
            _Request({"do": "losses", "row": row, "index": index}, (shared, *base), what="validating")
            for row in range(len(vectors))
        ]
        return np.array([reply["loss"] for reply in self._run(requests)])

    def gradient(self, vector: Vector, rows: Index | None = None) -> Vector:
        """As `Learner.gradient`, by one worker: a gradient split over several would round differently."""
        x, out = self._share(vector[None]), Shared(1, self.dimension)
        index = None if rows is None else np.asarray(rows).tolist()
        self._run([_Request({"do": "gradient", "index": index}, (x, out), what="validating")])
        return np.asarray(out.matrix[0])

    def server_update(self, vector: Vector, *, round_index: int) -> Vector:
        """As `Learner.server_update`, by one worker."""
        x, out = self._share(vector[None]), Shared(1, self.dimension)
        self._run([_Request({"do": "server", "round": round_index}, (x, out), what="validating")])
        return np.asarray(out.matrix[0])

    def _share(self, matrix: Matrix) -> Shared:
        if matrix.dtype != np.float32 or matrix.ndim != 2:
            raise ValueError(f"expected flat float32 vectors, got {matrix.ndim} axes of {matrix.dtype}")
        if matrix.shape[1] != self.dimension:
            raise ValueError(f"got vectors of {matrix.shape[1]} values for a model of {self.dimension} parameters")
        shared = Shared(*matrix.shape)
        shared.matrix[...] = matrix
        return shared

    def _chunks(self, clients: Sequence[int]) -> list[list[int]]:
        """Rows in the order in which they are assigned: large clients first, small ones several at a time."""
        sizes = self.task.data.sizes
        order = sorted(range(len(clients)), key=lambda row: (-int(sizes[clients[row]]), row))
        most = max(1, len(order) // (8 * self.count))
        return [order[first : first + most] for first in range(0, len(order), most)]

    def _run(self, requests: list[_Request]) -> list[Message]:
        """The reply to each request, in their order. Any failure or interrupt ends all workers."""
        try:
            return self._dispatch(requests)
        except BaseException:
            self.close()
            raise

    def _dispatch(self, requests: list[_Request]) -> list[Message]:
        if not self._workers:
            self._workers.extend(_Worker() for _ in range(self.count))
            for worker in self._workers:
                worker.send(None, _Request(self._setup, (self._data,), what="starting"))
        waiting = deque(enumerate(requests))
        replies: list[Message] = [{}] * len(requests)
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.socket, selectors.EVENT_READ, worker)
                if worker.request is None and waiting:
                    worker.send(*waiting.popleft())
            missing = len(requests)
            while missing:
                for key, _ in selector.select():
                    ready: _Worker = key.data
                    finished, reply = ready.receive()
                    if finished is not None:
                        replies[finished] = reply
                        missing -= 1
                    if waiting:
                        ready.send(*waiting.popleft())
        return replies


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    message: Message
    shared: tuple[Shared, ...]
    what: str


class _Worker(Child):
    """The parent's side of one worker process."""

    def __init__(self) -> None:
        super().__init__("fl.training.worker")
        self.peak = 0.0
        self.request: _Request | None = None
        self._number: int | None = None

    def send(self, number: int | None, request: _Request) -> None:
        self.request, self._number = request, number
        message = {**request.message, "shapes": [(s.rows, s.columns) for s in request.shared]}
        try:
            send(self.socket, message, [s.file for s in request.shared])
        except OSError:
            raise self._died() from None

    def receive(self) -> tuple[int | None, Message]:
        """The number of the request and the reply; raises the error that the worker reports."""
        message = self.heard()
        if message is None:
            raise self._died()
        if "error" in message:
            raise TrainingError(message["error"])
        self.peak = max(self.peak, message["peak"])
        number, self.request, self._number = self._number, None, None
        return number, message

    def _died(self) -> WorkerError:
        return self.died(self.request.what if self.request else "idle")


def _end_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() == owner:  # not in a fork that inherited the list
        while workers:
            workers.pop().end()


Trainer = Learner | Pool
