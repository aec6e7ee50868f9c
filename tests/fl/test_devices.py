"""Devices: names, numbers and precision that are refused or found, and training on a device that is not the CPU."""

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fl.config.checks import experiment
from fl.data import federate, load
from fl.errors import ConfigError
from fl.training.devices import find_device
from fl.training.learner import Learner, LocalTraining, Task
from fl.training.loop import run
from tests.fl.runs import tiny


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def without_onednn() -> Iterator[None]:
    """Its kernels of bfloat16 need instructions that not every CPU has."""
    torch.backends.mkldnn.set_flags(False)
    yield
    torch.backends.mkldnn.set_flags(True)


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "cuda:1 ", "meta", ""])
def test_a_device_that_cannot_be_is_refused_by_the_configuration(name: str) -> None:
    with pytest.raises(ConfigError, match="such as cuda:1"):
        experiment(machine={"device": name})


def test_every_device_of_the_machine_can_be_named(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_device("auto") == find_device("cuda") == torch.device("cuda")
    assert find_device(experiment(machine={"device": "cuda:1"}).machine.device) == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="2 GPUs, cuda:0 to cuda:1, got cuda:2"):
        find_device("cuda:2")
    with pytest.raises(ConfigError, match="no GPU for mps"):
        find_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert find_device("mps") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == torch.device("mps")
    with pytest.raises(ConfigError, match="no GPU for cuda:1"):
        find_device("cuda:1")


def test_workers_are_refused_with_any_gpu(two_gpus: None) -> None:
    with pytest.raises(ConfigError, match=r"machine\.workers"):
        run(tiny(machine={"device": "cuda:1", "workers": 2}))


def test_a_tensor_left_on_the_cpu_fails_and_all_others_give_the_same_results() -> None:
    """Everything that a Learner does, on a device that computes on the CPU and refuses tensors from there."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.fl.pretend_device"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "same results on both devices" in ran.stdout
    assert ran.stdout.endswith("found an index that was left on the CPU\n")


@pytest.mark.parametrize("together", [1, 4])
def test_mixed_precision_changes_updates_a_little_and_measures_nothing_else(
    together: int, without_onednn: None
) -> None:
    data = federate(load("digits"), clients=20, seed=1)
    local = {"epochs": 1, "batch_size": 16, "lr": 0.05}
    plain = Learner(Task("small-cnn", data, LocalTraining(**local), 7), together=together)
    mixed = Learner(Task("small-cnn", data, LocalTraining(**local, precision="bfloat16"), 7), together=together)
    x = plain.initial()
    found, expected = mixed.train(x, [0, 1, 2], round_index=0), plain.train(x, [0, 1, 2], round_index=0)
    assert found.dtype == np.float32
    relative = np.abs(found - expected).max() / np.abs(expected).max()
    assert 1e-6 < relative < 0.2
    assert mixed.evaluate(x) == plain.evaluate(x)


def test_precision_belongs_to_what_is_learned_and_the_device_does_not() -> None:
    plain, mixed = experiment(), experiment(local={"precision": "bfloat16"})
    assert plain.fingerprint != mixed.fingerprint
    assert plain.fingerprint == experiment(machine={"device": "cuda:1"}).fingerprint
    with pytest.raises(ConfigError, match="float32, bfloat16"):
        experiment(local={"precision": "float16"})
    with pytest.raises(ConfigError, match="is for GPUs"):
        run(tiny(rounds=1, local={"precision": "bfloat16"}))


@pytest.mark.parametrize("changes", [{"local": {"precision": "bfloat16"}}, {"task": {"per_client": True}}])
def test_what_only_a_gpu_or_a_simulation_has_is_refused_over_flower(changes: dict[str, dict[str, object]]) -> None:
    from fl.flower.task import task_of

    (table,) = changes
    with pytest.raises(ConfigError, match=table):
        task_of(experiment(changes), federate(load("digits"), clients=30, seed=1))
