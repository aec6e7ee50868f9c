import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fl.training.models import (
    MODELS,
    build,
    dimension,
    flatten,
    import_path,
    linear,
    parameters,
    resolve,
    split,
    unflatten,
)

SHAPES = {"cnn": (3, 32, 32), "small-cnn": (1, 8, 8), "linear": (1, 8, 8), "lstm": (80,)}
CLASSES = {"lstm": 80}


def make(name: str, seed: int = 0) -> nn.Module:
    return build(name, SHAPES[name], CLASSES.get(name, 10), seed=seed)


@pytest.mark.parametrize(("name", "d"), [("cnn", 2_156_490), ("lstm", 819_920), ("small-cnn", 13_706), ("linear", 650)])
def test_dimensions_are_those_of_the_paper_and_the_docs(name: str, d: int):
    assert dimension(make(name)) == d


def test_the_small_networks_accept_mnist():
    for name in ("small-cnn", "linear"):
        assert build(name, (1, 28, 28), 10, seed=0)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_depend_on_the_seed_alone(name: str):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = flatten(make(name, seed=3))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert np.array_equal(one, flatten(make(name, seed=3)))
    assert not np.array_equal(one, flatten(make(name, seed=4)))


@pytest.mark.parametrize("name", MODELS)
def test_flatten_gives_back_what_unflatten_set(name: str):
    module = make(name)
    vector = np.random.default_rng(0).normal(size=dimension(module)).astype(np.float32)
    unflatten(vector, module)
    found = flatten(module)
    assert found.dtype == np.float32
    assert np.array_equal(found, vector)
    found[:] = 0  # a copy, not a view
    assert np.array_equal(flatten(module), vector)


def test_the_order_is_that_of_named_parameters_row_by_row():
    module = make("small-cnn")
    expected = [p.detach().numpy().reshape(-1) for _, p in module.named_parameters()]
    assert np.array_equal(flatten(module), np.concatenate(expected))


def test_the_layout_in_memory_does_not_change_the_vector():
    module = make("small-cnn")
    before = flatten(module)
    for p in parameters(module):
        if p.dim() == 4:
            p.data = p.data.contiguous(memory_format=torch.channels_last)
    assert np.array_equal(flatten(module), before)
    unflatten(before * 2, module)
    assert np.array_equal(flatten(module), before * 2)


def test_a_stack_of_vectors_splits_along_its_last_axis():
    module = make("linear")
    stack = torch.arange(3 * 650, dtype=torch.float32).reshape(3, 650)
    weight, bias = split(stack, module)
    assert weight.shape == (3, 10, 64)
    assert torch.equal(bias, stack[:, 640:])


def test_a_vector_of_another_length_is_refused():
    with pytest.raises(ValueError, match="a vector of 649 values for a model of 650"):
        unflatten(np.zeros(649, dtype=np.float32), make("linear"))


def test_pooling_before_the_activation_changes_neither_output_nor_gradient():
    """The paper's order is convolution, ReLU, max pool."""
    ours = make("cnn")
    parts = list(ours.children())
    order = [0, 2, 1, 3, 5, 4, 6, 7, 8, 9]
    assert [type(parts[i]).__name__ for i in order[:3]] == ["Conv2d", "ReLU", "MaxPool2d"]
    theirs = nn.Sequential(*(parts[i] for i in order))
    inputs, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    gradients = []
    for module in (ours, theirs):
        loss = nn.functional.cross_entropy(module(inputs), labels)
        gradients.append(torch.autograd.grad(loss, list(ours.parameters())))
    assert torch.equal(ours(inputs), theirs(inputs))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_the_next_character_comes_from_the_last_step():
    module = make("lstm")
    tokens = torch.randint(0, 80, (2, 80))
    assert module(tokens).shape == (2, 80)
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 80
    assert not torch.equal(module(tokens), module(changed))


@pytest.mark.parametrize(
    ("name", "shape"), [("cnn", (80,)), ("small-cnn", (1, 3, 3)), ("cnn", (3, 32)), ("lstm", (3, 32, 32))]
)
def test_inputs_of_the_wrong_shape_are_refused(name: str, shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"needs (images|sequences)"):
        build(name, shape, 10, seed=0)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_nets.py").write_text(
        "import math\n"
        "from torch import nn\n"
        "def wide(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))\n"
        "class Box:\n"
        "    wide = staticmethod(wide)\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "own_nets"


def test_an_own_model_is_named_by_its_import_path(own_module: str):
    assert dimension(build(f"{own_module}:wide", (2, 3), 4, seed=0)) == 28
    assert dimension(build(f"{own_module}:Box.wide", (2, 3), 4, seed=0)) == 28


def test_a_function_can_be_a_model():
    assert dimension(build(lambda shape, classes: nn.Linear(shape[0], classes), (5,), 2, seed=0)) == 12


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("resnet", "cnn, lstm, small-cnn, linear, or module:function"),
        ("own_nets:missing", "own_nets has no missing"),
        ("own_nets:number", "is not a function"),
    ],
)
def test_an_unknown_model_is_an_error_that_lists_the_models(own_module: str, model: str, message: str):
    with pytest.raises(ValueError, match=message):
        resolve(model)


def test_import_paths_lead_back_to_the_function(own_module: str):
    wide = resolve(f"{own_module}:wide")
    assert import_path(wide) == f"{own_module}:wide"
    assert import_path("cnn") == import_path(MODELS["cnn"]) == "cnn"


def test_a_model_that_another_process_cannot_import_has_no_path():
    def nested(shape: tuple[int, ...], classes: int) -> nn.Module:
        return linear(shape, classes)

    assert import_path(lambda shape, classes: linear(shape, classes)) is None
    assert import_path(nested) is None
    script = type("Script", (), {"__module__": "__main__", "__qualname__": "linear"})()
    assert import_path(script) is None


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)])
def test_running_statistics_are_refused_by_name(layer: nn.Module):
    with pytest.raises(
        ValueError, match=r"1 \(\w+Norm1d\) keeps running statistics.*LayerNorm, or GroupNorm with fewer"
    ):
        build(lambda shape, classes: nn.Sequential(nn.Linear(4, 4), layer), (4,), 4, seed=0)


@pytest.mark.parametrize("layer", [nn.GroupNorm(2, 4), nn.BatchNorm1d(4, track_running_stats=False)])
def test_norms_without_running_statistics_are_accepted(layer: nn.Module):
    module = build(lambda shape, classes: nn.Sequential(nn.Linear(4, 4), layer), (4,), 4, seed=0)
    assert dimension(module) == 28


def test_frozen_parameters_are_not_in_the_vector_and_tied_ones_once():
    def model(shape: tuple[int, ...], classes: int) -> nn.Module:
        first, second, frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        frozen.requires_grad_(False)
        return nn.Sequential(first, second, frozen)

    assert dimension(build(model, (4,), 4, seed=0)) == 16 + 4 + 4


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(2, 2).double(), "torch.float64; only float32"),
        (nn.ReLU(), "no parameters to train"),
        (math.pi, "returned float"),
    ],
)
def test_a_model_that_is_not_one_float32_vector_is_refused(module: nn.Module, message: str):
    with pytest.raises(ValueError, match=message):
        build(lambda shape, classes: module, (2,), 2, seed=0)
