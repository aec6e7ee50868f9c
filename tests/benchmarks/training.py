"""Images per second of local training with the paper's network, beside a plain torch loop in the same run.

    python -m tests.benchmarks training [--clients 8] [--images 400] [--repeats 5] [--busy]

Both train the same clients from the same model: SGD with momentum and weight decay, minibatches of 64, one epoch of
random images of CIFAR-10's shape. The plain loop is what one writes first: the network in the paper's order, one
process with a torch thread per core, `torch.optim.SGD`. Ours is `fl.training.workers.Pool` with one process per core,
from the model's vector to the updates in shared memory. They take turns, and the ratio is that of the median times. The
exit code is 1 if ours is below 1.25 times the plain loop. On a busy machine the ratio says little, because threads
wait for each other; `--busy` compares the processor time of one thread each instead.
"""

import statistics
import time
from argparse import ArgumentParser, Namespace

BAR = 1.25
SETTINGS = {"epochs": 1, "batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--images", type=int, default=400, help="images of each client")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--busy", action="store_true", help="compare processor time of one thread each")


def main(options: Namespace) -> int:
    """Train in turns and print; 1 if the bar is missed."""
    import torch

    from fl.data import Examples, from_clients
    from fl.training.learner import Learner
    from fl.training.task import LocalTraining, Task
    from fl.training.workers import Pool
    from secagg.simulation import cores

    random = torch.Generator().manual_seed(0)
    parts = [
        Examples(
            torch.randn(options.images, 3, 32, 32, generator=random),
            torch.randint(0, 10, (options.images,), generator=random),
        )
        for _ in range(options.clients)
    ]
    data = from_clients(parts, parts[0], 10)
    task = Task("cnn", data, LocalTraining(**SETTINGS), 0, "cross-entropy", {})  # type: ignore[arg-type]
    threads = 1 if options.busy else cores()
    now = time.process_time if options.busy else time.perf_counter
    torch.set_num_threads(threads)
    spent: dict[str, list[float]] = {"ours": [], "plain": []}
    with Learner(task) if options.busy else Pool(task, threads) as trainer:
        for repeat in range(options.repeats + 1):
            start = now()
            trainer.train(trainer.initial(), range(options.clients), round_index=repeat)
            middle = now()
            for part in parts:
                plain(part.inputs, part.labels)
            if repeat:  # the first turn starts the processes
                spent["ours"].append(middle - start)
                spent["plain"].append(now() - middle)
    ours, theirs = (options.clients * options.images / statistics.median(seconds) for seconds in spent.values())
    unit = "images per second of processor time" if options.busy else "images per second"
    print(f"ours   {ours:8.0f} {unit}, {threads} process{'es' if threads > 1 else ''} of one thread")
    print(f"plain  {theirs:8.0f} {unit}, one process of {threads} thread{'s' if threads > 1 else ''}")
    print(f"ratio  {ours / theirs:8.2f}, at least {BAR} wanted")
    return 0 if ours >= BAR * theirs else 1


def plain(inputs: "torch.Tensor", labels: "torch.Tensor") -> None:  # type: ignore[name-defined]  # noqa: F821
    """One epoch of one client, as one writes it first."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 8 * 8, 512), nn.ReLU(), nn.Linear(512, 10)),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    loss = nn.CrossEntropyLoss()
    for rows in torch.randperm(len(labels)).split(64):
        optimizer.zero_grad()
        loss(net(inputs[rows]), labels[rows]).backward()
        optimizer.step()
