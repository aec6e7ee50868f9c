"""Training and testing in the processes that Flower starts: the only part of the engine that needs torch."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.config.schema import LABEL_FLIP, Experiment, to_tables
from fl.data import Examples, Federated, flip_labels
from fl.errors import ConfigError
from fl.flower.node import Node, Refused
from fl.training.learner import Learner, LocalTraining, Task
from fl.training.loop import as_examples, prepare
from fl.training.randomness import attackers

Vector = NDArray[np.float32]


def node_update(
    node: Node, round: int, x: Vector, *, source: str | None = None, classes: int | None = None
) -> Vector:
    """x_{i,K} - x^t of this node, the same bits as the local engine computes for this client."""
    e = node.enrolment.experiment
    data = _own_part(node, source, classes) if source else prepare(e)
    claimed, held = node.enrolment.members[node.client].examples, len(data.clients[node.client])
    if claimed != held:
        raise ConfigError(f"this node has {held} examples, and is enrolled with {claimed}")
    if e.attack.name == LABEL_FLIP:
        data = flip_labels(data, {node.client} & attackers(e))
    with Learner(task_of(e, data)) as learner:
        if learner.dimension != len(x):
            raise Refused(f"the model has {len(x)} parameters, this node's has {learner.dimension}")
        update: Vector = learner.train(x, [node.client], round_index=round)[0]
        return update


def task_of(e: Experiment, data: Federated) -> Task:
    return Task(e.model, data, LocalTraining(**to_tables(e.local)), e.seed)


def _own_part(node: Node, source: str, classes: int | None) -> Federated:
    """This node's examples as a federation in which only its own seat is ever trained."""
    own = as_examples(called(source, node.name), f"node {node.name}")
    rows = np.arange(len(own), dtype=np.int64)
    count = classes or 1 + int(own.labels.max())
    return Federated(own, (rows,) * (node.client + 1), own.take(rows[:1]), count)


def server_data(
    e: Experiment, test: str | None, validation: str | None = None, classes: int | None = None
) -> Federated:
    """What the server tests the model on; it holds no client's examples."""
    if test is None:
        whole = prepare(e)
        return replace(whole, train=whole.test.take(np.zeros(1, dtype=np.int64)), clients=_one_row())
    tested = as_examples(called(test), "test")
    held = None if validation is None else as_examples(called(validation), "validation")
    count = classes or 1 + int(tested.labels.max())
    shape: Examples = tested.take(np.zeros(1, dtype=np.int64))
    return Federated(shape, _one_row(), tested, count, held)


def _one_row() -> tuple[NDArray[np.int64], ...]:
    return (np.zeros(1, dtype=np.int64),)


def called(path: str, *arguments: Any) -> Any:
    """What "module:function" returns."""
    module, colon, name = path.partition(":")
    if not colon:
        raise ConfigError(f'{path}: name a function as "module:function"')
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return function(*arguments)
