from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fl.data import Examples, Federated, federate, flip_labels, from_clients, load
from fl.errors import TrainingError
from fl.training import learner as fl_local
from fl.training.learner import Learner, LocalTraining, Task, client_stream, minibatches
from fl.training.models import build, flatten, parameters, split, unflatten
from fl.training.task import seed_torch

LOCAL = LocalTraining(epochs=2, batch_size=16, lr=0.05)
SMOOTH, KINKED = 1e-5, 5e-2
"""What `Learner` states for training together, relative to the largest coordinate of an update."""


@pytest.fixture(scope="module")
def digits() -> Federated:
    return federate(load("digits"), clients=20, seed=1, validation=0.1)


def learner(digits: Federated, model: object = "small-cnn", seed: int = 7, **options: object) -> Learner:
    local = options.pop("local", LOCAL)
    return Learner(Task(model, digits, local, seed), **options)  # type: ignore[arg-type]


def smooth_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    convolution = nn.Conv2d(1, 8, 3, padding=1)
    return nn.Sequential(convolution, nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, classes))


def differences(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The largest difference of each row, relative to its largest coordinate."""
    return np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)


def dropout_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, classes))


def batch_norm_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    norm = nn.BatchNorm1d(64, track_running_stats=False)
    return nn.Sequential(nn.Flatten(), norm, nn.Linear(64, classes))


class Counting(nn.Module):
    """A model that counts its own calls in a buffer, as running statistics would."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(64, classes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        found: torch.Tensor = self.out(inputs.flatten(1))
        return found


class Fragile(nn.Module):
    """Fails on an input that holds 1000."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(4, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if (inputs == 1000).any():
            raise RuntimeError("the input is cursed")
        found: torch.Tensor = self.out(inputs)
        return found


def fragile_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Fragile(classes)


def cursed(client: int) -> Federated:
    """Three clients with four examples each, one of them with an input that `Fragile` fails on."""
    clients = [Examples(torch.rand(4, 4), torch.arange(4) % 2) for _ in range(3)]
    clients[client].inputs[2, 1] = 1000
    return from_clients(clients, clients[0], classes=2)


@given(examples=st.integers(1, 300), batch_size=st.integers(1, 64), epochs=st.integers(1, 3), drop_last=st.booleans())
@settings(deadline=None, max_examples=100)
def test_minibatches_are_fresh_shuffles_of_all_examples(examples: int, batch_size: int, epochs: int, drop_last: bool):
    local = LocalTraining(epochs=epochs, batch_size=batch_size, drop_last=drop_last)
    rows = np.arange(1000, 1000 + examples)
    batches = list(minibatches(rows, local, np.random.default_rng(0)))
    assert len(batches) == local.steps(examples)
    per_epoch = len(batches) // epochs
    for epoch in range(epochs):
        some = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        seen = np.concatenate(some)
        assert len(np.unique(seen)) == len(seen)
        assert set(seen) <= set(rows)
        assert all(len(batch) == batch_size for batch in some[:-1])
        if not drop_last:
            assert len(seen) == examples
        elif examples >= batch_size:
            assert len(seen) == examples - examples % batch_size
        else:
            assert len(seen) == examples  # the only minibatch is never dropped


def test_the_papers_last_minibatch_is_a_single_image():
    batches = list(minibatches(np.arange(833), LocalTraining(epochs=1), np.random.default_rng(0)))
    assert [len(batch) for batch in batches] == [64] * 13 + [1]


def test_minibatches_depend_on_seed_round_and_client():
    draws = {
        key: client_stream(*key)[0].permutation(50).tolist()
        for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 11, 1), (0, 1, 11))
    }
    assert len({tuple(draw) for draw in draws.values()}) == len(draws)
    assert client_stream(0, 0, 0)[0].permutation(50).tolist() == draws[0, 0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"momentum": 1.0},
        {"weight_decay": -1.0},
        {"weight_decay": float("nan")},
    ],
)
def test_settings_that_cannot_train_are_refused(changes: dict[str, float]):
    with pytest.raises(ValueError, match="got"):
        LocalTraining(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["linear", smooth_net])
def test_an_update_equals_that_of_torch_optim(digits: Federated, model: str):
    """The reference trains on the same minibatches with torch.optim.SGD, in torch's own memory layout."""
    ours = learner(digits, model)
    start = ours.initial()
    update = ours.train(start, [3], round_index=2)[0]
    module = build(model, digits.train.shape, 10, seed=99)
    unflatten(start, module)
    optimizer = torch.optim.SGD(
        module.parameters(), lr=LOCAL.lr, momentum=LOCAL.momentum, weight_decay=LOCAL.weight_decay
    )
    for rows in minibatches(digits.clients[3], LOCAL, client_stream(7, 2, 3)[0]):
        inputs, labels = digits.train.batch(torch.from_numpy(rows))
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()
    expected = flatten(module) - start
    assert np.abs(expected).max() > 1e-3
    assert np.abs(update - expected).max() <= 1e-5 * np.abs(expected).max()


def test_every_round_starts_without_momentum(digits: Federated):
    ours = learner(digits)
    start = ours.initial()
    first = ours.train(start, [0], round_index=0)
    ours.train(start + first[0], [1, 2], round_index=1)
    assert np.array_equal(ours.train(start, [0], round_index=0), first)


def test_an_update_does_not_depend_on_the_order_of_the_clients(digits: Federated):
    ours = learner(digits)
    start = ours.initial()
    forward = ours.train(start, [0, 1, 2, 3], round_index=5)
    backward = learner(digits).train(start, [3, 1, 2, 0], round_index=5)
    assert np.array_equal(forward[[3, 1, 2, 0]], backward)
    assert np.array_equal(ours.train(start, [2], round_index=5)[0], forward[2])


def test_training_does_not_change_the_state_of_torch(digits: Federated):
    ours = learner(digits)
    before = torch.get_num_threads()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    start = ours.initial()
    untouched = start.copy()
    one = ours.train(start, [0], round_index=0)
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(start, untouched)
    torch.manual_seed(2)
    torch.set_num_threads(2)
    try:
        assert np.array_equal(ours.train(start, [0], round_index=0), one)
    finally:
        torch.set_num_threads(before)


def test_training_uses_one_thread_whatever_the_caller_has_set(digits: Federated):
    """Sums split over threads round differently, but not on every size and machine: so count the threads."""
    seen: list[int] = []

    class Watching(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.out = nn.Linear(64, classes)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            seen.append(torch.get_num_threads())
            found: torch.Tensor = self.out(inputs.flatten(1))
            return found

    ours = learner(digits, lambda shape, classes: Watching(classes))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for work in (
            lambda x: ours.train(x, [0], round_index=0),
            lambda x: ours.losses(x[None]),
            ours.gradient,
            ours.evaluate,
        ):
            seen.clear()
            work(ours.initial())
            assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_dropout_is_the_same_wherever_a_client_is_trained(digits: Federated):
    start = learner(digits, dropout_net).initial()
    torch.manual_seed(1)
    one = learner(digits, dropout_net).train(start, [4, 5], round_index=0)
    torch.manual_seed(2)
    assert np.array_equal(learner(digits, dropout_net).train(start, [5], round_index=0)[0], one[1])
    other_round = learner(digits, dropout_net).train(start, [5], round_index=1)[0]
    assert not np.array_equal(other_round, one[1])


def test_the_seed_of_a_client_is_that_of_manual_seed(digits: Federated, monkeypatch: pytest.MonkeyPatch):
    """Without its work for GPUs that are not used."""
    for seed in (0, 1, 2**56 - 1):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        seed_torch(seed, torch.device("cpu"))
        assert torch.equal(torch.get_rng_state(), state)
    ours = learner(digits, dropout_net)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: pytest.fail("for all devices"))
    ours.train(ours.initial(), [5], round_index=0)


def test_a_parameter_that_the_loss_does_not_use_only_decays(digits: Federated):
    class Spare(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.out = nn.Linear(64, classes)
            self.spare = nn.Parameter(torch.ones(3))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.out(inputs.flatten(1))
            return found

    ours = learner(digits, lambda shape, classes: Spare(classes))
    update = ours.train(ours.initial(), [0], round_index=0)[0]
    parts = dict(zip(["spare", "weight", "bias"], split(torch.from_numpy(update), ours._module), strict=True))
    assert (parts["spare"] < 0).all()
    assert (parts["spare"] > -0.01).all()


def test_updates_are_written_to_out(digits: Federated):
    ours = learner(digits, "linear")
    out = np.full((2, 650), np.nan, dtype=np.float32)
    found = ours.train(ours.initial(), [0, 1], round_index=0, out=out)
    assert found is out
    assert np.isfinite(out).all()
    with pytest.raises(ValueError, match="float32 matrix of 3 x 650"):
        ours.train(ours.initial(), [0, 1, 2], round_index=0, out=out)


def test_a_read_only_vector_is_accepted(digits: Federated):
    ours = learner(digits, "linear")
    start = ours.initial()
    start.flags.writeable = False
    ours.train(start, [0], round_index=0)
    ours.evaluate(start)


def test_no_clients_and_wrong_vectors_are_refused(digits: Federated):
    ours = learner(digits, "linear")
    with pytest.raises(ValueError, match="no clients"):
        ours.train(ours.initial(), [], round_index=0)
    for nobody in (-1, 20):
        with pytest.raises(ValueError, match=f"no client {nobody}: the clients are 0 to 19"):
            ours.train(ours.initial(), [0, nobody], round_index=0)
    with pytest.raises(ValueError, match="float32"):
        ours.train(ours.initial().astype(np.float64), [0], round_index=0)
    with pytest.raises(TrainingError, match=r"client 0.*a vector of 649"):
        ours.train(ours.initial()[:-1], [0], round_index=0)


def test_an_error_names_the_client():
    ours = Learner(Task(fragile_net, cursed(1), LOCAL, 0))
    start = ours.initial()
    ours.train(start, [0, 2], round_index=0)
    with pytest.raises(TrainingError, match="client 1: RuntimeError: the input is cursed"):
        ours.train(start, [0, 1, 2], round_index=0)
    again = ours.train(start, [2], round_index=0)
    assert np.array_equal(again, Learner(ours.task).train(start, [2], round_index=0))


def test_gradients_of_a_failed_client_do_not_reach_the_next(digits: Federated):
    ours = learner(digits, "linear")
    start = ours.initial()
    expected = ours.train(start, [0], round_index=0)
    gradient = ours.gradient(start)
    for p in parameters(ours._module):
        p.grad = torch.ones_like(p)
    assert np.array_equal(ours.train(start, [0], round_index=0), expected)
    for p in parameters(ours._module):
        p.grad = torch.ones_like(p)
    assert np.array_equal(ours.gradient(start), gradient)


def test_a_buffer_that_training_changes_is_refused(digits: Federated):
    ours = learner(digits, lambda shape, classes: Counting(classes))
    with pytest.raises(TrainingError, match="buffer calls changed"):
        ours.train(ours.initial(), [0], round_index=0)


def test_training_lowers_the_loss_and_flipped_labels_raise_it(digits: Federated):
    def accuracy(data: Federated) -> float:
        ours = learner(data, "linear")
        x = ours.initial()
        for round_index in range(5):
            x += ours.train(x, range(20), round_index=round_index).mean(axis=0)
        return ours.evaluate(x).accuracy

    assert accuracy(digits) > 0.9
    assert accuracy(flip_labels(digits, range(20))) < 0.1


@pytest.mark.parametrize("model", ["linear", smooth_net, "small-cnn"])
@pytest.mark.parametrize("together", [2, 7, 20])
def test_together_and_one_by_one_give_the_same_updates(digits: Federated, model: object, together: int):
    one_by_one = learner(digits, model)
    stacked = learner(digits, model, together=together)
    assert stacked.together == together
    start = one_by_one.initial()
    expected = one_by_one.train(start, range(20), round_index=1)
    found = differences(stacked.train(start, range(20), round_index=1), expected)
    if model == "small-cnn":
        assert np.median(found) <= SMOOTH
        assert found.max() <= KINKED
    else:
        assert found.max() <= SMOOTH


def test_together_works_for_clients_of_very_different_sizes():
    data = federate(load("digits"), clients=6, seed=3, partition="dirichlet", alpha=0.3)
    assert data.sizes.max() > 3 * data.sizes.min()
    start = learner(data, smooth_net).initial()
    expected = learner(data, smooth_net).train(start, range(6), round_index=0)
    found = learner(data, smooth_net, together=6).train(start, range(6), round_index=0)
    assert differences(found, expected).max() <= SMOOTH


def test_fewer_clients_are_trained_together_when_memory_runs_out(digits: Federated, monkeypatch: pytest.MonkeyPatch):
    stacked = learner(digits, smooth_net, together=20)
    original = stacked._stacked_gradients
    refused: list[int] = []

    def small(*arguments: object) -> object:
        clients = len(arguments[1])  # type: ignore[arg-type]
        if clients > 5:
            refused.append(clients)
            raise torch.OutOfMemoryError("no memory for more than 5")
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(stacked, "_stacked_gradients", small)
    start = stacked.initial()
    found = stacked.train(start, range(20), round_index=0)
    assert refused == [20, 10]
    assert stacked.together == 5
    expected = learner(digits, smooth_net).train(start, range(20), round_index=0)
    assert differences(found, expected).max() <= SMOOTH


def test_together_skips_a_dropped_last_minibatch(digits: Federated):
    local = LocalTraining(epochs=2, batch_size=16, lr=0.05, drop_last=True)
    start = learner(digits, "linear").initial()
    expected = learner(digits, "linear", local=local).train(start, range(20), round_index=0)
    found = learner(digits, "linear", local=local, together=20).train(start, range(20), round_index=0)
    assert differences(found, expected).max() <= SMOOTH


@pytest.mark.parametrize(("model", "reason"), [(dropout_net, "random"), (batch_norm_net, "batch norm mixes")])
def test_models_that_cannot_be_stacked_are_trained_one_by_one(digits: Federated, model: object, reason: str):
    local = LocalTraining(epochs=1, batch_size=16, drop_last=True)  # batch norm fails on a single example
    stacked = learner(digits, model, local=local, together=5)
    assert stacked.together == 1
    assert reason in stacked.not_together
    start = stacked.initial()
    expected = learner(digits, model, local=local).train(start, range(6), round_index=0)
    assert np.array_equal(stacked.train(start, range(6), round_index=0), expected)


def test_recurrent_layers_are_trained_one_by_one():
    some = Examples(torch.randint(0, 80, (12, 80)), torch.randint(0, 80, (12,)))
    data = from_clients([some.take(np.arange(i, i + 4)) for i in (0, 4, 8)], some, classes=80)
    stacked = Learner(Task("lstm", data, LocalTraining(epochs=1, batch_size=4, lr=1.0), 0), together=3)
    assert "recurrent" in stacked.not_together
    start = stacked.initial()
    updates = stacked.train(start, range(3), round_index=0)
    assert np.isfinite(updates).all()
    assert (np.abs(updates).max(axis=1) > 0).all()


def test_a_score_is_accuracy_and_mean_loss_over_all_test_examples(digits: Federated):
    ours = learner(digits)
    x = ours.initial() + ours.train(ours.initial(), [0], round_index=0)[0]
    assert len(digits.test) % fl_local.EVALUATION_BATCH  # the last batch is a short one
    score = ours.evaluate(x)
    module = build("small-cnn", (1, 8, 8), 10, seed=0)
    unflatten(x, module)
    inputs, labels = digits.test.batch(torch.arange(len(digits.test)))
    logits = module(inputs)
    assert score.examples == len(digits.test)
    assert score.accuracy == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert score.loss == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)


def test_evaluation_switches_dropout_off(digits: Federated):
    ours = learner(digits, dropout_net)
    x = ours.initial()
    ours.train(x, [0], round_index=0)
    assert ours.evaluate(x) == ours.evaluate(x)


def test_losses_are_those_of_the_validation_examples(digits: Federated):
    ours = learner(digits)
    x = ours.initial()
    updates = ours.train(x, range(4), round_index=0)
    everything = ours.losses(updates, at=x)
    assert everything == pytest.approx([ours.evaluate(x + u, "validation").loss for u in updates], rel=1e-6)
    assert np.array_equal(ours.losses(x + updates), everything)
    rows = np.array([3, 1, 4, 15])
    some = digits.validation.take(rows)  # type: ignore[union-attr]
    module = build("small-cnn", (1, 8, 8), 10, seed=0)
    unflatten(x, module)
    inputs, labels = some.batch(torch.arange(4))
    expected = nn.functional.cross_entropy(module(inputs), labels).item()
    assert ours.losses(x[None], rows)[0] == pytest.approx(expected, rel=1e-5)


def test_the_gradient_is_the_slope_of_the_loss(digits: Federated):
    ours = learner(digits, "linear")
    x = ours.initial()
    rows = np.arange(64)
    gradient = ours.gradient(x, rows)
    assert gradient.dtype == np.float32
    direction = np.random.default_rng(0).normal(size=len(x)).astype(np.float32)
    direction /= np.linalg.norm(direction)
    high, low = ours.losses(np.stack([direction, -direction]) * np.float32(0.01), rows, at=x)
    assert (high - low) / 0.02 == pytest.approx(float(gradient @ direction), rel=1e-2)


def test_the_gradient_over_several_batches_is_the_mean_over_all_of_them(digits: Federated):
    ours = learner(digits, "linear")
    x = ours.initial()
    rows = np.resize(np.arange(len(digits.validation)), 3 * fl_local.EVALUATION_BATCH + 7)  # type: ignore[arg-type]
    counts = np.bincount(rows)
    single = np.stack([ours.gradient(x, np.array([row])) for row in range(len(counts))])
    expected = (single * counts[:, None]).sum(axis=0) / len(rows)
    assert np.abs(ours.gradient(x, rows) - expected).max() < 1e-5


def test_a_gradient_does_not_change_later_training(digits: Federated):
    ours = learner(digits)
    x = ours.initial()
    before = ours.train(x, [0], round_index=0)
    ours.gradient(x)
    assert np.array_equal(ours.train(x, [0], round_index=0), before)


def test_validation_needs_validation_examples():
    ours = learner(federate(load("digits"), clients=5, seed=0), "linear")
    for measure in (ours.gradient, lambda x: ours.losses(x[None]), lambda x: ours.evaluate(x, "validation")):
        with pytest.raises(ValueError, match="no validation examples"):
            measure(ours.initial())


def test_a_loss_over_no_examples_is_refused(digits: Federated):
    ours = learner(digits, "linear")
    with pytest.raises(ValueError, match="at least one example"):
        ours.losses(ours.initial()[None], np.array([], dtype=np.int64))


def test_convolutions_run_in_the_fast_layout_on_a_cpu(digits: Federated):
    ours = learner(digits)
    kernels = [p for p in parameters(ours._module) if p.dim() == 4]
    assert kernels
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)


@pytest.mark.parametrize("local", [{"batch_size": 4}, {"batch_size": 1, "drop_last": True}], ids=str)
@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4, track_running_stats=False), nn.GroupNorm(4, 4)], ids=str)
def test_a_norm_of_one_value_says_what_to_do_and_what_is_advised_works(norm: nn.Module, local: dict) -> None:
    part = Examples(torch.randn(5, 64), torch.arange(5))
    data = from_clients([part, part], part, classes=5)

    def trained(norm: nn.Module, **local: Any) -> np.ndarray:
        task = Task(lambda shape, classes: nn.Sequential(nn.Linear(64, 4), norm, nn.Linear(4, classes)), data,
                    LocalTraining(epochs=1, **local), seed=0)  # fmt: skip
        with Learner(task) as trainer:
            return trainer.train(trainer.initial(), [0], round_index=0)

    advised = r"client 0.*use LayerNorm, or GroupNorm with fewer groups than channels.*batch_size of at least 2"
    with pytest.raises(TrainingError, match=advised):
        trained(norm, **local)
    for other in (nn.LayerNorm(4), nn.GroupNorm(2, 4)):
        assert trained(other, **local).any()
    assert trained(nn.BatchNorm1d(4, track_running_stats=False), batch_size=2, drop_last=True).any()
