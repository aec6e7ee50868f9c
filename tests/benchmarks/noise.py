"""Samples of the discrete Gaussian per second, beside opendp's in the same run (pip install share-secagg[oracles]).

    python -m tests.benchmarks noise
    python -m tests.benchmarks noise --cost     # what a promise costs: the error of a mean, without drawing anything

CPU seconds of one thread, which other work on the machine does not lengthen much; the gain of two threads is in
seconds of the clock, and needs two quiet cores.
"""

from __future__ import annotations

import math
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from secagg.crypto import discrete_gaussian
from secagg.errors import UsageError
from secagg.exposure import Schedule
from secagg.privacy import leverage, rho_within

LENGTH = 2_156_490  # a ResNet's vector
SIGMAS = (1, 20, 1000, 100_000)
COSTS = (
    (10, 10, 1, 1), (20, 20, 1, 1), (50, 50, 1, 1), (60, 60, 1, 1), (60, 3, 1, 1), (60, 6, 1, 1), (60, 6, 2, 1),
    (60, 6, 1, 100), (1000, 1000, 1, 100), (1000, 20, 1, 100),
)  # fmt: skip
TURNS = 9
LEAST_RATIO, LEAST_GAIN, MOST_SECONDS = 50.0, 1.7, 0.9


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--cost", action="store_true", help="print the error of means for several promises, and end")
    parser.add_argument("--samples", type=int, default=20_000, help="how many opendp draws")


def opendp_seconds(sigma: int, samples: int) -> float:
    """CPU seconds per sample of opendp."""
    try:
        import opendp.prelude as dp
    except ImportError:
        raise UsageError("opendp is not installed: pip install share-secagg[oracles]") from None
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i32")), dp.l2_distance(T=float)
    measurement = dp.m.make_gaussian(*space, scale=float(sigma))
    zeros = [0] * samples
    measurement(zeros[:10])
    return best(lambda: measurement(zeros), time.process_time) / samples


def best(work: Callable[[], object], clock: Callable[[], float]) -> float:
    seconds = []
    for _ in range(3):
        start = clock()
        work()
        seconds.append(clock() - start)
    return min(seconds)


def error_of_mean(clients: int, size: int, groupings: int, colluders: int, epsilon: float, rounds: int) -> float:
    """The standard deviation of the noise on a cluster's mean, in units of the clip; delta is 1e-6."""
    drawn = Schedule(name="fixed", size=size, groupings=groupings).draw(range(clients), bytes(32), round=0)
    share = max(float(leverage(drawn, client, colluders)) for client in range(clients))
    sigma = math.sqrt(share * rounds / (2 * rho_within(epsilon, 1e-6)))
    return sigma / math.sqrt(size)


def print_costs() -> None:
    print("error of a mean, in units of the clip, per value; one colluder, delta 1e-6")
    print("clients, cluster, groupings, rounds: epsilon 1, 4, 8")
    for clients, size, groupings, rounds in COSTS:
        errors = [error_of_mean(clients, size, groupings, 1, one, rounds) for one in (1.0, 4.0, 8.0)]
        print(f"{clients:>5} {size:>5} {groupings} {rounds:>4}: {', '.join(f'{error:.3f}' for error in errors)}")


def main(options: Namespace) -> int:
    """1 if a bar is missed."""
    if options.cost:
        print_costs()
        return 0
    met = True
    discrete_gaussian(2**15, 3, threads=2)  # compiles, and starts the threads
    for sigma in SIGMAS:
        one = best(lambda sigma=sigma: discrete_gaussian(LENGTH, sigma, threads=1), time.process_time)  # type: ignore
        oracle = opendp_seconds(sigma, options.samples)
        ratio = oracle / (one / LENGTH)
        print(
            f"sigma {sigma}: {one:.3f} s for {LENGTH} samples, {one / LENGTH * 1e9:.0f} ns each, "
            f"opendp {oracle * 1e6:.1f} us, ratio {ratio:.0f} (bar {LEAST_RATIO:.0f})"
        )
        met &= ratio >= LEAST_RATIO and one <= MOST_SECONDS
    gain = print_gain()
    return 0 if met and gain >= LEAST_GAIN else 1


def print_gain() -> float:
    """The gain of two threads: one and two by turns, the least seconds of the clock of each."""
    clock: dict[int, float] = {1: math.inf, 2: math.inf}
    cpu = dict(clock)
    for _ in range(TURNS):
        for threads in clock:
            start, spent = time.perf_counter(), time.process_time()
            discrete_gaussian(LENGTH, 1000, threads=threads)
            clock[threads] = min(clock[threads], time.perf_counter() - start)
            cpu[threads] = min(cpu[threads], time.process_time() - spent)
    gain = clock[1] / clock[2]
    print(
        f"one thread {clock[1]:.3f} s, two threads {clock[2]:.3f} s, gain {gain:.2f} (bar {LEAST_GAIN}); "
        f"CPU seconds {cpu[1]:.3f} and {cpu[2]:.3f}: what two threads cost in addition"
    )
    return gain
