"""Where training runs: a CPU, one of several GPUs, or the GPU of a Mac."""

from __future__ import annotations

import torch

from fl.errors import ConfigError


def find_device(name: str) -> torch.device:
    """The torch device of `machine.device`; `auto` is the first GPU that torch finds, otherwise the CPU.

    >>> find_device("cpu")
    device(type='cpu')
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    kind, _, number = name.partition(":")
    if (kind == "cuda" and not cuda) or (kind == "mps" and not mps):
        raise ConfigError(f"machine.device: torch finds no GPU for {name}; use cpu or auto")
    if number and int(number) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ConfigError(f"machine.device: torch finds {count} GPUs, cuda:0 to cuda:{count - 1}, got {name}")
    return torch.device(name)
