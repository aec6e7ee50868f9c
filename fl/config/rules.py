"""What a rule of `robust` needs of a configuration, and what it withstands. Nothing here needs data.

Rules and attacks say in `robust` which parameters they take. Those in `SUPPLIED` a configuration cannot know:
the loss and the gradient on the server's validation examples, the previous result, a random generator.
`fl.training.aggregation` supplies them. The others come from the configuration, under the same names.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

import robust
from fl.config.schema import WEIGHTED_MEAN, Experiment

Kind = robust.Aggregator[...] | robust.PreAggregator[...] | robust.Attack
Supplied = Mapping[str, Callable[[], Any]]
SUPPLIED: Final = ("f", "fraction", "loss", "losses", "gradient", "centre", "rng", "against", "largest")


def averages_by_weight(experiment: Experiment) -> bool:
    """Whether clusters are averaged by their examples, which makes the clusters irrelevant (Lemma 1)."""
    return experiment.method == "fedavg" or experiment.aggregation.rule == WEIGHTED_MEAN


def configurable(kind: Kind) -> set[str]:
    """The parameters of a rule, step or attack that a configuration may set."""
    return set(kind.parameters) - set(SUPPLIED)


def needs_validation(rule: str) -> bool:
    """Whether a rule judges updates on examples that the server keeps."""
    return rule != WEIGHTED_MEAN and bool({"loss", "gradient"} & set(robust.AGGREGATORS[rule].parameters))


def tolerated(rule: str, clusters: int) -> int:
    """How many bad clusters among so many the rule withstands; negative if it cannot run on so few."""
    return 0 if rule == WEIGHTED_MEAN else int(robust.AGGREGATORS[rule].withstands(clusters))


def attack_warning(experiment: Experiment, clusters: int) -> str:
    """A warning if there are too many attackers for the rule when each is in a cluster of its own."""
    if not experiment.byzantine or not experiment.defended:
        return ""
    f = assumed_bad(experiment, clusters)
    if experiment.byzantine <= f:
        return ""
    return (
        f"{experiment.byzantine} attackers can spoil up to {min(experiment.byzantine, clusters)} of "
        f"{clusters} clusters; {experiment.aggregation.rule} is set up to withstand {f}"
    )


def assumed_bad(experiment: Experiment, clusters: int) -> int:
    """f: how many of the opened clusters are assumed to be bad."""
    aggregation = experiment.aggregation
    if aggregation.fraction is not None:
        return math.floor(aggregation.fraction * clusters + 1e-9)
    if aggregation.f is not None:
        return aggregation.f
    return tolerated(aggregation.rule, _after_bucketing(experiment, clusters))


def _after_bucketing(experiment: Experiment, clusters: int) -> int:
    """How many rows the rule gets: bucketing averages several clusters into one."""
    aggregation = experiment.aggregation
    for name in aggregation.before:
        width = aggregation.before_options.get("size") if name == "bucketing" else None
        clusters = -(-clusters // int(width)) if width else clusters
    return clusters


def rule_problem(experiment: Experiment, clusters: int) -> str:
    """Why the rule cannot be used on so many clusters, and the key to change; empty if it can be used."""
    aggregation, rows = experiment.aggregation, _after_bucketing(experiment, clusters)
    if aggregation.rule == WEIGHTED_MEAN:
        return ""
    rule = robust.AGGREGATORS[aggregation.rule]
    most = tolerated(aggregation.rule, rows)
    if most < 0:
        few = f"{rows} clusters are too few for {aggregation.rule} ({rule.needs})"
        return f"clusters.size: {few}; make smaller clusters"
    f = assumed_bad(experiment, clusters)
    if f > most:
        key = "fraction" if aggregation.fraction is not None else "f"
        return (
            f"aggregation.{key}: {aggregation.rule} needs {rule.needs}, so of {rows} clusters it withstands "
            f"at most {most} bad ones, not {f}; lower it, or make more and smaller clusters"
        )
    try:
        rule.check(rows, **filled(rule, aggregation.options, _placeholders(f)))
    except ValueError as error:
        return f"aggregation.options: {error}"
    try:
        for name in aggregation.before:
            step = robust.PRE_AGGREGATORS[name]
            step.check(clusters, **filled(step, aggregation.before_options, _placeholders(f)))
    except ValueError as error:
        return f"aggregation.before_options: {error}"
    return ""


def _placeholders(f: int) -> Supplied:
    """A value of the right type for each supplied parameter, to check the others before there is any data."""
    return {
        "f": lambda: f,
        "loss": lambda: float,
        "gradient": lambda: np.zeros(1, dtype=np.float32),
        "rng": lambda: np.random.default_rng(0),
    }


def filled(kind: Kind, options: Mapping[str, Any], supplied: Supplied) -> dict[str, Any]:
    """The parameters of one rule or step: those of the configuration, then those that are supplied here."""
    chosen = {name: value for name, value in options.items() if name in kind.parameters}
    for name, make in supplied.items():
        if name in kind.parameters and name not in chosen:
            chosen[name] = make()
    return chosen
