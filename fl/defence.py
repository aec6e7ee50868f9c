"""Cluster means in, one update out: a rule of `robust`, with what the server has to give it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import robust
from fl.config import WEIGHTED_MEAN, Experiment

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    update: Vector | None
    clusters: tuple[Any, ...]
    kept: tuple[float, ...]
    skipped: str = ""
    f: int = 0


def parameters_of(function: Callable[..., Any]) -> set[str]:
    return {p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY} - {
        "f"
    }


def needs_validation(rule: str) -> bool:
    return rule in ("zeno", "zeno++")


def by_weight(e: Experiment) -> bool:
    return e.method == "fedavg" or e.aggregation.rule == WEIGHTED_MEAN


def why_not(e: Experiment, clusters: int) -> str:
    return ""


def attacked(e: Experiment, updates: Matrix, bad: Any, lot: Any) -> Matrix:
    return robust.ATTACKS[e.attack.name](updates[bad], **e.attack.options)


def bad_clusters(e: Experiment, clusters: int) -> int:
    if e.aggregation.fraction is not None:
        return int(e.aggregation.fraction * clusters)
    return most_withstood(e.aggregation.rule, clusters) if e.aggregation.f is None else e.aggregation.f


def decide(e, means, clusters, trainer, x, last, lot) -> Decision:
    f = bad_clusters(e, len(means))
    try:
        g = robust.AGGREGATORS[e.aggregation.rule](means, f=f, **e.aggregation.options)
    except ValueError as error:
        return Decision(None, clusters, (), str(error), f)
    return Decision(g, clusters, (), f=f)


def most_withstood(rule: str, clusters: int) -> int:
    return {"krum": max(0, (clusters - 3) // 2), "zeno": max(0, clusters - 1)}.get(
        rule, max(0, (clusters - 1) // 2)
    )
