"""5x5 convolutions by Winograd's method: those of torch, up to rounding, and only where they fit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fl.data import Examples, from_clients
from fl.training import convolution
from fl.training.convolution import accelerate, convolve, maps, suits
from fl.training.learner import Learner
from fl.training.task import LocalTraining, Task
from fl.training.workers import Pool

EPSILON = 2.0**-23


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
    ours, expected = convolve(*leaves), torch.conv2d(*exact, padding=2)
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


def test_the_error_is_at_most_eight_times_that_of_torch() -> None:
    random = torch.Generator().manual_seed(0)
    images, weight = torch.randn(16, 32, 16, 16, generator=random), torch.randn(64, 32, 5, 5, generator=random)
    exact = torch.conv2d(images.double(), weight.double(), padding=2)
    assert size(convolve(images, weight) - exact) < 8 * size(torch.conv2d(images, weight, padding=2) - exact)


def test_the_maps_are_toom_and_cooks() -> None:
    a, g, b = maps()
    for output, weight, pixel in np.ndindex(4, 5, 8):
        assert np.isclose((a[output] * g[:, weight] * b[:, pixel]).sum(), pixel == output + weight)


def test_only_wanted_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    images, weight = torch.randn(2, 8, 6, 6), torch.randn(8, 8, 5, 5, requires_grad=True)
    used: list[str] = []
    kernels = convolution._kernels()
    monkeypatch.setattr(
        convolution, "_kernels", lambda: kernels._replace(put_back=lambda *_: used.append("gradient of the images"))
    )
    convolve(images, weight).sum().backward()
    assert weight.grad is not None
    assert not used
    convolve(images.requires_grad_(), weight).sum().backward()
    assert used


def test_a_second_derivative_is_refused() -> None:
    weight = torch.randn(8, 8, 5, 5, requires_grad=True)
    (first,) = torch.autograd.grad(convolve(torch.randn(1, 8, 6, 6), weight).square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


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
    assert suits(nn.Conv2d(8, 16, 5, padding=2))
    assert suits(nn.Conv2d(8, 16, 5, padding="same", bias=False))
    others: list[nn.Module] = [
        nn.Conv2d(8, 8, 3, padding=2),
        nn.Conv2d(8, 8, 5),
        nn.Conv2d(8, 8, 5, padding=2, stride=2),
        nn.Conv2d(8, 8, 5, padding=2, dilation=2),
        nn.Conv2d(8, 8, 5, padding=2, groups=2),
        nn.Conv2d(8, 8, 5, padding=2, padding_mode="reflect"),
        nn.Conv2d(3, 8, 5, padding=2),
        nn.Conv2d(8, 12, 5, padding=2),
        OwnConvolution(8, 8, 5, padding=2),
        nn.Linear(8, 8),
    ]
    assert not any(map(suits, others))


def test_an_accelerated_layer_leaves_other_inputs_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, calls = nn.Conv2d(8, 8, 5, padding=2), []
    accelerate(nn.Sequential(layer))
    monkeypatch.setattr(convolution, "convolve", lambda *_: calls.append(True))
    assert layer(torch.zeros(8, 6, 6)).shape == (8, 6, 6)  # one image
    assert layer(torch.zeros(0, 8, 6, 6)).shape == (0, 8, 6, 6)
    assert layer(torch.zeros(1, 8, 257, 256)).shape == (1, 8, 257, 256)  # its matrices would be large
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.zeros(1, 8, 6, 6)).dtype == torch.bfloat16
    assert layer.double()(torch.zeros(1, 8, 6, 6, dtype=torch.float64)).dtype == torch.float64
    assert layer.to("meta")(torch.zeros(1, 8, 6, 6, dtype=torch.float64, device="meta")).device.type == "meta"
    assert not calls
    layer.to_empty(device="cpu").float()(torch.zeros(1, 8, 6, 6))
    assert calls


def net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small network with one layer that is accelerated."""
    first, second = nn.Conv2d(shape[0], 8, 3, padding=1), nn.Conv2d(8, 16, 5, padding=2)
    last = nn.Linear(16 * shape[1] * shape[2], classes)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Flatten(), last)


def task() -> Task:
    random = torch.Generator().manual_seed(0)
    parts = [
        Examples(torch.randn(21, 3, 6, 7, generator=random), torch.randint(0, 4, (21,), generator=random))
        for _ in range(5)
    ]
    model = "tests.fl.test_convolution:net"
    return Task(model, from_clients(parts, parts[0], 4), LocalTraining(epochs=2, batch_size=4, lr=0.1, momentum=0.9), 3)


def test_training_gives_the_updates_of_torchs_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Learner(task())
    assert isinstance(ours._module, nn.Sequential)
    assert "forward" in vars(ours._module[2])
    start = ours.initial()
    found = ours.train(start, range(5), round_index=0)
    monkeypatch.setattr("fl.training.learner.accelerate", lambda _: None)
    expected = Learner(task()).train(start, range(5), round_index=0)
    assert not np.array_equal(found, expected)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    with monkeypatch.context() as changed:
        changed.setattr(convolution, "convolve", lambda *_: pytest.fail("stacked clients need torch's convolution"))
        Learner(task(), together=5).train(start, range(5), round_index=0)


def test_training_again_and_in_processes_gives_the_same_bits() -> None:
    one = Learner(task())
    expected = one.train(one.initial(), range(5), round_index=0)
    assert np.array_equal(Learner(task()).train(one.initial(), range(5), round_index=0), expected)
    with Pool(task(), 2) as pool:
        assert np.array_equal(pool.train(pool.initial(), range(5), round_index=0), expected)
