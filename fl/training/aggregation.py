"""Cluster means in, one update out: a rule of `robust` by name, with what only the server can give it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import robust
from fl.config.rules import aggregator, assumed_bad, filled, needs_validation, pre_aggregator
from fl.config.schema import Experiment
from fl.errors import TrainingError
from fl.training.models import Matrix, Vector
from fl.training.workers import Trainer
from secagg.protocol import GroupId

ClusterId = tuple[int, GroupId]  # the number of a cell, and of a cluster in it
SAMPLED_COORDINATES: Final = 512  # to estimate how much of a cluster a coordinate-wise rule uses


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What one grouping gave: an update, or the reason for none.

    `kept` says how much of each cluster was used: 1 if it was chosen or got its fair share, 0 if it was rejected, in
    between for rules that weigh or work by coordinate. It is empty where nothing is filtered.
    """

    update: Vector | None
    clusters: tuple[ClusterId, ...]
    kept: tuple[float, ...] = ()
    skipped: str = ""
    f: int = 0


def decide(
    experiment: Experiment,
    t: int,
    means: Matrix,
    clusters: Sequence[ClusterId],
    trainer: Trainer,
    x: Vector,
    last: Vector,
    random: np.random.Generator,
) -> Decision:
    """RobustAggr of Algorithm 1 on the cluster means of one grouping, one row each."""
    aggregation = experiment.aggregation
    f = assumed_bad(experiment, len(means))
    rule = aggregator(aggregation.rule)

    def loss(update: Vector) -> float:
        return float(trainer.losses(update[None], examples, at=x)[0])

    supplied: dict[str, Callable[[], Any]] = {
        "f": lambda: f,
        "loss": lambda: loss,
        "gradient": lambda: trainer.gradient(x, examples),
        "server": lambda: trainer.server_update(x, round_index=t),
        "eta": lambda: experiment.server_lr,
        "centre": lambda: last,
        "rng": lambda: random,
    }
    if not aggregation.before:  # the rule sees the cluster means themselves, so worker processes share them
        supplied["losses"] = lambda: trainer.losses(means, examples, at=x)
    steps = [pre_aggregator(name) for name in aggregation.before]
    before = [(step.name, filled(step, aggregation.before_options, supplied)) for step in steps]
    examples = _validation_batch(experiment, trainer, random) if needs_validation(aggregation.rule) else None
    try:  # a rule that is left with too few rows skips the round; any other error ends the training
        options = filled(rule, aggregation.options, supplied)
        found = robust.aggregate(rule.name, means, before=before, **options)
    except robust.RowsError as error:
        if error.rule not in {rule.name, *(step.name for step in steps)}:  # the function of a rule called another
            raise
        return Decision(None, tuple(clusters), (), str(error), f)
    if not np.isfinite(found.vector).all():
        wrong = f"the rule {rule.name} returned values that are not finite"
        raise TrainingError(f"round {t + 1}: {wrong}, although those of the {len(means)} cluster means are")
    return Decision(found.vector, tuple(clusters), _kept(found, means, f), f=f)


def _validation_batch(experiment: Experiment, trainer: Trainer, random: np.random.Generator) -> NDArray[np.int64]:
    """n_s random validation examples (Algorithm 2, line 5), the same for all clusters of a grouping."""
    held = trainer.task.data.validation
    assert held is not None  # `fl.training.loop.run` checks it before the first round
    chosen = random.permutation(len(held))[: experiment.aggregation.validation_batch]
    return np.sort(chosen).astype(np.int64)


def _kept(found: robust.Aggregate, means: Matrix, f: int) -> tuple[float, ...]:
    """How much of each cluster was used."""
    count = len(means)
    if found.accepted is not None:
        return tuple(float(row in found.accepted) for row in range(count))
    if found.weights is not None:
        return tuple(float(min(1.0, weight / (1.0 / count))) for weight in found.weights)
    step = max(1, means.shape[1] // SAMPLED_COORDINATES)
    distance = np.abs(means[:, ::step] - found.vector[::step])
    nearest = np.argsort(np.argsort(distance, axis=0, kind="stable"), axis=0, kind="stable") < count - f
    fair = (count - f) / count
    return tuple(float(min(1.0, share / fair)) for share in nearest.mean(axis=1))
