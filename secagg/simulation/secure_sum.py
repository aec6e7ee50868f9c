"""For the impatient: the sum or mean of a list of vectors, under real secure aggregation, in one call."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from secagg.errors import TooFewSurvivors, UsageError
from secagg.exposure.audit import Policy
from secagg.exposure.schedules import Schedule
from secagg.protocol.plan import Plan
from secagg.protocol.result import Result, Stage
from secagg.simulation.run import make_identities, make_roster, run

Array = npt.NDArray[Any]
Value = npt.ArrayLike | Mapping[str, npt.ArrayLike]
V = TypeVar("V", bound=Value)


def secure_sum(
    vectors: Sequence[Value],
    *,
    threshold: int | None = None,
    colluders: int | None = None,
    anonymity: int = 3,
    drop: Collection[int] | Mapping[int, Stage] = (),
    clip: float | None = None,
) -> Any:
    """The sum of the vectors of those who stay, as the server of a real run would learn it.

    Integers are summed exactly. Floats go through fixed point: `clip` (by default the largest magnitude,
    rounded up to a power of two) sets range and resolution. A dict of arrays gives a dict of arrays. The sum
    is opened only if at least `anonymity` clients are in it: a sum of two tells each of them the other's.
    `drop` names vectors by position; their clients leave after sharing keys, or at the stage given.
    """
    return _aggregate(list(vectors), threshold, colluders, anonymity, drop, clip, Result.sum)


def secure_mean(
    vectors: Sequence[Value],
    *,
    threshold: int | None = None,
    colluders: int | None = None,
    anonymity: int = 3,
    drop: Collection[int] | Mapping[int, Stage] = (),
    clip: float | None = None,
) -> Any:
    """As `secure_sum`, divided by the number of those who stay."""
    return _aggregate(list(vectors), threshold, colluders, anonymity, drop, clip, Result.mean)


def _aggregate(
    vectors: Sequence[Value],
    threshold: int | None,
    colluders: int | None,
    anonymity: int,
    drop: Collection[int] | Mapping[int, Stage],
    clip: float | None,
    outcome: Any,
) -> Any:
    if len(vectors) < anonymity:
        raise UsageError(
            f"{len(vectors)} vectors cannot hide among {anonymity}; give more, or a lower anonymity"
        )
    stages = drop if isinstance(drop, Mapping) else dict.fromkeys(drop, Stage.INPUTS)
    named = [v if isinstance(v, Mapping) else {"": v} for v in vectors]
    leaves = [{name: _array(value) for name, value in vector.items()} for vector in named]
    shapes = [{name: leaf.shape for name, leaf in vector.items()} for vector in leaves]
    for place, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise UsageError(f"vector {place} has shape {shape}, vector 0 has {shapes[0]}")
    exact = {
        name: all(np.issubdtype(vector[name].dtype, np.integer) for vector in leaves) for name in leaves[0]
    }
    out: dict[str, Array] = {}
    for kind in sorted(set(exact.values())):
        names = [name for name in leaves[0] if exact[name] is kind]
        flat = [np.concatenate([vector[name].ravel() for name in names]) for vector in leaves]
        if flat[0].size == 0:
            raise UsageError("there is nothing to sum: the vectors are empty")
        result = _run_flat(flat, kind, threshold, colluders, anonymity, stages, clip)
        total = outcome(result)
        start = 0
        for name in names:
            size = leaves[0][name].size
            out[name] = total[start : start + size].reshape(leaves[0][name].shape)
            start += size
    return {name: out[name] for name in leaves[0]} if isinstance(vectors[0], Mapping) else out[""]


def _array(value: npt.ArrayLike) -> Array:
    array = np.asarray(value)
    if array.dtype == np.bool_:
        return array.astype(np.uint8)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _run_flat(
    flat: Sequence[Array],
    exact: bool,
    threshold: int | None,
    colluders: int | None,
    anonymity: int,
    drop: Mapping[int, Stage],
    clip: float | None,
) -> Result:
    largest = max(float(np.max(np.abs(vector.astype(np.float64)))) for vector in flat)
    if not math.isfinite(largest):
        raise UsageError("a vector holds NaN or infinity")
    identities = make_identities(range(len(flat)))
    plan = Plan(
        training_id=os.urandom(32),
        round=0,
        roster=make_roster(identities),
        length=len(flat[0]),
        schedule=Schedule(name="random", size=len(flat)),
        training_seed=os.urandom(32),
        threshold=threshold,
        colluders=colluders,
        policy=Policy(anonymity=anonymity),
        bound=max(int(largest), 1) if exact else None,
        clip=None if exact else clip if clip is not None else 2.0 ** math.ceil(math.log2(largest or 1.0)),
    )
    result = run(plan, dict(enumerate(flat)), identities, drop=drop)
    if not result.rows:
        raise TooFewSurvivors(f"the sum stays hidden: {next(iter(result.closed.values()))}")
    return result
