"""Training and testing in the processes that Flower starts. Only this module of `fl.flower` needs torch."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.config.own import imported
from fl.config.schema import Experiment, to_tables
from fl.data import Federated
from fl.errors import ConfigError
from fl.flower.node import MistakeError, Node
from fl.training.given import as_examples, outputs
from fl.training.learner import Learner
from fl.training.loop import poisoned, prepare
from fl.training.models import dimension
from fl.training.randomness import attackers
from fl.training.targets import check_targets, metrics_of
from fl.training.task import LocalTraining, Task

Vector = NDArray[np.float32]


def local_update(node: Node, round: int, x: Vector, *, source: str | None = None, classes: int | None = None) -> Vector:
    """x_{i,K} - x^t of this node: the same bits as a simulation computes for this client."""
    e = node.training.experiment
    data = _own_data(node, source, classes) if source else prepare(e)
    theirs = data.clients[node.client] if node.client < len(data.clients) else ()  # of a successor, ids have gaps
    agreed, held = node.training.examples_of(node.client), len(theirs)
    if agreed != held:
        raise MistakeError(
            "the number of its examples is not the one in training.toml",
            f"this node has {held} examples, but training.toml says {agreed}",
        )
    data = poisoned(e, data, {node.client} & attackers(e))
    with Learner(task_of(e, data)) as learner:
        if learner.dimension != len(x):
            raise MistakeError(f"the model has {len(x)} parameters, this node's has {learner.dimension}")
        update: Vector = learner.train(x, [node.client], round_index=round)[0]
        return update


def model_length(e: Experiment, test: str | None = None, classes: int | None = None) -> int:
    """The number of parameters of the model: what `server_app` with the same arguments trains."""
    return dimension(task_of(e, server_data(e, test, None, classes)).build())


def task_of(e: Experiment, data: Federated) -> Task:
    if e.local.precision != "float32":
        raise ConfigError(f"local.precision: nodes train on a CPU, and {e.local.precision} is for GPUs; set float32")
    if e.local.scaffold:
        raise ConfigError("local.scaffold: control variates are kept in simulations only; set it to false")
    if e.task.per_client:
        raise ConfigError("task.per_client: only a simulation has the examples of all clients; set it to false")
    task = Task(e.model, data, LocalTraining(**to_tables(e.local)), e.seed, e.task.loss, metrics_of(e))
    check_targets(task, e.task)
    return task


def _own_data(node: Node, source: str, classes: int | None) -> Federated:
    """This node's examples, as a federation in which only this client is ever trained."""
    own = as_examples(call(source, node.name), f"node {node.name}")
    rows = np.arange(len(own), dtype=np.int64)
    count = classes or outputs([own])
    return Federated(own, (rows,) * (node.client + 1), own.take(rows[:1]), count)


def server_data(e: Experiment, test: str | None, validation: str | None, classes: int | None) -> Federated:
    """What the server tests the model on. It holds no client's examples."""
    one_row: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
    if test is None:
        whole = prepare(e)
        return replace(whole, train=whole.test.take(one_row), clients=(one_row,))
    tested = as_examples(call(test), "test")
    held = None if validation is None else as_examples(call(validation), "validation")
    count = classes or outputs([tested])
    return Federated(tested.take(one_row), (one_row,), tested, count, held)


def call(path: str, *arguments: Any) -> Any:
    """The result of a function that is named as "module:function"."""
    return imported(path, "function")(*arguments)
