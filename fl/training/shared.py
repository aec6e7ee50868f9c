"""How a process and its training workers exchange data: shared memory, and JSON messages over a socket."""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl.data.examples import Examples, Federated, Scaling
from fl.training.learner import LocalTraining, Task
from fl.training.models import Matrix, import_path

Message = dict[str, Any]


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


def send(channel: socket.socket, message: Message, files: Sequence[int] = ()) -> None:
    """Send one JSON message with its length before it, and open files beside its first bytes."""
    content = json.dumps(message).encode()
    frame = struct.pack(">I", len(content)) + content
    sent = socket.send_fds(channel, [frame], files) if files else 0
    channel.sendall(frame[sent:])


def receive(channel: socket.socket) -> tuple[Message | None, list[int]]:
    """The next message and its open files; None when the other side has closed the socket."""
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


@dataclass(slots=True)
class _Tables:
    """Arrays of any type, one after the other in one block of memory."""

    arrays: list[NDArray[Any]] = field(default_factory=list)

    def add(self, array: NDArray[Any]) -> int:
        self.arrays.append(np.ascontiguousarray(array))
        return len(self.arrays) - 1

    def write(self) -> tuple[Shared, list[tuple[str, tuple[int, ...], int]]]:
        """The memory, and the type, shape and offset of each array."""
        places, end = [], 0
        for array in self.arrays:
            places.append((array.dtype.str, array.shape, end))
            end += -(-array.nbytes // 64) * 64
        shared = Shared(1, end // 4)
        view = np.frombuffer(shared.memory, dtype=np.uint8)
        for array, (_, _, place) in zip(self.arrays, places, strict=True):
            view[place : place + array.nbytes] = array.reshape(-1).view(np.uint8)
        return shared, places


def pack(task: Task) -> tuple[Shared, Message]:
    """The task as shared memory, and a message that says where each part of it is."""
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
        ),
        LocalTraining(**message["local"]),
        message["seed"],
    )
