"""Models, and the flat float32 vector that the rest of the toolkit sees instead of them.

The vector holds the parameters that require a gradient, in the order of `named_parameters()` (in which the module's
constructor assigns its parts), each once and row by row in its logical shape, whatever its layout in memory.

Your own model is a function of the input shape and the number of classes, named by its import path:

    def my_model(shape, classes):                       # in a module of yours, say nets.py
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
    # model = "nets:my_model"
"""

import hashlib
import math
import re
import sys
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fl.config.own import imported, is_own, own_place
from fl.errors import ConfigError, OwnError

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]
Factory = Callable[[tuple[int, ...], int], nn.Module]


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's network for CIFAR-10: two 5x5 convolutions and 512 hidden units; d = 2,156,490.

    SHARE, Appendix D. Pooling comes before the activation: max and ReLU commute, so the function and its gradient are
    those of the paper's order, with a quarter of the activations.
    """
    return _convolutional(shape, classes, filters=(32, 64), kernel=5, hidden=512)


def small_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small network for 8x8 or 28x28 digits: two 3x3 convolutions and 64 hidden units."""
    return _convolutional(shape, classes, filters=(16, 32), kernel=3, hidden=64)


def _convolutional(
    shape: tuple[int, ...], classes: int, filters: tuple[int, int], kernel: int, hidden: int
) -> nn.Module:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(f"this model needs images (channels, height, width) of at least 4x4, got {shape}")
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, filters[0], kernel, padding=kernel // 2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(filters[0], filters[1], kernel, padding=kernel // 2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(filters[1] * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


class NextCharacter(nn.Module):
    """Predicts the character that follows a line of context: SHARE, Appendix D, after Caldas et al. 2018 (LEAF)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.out = nn.Linear(256, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        out: Tensor = self.out(states[:, -1])
        return out


def lstm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's network for Shakespeare: two LSTM layers of 256 units; d = 819,920 for 80 characters."""
    if len(shape) != 1:
        raise ValueError(f"lstm needs sequences of tokens, not inputs of shape {shape}")
    return NextCharacter(classes)


MODELS: Final[dict[str, Factory]] = {"cnn": cnn, "lstm": lstm, "small-cnn": small_cnn, "linear": linear}


def resolve(model: str | Factory) -> Factory:
    """The function behind a name of MODELS, an import path `module:function`, or a function itself."""
    if not isinstance(model, str):
        return model
    if model in MODELS:
        return MODELS[model]
    if not is_own(model):
        raise ConfigError(f"model: expected one of {', '.join(MODELS)}, or module:function, got {model!r}")
    return imported(model, "model")


def import_path(model: str | Callable[..., Any]) -> str | None:
    """A string that names a function in another process; None for a lambda, a nested function, or one of a script."""
    if isinstance(model, str):
        return model
    for name, factory in MODELS.items():
        if factory is model:
            return name
    module, function = getattr(model, "__module__", None), getattr(model, "__qualname__", None)
    if not module or not function or module == "__main__" or module not in sys.modules:
        return None
    try:
        return f"{module}:{function}" if attrgetter(function)(sys.modules[module]) is model else None
    except AttributeError:  # of a function in a function
        return None


def build(model: str | Factory, shape: tuple[int, ...], classes: int, *, seed: int) -> nn.Module:
    """The model with its initial parameters, which depend on `seed` alone. torch's own state does not change.

    Raises ValueError for a model that is not one float32 vector that only training changes: other types, nothing to
    train, and running statistics (batch norm), which a robust rule cannot weigh: a variance below zero breaks a model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _called(model, shape, classes)
    if not isinstance(module, nn.Module):
        raise ValueError(f"model {model!r} returned {type(module).__name__}, not a torch.nn.Module")
    for name, part in module.named_modules():
        if isinstance(part, _NormBase) and part.track_running_stats:
            raise ValueError(
                f"{name or 'the model'} ({type(part).__name__}) keeps running statistics, which are not "
                "part of an update; use LayerNorm, or GroupNorm with fewer groups than channels"
            )
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trained:
        raise ValueError("the model has no parameters to train: none has requires_grad")
    for name, parameter in trained:
        if parameter.dtype != torch.float32:
            raise ValueError(f"parameter {name} is {parameter.dtype}; only float32 can be trained")
    return module


def _called(model: str | Factory, shape: tuple[int, ...], classes: int) -> nn.Module:
    """What the model's function returns. A class of torch takes other arguments: say so."""
    factory = resolve(model)
    try:
        return factory(shape, classes)
    except Exception as error:
        name = getattr(factory, "__name__", type(factory).__name__)
        if not isinstance(factory, type) or not issubclass(factory, nn.Module):
            if getattr(factory, "__module__", "").startswith("fl."):
                raise
            why = f"{type(error).__name__}: {error}{own_place(error)}"
            raise OwnError(f"model: {name}({shape}, {classes}) fails: {why}") from error
        raise ValueError(
            f"expected an object or a function of (input shape, outputs), got the class {name}, and "
            f"{name}({shape}, {classes}) fails ({type(error).__name__}); give an object: {name}(...)"
        ) from error


def fingerprint(module: nn.Module) -> str:
    """A hash of the layers and of all initial values, to see whether a resumed run has the same model."""
    layers = re.sub(r" at 0x[0-9a-f]+", "", repr(module))  # of functions inside it, which differ by process
    found = hashlib.sha256(layers.encode())
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        found.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def parameters(module: nn.Module) -> list[nn.Parameter]:
    """The trained parameters, in the vector's order."""
    return [p for p in module.parameters() if p.requires_grad]


def dimension(module: nn.Module) -> int:
    """d: the length of the vector."""
    return sum(p.numel() for p in parameters(module))


def split(vector: Tensor, module: nn.Module) -> list[Tensor]:
    """Views of the flat vector (or of a stack of vectors, along the last axis) in the parameters' shapes."""
    trained, count = parameters(module), dimension(module)
    if vector.shape[-1] != count:
        raise ValueError(f"got a vector of {vector.shape[-1]} values for a model of {count} parameters")
    parts = torch.split(vector, [p.numel() for p in trained], dim=-1)
    return [part.reshape(*vector.shape[:-1], *p.shape) for part, p in zip(parts, trained, strict=True)]


def join(tensors: Iterable[Tensor]) -> Tensor:
    """The flat vector of tensors in the parameters' shapes (a copy), whatever their layout in memory."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def flatten(module: nn.Module) -> Vector:
    """The parameters as one float32 vector (a copy)."""
    vector: Vector = join(parameters(module)).cpu().numpy()
    return vector


def unflatten(vector: Vector | Tensor, module: nn.Module) -> None:
    """Set the parameters from a vector."""
    with torch.no_grad():
        for part, parameter in zip(split(torch.as_tensor(vector), module), parameters(module), strict=True):
            parameter.copy_(part)
