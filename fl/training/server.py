"""The server's step: what becomes of an aggregated update before it is added to the model.

Momentum is FedAvgM (Hsu, Qi and Brown 2019); `adam` and `yogi` are FedAdam and FedYogi (Reddi et al. 2021, Algorithm
2). All of them work on the aggregated update alone, after the robust rule, so clients send and reveal nothing more.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl.config.schema import Server
from fl.training.models import Vector

Memory = Mapping[str, NDArray[np.float32]]  # what is kept from round to round, by name, also in a checkpoint
LAST: Final = "last"  # the aggregated update of the last round
MOMENTS: Final = frozenset({"m", "v"})  # of an optimiser: the mean of updates, and of their squares


def blank(x: Vector, server: Server, controls: int = 0) -> Memory:
    """The memory before the first round; `controls` is how many clients have control variates (SCAFFOLD)."""
    kept = {LAST: np.zeros_like(x)}
    if controls:
        kept |= {"control": np.zeros_like(x), "controls": np.zeros((controls, len(x)), dtype=x.dtype)}
    if server.optimizer != "none":
        kept["m"] = np.zeros_like(x)
    if server.optimizer in ("adam", "yogi"):
        kept["v"] = np.full_like(x, server.tau**2)
    return kept


def step(server: Server, update: Vector, memory: Memory) -> tuple[Vector, Memory]:
    """The step to add to the model, times the learning rate of the server, and what to remember."""
    kept = {**memory, LAST: update}
    if server.optimizer == "none":
        return update, kept
    first, second = np.float32(server.beta1), np.float32(server.beta2)
    if server.optimizer == "momentum":
        kept["m"] = first * memory["m"] + update
        return kept["m"], kept
    square = update * update
    kept["m"] = first * memory["m"] + (1 - first) * update
    if server.optimizer == "adam":
        kept["v"] = second * memory["v"] + (1 - second) * square
    else:
        kept["v"] = memory["v"] - (1 - second) * square * np.sign(memory["v"] - square)
    return kept["m"] / (np.sqrt(kept["v"]) + np.float32(server.tau)), kept
