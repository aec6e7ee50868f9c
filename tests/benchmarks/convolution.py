"""Milliseconds of a 5x5 convolution in torch and in fl.training.convolution, in turns, on one thread.

    python -m tests.benchmarks convolution [--images 64] [--size 16] [--channels 32] [--outputs 64] [--repeats 40]

The defaults are the second layer of the paper's network with a minibatch of 64. Both ways get float32 images whose
channels are last in memory, and compute gradients of the images, the weights and the bias. The ratio is that of the
median times. The exit code is 1 if ours takes longer than torch. A training process runs on every core, so run this
once per core at the same time to see what the cores cost each other.
"""

import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial

BAR = 1.0


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--size", type=int, default=16, help="height and width of an image")
    parser.add_argument("--channels", type=int, default=32, help="of the images: a multiple of 8")
    parser.add_argument("--outputs", type=int, default=64, help="channels of the result: a multiple of 8")
    parser.add_argument("--repeats", type=int, default=40)


def main(options: Namespace) -> int:
    """Time both ways and print; 1 if ours is slower."""
    import torch

    from fl.training.convolution import convolve

    torch.set_num_threads(1)
    last = torch.channels_last
    images = torch.randn(options.images, options.channels, options.size, options.size).contiguous(memory_format=last)
    weight = torch.randn(options.outputs, options.channels, 5, 5).contiguous(memory_format=last)
    bias = torch.randn(options.outputs)
    ways: dict[str, Callable[..., torch.Tensor]] = {"torch": partial(torch.conv2d, padding=2), "ours": convolve}
    spent: dict[tuple[str, str], list[float]] = {}
    for repeat in range(options.repeats + 3):
        for name, way in ways.items():
            tensors = [tensor.detach().requires_grad_() for tensor in (images, weight, bias)]
            start = time.perf_counter()
            result = way(*tensors)
            middle = time.perf_counter()
            torch.autograd.backward(result, result.detach())
            end = time.perf_counter()
            if repeat >= 3:  # the first calls compile
                spent.setdefault(("forward", name), []).append(middle - start)
                spent.setdefault(("backward", name), []).append(end - middle)
                spent.setdefault(("both", name), []).append(end - start)
    times = {key: 1000 * statistics.median(seconds) for key, seconds in spent.items()}
    print(f"{'':10}{'torch':>10}{'ours':>10}{'ratio':>8}   ms, {options.images} images, one thread")
    for stage in ("forward", "backward", "both"):
        theirs, ours = times[stage, "torch"], times[stage, "ours"]
        print(f"{stage:10}{theirs:10.1f}{ours:10.1f}{theirs / ours:8.2f}")
    return 0 if times["both", "torch"] >= BAR * times["both", "ours"] else 1
