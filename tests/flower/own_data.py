"""The data of nodes by name, for trainings whose members change: `site-3` has a part of the digits of its own."""

import torch
from torch import Tensor

from fl.data import load

CLASSES = 10


def data(name: str) -> tuple[Tensor, Tensor]:
    number = int(name.removeprefix("site-"))
    return load("digits").train.batch(torch.arange(60 * number, 60 * number + examples(number)))


def examples(number: int) -> int:
    """How many examples a site has."""
    return 30 + number % 3


def test() -> tuple[Tensor, Tensor]:
    return load("digits").test.batch(torch.arange(100))
