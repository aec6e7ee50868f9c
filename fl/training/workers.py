"""Several processes that share the clients of a round, one torch thread each.

Two processes of one thread train the paper's network faster than one process of two, and the result has the
same bits for any number of them, because each client is trained by one thread as a function of (seed, round,
client). How they work together:

- A worker is a fresh interpreter, not a fork: threads of OpenMP and numba do not survive a fork, and a child
  that `multiprocessing` spawns imports the user's script again. It is told what to do in JSON over a socket
  pair; nothing is pickled. The model is named by its import path.
- Data, the model's vector and the updates are in anonymous shared memory, passed as open files. Nothing has a
  name in the file system, so there is nothing to leave behind.
- A worker ends when its parent does, even by `kill -9`: a thread of it watches the socket for the hang-up.
  It is in a process group of its own, so Ctrl-C at the terminal reaches the parent alone, which ends it.
- glibc's malloc is told to keep freed memory: a training step allocates the same tens of megabytes again and
  again, and giving them back costs a tenth of the speed.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fl.data.examples import Examples, Federated, Index, Scaling
from fl.errors import TrainingError, WorkerError
from fl.training.learner import (
    Learner,
    LocalTraining,
    Score,
    Task,
    batch_count,
    check_clients,
    total_score,
)
from fl.training.models import Matrix, Vector, dimension, flatten, import_path

ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the most that glibc accepts
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
PROGRAM: Final = (
    "import sys; from fl.training.workers import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"
)
WORTH_WORKERS: Final = 1e9
"""Parameters times examples of a round, above which starting workers (seconds) pays."""

Message = dict[str, Any]


def open_trainer(task: Task, *, device: str = "cpu", workers: int | None = None) -> Learner | Pool:
    """Whatever trains this task best: workers on a CPU, one process on a GPU or where the work is small.

    `device` is "cpu", "cuda" (or any torch device) or "auto"; `workers` a number, 0 for none, or None to
    decide here. The result does not depend on the number.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(device).type != "cpu":
        if workers:
            raise ValueError(f"workers are for the CPU; on {device} clients are trained together")
        return Learner(task, device=device)
    if workers is None:
        work = dimension(task.build()) * int(task.data.sizes.sum()) * task.local.epochs
        possible = import_path(task.model) is not None and hasattr(socket, "send_fds")
        workers = cores() if possible and work >= WORTH_WORKERS and cores() > 1 else 0
    return Pool(task, workers) if workers else Learner(task)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """The same interface as `Learner`, spread over worker processes.

    Workers start with the first use, and again after an error or an interrupt ended them. Use it in a `with`
    statement, or call `close`.
    """

    def __init__(self, task: Task, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"at least one worker, got {workers}")
        if import_path(task.model) is None:
            raise ValueError(
                "workers import the model by name: put its function in a module and pass it, or "
                '"module:function"; or use workers=0'
            )
        if not hasattr(socket, "send_fds"):
            raise ValueError("this system cannot share open files between processes; use workers=0")
        self.task = task
        self.count = workers
        self._initial = flatten(task.build())
        self._data, self._setup = _pack(task)
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end_all, self._workers, os.getpid())

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        _end_all(self._workers, os.getpid())

    @property
    def dimension(self) -> int:
        return len(self._initial)

    def initial(self) -> Vector:
        return self._initial.copy()

    def train(
        self, start: Vector, clients: Sequence[int], *, round_index: int, out: Matrix | None = None
    ) -> Matrix:
        """As `Learner.train`. Without `out` the rows are in shared memory, which lives as long as they do."""
        check_clients(clients, len(self.task.data.clients))
        x = self._share(start[None])
        updates = _Shared(len(clients), self.dimension)
        requests = [
            _Request(
                {
                    "do": "train",
                    "round": round_index,
                    "clients": [int(clients[row]) for row in rows],
                    "rows": rows,
                },
                (x, updates),
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
        """As `Learner.evaluate`, with the same bits: batches are scored apart and added up in their order."""
        data = self.task.data
        examples = {"test": data.test, "validation": data.validation}.get(part)
        if examples is None:
            raise ValueError(f"no {part} examples in this task")
        x = self._share(vector[None])
        cuts = np.linspace(0, batch_count(len(examples)), 4 * self.count + 1).astype(int).tolist()
        requests = [
            _Request({"do": "scores", "part": part, "first": first, "last": last}, (x,), what="evaluating")
            for first, last in pairwise(cuts)
            if first < last
        ]
        replies = self._run(requests)
        return total_score([(loss, right, n) for reply in replies for loss, right, n in reply["scores"]])

    def losses(
        self, vectors: Matrix, rows: Index | None = None, *, at: Vector | None = None
    ) -> NDArray[np.float64]:
        """As `Learner.losses`; the vectors are shared out."""
        shared = self._share(vectors)
        base = () if at is None else (self._share(at[None]),)
        requests = [
            _Request({"do": "losses", "row": row, "index": _plain(rows)}, (shared, *base), what="validating")
            for row in range(len(vectors))
        ]
        return np.array([reply["loss"] for reply in self._run(requests)])

    def gradient(self, vector: Vector, rows: Index | None = None) -> Vector:
        """As `Learner.gradient`, by one worker: a gradient split over several would round differently."""
        x, out = self._share(vector[None]), _Shared(1, self.dimension)
        self._run([_Request({"do": "gradient", "index": _plain(rows)}, (x, out), what="validating")])
        found: Vector = out.matrix[0]
        return found

    def _share(self, matrix: Matrix) -> _Shared:
        if matrix.dtype != np.float32 or matrix.ndim != 2:
            raise ValueError(f"flat float32 vectors, got {matrix.ndim} axes of {matrix.dtype}")
        if matrix.shape[1] != self.dimension:
            raise ValueError(f"vectors of {matrix.shape[1]} for a model of {self.dimension} parameters")
        shared = _Shared(*matrix.shape)
        shared.matrix[...] = matrix
        return shared

    def _chunks(self, clients: Sequence[int]) -> list[list[int]]:
        """Rows in the order they are handed out: large clients first, small ones several at a time."""
        sizes = self.task.data.sizes
        order = sorted(range(len(clients)), key=lambda row: (-int(sizes[clients[row]]), row))
        most = max(1, len(order) // (8 * self.count))
        return [order[first : first + most] for first in range(0, len(order), most)]

    def _run(self, requests: list[_Request]) -> list[Message]:
        """Every request's reply, in the order of the requests. Any failure or interrupt ends all workers."""
        try:
            return self._dispatch(requests)
        except BaseException:
            self.close()
            raise

    def _dispatch(self, requests: list[_Request]) -> list[Message]:
        if not self._workers:
            self._workers.extend(_Worker() for _ in range(self.count))
            for worker in self._workers:
                worker.send(_Request(self._setup, (self._data,), what="starting"), None)
        waiting = deque(enumerate(requests))
        replies: list[Message] = [{}] * len(requests)
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.socket, selectors.EVENT_READ, worker)
                if worker.request is None and waiting:
                    number, request = waiting.popleft()
                    worker.send(request, number)
            missing = len(requests)
            while missing:
                for key, _ in selector.select():
                    ready: _Worker = key.data
                    finished, reply = ready.receive()
                    if finished is not None:
                        replies[finished] = reply
                        missing -= 1
                    if waiting:
                        number, request = waiting.popleft()
                        ready.send(request, number)
        return replies


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    message: Message
    shared: tuple[_Shared, ...]
    what: str


class _Shared:
    """A float32 matrix (or plain bytes) in anonymous shared memory."""

    def __init__(self, rows: int, columns: int, *, file: int | None = None) -> None:
        self.rows, self.columns = rows, columns
        size = max(rows * columns * 4, 1)
        if file is None:
            file = _anonymous_file()
            os.ftruncate(file, size)
        self.file = file
        self._close = weakref.finalize(self, os.close, file)
        self._memory = mmap.mmap(file, size)

    @property
    def matrix(self) -> Matrix:
        flat = np.frombuffer(self._memory, dtype=np.float32, count=self.rows * self.columns)
        return flat.reshape(self.rows, self.columns)

    @property
    def memory(self) -> mmap.mmap:
        return self._memory


class _Worker:
    """The parent's side of one worker process."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
                process_group=0,
            )
        self.request: _Request | None = None
        self._number: int | None = None

    def send(self, request: _Request, number: int | None) -> None:
        self.request, self._number = request, number
        message = {**request.message, "shapes": [(s.rows, s.columns) for s in request.shared]}
        try:
            _send(self.socket, message, [s.file for s in request.shared])
        except OSError:
            raise self._died() from None

    def receive(self) -> tuple[int | None, Message]:
        """(number of the request, reply); raises what the worker failed with."""
        try:
            message, _ = _receive(self.socket)
        except OSError:
            message = None
        if message is None:
            raise self._died()
        if "error" in message:
            raise TrainingError(message["error"])
        number, self.request, self._number = self._number, None, None
        return number, message

    def _died(self) -> WorkerError:
        what = self.request.what if self.request else "idle"
        try:
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return WorkerError(f"a worker process hung up while {what}")
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return WorkerError(f"a worker process {how} while {what}")

    def end(self) -> None:
        """It holds nothing that could be lost, so it need not be asked."""
        self.socket.close()
        self.process.kill()
        self.process.wait()


def _end_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() == owner:  # and not a fork that inherited the list
        while workers:
            workers.pop().end()


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fl")
    with tempfile.TemporaryFile() as file:  # already without a name
        return os.dup(file.fileno())


def _send(channel: socket.socket, message: Message, files: Sequence[int] = ()) -> None:
    """One JSON message, its length before it, open files beside its first bytes."""
    content = json.dumps(message).encode()
    frame = struct.pack(">I", len(content)) + content
    sent = socket.send_fds(channel, [frame], files) if files else 0
    channel.sendall(frame[sent:])


def _receive(channel: socket.socket) -> tuple[Message | None, list[int]]:
    """The next message and its open files; None when the other side has gone."""
    header, files, _, _ = socket.recv_fds(channel, 4, 8)
    while header and len(header) < 4:
        header += channel.recv(4 - len(header))
    if not header:
        return None, []
    (missing,) = struct.unpack(">I", header)
    parts = []
    while missing:
        part = channel.recv(min(missing, 1 << 20))
        if not part:
            return None, list(files)
        parts.append(part)
        missing -= len(part)
    message: Message = json.loads(b"".join(parts))
    return message, list(files)


def _plain(rows: Index | None) -> list[int] | None:
    return None if rows is None else [int(row) for row in rows]


@dataclass(slots=True)
class _Tables:
    """Arrays of any type, one after the other in one piece of memory."""

    arrays: list[NDArray[Any]] = field(default_factory=list)

    def add(self, array: NDArray[Any]) -> int:
        self.arrays.append(np.ascontiguousarray(array))
        return len(self.arrays) - 1

    def write(self) -> tuple[_Shared, list[tuple[str, tuple[int, ...], int]]]:
        """The memory, and (type, shape, place) of each array."""
        places, end = [], 0
        for array in self.arrays:
            places.append((array.dtype.str, array.shape, end))
            end += -(-array.nbytes // 64) * 64
        shared = _Shared(1, end // 4)
        view = np.frombuffer(shared.memory, dtype=np.uint8)
        for array, (_, _, place) in zip(self.arrays, places, strict=True):
            view[place : place + array.nbytes] = array.reshape(-1).view(np.uint8)
        return shared, places


def _pack(task: Task) -> tuple[_Shared, Message]:
    """The task as shared memory and a message that says what is where."""
    tables = _Tables()

    def examples(part: Examples | None) -> Message | None:
        if part is None:
            return None
        return {
            "inputs": tables.add(part.inputs.numpy()),
            "labels": tables.add(part.labels.numpy()),
            "scaling": None if part.scaling is None else asdict(part.scaling),
        }

    data = task.data
    message: Message = {
        "do": "setup",
        "model": import_path(task.model),
        "seed": task.seed,
        "local": asdict(task.local),
        "classes": data.classes,
        "train": examples(data.train),
        "test": examples(data.test),
        "validation": examples(data.validation),
        "clients": tables.add(np.concatenate(data.clients)),
        "sizes": tables.add(data.sizes),
    }
    shared, message["places"] = tables.write()
    return shared, message


def _unpack(message: Message, shared: _Shared) -> Task:
    arrays = [
        np.frombuffer(shared.memory, dtype=dtype, count=int(np.prod(shape)), offset=place).reshape(shape)
        for dtype, shape, place in message["places"]
    ]

    def examples(part: Message) -> Examples:
        scaling = part["scaling"]
        return Examples(
            torch.from_numpy(arrays[part["inputs"]]),
            torch.from_numpy(arrays[part["labels"]]),
            scaling and Scaling(scaling["top"], tuple(scaling["mean"]), tuple(scaling["std"])),
        )

    ends = np.cumsum(arrays[message["sizes"]])
    return Task(
        message["model"],
        Federated(
            examples(message["train"]),
            tuple(np.split(arrays[message["clients"]], ends[:-1])),
            examples(message["test"]),
            message["classes"],
            message["validation"] and examples(message["validation"]),
        ),
        LocalTraining(**message["local"]),
        message["seed"],
    )


def serve(descriptor: int, parent: int) -> None:
    """What a worker process runs: answer requests until the parent hangs up."""
    channel = socket.socket(fileno=descriptor)
    threading.Thread(target=_watch, args=(channel, parent), daemon=True).start()
    torch.set_num_threads(1)
    learner: Learner | None = None
    while True:
        message, files = _receive(channel)
        if message is None:
            return
        shared = [_Shared(*shape, file=file) for shape, file in zip(message["shapes"], files, strict=True)]
        try:
            if message["do"] == "setup":
                learner = Learner(_unpack(message, shared[0]))
                reply: Message = {}
            else:
                assert learner is not None
                reply = _answer(learner, message, shared)
        except TrainingError as error:
            reply = {"error": str(error)}
        except Exception as error:
            place = traceback.format_exception(error)[-1].strip()
            reply = {"error": f"{message['do']}: {place}"}
        del shared
        _send(channel, reply)


def _answer(learner: Learner, message: Message, shared: list[_Shared]) -> Message:
    start = shared[0].matrix
    index = None if message.get("index") is None else np.array(message["index"], dtype=np.int64)
    match message["do"]:
        case "train":
            rows = shared[1].matrix
            for row, client in zip(message["rows"], message["clients"], strict=True):
                learner.train(start[0], [client], round_index=message["round"], out=rows[row : row + 1])
            return {}
        case "scores":
            return {
                "scores": learner.batch_scores(start[0], message["part"], message["first"], message["last"])
            }
        case "losses":
            at = shared[1].matrix[0] if len(shared) > 1 else None
            row = message["row"]
            return {"loss": float(learner.losses(start[row : row + 1], index, at=at)[0])}
        case "gradient":
            shared[1].matrix[0] = learner.gradient(start[0], index)
            return {}
        case other:
            raise ValueError(f"no request {other!r}")


def _watch(channel: socket.socket, parent: int) -> None:
    """End this process when the parent has gone, whatever the main thread is doing.

    The hang-up alone would do, if no other process could ever hold a copy of the parent's end.
    """
    poll = select.poll()
    poll.register(channel, 0)
    while os.getppid() == parent and not poll.poll(1000):
        pass
    os._exit(0)
