"""Processor seconds of a training step of the paper's networks, with huge pages and without.

    python -m tests.benchmarks pages [--steps 12] [--repeats 2]

Each process has the environment of a training process (`fl.training.child`). The processes take turns, and the number
shown is the median over the steps of all of them. The exit code is 1 if huge pages make a step slower by more than a
tenth.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

BAR = 1.1
STEP = "import sys; from tests.benchmarks.pages import steps; steps(int(sys.argv[1]))"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=12, help="of each network in each process")
    parser.add_argument("--repeats", type=int, default=2, help="processes of each kind")


def main(options: Namespace) -> int:
    """Time both ways and print; 1 if huge pages cost more than they may."""
    from fl.training.child import ENVIRONMENT, HUGE_PAGES

    ways: dict[str, Mapping[str, str]] = {"without": dict.fromkeys(HUGE_PAGES, ""), "with": HUGE_PAGES}
    spent: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.repeats):
        for way, more in ways.items():
            done = subprocess.run(
                [sys.executable, "-c", STEP, str(options.steps)],
                env={**os.environ, **ENVIRONMENT, **more},
                stdout=subprocess.PIPE,
                check=True,
            )
            for network, seconds in json.loads(done.stdout).items():
                spent.setdefault((network, way), []).extend(seconds)
    worst = 0.0
    print(f"{'':10}{'without':>10}{'with':>10}{'ratio':>8}   processor seconds of a step")
    for network in dict.fromkeys(network for network, _ in spent):
        without, with_them = (statistics.median(spent[network, way]) for way in ways)
        worst = max(worst, with_them / without)
        print(f"{network:10}{without:10.3f}{with_them:10.3f}{without / with_them:8.2f}")
    return 0 if worst <= BAR else 1


def steps(count: int) -> None:
    """Train both networks for a few steps in this process, and print the seconds of each step as JSON."""
    import torch
    from torch import nn

    from fl.training.convolution import accelerate
    from fl.training.models import MODELS

    torch.set_num_threads(1)
    images = torch.randn(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    batches = {"cnn": (images, 10), "lstm": (torch.randint(0, 80, (256, 80)), 80)}
    found: dict[str, list[float]] = {}
    for name, (inputs, classes) in batches.items():
        net = MODELS[name](tuple(inputs.shape[1:]), classes)
        accelerate(net)
        labels = torch.randint(0, classes, (len(inputs),))
        for step in range(count + 2):
            start = time.process_time()
            torch.autograd.backward(nn.functional.cross_entropy(net(inputs), labels))
            if step >= 2:  # the first ones compile
                found.setdefault(name, []).append(time.process_time() - start)
    print(json.dumps(found))
