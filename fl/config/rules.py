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
from fl.config.own import imported, is_own
from fl.config.schema import WEIGHTED_MEAN, Experiment
from fl.errors import ConfigError

Kind = robust.Aggregator[...] | robust.PreAggregator[...] | robust.Attack
Supplied = Mapping[str, Callable[[], Any]]
SUPPLIED: Final = ("f", "fraction", "loss", "losses", "gradient", "server", "centre", "rng", "against", "largest")
JUDGING: Final = frozenset({"loss", "gradient", "server"})  # parameters that need examples of the server


def aggregator(name: str) -> robust.Aggregator[...]:
    """The rule of a configuration: a name of `robust`, or `module:function` for one under `@robust.aggregator`."""
    found = _named(name, robust.AGGREGATORS, "aggregation.rule")
    if not isinstance(found, robust.Aggregator):
        raise _undecorated(name, "aggregation.rule", "@robust.aggregator(...)")
    return found


def pre_aggregator(name: str) -> robust.PreAggregator[...]:
    """A step before the rule, as `aggregator`."""
    found = _named(name, robust.PRE_AGGREGATORS, "aggregation.before")
    if not isinstance(found, robust.PreAggregator):
        raise _undecorated(name, "aggregation.before", "@robust.pre_aggregator(...)")
    return found


def attack(name: str) -> robust.Attack:
    """An attack on updates, as `aggregator`."""
    found = _named(name, robust.ATTACKS, "attack.name")
    if not isinstance(found, robust.Attack):
        raise _undecorated(name, "attack.name", "@robust.attack")
    return found


def _named(name: str, registry: Mapping[str, Any], key: str) -> Any:
    return imported(name, key) if is_own(name) else registry[name]


def _undecorated(name: str, key: str, decorator: str) -> ConfigError:
    page = "docs/research.md" if key == "attack.name" else "docs/add-an-aggregator.md"
    return ConfigError(f"{key}: {name!r} is a plain function; put {decorator} before it ({page})")


def averages_by_weight(experiment: Experiment) -> bool:
    """Whether clusters are averaged by their examples, which makes the clusters irrelevant (Lemma 1)."""
    return experiment.method == "fedavg" or experiment.aggregation.rule == WEIGHTED_MEAN


def configurable(kind: Kind) -> set[str]:
    """The parameters of a rule, step or attack that a configuration may set."""
    return set(kind.parameters) - set(SUPPLIED)


def needs_validation(rule: str) -> bool:
    """Whether a rule judges updates on examples that the server keeps."""
    return rule != WEIGHTED_MEAN and not JUDGING.isdisjoint(aggregator(rule).parameters)


def tolerated(rule: str, clusters: int) -> int:
    """How many bad clusters among so many the rule withstands; negative if it cannot run on so few."""
    return 0 if rule == WEIGHTED_MEAN else int(aggregator(rule).withstands(clusters))


def attack_warning(experiment: Experiment, clusters: int) -> str:
    """A warning if there are too many attackers for the rule when each is in a cluster of its own."""
    if not experiment.byzantine or not experiment.defended:
        return ""
    f = assumed_bad(experiment, clusters)
    if experiment.byzantine <= f:
        return ""
    who = f"{experiment.byzantine} attacker{'s' if experiment.byzantine > 1 else ''}"
    return (
        f"{who} can spoil up to {min(experiment.byzantine, clusters)} of {clusters} clusters; "
        f"{experiment.aggregation.rule} is set up to withstand {f}"
    )


def left_over_warning(experiment: Experiment) -> str:
    """A warning if the clusters, which are the same in all rounds, have no place for some clients."""
    left, size = experiment.left_over, experiment.clusters.atom or experiment.clusters.size
    if not left:
        return ""
    who = f"{left} of {experiment.clients} clients {'are' if left > 1 else 'is'} in no cluster of any round"
    kind = "atoms" if experiment.clusters.atom else "clusters"
    return f"{who}: {experiment.clients} clients cannot be divided into {kind} of {size}; change clients or the size"


def assumed_bad(experiment: Experiment, clusters: int) -> int:
    """f: how many of the opened clusters are assumed to be bad.

    By default as many as there are Byzantine clients, since each can spoil one cluster of a grouping; if their number
    is not set, as many as the rule withstands. In no case more than that.
    """
    aggregation = experiment.aggregation
    if aggregation.fraction is not None:
        return math.floor(aggregation.fraction * clusters + 1e-9)
    if aggregation.f is not None:
        return aggregation.f
    most = tolerated(aggregation.rule, _after_bucketing(experiment, clusters))
    return min(experiment.byzantine, most) if experiment.byzantine else most


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
    rule = aggregator(aggregation.rule)
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
            step = pre_aggregator(name)
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
        "server": lambda: np.zeros(1, dtype=np.float32),
        "rng": lambda: np.random.default_rng(0),
    }


def filled(kind: Kind, options: Mapping[str, Any], supplied: Supplied) -> dict[str, Any]:
    """The parameters of one rule or step: those of the configuration, then those that are supplied here."""
    chosen = {name: value for name, value in options.items() if name in kind.parameters}
    for name, make in supplied.items():
        if name in kind.parameters and name not in chosen:
            chosen[name] = make()
    return chosen
