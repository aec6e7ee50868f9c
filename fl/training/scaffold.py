"""SCAFFOLD: control variates against the drift of clients (Karimireddy et al. 2020, Option II), without a second sum.

Client i adds c - c_i to each of its gradients. After K steps of learning rate lr it keeps c_i + dc_i, where

    dc_i = -c - u_i / (K lr)    for its update u_i.

The authors' clients send u_i and dc_i. If all take the same K steps, the mean of dc_i follows from the mean of u_i,
which the secure sum opens anyway. So the server computes it from the aggregated update: nothing more is sent, opened or
covered by noise, and a robust rule bounds what a false row does to c as it bounds what it does to the model.

A client's own c_i never leaves it. A simulation keeps all of them, in the memory that a checkpoint has.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from fl.training.models import Matrix, Vector
from fl.training.server import LAST, Memory
from fl.training.task import Task

SERVER: Final = "control"  # c
CLIENTS: Final = "controls"  # c_i, a row for each client


def shifts(memory: Memory, clients: Sequence[int]) -> Matrix | None:
    """c - c_i of these clients, to add to their gradients; None without control variates."""
    return None if SERVER not in memory else memory[SERVER] - memory[CLIENTS][list(clients)]


class Variates:
    """The control variates of one round."""

    def __init__(self, task: Task, memory: Memory, t: int) -> None:
        self._task, self._before, self._rate = task, memory, task.local.rate(t)
        self._controls = memory[CLIENTS].copy() if task.local.scaffold else None
        self._trained = 0

    def remember(self, clients: Sequence[int], updates: Matrix) -> None:
        """What clients keep after training, before any of them is replaced by an attack."""
        if self._controls is None:
            return
        sizes = self._task.data.sizes
        for client, update in zip(clients, updates, strict=True):
            taken = np.float32(self._task.local.steps(int(sizes[client])) * self._rate)
            self._controls[client] -= self._before[SERVER] + update / taken
        self._trained += len(clients)

    def after(self, memory: Memory, skipped: bool) -> Memory:
        """The memory after the round: c moves by the mean of dc_i, times the part of the clients that trained."""
        if self._controls is None or skipped:
            return memory
        sizes = self._task.data.sizes
        taken = np.float32(self._task.local.steps(int(sizes[0])) * self._rate)
        part = np.float32(self._trained / len(sizes))
        moved: Vector = self._before[SERVER] + memory[LAST] / taken
        control: Vector = self._before[SERVER] - part * moved
        return {**memory, SERVER: control, CLIENTS: self._controls}
