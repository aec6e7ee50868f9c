"""Losses, metrics, learning rates and FedProx: what a task says it learns is what is learned and measured."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fl
from fl.config.schema import Experiment, Objective
from fl.data import Examples, Federated, federate, from_clients
from fl.errors import ConfigError, TrainingError
from fl.reporting.progress import describe_round
from fl.reporting.records import Folder, recorded
from fl.training.given import as_examples
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


def halves(count: int) -> tuple[Tensor, Tensor]:
    """Points of a plane, and on which side of a line they are."""
    inputs = torch.randn(count, 2)
    return inputs, (inputs[:, 0] > 0.3).long()


ONE_LOGIT: dict[str, Any] = {
    "rounds": 6,
    "secure": False,
    "machine": {"workers": 0},
    "local": {"lr": 0.5, "batch_size": 5},
}


@pytest.mark.parametrize("model", ["linear", nn.Linear(2, 1)], ids=["by name", "a module"])
def test_the_sign_of_one_logit_decides_between_two_classes(model: Any) -> None:
    """Integer and float labels give the same model and the same numbers, and both are true."""
    torch.manual_seed(1)
    clients, test = [halves(20) for _ in range(12)], halves(300)
    task = {"loss": "binary-cross-entropy", "metrics": ["accuracy", "f1"]}
    detail = {"per_class": True, "per_client": True}
    whole = fl.train(model, clients, test, task={**task, **detail}, **ONE_LOGIT)
    floats = fl.train(model, [(x, y.float()) for x, y in clients], (test[0], test[1].float()), task=task, **ONE_LOGIT)
    found = (whole.model(test[0]).flatten() > 0).long()
    hits = found == test[1]
    assert whole.accuracy == floats.accuracy == pytest.approx(hits.float().mean().item())
    assert whole.accuracy > 0.9
    both = int((found & test[1]).sum())
    assert whole.summary["metrics"]["f1"] == pytest.approx(2 * both / int(found.sum() + test[1].sum()))
    assert whole.summary["metrics"]["f1"] == floats.summary["metrics"]["f1"]
    record = whole.history[-1]
    assert record["per_class"] == pytest.approx([hits[test[1] == k].float().mean().item() for k in (0, 1)])
    own = (whole.model(clients[3][0]).flatten() > 0).long() == clients[3][1]
    assert record["per_client"][3] == pytest.approx(own.float().mean().item())


def test_whole_numbers_can_be_targets_of_a_regression_and_have_no_accuracy() -> None:
    clients, test = [halves(20) for _ in range(12)], halves(100)
    for metric in ("accuracy", "f1"):
        with pytest.raises(ConfigError, match=f"task.metrics: {metric} needs a class per example"):
            fl.train("linear", clients, test, task={"loss": "squared-error", "metrics": [metric]}, **ONE_LOGIT)
    task: dict[str, Any] = {"loss": "squared-error", "metrics": ["r2"], "per_client": True}
    with pytest.raises(ConfigError, match=r"task\.per_client"):
        fl.train("linear", clients, test, task=task, **ONE_LOGIT)
    local = {"local": {"lr": 0.05, "batch_size": 5}}
    trained = fl.train("linear", clients, test, loss="squared-error", metrics=["r2"], **{**ONE_LOGIT, **local})
    assert trained.summary["metrics"]["r2"] == pytest.approx(r2(trained.model(test[0]).detach(), test[1]))
    assert trained.summary["metrics"]["r2"] > 0.2


def test_accuracies_of_clients_do_not_need_accuracy_as_a_metric() -> None:
    clients, test = [halves(20) for _ in range(12)], halves(100)
    trained = fl.train("linear", clients, test, task={"metrics": ["f1"], "per_client": True}, **ONE_LOGIT)
    assert trained.summary["accuracy"] is None
    assert min(trained.history[-1]["per_client"]) > 0


def test_metrics_of_the_configuration_and_own_metrics_are_all_measured() -> None:
    clients, test = points()
    task = {"metrics": ["r2"]}
    named = fl.train("linear", clients, test, loss=huber, task=task, rounds=1, **SETTINGS)
    assert set(named.summary["metrics"]) == {"r2"}
    more = {"largest": largest_error}
    both = fl.train("linear", clients, test, loss=huber, metrics=more, task=task, rounds=1, **SETTINGS)
    assert set(both.summary["metrics"]) == {"r2", "largest"}
    assert both.experiment.task.metrics == ("r2", "python:largest")
    listed = fl.train("linear", clients, test, loss=huber, metrics=["r2", largest_error], rounds=1, **SETTINGS)
    assert set(listed.summary["metrics"]) == {"r2", "largest_error"}
    assert fl.train("linear", clients, test, loss=huber, rounds=1, **SETTINGS).summary["metrics"] == {}


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"metrics": {"r2": largest_error}, "task": {"metrics": ["r2"]}}, "'r2' is given twice"),
        ({"metrics": [partial(f1), partial(r2)]}, "two functions would both be recorded as partial"),
        ({"metrics": [lambda o, t: 1.0, lambda o, t: 2.0]}, "two functions would both be recorded as <lambda>"),
        ({"metrics": {"loss": largest_error}}, "named 'loss'"),
        ({"metrics": 3}, "expected a dictionary"),
        ({"metrics": {"m": 3}}, "got 'm': 3"),
        ({"loss": huber, "task": {"loss": "squared-error"}}, "loss: given twice"),
        ({"task": {"metrics": ["one:f", "two:f"]}}, "one:f and two:f"),
    ],
)
def test_measures_that_would_hide_each_other_are_refused(given: dict[str, Any], match: str) -> None:
    clients, test = points()
    arguments = {"loss": None if "task" in given else huber, **given}
    if "loss" not in given and "metrics" in given.get("task", {}):
        arguments["loss"] = huber
    with pytest.raises(ConfigError, match=match):
        fl.train("linear", clients, test, rounds=1, **arguments, **SETTINGS)


def test_what_a_metric_returns_is_one_number_or_an_error_with_its_name() -> None:
    clients, test = points()
    machine = {"machine": {"workers": 0}}
    numbers = {
        "tensor": lambda a, b: torch.tensor(0.5, requires_grad=True),
        "numpy": lambda a, b: np.float32(0.5),
        "array": lambda a, b: np.array(0.5),
        "whole": lambda a, b: 1,
    }
    found = fl.train("linear", clients, test, loss=huber, metrics=numbers, rounds=1, **SETTINGS, **machine)
    assert found.summary["metrics"] == {"tensor": 0.5, "numpy": 0.5, "array": 0.5, "whole": 1.0}
    wrong = {
        "wide": (lambda a, b: a, r"metric wide: .* got a Tensor of shape \(240, 1\)"),
        "nothing": (lambda a, b: None, "metric nothing: .* got NoneType"),
        "broken": (lambda a, b: {}["x"], "metric broken: KeyError"),
    }
    for name, (metric, match) in wrong.items():
        with pytest.raises(TrainingError, match=match):
            fl.train("linear", clients, test, loss=huber, metrics={name: metric}, rounds=1, **SETTINGS, **machine)


def test_labels_that_do_not_fit_the_loss_are_refused_for_every_part() -> None:
    clients, test = [halves(20) for _ in range(12)], halves(100)
    task = {"loss": "binary-cross-entropy", "metrics": ["f1"]}
    for change in (lambda y: 5.0 * y, lambda y: 2.0 * y - 1):
        wrong = [(x, change(y)) for x, y in (*clients, test)]
        with pytest.raises(ConfigError, match=r"task\.loss: binary-cross-entropy needs labels from 0 to 1.* training"):
            fl.train("linear", wrong[:-1], wrong[-1], task=task, **ONE_LOGIT)
    right = [(x, 1.0 * y) for x, y in (*clients, test)]
    with pytest.raises(ConfigError, match="those of the test examples go from 0 to 5"):
        fl.train("linear", right[:-1], (test[0], 5.0 * test[1]), task=task, **ONE_LOGIT)
    with pytest.raises(ConfigError, match=r"task\.metrics: f1 needs class numbers, or 0 and 1"):
        fl.train("linear", right[:-1], (test[0], 0.5 * test[1]), task=task, **ONE_LOGIT)
    with pytest.raises(ConfigError, match="the test examples: the labels are floats, those of the clients class"):
        fl.train("linear", clients, right[-1], **ONE_LOGIT)
    with pytest.raises(ConfigError, match="the validation examples: the labels are floats"):
        fl.train("linear", clients, test, validation=right[-1], **ONE_LOGIT)
    with pytest.raises(ConfigError, match=r"client 1: the labels are class numbers .* those of client 0 floats"):
        fl.train("linear", [right[0], *clients[1:]], test, **ONE_LOGIT)
    with pytest.raises(ConfigError, match=r"shape \(1,\) per example.*labels\[:, 0\]"):
        fl.train("linear", [(x, y[:, None]) for x, y in clients], (test[0], test[1][:, None]), **ONE_LOGIT)


def test_over_flower_labels_are_judged_and_outputs_counted_as_in_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    from fl.flower import task as flower

    def asked(**task: Any) -> Experiment:
        return fl.experiment(model="linear", task=task)

    e = asked(loss="squared-error")
    with pytest.raises(ConfigError, match="accuracy needs a class per example"):
        flower.task_of(e, flower.server_data(e, None, None, None))
    (first, *_), test = points(outputs=2)
    given = {"mine:test": test, "mine:data": first}
    monkeypatch.setattr(flower, "call", lambda path, *_: given[path])
    e = asked(loss="squared-error", metrics=["r2"])
    node: Any = SimpleNamespace(name="site-0", client=0)
    for data in (flower.server_data(e, "mine:test", None, None), flower._own_data(node, "mine:data", None)):
        assert data.classes == 2
        assert flower.task_of(e, data).build()(data.train.inputs[:1]).shape == (1, 2)
    with pytest.raises(ConfigError, match="the labels"):
        flower.task_of(asked(), flower.server_data(asked(), "mine:test", None, None))


def test_keys_that_need_an_accuracy_are_refused_if_none_is_measured() -> None:
    with pytest.raises(ConfigError, match=r"stop\.accuracy: the task measures no accuracy"):
        tiny(task={"metrics": ["f1"]}, stop={"accuracy": 0.9})
    with pytest.raises(ConfigError, match=r"attack\.name: the success of a backdoor"):
        tiny(task={"metrics": ["f1"]}, byzantine=1, attack={"name": "backdoor"})


@pytest.mark.parametrize(
    "changes", [{"stop": {"accuracy": 0.9}}, {"byzantine": 1, "attack": {"name": "backdoor"}}], ids=["stop", "backdoor"]
)
def test_a_record_from_before_such_keys_were_refused_can_be_read(tmp_path: Path, changes: dict[str, Any]) -> None:
    e = tiny(rounds=1, **changes).replace(task=Objective(metrics=("f1",)))
    with Folder.create(tmp_path / "run", e) as folder:
        fl.run(e, folder=folder)
    assert recorded(tmp_path / "run").experiment == e
    with pytest.raises(ConfigError, match=r'add "accuracy" to task\.metrics'):
        Folder.resume(tmp_path / "run", ["rounds=2"])


def followed(refused: ConfigError, it: Any) -> dict[str, Any]:
    """What the code has made that a refusal advises."""
    names: dict[str, Any] = {"torch": torch, "it": it}
    exec("inputs, labels =" + str(refused).partition("inputs, labels =")[2], names)
    return names


class Pairs(torch.utils.data.Dataset):
    """As torchvision's data sets: a tensor and an int for each of 100 examples."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i >= len(self):
            raise IndexError
        return torch.full((2,), float(i)), i % 2


@pytest.mark.parametrize(
    "it",
    [
        Pairs(),
        torch.utils.data.TensorDataset(*halves(100)),
        torch.utils.data.DataLoader(Pairs(), batch_size=7),
        torch.utils.data.DataLoader(Pairs(), batch_size=1),
    ],
)
def test_what_is_advised_for_a_data_set_divides_it_among_thirty_clients(it: Any) -> None:
    with pytest.raises(ConfigError, match="for 30 clients") as refused:
        fl.train("linear", it, halves(10), **ONE_LOGIT)
    names = followed(refused.value, it)
    assert len(names["clients"]) == 30
    assert sum(len(labels) for _, labels in names["clients"]) == 100
    parts = [as_examples(pair, f"client {i}") for i, pair in enumerate(names["clients"])]
    assert all(part.shape == (2,) for part in parts)
    with pytest.raises(ConfigError, match="read it once") as refused:
        as_examples(it if isinstance(it, torch.utils.data.DataLoader) else Pairs(), "test")
    assert len(followed(refused.value, it)["labels"]) == 100


class Returning(nn.Module):
    """A model that returns not its outputs, but what a function makes of them."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(2, 1), function

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.function(self.layer(inputs))


def six() -> Federated:
    return from_clients([Examples(*part) for part in SIX], Examples(*SIX[0]), 2)


class Remembering(nn.Module):
    """It keeps a tensor of its first call, on the device of that call, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(2, 2), 0
        self.shift: torch.Tensor | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.shift is None:
            self.shift = torch.zeros(2, device=inputs.device)
        found: torch.Tensor = self.layer(inputs) + self.shift
        return found


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_check_of_a_model_is_on_its_device_and_leaves_no_trace_in_it(device: str) -> None:
    made: list[Remembering] = []

    def model(shape: tuple[int, ...], outputs: int) -> nn.Module:
        made.append(Remembering())
        return made[-1]

    task = Task(model, six(), LocalTraining(), 0)
    learner = Learner(task, device=device, together=1)
    assert [each.calls for each in made] == [0, 1]
    assert made[1].shift is not None
    assert made[1].shift.device.type == device
    assert learner.device.type == device


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory: 12 bytes")])
def test_a_lack_of_memory_is_not_the_fault_of_a_model(error: Exception) -> None:
    def fails(outputs: torch.Tensor) -> torch.Tensor:
        raise error

    with pytest.raises(type(error)) as raised:
        Learner(Task(lambda shape, outputs: Returning(fails), six(), LocalTraining(), 0))
    assert raised.value is error


def raises(shape: tuple[int, ...], outputs: int) -> nn.Module:
    raise RuntimeError("no")


def needs_three(shape: tuple[int, ...], outputs: int, hidden: int) -> nn.Module:
    return nn.Linear(hidden, outputs)


SIX = [(torch.randn(6, 2), torch.arange(6) % 2) for _ in range(12)]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"test": (torch.randn(6, 3), torch.arange(6) % 2)}, r"test examples: the inputs have shape \(3,\)"),
        ({"test": (torch.ones(6, 2).long(), torch.arange(6) % 2)}, r"test examples: the inputs .*torch\.int64"),
        ({"validation": (torch.randn(6, 2, 2), torch.arange(6) % 2)}, r"validation examples: the inputs have"),
        ({"classes": 2.0}, r"classes: expected a whole number.*got 2\.0"),
        ({"classes": True}, "classes: expected a whole number"),
        ({"model": nn.Linear}, r"model: expected an object.*got the class Linear.*Linear\(\.\.\.\)"),
        ({"model": nn.Linear(3, 2)}, r"model: it fails on a batch of two examples of shape \(2,\): RuntimeError: mat1"),
        ({"model": Returning(list)}, "model: it returns list, expected a tensor with one row per example; wrap it"),
        ({"model": Returning(torch.sum)}, r"for two examples of shape \(2,\) it returns shape \(\), expected \(2"),
        ({"model": Returning(torch.ravel)}, r"it returns shape \(\) for an example.*cross-entropy needs one value per"),
        (
            {"model": needs_three},
            r"model: needs_three\(\(2,\), 2\) fails: TypeError: .*missing 1",
        ),
        ({"model": raises}, rf"model: raises\(\(2,\), 2\) fails: RuntimeError: no \({__file__}, line \d+\)"),
        ({"model": nn.Flatten()}, "model: the model has no parameters to train: none has requires_grad"),
        ({"test": (torch.randn(6, 2), torch.arange(6)), "model": nn.Linear(2, 2)}, "labels of the test .* go up to 5;"),
        ({"model": Returning(int)}, rf"model: it fails.*\({__file__}, line \d+\)"),
        ({"clients": [(part[0], 2 * part[1] - 1) for part in SIX]}, "client 0: expected labels from 0 to 1.*got -1 to"),
        ({"test": (torch.randn(6, 2), torch.arange(6)), "classes": 2}, "test examples: expected labels from 0 to 1.*5"),
        ({"clients": [(part[0], part[1] + 1j) for part in SIX]}, "client 0: labels: expected real numbers"),
        ({"clients": [(part[0] + 1j, part[1]) for part in SIX]}, "client 0: inputs: expected real numbers"),
        ({"clients": [*SIX[:11], ([], [])]}, "data of client 11: there are no examples; leave client 11 out"),
    ],
)
def test_data_and_models_that_cannot_be_used_are_refused_with_what_is_expected(
    given: dict[str, Any], match: str
) -> None:
    asked: dict[str, Any] = {"model": "linear", "clients": SIX, "test": SIX[0], "rounds": 1, "secure": False, **given}
    with pytest.raises(ConfigError, match=match):
        fl.train(clusters={"size": 3}, machine={"workers": 0}, **asked)


def test_a_class_that_takes_the_shape_and_the_outputs_is_a_model() -> None:
    class Net(nn.Module):
        def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
            super().__init__()
            self.layer = nn.Linear(shape[0], outputs)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layer(inputs)
            return found

    asked: dict[str, Any] = {"clusters": {"size": 3}, "machine": {"workers": 0}, "secure": False}
    assert fl.train(Net, SIX, SIX[0], rounds=1, **asked).summary["rounds"] == 1


def test_a_loader_of_minibatches_is_no_list_of_clients() -> None:
    inputs, labels = halves(240)
    dataset = torch.utils.data.TensorDataset(inputs, labels)
    loader = torch.utils.data.DataLoader(dataset, batch_size=20)
    with pytest.raises(ConfigError, match=r"got one DataLoader.*torch\.cat") as refused:
        fl.train("linear", loader, (inputs, labels), **ONE_LOGIT)
    with pytest.raises(ConfigError, match="got one TensorDataset"):
        fl.train("linear", dataset, (inputs, labels), **ONE_LOGIT)
    followed(refused.value, loader)
    with pytest.raises(ConfigError, match="got dict"):
        fl.train("linear", {"a": (inputs, labels)}, (inputs, labels), **ONE_LOGIT)
    with pytest.raises(ConfigError, match="data of test: there are no examples; give at least one"):
        fl.train("linear", [(inputs, labels)] * 12, (inputs[:0], labels[:0]), **ONE_LOGIT)


def test_one_output_for_two_classes_of_cross_entropy_says_what_to_do() -> None:
    clients, test = [halves(20) for _ in range(12)], halves(100)
    with pytest.raises(ConfigError, match=r"it returns 1 values per example.*go up to 1;.*one logit, set task\.loss"):
        fl.train(nn.Linear(2, 1), clients, test, **ONE_LOGIT)
