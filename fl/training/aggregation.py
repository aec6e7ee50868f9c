"""Cluster means in, one update out: a rule of `robust` by name, with what only the server can give it.

Rules and attacks say in `robust` which parameters they take. Those that a configuration cannot know (the loss
on the server's validation examples, the gradient there, the previous result, a random generator) are
supplied here; the others come from the configuration, under the same names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

import robust
from fl.config.schema import WEIGHTED_MEAN, Experiment

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]
SUPPLIED: Final = ("f", "fraction", "loss", "gradient", "centre", "rng", "against", "largest")
LOOKED_AT: Final = 512  # coordinates by which a coordinate-wise rule's use of a cluster is judged


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What one grouping gave: an update, or the reason for none.

    `kept` says for each cluster how much of it was used: 1 if chosen (or given its fair share), 0 if
    rejected, in between for rules that weigh or work by coordinate; empty where nothing is filtered.
    """

    update: Vector | None
    clusters: tuple[Any, ...]
    kept: tuple[float, ...] = ()
    skipped: str = ""
    f: int = 0


class Validation(Protocol):
    """What measures vectors on the server's own examples: a Learner or a Pool."""

    def losses(
        self, vectors: Matrix, rows: Any = None, *, at: Vector | None = None
    ) -> NDArray[np.float64]: ...

    def gradient(self, vector: Vector, rows: Any = None) -> Vector: ...

    @property
    def task(self) -> Any: ...


def by_weight(e: Experiment) -> bool:
    """Whether clusters are averaged by their examples, which makes the clusters irrelevant (Lemma 1)."""
    return e.method == "fedavg" or e.aggregation.rule == WEIGHTED_MEAN


def options_of(kind: Any) -> set[str]:
    """The parameters of a rule, step or attack that a configuration may set."""
    return set(kind.parameters) - set(SUPPLIED)


def needs_validation(rule: str) -> bool:
    return rule != WEIGHTED_MEAN and bool({"loss", "gradient"} & set(robust.AGGREGATORS[rule].parameters))


def most_withstood(rule: str, clusters: int) -> int:
    """How many bad clusters among so many the rule withstands; negative if it cannot run on so few."""
    return 0 if rule == WEIGHTED_MEAN else int(robust.AGGREGATORS[rule].withstands(clusters))


def worst_case(e: Experiment, clusters: int) -> str:
    """A warning, if attackers who each spoil a cluster of their own would be too many for the rule."""
    if not e.byzantine or not e.defended:
        return ""
    f = bad_clusters(e, clusters)
    if e.byzantine <= f:
        return ""
    return (
        f"{e.byzantine} attackers can spoil up to {min(e.byzantine, clusters)} of {clusters} clusters; "
        f"{e.aggregation.rule} is set up to withstand {f}"
    )


def bad_clusters(e: Experiment, clusters: int) -> int:
    """f: how many of the opened clusters are taken to be bad."""
    a = e.aggregation
    if a.fraction is not None:
        return math.floor(a.fraction * clusters + 1e-9)
    return most_withstood(a.rule, rows_after(e, clusters)) if a.f is None else a.f


def rows_after(e: Experiment, clusters: int) -> int:
    """How many rows the rule gets: bucketing makes fewer of them."""
    for name in e.aggregation.before:
        width = e.aggregation.before_options.get("size") if name == "bucketing" else None
        clusters = -(-clusters // int(width)) if width else clusters
    return clusters


def why_not(e: Experiment, clusters: int) -> str:
    """Why the rule cannot be used on so many clusters, naming the key to change; empty if it can."""
    a, rows = e.aggregation, rows_after(e, clusters)
    if a.rule == WEIGHTED_MEAN:
        return ""
    rule = robust.AGGREGATORS[a.rule]
    most = most_withstood(a.rule, rows)
    if most < 0:
        return f"clusters.size: {rows} clusters are too few for {a.rule} ({rule.needs}); make smaller ones"
    f = bad_clusters(e, clusters)
    if f > most:
        key = "fraction" if a.fraction is not None else "f"
        return (
            f"aggregation.{key}: {a.rule} needs {rule.needs}, so of {rows} clusters it withstands at most "
            f"{most} bad ones, not {f}; lower it, or make more and smaller clusters"
        )
    try:
        rule.check(rows, **_filled(rule, a.options, _stand_ins(f)))
    except ValueError as error:
        return f"aggregation.options: {error}"
    try:
        for name in a.before:
            step = robust.PRE_AGGREGATORS[name]
            step.check(clusters, **_filled(step, a.before_options, _stand_ins(f)))
    except ValueError as error:
        return f"aggregation.before_options: {error}"
    return ""


def _stand_ins(f: int) -> dict[str, Callable[[], Any]]:
    """Something of the right type for all that is supplied, to check the rest before there is any data."""
    return {
        "f": lambda: f,
        "loss": lambda: float,
        "gradient": lambda: np.zeros(1, dtype=np.float32),
        "rng": lambda: np.random.default_rng(0),
    }


def decide(
    e: Experiment,
    means: Matrix,
    clusters: Sequence[Any],
    validation: Validation,
    x: Vector,
    last: Vector,
    lot: np.random.Generator,
) -> Decision:
    """RobustAggr of Algorithm 1 on the cluster means of one grouping, one row each."""
    a = e.aggregation
    f = bad_clusters(e, len(means))
    rule = robust.AGGREGATORS[a.rule]
    supplied: dict[str, Callable[[], Any]] = {
        "f": lambda: f,
        "loss": lambda: _loss(means, validation, x, _batch(e, validation, lot)),
        "gradient": lambda: validation.gradient(x, _batch(e, validation, lot)),
        "eta": lambda: e.server_lr,
        "centre": lambda: last,
        "rng": lambda: lot,
    }
    before = [(name, _filled(robust.PRE_AGGREGATORS[name], a.before_options, supplied)) for name in a.before]
    try:
        found = robust.aggregate(a.rule, means, before=before, **_filled(rule, a.options, supplied))
    except ValueError as error:
        return Decision(None, tuple(clusters), (), str(error), f)
    return Decision(found.vector, tuple(clusters), _kept(found, means, f), f=f)


def _filled(
    kind: Any, options: Mapping[str, Any], supplied: Mapping[str, Callable[[], Any]]
) -> dict[str, Any]:
    """The parameters of one rule or step: the configuration's, then what is supplied here."""
    chosen = {name: value for name, value in options.items() if name in kind.parameters}
    for name, make in supplied.items():
        if name in kind.parameters and name not in chosen:
            chosen[name] = make()
    return chosen


def _batch(e: Experiment, validation: Validation, lot: np.random.Generator) -> NDArray[np.int64]:
    """n_s validation examples by lot (Algorithm 2, line 5), the same for all clusters of a grouping."""
    held = validation.task.data.validation
    if held is None:
        raise ValueError(f"{e.aggregation.rule} needs validation examples, and the server has none")
    return np.sort(lot.permutation(len(held))[: e.aggregation.validation_batch]).astype(np.int64)


def _loss(
    means: Matrix, validation: Validation, x: Vector, rows: NDArray[np.int64]
) -> Callable[[Vector], float]:
    """The loss at x + g. That of all clusters is computed at once, which several processes can share."""
    stride = max(1, means.shape[1] // 1024)
    places = {row[::stride].tobytes(): i for i, row in enumerate(means)}
    found = validation.losses(means, rows, at=x)

    def loss(update: Vector) -> float:
        i = places.get(update[::stride].tobytes())
        if i is not None and np.array_equal(means[i], update):
            return float(found[i])
        return float(validation.losses(update[None], rows, at=x)[0])  # x itself, or made by pre-aggregation

    return loss


def _kept(found: Any, means: Matrix, f: int) -> tuple[float, ...]:
    """How much of each cluster was used."""
    count = len(means)
    if found.accepted is not None:
        chosen = set(found.accepted)
        return tuple(1.0 if row in chosen else 0.0 for row in range(count))
    if found.weights is not None:
        fair = 1.0 / count
        return tuple(float(min(1.0, weight / fair)) for weight in found.weights)
    step = max(1, means.shape[1] // LOOKED_AT)
    some = means[:, ::step]
    distance = np.abs(some - found.vector[::step])
    nearest = np.argsort(np.argsort(distance, axis=0, kind="stable"), axis=0, kind="stable") < count - f
    fair = (count - f) / count
    return tuple(float(min(1.0, share / fair)) for share in nearest.mean(axis=1))


def attacked(e: Experiment, updates: Matrix, bad: NDArray[np.bool_], lot: np.random.Generator) -> Matrix:
    """What the Byzantine clients of a cell send instead of their own honest updates."""
    made = robust.ATTACKS[e.attack.name](
        updates[~bad], int(bad.sum()), own=updates[bad], rng=lot, **e.attack.options
    )
    return np.asarray(made, dtype=np.float32)
