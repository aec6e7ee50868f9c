"""A model with exactly as many parameters as the paper's network, quick to train."""

from __future__ import annotations

from torch import Tensor, nn

PARAMETERS = 2_156_490


class Wide(nn.Module):
    """A linear model, and parameters that ride along."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, classes)
        used = inputs * classes + classes
        self.extra = nn.Parameter(self.linear.weight.new_zeros(PARAMETERS - used))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x.flatten(1)) + self.extra.sum()
        return found


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    inputs = 1
    for size in shape:
        inputs *= size
    return Wide(inputs, classes)
