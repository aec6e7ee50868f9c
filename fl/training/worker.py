"""What a training worker process runs, and how it exchanges data with the process that started it.

Data are in shared memory, and messages are JSON over a socket. `fl.training.workers` describes how both sides work.
"""

import mmap
import os
import resource
import socket
import sys
import tempfile
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl.data.examples import Examples, Federated, Scaling
from fl.errors import TrainingError
from fl.training.channel import Message, answer_all
from fl.training.learner import Learner
from fl.training.models import Matrix, import_path
from fl.training.task import LocalTraining, Task


class Shared:
    """A float32 matrix (or plain bytes) in anonymous shared memory."""

    def __init__(self, rows: int, columns: int, *, file: int | None = None) -> None:
        self.rows, self.columns = rows, columns
        size = max(rows * columns * 4, 1)
        if file is None:
            file = _anonymous_file()
            os.ftruncate(file, size)
        self.file = file
        self._close = weakref.finalize(self, os.close, file)
        self.memory = mmap.mmap(file, size)

    @property
    def matrix(self) -> Matrix:
        flat = np.frombuffer(self.memory, dtype=np.float32, count=self.rows * self.columns)
        return flat.reshape(self.rows, self.columns)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fl")
    with tempfile.TemporaryFile() as file:  # it has no name in the file system either
        return os.dup(file.fileno())


def _write(arrays: Sequence[NDArray[Any]]) -> tuple[Shared, list[tuple[str, tuple[int, ...], int]]]:
    """Arrays of any type, one after the other in one memory, and the type, shape and offset of each."""
    places, end = [], 0
    for array in arrays:
        places.append((array.dtype.str, array.shape, end))
        end += -(-array.nbytes // 64) * 64
    shared = Shared(1, end // 4)
    view = np.frombuffer(shared.memory, dtype=np.uint8)
    for array, (_, _, place) in zip(arrays, places, strict=True):
        view[place : place + array.nbytes] = array.reshape(-1).view(np.uint8)
    return shared, places


def importable(task: Task) -> bool:
    """Whether another process can import every function of a task."""
    return None not in map(import_path, (task.model, task.loss, *task.metrics.values()))


def pack(task: Task) -> tuple[Shared, Message]:
    """The task as shared memory, and a message that says where each part of it is."""
    arrays: list[NDArray[Any]] = []

    def add(array: NDArray[Any]) -> int:
        arrays.append(np.ascontiguousarray(array))
        return len(arrays) - 1

    def examples(part: Examples | None) -> Message | None:
        if part is None:
            return None
        return {
            "inputs": add(part.inputs.numpy()),
            "labels": add(part.labels.numpy()),
            "scaling": None if part.scaling is None else asdict(part.scaling),
        }

    data = task.data
    message: Message = {
        "do": "setup",
        "model": import_path(task.model),
        "loss": import_path(task.loss),
        "metrics": {name: import_path(metric) for name, metric in task.metrics.items()},
        "seed": task.seed,
        "local": asdict(task.local),
        "classes": data.classes,
        "train": examples(data.train),
        "test": examples(data.test),
        "validation": examples(data.validation),
        "backdoor": examples(data.backdoor),
        "clients": add(np.concatenate(data.clients)),
        "sizes": add(data.sizes),
    }
    shared, message["places"] = _write(arrays)
    return shared, message


def unpack(message: Message, shared: Shared) -> Task:
    """The task that `pack` wrote."""
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
            message["backdoor"] and examples(message["backdoor"]),
        ),
        LocalTraining(**message["local"]),
        message["seed"],
        message["loss"],
        message["metrics"],
    )


def serve(descriptor: int, parent: int) -> None:
    """Answer requests until the parent closes the socket."""
    torch.set_num_threads(1)
    learner: Learner | None = None

    def answer(message: Message, files: list[int]) -> Message:
        nonlocal learner
        shared = [Shared(*shape, file=file) for shape, file in zip(message["shapes"], files, strict=True)]
        try:
            if message["do"] == "setup":
                learner = Learner(unpack(message, shared[0]))
                reply: Message = {}
            else:
                assert learner is not None
                reply = _answer(learner, message, shared)
        except TrainingError as error:
            reply = {"error": str(error)}
        except Exception as error:
            place = traceback.format_exception(error)[-1].strip()
            reply = {"error": f"{message['do']}: {place}"}
        return {**reply, "peak": peak_memory()}

    answer_all(socket.socket(fileno=descriptor), parent, answer)


def peak_memory() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def _answer(learner: Learner, message: Message, shared: list[Shared]) -> Message:
    start = shared[0].matrix
    index = None if message.get("index") is None else np.array(message["index"], dtype=np.int64)
    match message["do"]:
        case "train":
            rows, shifts = shared[1].matrix, shared[2].matrix if len(shared) > 2 else None
            for row, client in zip(message["rows"], message["clients"], strict=True):
                shift = None if shifts is None else shifts[row : row + 1]
                learner.train(start[0], [client], round_index=message["round"], out=rows[row : row + 1], shift=shift)
            return {}
        case "scores":
            return {"scores": learner.batch_scores(start[0], message["part"], message["first"], message["last"])}
        case "metrics":
            return {"metrics": learner.metrics(start[0], message["part"])}
        case "classes":
            return {"accuracies": learner.class_accuracies(start[0])}
        case "clients":
            return {"accuracies": learner.client_accuracies(start[0], message["clients"])}
        case "losses":
            at = shared[1].matrix[0] if len(shared) > 1 else None
            row = message["row"]
            return {"loss": float(learner.losses(start[row : row + 1], index, at=at)[0])}
        case "gradient":
            shared[1].matrix[0] = learner.gradient(start[0], index)
            return {}
        case "server":
            shared[1].matrix[0] = learner.server_update(start[0], round_index=message["round"])
            return {}
        case other:
            raise ValueError(f"unknown request {other!r}")
