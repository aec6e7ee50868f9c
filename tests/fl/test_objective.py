"""Losses, metrics, learning rates and FedProx: what a task says it learns is what is learned and measured."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fl
from fl.data import Examples, Federated, federate, from_clients
from fl.errors import ConfigError, TrainingError
from fl.reporting.progress import describe_round
from fl.training.learner import Learner
from fl.training.objective import LOSSES, f1, mean_absolute_error, r2
from fl.training.randomness import attackers
from fl.training.task import LocalTraining, Task
from tests.fl.runs import tiny

SETTINGS: dict[str, Any] = {"clusters": {"size": 3}, "secure": False, "local": {"lr": 0.1, "batch_size": 10}}


def points(outputs: int = 0) -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """12 clients of a linear map, with noise: targets between two whole numbers."""
    torch.manual_seed(0)
    inputs = torch.randn(240, 3)
    weights = torch.tensor([[0.4, -0.3, 0.2], [0.1, 0.5, -0.2]]).T[:, : max(outputs, 1)]
    targets = inputs @ weights + 0.01 * torch.randn(240, max(outputs, 1))
    targets = targets if outputs else targets[:, 0]
    return [(inputs[i::12], targets[i::12]) for i in range(12)], (inputs, targets)


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.huber_loss(outputs.reshape(targets.shape), targets, reduction="none")


def largest_error(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.reshape(targets.shape) - targets).abs().max())


@pytest.mark.parametrize("outputs", [0, 2], ids=["one", "several"])
def test_a_regression_learns_targets_that_are_not_whole_numbers(outputs: int) -> None:
    clients, test = points(outputs)
    task = {"loss": "squared-error", "metrics": ["r2", "mean-absolute-error"]}
    trained = fl.train("linear", clients, test, rounds=20, task=task, **SETTINGS)
    found = trained.history[-1]["metrics"]
    assert found["r2"] > 0.95
    assert found["mean-absolute-error"] < 0.1
    assert math.isnan(trained.accuracy)
    predicted = trained.model(test[0]).detach()
    assert found["r2"] == pytest.approx(r2(predicted, test[1]))
    assert "r2 0.9" in describe_round(trained.history[-1])
    assert "loss" in describe_round(trained.history[-1])


def test_float_targets_are_never_cut_without_a_word() -> None:
    clients, test = points()
    with pytest.raises(ConfigError, match=r"task\.loss: the labels are floats"):
        fl.train("linear", clients, test, rounds=1, **SETTINGS)
    with pytest.raises(ConfigError, match=r"task\.metrics"):
        fl.train("linear", clients, test, rounds=1, task={"loss": "squared-error"}, **SETTINGS)


def test_several_labels_per_example_are_learned_and_scored() -> None:
    clients, test = points(2)
    wanted = [(x, (y > 0).long()) for x, y in (*clients, test)]
    task = {"loss": "binary-cross-entropy", "metrics": ["accuracy", "f1"]}
    trained = fl.train("linear", wanted[:-1], wanted[-1], rounds=15, task=task, **SETTINGS)
    assert trained.accuracy > 0.9
    outputs = trained.model(wanted[-1][0]).detach()
    assert trained.accuracy == pytest.approx(((outputs > 0) == wanted[-1][1]).float().mean().item())
    assert trained.summary["metrics"]["f1"] == pytest.approx(f1(outputs, wanted[-1][1].float()))


def test_own_losses_and_metrics_in_python_and_by_name_give_the_same_bits() -> None:
    clients, test = points()
    given = fl.train(
        "linear", clients, test, rounds=3, loss=huber, metrics={"largest_error": largest_error}, **SETTINGS
    )
    name = __name__
    task = {"loss": f"{name}:huber", "metrics": [f"{name}:largest_error"]}
    named = [
        fl.train("linear", clients, test, rounds=3, task=task, machine={"workers": workers}, **SETTINGS)
        for workers in (0, 1)
    ]
    for trained in named:
        assert trained.x.tobytes() == given.x.tobytes()
        assert trained.history[-1]["metrics"] == given.history[-1]["metrics"]
    assert given.history[-1]["metrics"]["largest_error"] == pytest.approx(
        largest_error(given.model(test[0]).detach(), test[1])
    )


def test_a_loss_that_is_not_one_value_per_example_is_refused() -> None:
    clients, test = points()
    for wrong in (lambda a, b: (a - b).mean(), lambda a, b: 1.0, lambda a, b: a - b):
        with pytest.raises(TrainingError, match="one value per example"):
            fl.train("linear", clients, test, rounds=1, loss=wrong, machine={"workers": 0}, **SETTINGS)
    task = {"loss": "squared-error", "metrics": ["r2"]}
    wide = nn.Linear(3, 2)
    with pytest.raises(TrainingError, match="the model returns"):
        fl.train(wide, clients, test, rounds=1, task=task, **SETTINGS)


def test_metrics_by_hand() -> None:
    outputs = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0], [0.0, 5.0]])
    labels = torch.tensor([0, 1, 1, 1])
    assert f1(outputs, labels) == pytest.approx((2 * 1 / 3 + 2 * 2 / 5) / 2)
    assert mean_absolute_error(torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 4.0])) == 1.5
    assert r2(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0])) == 1
    assert r2(torch.tensor([2.0, 2.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])) == 0
    assert LOSSES["squared-error"](torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 0.0])).tolist() == [1, 4]


def test_float_targets_divide_at_random_only() -> None:
    _, (inputs, targets) = points()
    data = fl.DataSet("mine", Examples(inputs, targets), Examples(inputs, targets), classes=1)
    assert federate(data, clients=4, seed=0, validation=0.1).validation is not None
    with pytest.raises(ValueError, match="floats as targets"):
        federate(data, clients=4, seed=0, partition="dirichlet")


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("step", [1, 1, 0.25, 0.25, 0.0625]),
        ("exponential", [1, 0.5, 0.25, 0.125, 0.0625]),
        ("cosine", [1, 0.625, 0.25, 0.25, 0.25]),
    ],
)
def test_learning_rates_fall_as_their_schedule_says(schedule: str, expected: list[float]) -> None:
    local = LocalTraining(lr=0.5, schedule=schedule, period=2, decay=0.25)
    assert [local.rate(t) for t in range(5)] == pytest.approx([0.5 * value for value in expected])
    task = _task(LocalTraining(epochs=1, lr=0.1, momentum=0.0, schedule=schedule, period=2, decay=0.25))
    with Learner(task) as learner:
        start = learner.initial()
        first, later = (np.linalg.norm(learner.train(start, [0], round_index=t)) for t in (0, 4))
    assert later / first == pytest.approx(expected[4], rel=0.1)


@pytest.mark.parametrize("together", [1, 4])
def test_fedprox_keeps_clients_near_the_model_and_adds_its_gradient(together: int) -> None:
    moved = []
    for mu in (0.0, 1.0, 5.0):
        local = LocalTraining(epochs=8, batch_size=5, lr=0.05, momentum=0.0, weight_decay=0.0, proximal=mu)
        with Learner(_task(local), together=together) as learner:
            moved.append(learner.train(learner.initial(), [0, 1, 2, 3], round_index=0))
    lengths = [float(np.linalg.norm(update)) for update in moved]
    assert lengths[0] > lengths[1] > lengths[2]
    # One full-batch step has no pull: the client is still at the model.
    steps = [LocalTraining(epochs=1, batch_size=100, proximal=mu) for mu in (0.0, 9.0)]
    one, other = (_first_step(local, together) for local in steps)
    assert one.tobytes() == other.tobytes()


def _first_step(local: LocalTraining, together: int) -> np.ndarray:
    with Learner(_task(local), together=together) as learner:
        return learner.train(learner.initial(), [0], round_index=0)


def _task(local: LocalTraining) -> Task:
    clients, test = points(2)
    parts = [Examples(x, (y[:, 0] > 0).long()) for x, y in (*clients, test)]
    data: Federated = from_clients(parts[:-1], parts[-1], classes=2)
    return Task("linear", data, local, seed=0)


def test_the_keys_are_read_from_a_configuration(tmp_path: Path) -> None:
    e = tiny(local={"schedule": "cosine", "period": 5, "proximal": 0.1}, task={"metrics": ["accuracy", "f1"]})
    from fl.training.loop import run

    record = run(e).history[0]
    assert 0 < record["metrics"]["f1"] <= 1
    with pytest.raises(ConfigError, match=r"task\.loss"):
        tiny(task={"loss": "cross-entropi"})


def test_accuracies_per_class_and_per_client_add_up_to_what_is_measured() -> None:
    """By a worker process, and again by a learner here."""
    detail = {"per_class": True, "per_client": True}
    flip = {"byzantine": 2, "attack": {"name": "label-flip"}}
    trained = fl.run(tiny(rounds=1, task=detail, machine={"workers": 1}, **flip))
    (record,) = trained.history
    test = trained.task.data.test.labels.numpy()
    counts = np.bincount(test, minlength=10)
    assert sum(a * n for a, n in zip(record["per_class"], counts, strict=True)) / len(test) == pytest.approx(
        record["accuracy"]
    )
    assert record["metrics"]["worst class"] == min(record["per_class"])
    train = trained.task.data.train
    for client in (0, 5):
        rows = trained.task.data.clients[client]
        outputs = trained.model(train.batch(torch.from_numpy(rows))[0])
        right = (outputs.argmax(1) == train.labels[rows]).float().mean().item()
        assert record["per_client"][client] == pytest.approx(right)
    assert Learner(trained.task).client_accuracies(trained.x, range(12)) == record["per_client"]
    honest = [a for c, a in enumerate(record["per_client"]) if c not in attackers(trained.experiment)]
    assert record["metrics"]["worst client"] == min(honest)


def test_accuracy_per_class_needs_class_numbers() -> None:
    clients = [(torch.randn(8, 2), torch.randn(8)) for _ in range(6)]
    task = {"loss": "squared-error", "metrics": ["r2"], "per_class": True}
    with pytest.raises(ConfigError, match=r"task\.per_class"):
        fl.train("linear", clients, test=clients[0], rounds=1, task=task)
