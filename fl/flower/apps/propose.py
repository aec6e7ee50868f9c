"""`share flower propose`: the terms of an agreement for an existing Flower app."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl.config.own import find_modules, imported
from fl.errors import ConfigError
from fl.flower.apps.vectors import segments_of
from fl.flower.training import Enrolled
from fl.secure.population import capped_weights
from secagg import Member, Policy, Schedule, SecAggError, Terms

Metrics = Mapping[str, float]


def app_terms(
    members: Sequence[Enrolled],
    parameters: int,
    *,
    name: str,
    rounds: int,
    size: int = 3,
    groupings: int = 1,
    clip: float = 8.0,
    train: Metrics | None = None,
    evaluate: Metrics | None = None,
    least_groups: int = 1,
) -> Terms:
    """Terms with fixed groups for an app with these members, for so many rounds of Flower.

    A Flower round that also evaluates on the nodes takes two rounds of the agreement. Weights follow from the numbers
    of examples, as far apart as groups of this size allow (docs/exposure.md, leverage).

    >>> from fl.flower.apps.propose import app_terms
    >>> from fl.flower.training import Enrolled
    >>> members = [Enrolled(f"site-{i}", bytes([i]) * 32, 100 + i) for i in range(6)]
    >>> terms = app_terms(members, 10, name="example", rounds=5, train={"loss": 20.0}, evaluate={"accuracy": 1.0})
    >>> len(terms.rounds), [segment.name for segment in terms.segments]
    (10, ['update', 'train/loss', 'evaluate/accuracy'])
    """
    if size < 3:
        raise ConfigError(f"--size: expected at least 3, so that nobody is alone with one colluder, got {size}")
    if len(members) % size:
        fitting = [count for count in range(3, len(members) + 1) if len(members) % count == 0]
        raise ConfigError(
            f"--size: {len(members)} members in groups of {size} would leave {len(members) % size} out in every round; "
            f"use groups of {' or '.join(map(str, fitting)) or 'at least 3, with more members'}"
        )
    ratio = math.floor(100 * math.sqrt(size - 1)) / 100
    weights = capped_weights([member.examples for member in members], ratio)
    roster = (Member(i, one.identity, one.name, weights[i]) for i, one in enumerate(members))
    try:
        return Terms(
            name=name,
            members=tuple(roster),
            segments=segments_of(parameters, clip=clip, train=train or {}, evaluate=evaluate or {}),
            schedule=Schedule(name="fixed", size=size, groupings=groupings),
            last_round=rounds * (2 if evaluate else 1) - 1,
            least_groups=least_groups,
            policy=Policy(memory="training"),
        )
    except SecAggError as error:
        raise ConfigError(str(error)) from None


def parse_metrics(texts: Sequence[str]) -> dict[str, float]:
    """Metrics that are written as NAME=MOST: the largest absolute value that a node may give; NAME[3]=MOST for lists.

    >>> from fl.flower.apps.propose import parse_metrics
    >>> parse_metrics(["train_loss=20", "per-class[3]=1"])
    {'train_loss': 20.0, 'per-class[3]': 1.0}
    """
    found = {}
    for text in texts:
        name, _, most = text.rpartition("=")
        try:
            found[name] = float(most)
        except ValueError:
            found[name] = math.nan
        if not name or not 0 < found[name] < math.inf:
            raise ConfigError(f"expected NAME=MOST, such as train_loss=20, got {text!r}")
    return found


def count_parameters(path: str, folder: Path) -> int:
    """The number of values of what `module:function` returns: a torch module, a dict or list of arrays, an ArrayRecord.

    The module is looked for in `folder` too. It is the app's own code, so this runs it.
    """
    find_modules([str(folder)])
    return _size(imported(path, "--model")(), path)


def _size(model: Any, path: str) -> int:
    if hasattr(model, "state_dict"):
        model = model.state_dict()
    arrays = list(model.values()) if isinstance(model, Mapping) else model
    try:
        return sum(int(np.prod(array.shape)) for array in arrays)
    except (AttributeError, TypeError):
        raise ConfigError(
            f"--model: expected a torch module, an ArrayRecord, or a dict or list of arrays from {path}(), got "
            f"{type(model).__name__}; or give --parameters"
        ) from None
