"""What a promise of differential privacy costs: accuracy under attack, and the error of counts and means over sites.

    python -m tests.benchmarks privacy sites
    python -m tests.benchmarks privacy digits            # about 5 minutes on two cores
    python -m tests.benchmarks privacy mnist             # about 15; SHARE_DATA names the folder with the data

Trainings are in the clear: with the same noise they are those with cryptography, bit for bit. Attackers reverse their
updates (sign_flip); the rule is the median; a client may be alone with one colluder's noise missing; delta is 1e-6.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np

import fl
from fl.config.checks import experiment
from fl.errors import ConfigError
from secagg import Budget
from secagg.agreement import most_per_round
from secagg.crypto import discrete_gaussian
from secagg.protocol.result import GroupSum
from secagg.simulation import make_agreement
from secagg.statistics import Count, Mean, Numbers, Statistic, Statistics, evaluate, site_update, statistics_noise

DELTA, COLLUDERS = 1e-6, 1


@dataclass(frozen=True)
class Study:
    """Trainings of a linear model for each cluster size and epsilon. 0 stands for no noise."""

    data: str
    clients: int
    byzantine: int
    rounds: int
    norm_clip: float
    sizes: Sequence[int]
    epsilons: Sequence[float]
    clip: float = 64.0


STUDIES = {
    "digits": Study("digits", 300, 15, 8, 1.0, (3, 6, 15, 30), (0, 32, 8, 2)),
    "mnist": Study("mnist", 1000, 50, 6, 1.0, (5, 20), (0, 8, 2)),
}


def accuracy(study: Study, size: int, epsilon: float, seed: int) -> float | None:
    """The test accuracy after the last round; None if no such training is possible."""
    noise = {"epsilon": epsilon, "delta": DELTA, "noise_colluders": COLLUDERS, "norm_clip": study.norm_clip}
    tables = {
        "seed": seed,
        "clients": study.clients,
        "rounds": study.rounds,
        "byzantine": study.byzantine,
        "attack": {"name": "sign_flip"},
        "secure": False,
        "model": "linear",
        "data": {"name": study.data},
        "local": {"lr": 0.5 if study.data == "digits" else 0.1, "epochs": 2, "batch_size": 32, "momentum": 0.0},
        "clusters": {"size": size},
        "privacy": {"weight_ratio": 1.0, "clip": study.clip, **(noise if epsilon else {})},
        "aggregation": {"rule": "median"},
        "machine": {"workers": 0, "evaluate_every": study.rounds},
    }
    try:
        found = fl.run(experiment(tables)).history[-1]["accuracy"]
    except ConfigError as refused:
        print(f"  m = {size}, epsilon {epsilon:g}: {refused}")
        return None
    return None if found is None else float(found)


def print_study(study: Study, seeds: int) -> None:
    print(
        f"{study.data}: linear model, {study.clients} clients, {study.byzantine} reverse their updates, {study.rounds} "
        f"rounds, norm clip {study.norm_clip:g}, mean of {seeds} seed(s); test accuracy after the last round"
    )
    print("| cluster | " + " | ".join(f"epsilon {e:g}" if e else "no noise" for e in study.epsilons) + " |")
    print("|---" * (len(study.epsilons) + 1) + "|", flush=True)
    for size in study.sizes:
        cells = []
        for epsilon in study.epsilons:
            found = [accuracy(study, size, epsilon, seed) for seed in range(seeds)]
            known = [value for value in found if value is not None]
            cells.append(f"{mean(known):.1%}" if known else "-")
        print(f"| {size} | {' | '.join(cells)} |", flush=True)


# --- counts and means over sites ---------------------------------------------------------------------------

ROWS = 1000  # of each site, and the most that one may have
AGE = Numbers("age", 0, 120, step=1)


def site_errors(sites: int, epsilon: float, draws: int) -> tuple[float, float]:
    """What 19 of 20 draws of noise err by at most, in a count and in a mean; each alone has this epsilon."""
    generator = np.random.default_rng(sites)
    data = [{"age": np.clip(np.rint(generator.normal(50, 15, ROWS)), 0, 120)} for _ in range(sites)]
    truth = np.concatenate([one["age"] for one in data]).mean()
    errors: list[float] = []
    for asked in (Count(name="it"), Mean(name="it", of=AGE, limbs=1)):
        errors.append(_error(asked, data, epsilon, draws, float(truth)))
    return errors[0], errors[1]


def _error(asked: Statistic, data: list[dict[str, object]], epsilon: float, draws: int, truth: float) -> float:
    sites, statistics = len(data), Statistics(most_rows=ROWS, asked=(asked,))
    budget, parts = Budget(epsilon, DELTA), 1 if isinstance(asked, Count) else 2
    multiplier = math.sqrt(parts / (sites - COLLUDERS) / (2 * budget.limit.rho * 2.0**-40))
    terms = make_agreement(members=sites, size=sites, statistics=statistics)[0].terms
    terms = replace(terms, noise=statistics_noise(statistics, sites, multiplier, colluders=COLLUDERS))
    assert terms.noise is not None
    assert budget.allows(most_per_round(terms).assumed)
    clear = replace(terms, noise=None)
    total = sum(clear.encoding.encode(site_update(clear, one).update)[0] for one in data)
    errors = []
    for _ in range(draws):
        pieces = zip(terms.segments, terms.noise.segments, strict=True)
        noise = [
            discrete_gaussian(sites * part.length, one.sigma).reshape(sites, -1).sum(axis=0) for part, one in pieces
        ]
        found = evaluate(terms, [GroupSum(total + np.concatenate(noise).astype(np.uint32), tuple(range(sites)))])["it"]
        value, exact = (found.rows, sites * ROWS) if isinstance(asked, Count) else (found["mean"].value, truth)
        errors.append(math.inf if value is None else abs(value - exact))
    return sorted(errors)[math.ceil(0.95 * draws) - 1]


def print_sites(draws: int) -> None:
    print(f"{ROWS} rows in each site, all of which is hidden; 19 of 20 counts and means of ages err by at most:")
    print(
        "| sites | rows in all | " + " | ".join(f"count, epsilon {e:g} | mean, epsilon {e:g}" for e in (1, 4, 8)) + " |"
    )
    print("|---" * 8 + "|")
    for sites in (10, 20, 30, 50):
        cells = []
        for epsilon in (1.0, 4.0, 8.0):
            count, average = site_errors(sites, epsilon, draws)
            years = "anything" if average > 60 else f"{average:.2g} years"
            cells += [f"{count:.0f} ({count / (sites * ROWS):.1%})", years]
        print(f"| {sites} | {sites * ROWS} | {' | '.join(cells)} |", flush=True)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("sites", *STUDIES), default="sites")
    parser.add_argument("--seeds", type=int, default=1, help="trainings per number of the table (1)")
    parser.add_argument("--draws", type=int, default=200, help="draws of noise per number of the table (200)")


def main(options: Namespace) -> int:
    if options.what == "sites":
        print_sites(options.draws)
    else:
        print_study(STUDIES[options.what], options.seeds)
    return 0
