"""5x5 convolutions by Winograd's method: those of torch, up to rounding, and only where they fit."""

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad

from fl.data import Examples, from_clients
from fl.training import convolution
from fl.training.convolution import accelerate, convolve, maps, suits
from fl.training.learner import Learner
from fl.training.models import cnn
from fl.training.task import LocalTraining, Task
from fl.training.workers import Pool

EPSILON = 2.0**-23
TORCHS: Callable[..., Tensor] = partial(torch.conv2d, padding=2)


def size(values: Tensor) -> float:
    """The root mean square."""
    return float(values.detach().square().mean().sqrt())


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 12), st.sampled_from([8, 16, 24]), st.integers(1, 19), st.integers(1, 19)),
    st.sampled_from([8, 16, 40]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_outputs_and_gradients_are_those_of_the_exact_convolution(
    shape: tuple[int, int, int, int], outputs: int, biased: bool, channels_last: bool, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(shape, generator=random)
    if channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outputs, shape[1], 5, 5, generator=random)
    leaves = [images, weight, torch.randn(outputs, generator=random)][: 3 if biased else 2]
    exact = [leaf.double().requires_grad_() for leaf in leaves]
    for leaf in leaves:
        leaf.requires_grad_()
    ours, expected = convolve(*leaves), TORCHS(*exact)
    assert ours.shape == expected.shape
    assert ours.is_contiguous(memory_format=torch.channels_last)
    gradient = torch.randn(expected.shape, generator=random)
    found = torch.autograd.grad(ours, leaves, gradient)
    wanted = torch.autograd.grad(expected, exact, gradient.double())
    # A result is a sum of products of values of size 1. Rounding is relative to the size of a sum of all terms of the
    # tiles, also of those beyond the border.
    pixels = shape[0] * 16 * -(-shape[2] // 4) * -(-shape[3] // 4)
    terms = (25 * shape[1], 25 * outputs, pixels, pixels)
    for one, other, count in zip((ours, *found), (expected, *wanted), terms, strict=False):
        assert one.shape == other.shape
        assert size(one - other) < 60 * EPSILON * count**0.5


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.0, 0.95), st.integers(0, 6))
def test_an_error_is_relative_to_the_largest_value(seed: int, zeros: float, decades: int) -> None:
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(2, 8, 8, 8, generator=random).relu() * (torch.rand(2, 8, 8, 8, generator=random) >= zeros)
    images[0, 0, 3, 3] = 10.0**decades
    weight = torch.randn(8, 8, 5, 5, generator=random)
    error = (convolve(images, weight) - TORCHS(images.double(), weight.double())).abs().max()
    assert error <= 1e-5 * images.max() * weight.abs().sum((1, 2, 3)).max()


def test_the_papers_network_is_within_1e_5_of_the_exact_results() -> None:
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = cnn((3, 32, 32), 10)
    assert isinstance(network, nn.Sequential)
    layer = network[3]
    assert isinstance(layer, nn.Conv2d)
    inputs = network[:3](torch.randn(16, 3, 32, 32, generator=random)).detach()
    outputs = layer(inputs).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(network[4:](outputs).logsumexp(1).sum(), [outputs])
    results = []
    for kind in (torch.float32, torch.float64):
        leaves = [tensor.detach().to(kind).requires_grad_() for tensor in (inputs, *layer.parameters())]
        result = convolve(*leaves) if kind == torch.float32 else TORCHS(*leaves)
        results.append([result.detach(), *torch.autograd.grad(result, leaves, gradient.to(kind))])
    for ours, exact in zip(*results, strict=True):
        assert (ours - exact).abs().max() < 1e-5 * exact.abs().max()


def test_the_maps_are_toom_and_cooks() -> None:
    a, g, b = maps()
    for output, weight, pixel in np.ndindex(4, 5, 8):
        assert np.isclose((a[output] * g[:, weight] * b[:, pixel]).sum(), pixel == output + weight)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_wanted_gradients_are_computed(wanted: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = [torch.randn(2, 8, 6, 6), torch.randn(8, 8, 5, 5), torch.randn(8)]
    used: list[str] = []
    kernels = convolution._kernels()

    def take(*arguments: object) -> None:
        used.append("take")
        kernels.take(*arguments)

    def put_back(*arguments: object) -> None:
        used.append("put_back")
        kernels.put_back(*arguments)

    for leaf, derived in zip(leaves, wanted, strict=True):
        leaf.requires_grad_(derived)
    result = convolve(*leaves)
    monkeypatch.setattr(convolution, "_kernels", lambda: kernels._replace(take=take, put_back=put_back))
    torch.autograd.backward(result.sum())
    assert [leaf.grad is not None for leaf in leaves] == [*wanted]
    assert used == (["put_back"] if wanted[0] else ["take"] if wanted[1] else [])


def test_second_derivatives_are_torchs() -> None:
    random = torch.Generator().manual_seed(0)
    leaves = [torch.randn(shape, generator=random) for shape in ((1, 8, 6, 6), (8, 8, 5, 5), (8,))]

    def penalty(way: Callable[..., Tensor]) -> list[Tensor]:
        images, weight, bias = [leaf.clone().requires_grad_() for leaf in leaves]
        first = torch.autograd.grad(way(images, weight, bias).tanh().sum(), (images, weight, bias), create_graph=True)
        total = sum((part.square().sum() for part in first), torch.zeros(()))
        return [*torch.autograd.grad(total, (images, weight, bias))]

    for ours, expected in zip(penalty(convolve), penalty(TORCHS), strict=True):
        assert torch.allclose(ours, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("size", [8, 7])
def test_the_result_may_be_changed_in_place(size: int) -> None:
    images, weight = torch.randn(1, 8, size, size), torch.randn(8, 8, 5, 5, requires_grad=True)
    result = convolve(images, weight)
    assert torch.equal(result.detach().relu(), result.relu_())
    torch.autograd.backward(result.sum())
    assert weight.grad is not None


THREADS = """
import threading, torch
from fl.training.convolution import convolve

torch.manual_seed(0)
calls = [(torch.randn(8, 32, 16, 16), torch.randn(32, 32, 5, 5)) for _ in range(4)]
expected = [convolve(*call) for call in calls]
wrong = []

def work(k):
    for _ in range(100):
        if not torch.equal(convolve(*calls[k]), expected[k]):
            wrong.append(k)

threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
raise SystemExit(bool(wrong))
"""


def test_threads_do_not_share_memory() -> None:
    environment = os.environ | {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}  # freed memory goes to any thread
    subprocess.run([sys.executable, "-c", THREADS], check=True, env=environment, timeout=300)


@pytest.mark.parametrize(
    ("images", "weight"),
    [
        ((1, 8, 6, 6), (8, 8, 3, 3)),
        ((1, 8, 6, 6), (8, 8, 5, 3)),
        ((1, 8, 6, 6), (12, 8, 5, 5)),
        ((1, 3, 6, 6), (8, 3, 5, 5)),
        ((1, 16, 6, 6), (8, 8, 5, 5)),
        ((8, 6, 6), (8, 8, 5, 5)),
    ],
)
def test_other_convolutions_are_refused(images: tuple[int, ...], weight: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected images \(N, C, H, W\) and weights \(K, C, 5, 5\)"):
        convolve(torch.zeros(images), torch.zeros(weight))


class OwnConvolution(nn.Conv2d):
    """A layer with a forward pass of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


def test_only_ordinary_layers_are_accelerated() -> None:
    assert suits(nn.Conv2d(32, 64, 5, padding=2))
    assert suits(nn.Conv2d(64, 32, 5, padding="same", bias=False))
    others: list[nn.Module] = [
        nn.Conv2d(32, 32, 3, padding=2),
        nn.Conv2d(32, 32, 5),
        nn.Conv2d(32, 32, 5, padding=2, stride=2),
        nn.Conv2d(32, 32, 5, padding=2, dilation=2),
        nn.Conv2d(32, 32, 5, padding=2, groups=2),
        nn.Conv2d(32, 32, 5, padding=2, padding_mode="reflect"),
        nn.Conv2d(24, 32, 5, padding=2),
        nn.Conv2d(32, 24, 5, padding=2),
        nn.Conv2d(36, 32, 5, padding=2),
        nn.Conv2d(32, 36, 5, padding=2),
        OwnConvolution(32, 32, 5, padding=2),
        nn.Linear(32, 32),
    ]
    assert not any(map(suits, others))


@pytest.fixture
def layer() -> nn.Conv2d:
    """An accelerated layer; on all processors, because a test compares results and not times."""
    made = nn.Conv2d(32, 32, 5, padding=2)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(convolution, "_fast_here", lambda: True)
        accelerate(nn.Sequential(made))
    return made


IMAGES = torch.zeros(16, 32, 8, 8)


class Marked(Tensor):
    """A tensor of a class of its own."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    found: list[bool] = []

    def counted(*arguments: Tensor) -> Tensor:
        found.append(True)
        return convolve(*arguments)

    monkeypatch.setattr(convolution, "convolve", counted)
    return found


def test_an_accelerated_layer_leaves_other_inputs_to_torch(layer: nn.Conv2d, calls: list[bool]) -> None:
    assert layer(IMAGES[0]).shape == (32, 8, 8)
    for shape in (
        (0, 32, 8, 8),
        (15, 32, 8, 8),  # too few tiles
        (64, 32, 6, 6),  # half-empty tiles
        (1, 32, 512, 524),  # large matrices
    ):
        assert layer(torch.zeros(shape)).shape == shape
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(IMAGES).dtype == torch.bfloat16
    assert type(layer(IMAGES.as_subclass(Marked))) is Marked
    with pytest.raises(RuntimeError, match="expected input"):
        layer(torch.zeros(16, 40, 8, 8))
    assert copy.deepcopy(layer).to("meta")(IMAGES.to("meta")).device.type == "meta"
    assert copy.deepcopy(layer).double()(IMAGES.double()).dtype == torch.float64
    assert not calls
    layer(IMAGES)
    assert calls


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own use
def test_other_kinds_of_derivatives_are_torchs(layer: nn.Conv2d, calls: list[bool]) -> None:
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], images: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(layer, parameters, (images,))
        return result.square().sum()

    torch.func.grad(loss)(parameters, IMAGES)
    torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, torch.zeros(2, *IMAGES.shape))
    with forward_ad.dual_level():
        result = layer(forward_ad.make_dual(IMAGES, torch.ones_like(IMAGES)))  # type: ignore[no-untyped-call]
        assert forward_ad.unpack_dual(result).tangent is not None  # type: ignore[no-untyped-call]
    assert not calls


def test_a_layer_stays_an_ordinary_layer(layer: nn.Conv2d, calls: list[bool]) -> None:
    assert repr(layer) == repr(nn.Conv2d(32, 32, 5, padding=2))
    images = torch.randn(IMAGES.shape)
    other = copy.copy(layer)
    other._parameters = {name: nn.Parameter(torch.zeros_like(p)) for name, p in layer.named_parameters()}
    assert not other(input=images).any()
    assert layer(images).any()
    assert len(calls) == 2


def test_without_compiled_kernels_the_layers_are_torchs() -> None:
    program = "from fl.training.convolution import *; n = nn.Conv2d(32, 32, 5); accelerate(n); print(type(n).__name__)"
    program = program.replace("32, 5)", "32, 5, padding=2)")
    for variable, value in (("NUMBA_DISABLE_JIT", "1"), ("NUMBA_CPU_NAME", "x86-64")):
        environment = os.environ | {variable: value, "NUMBA_CPU_FEATURES": ""}
        found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        assert found.stdout.strip() == b"Conv2d"


def net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small network with one layer that is accelerated."""
    first, second = nn.Conv2d(shape[0], 32, 3, padding=1), nn.Conv2d(32, 32, 5, padding=2)
    last = nn.Linear(32 * shape[1] * shape[2], classes)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Flatten(), last)


def net_with_dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The same, but its clients cannot be stacked."""
    return nn.Sequential(net(shape, classes), nn.Dropout(0.1))


def task(model: str = "net") -> Task:
    random = torch.Generator().manual_seed(0)
    parts = [
        Examples(torch.randn(21, 3, 12, 16, generator=random), torch.randint(0, 4, (21,), generator=random))
        for _ in range(5)
    ]
    model = f"tests.fl.test_convolution:{model}"
    return Task(
        model, from_clients(parts, parts[0], 4), LocalTraining(epochs=2, batch_size=8, lr=0.02, momentum=0.9), 3
    )


def test_training_gives_the_updates_of_torchs_convolution(calls: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_fast_here", lambda: True)
    ours = Learner(task())
    start = ours.initial()
    found = ours.train(start, range(5), round_index=0)
    assert calls
    with monkeypatch.context() as changed:
        changed.setattr("fl.training.learner.accelerate", lambda _: None)
        expected = Learner(task()).train(start, range(5), round_index=0)
    assert not np.array_equal(found, expected)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    calls.clear()
    Learner(task(), together=5).train(start, range(5), round_index=0)
    assert not calls


def test_models_that_cannot_be_stacked_are_accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_fast_here", lambda: True)
    one, stacked = Learner(task("net_with_dropout")), Learner(task("net_with_dropout"), together=4)
    assert stacked.not_together
    start = one.initial()
    expected = one.train(start, range(5), round_index=0)
    assert np.array_equal(stacked.train(start, range(5), round_index=0), expected)


def test_training_again_and_in_processes_gives_the_same_bits() -> None:
    one = Learner(task())
    expected = one.train(one.initial(), range(5), round_index=0)
    assert np.array_equal(Learner(task()).train(one.initial(), range(5), round_index=0), expected)
    with Pool(task(), 2) as pool:
        assert np.array_equal(pool.train(pool.initial(), range(5), round_index=0), expected)
