"""The sum or mean of a list of vectors, with real secure aggregation, in one call."""

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.agreement.plan import Plan
from secagg.errors import TooFewSurvivors, UsageError
from secagg.exposure import Policy, Schedule
from secagg.protocol.result import Result, Stage
from secagg.simulation.run import make_identities, make_roster, run

Array = npt.NDArray[Any]
Limits = Mapping[str, int | None]  # threshold and colluders
Value = npt.ArrayLike | Mapping[str, npt.ArrayLike]


def secure_sum(
    vectors: Sequence[Value],
    *,
    threshold: int | None = None,
    colluders: int | None = None,
    anonymity: int = 3,
    drop: Collection[int] | Mapping[int, Stage] = (),
    clip: float | None = None,
) -> Any:
    """The sum of the survivors' vectors, as the server of a real run would learn it.

    Integers are summed exactly. Floats are encoded in fixed point: `clip` (by default the largest magnitude,
    rounded up to a power of two) sets range and resolution. A dict of arrays gives a dict of arrays. The sum
    is opened only if it has at least `anonymity` clients: from a sum of two, each learns the other's vector.
    `drop` lists positions of vectors; their clients drop out after sharing keys, or at the given stage.

    >>> secure_sum([{"w": [0.5, 1.0]}, {"w": [0.25, 2.0]}, {"w": [0.0, 1.0]}])["w"]
    array([0.75, 4.  ], dtype=float32)
    """
    return _aggregate(vectors, Result.sum, anonymity, drop, clip, threshold=threshold, colluders=colluders)


def secure_mean(
    vectors: Sequence[Value],
    *,
    threshold: int | None = None,
    colluders: int | None = None,
    anonymity: int = 3,
    drop: Collection[int] | Mapping[int, Stage] = (),
    clip: float | None = None,
) -> Any:
    """The same as `secure_sum`, divided by the number of survivors.

    >>> secure_mean([[1, 2], [3, 4], [5, 6]])
    array([3., 4.])
    """
    return _aggregate(vectors, Result.mean, anonymity, drop, clip, threshold=threshold, colluders=colluders)


def _aggregate(
    vectors: Sequence[Value],
    outcome: Callable[[Result], Array],
    anonymity: int,
    drop: Collection[int] | Mapping[int, Stage],
    clip: float | None,
    **limits: int | None,
) -> Any:
    vectors = list(vectors)
    if len(vectors) < anonymity:
        raise UsageError(f"anonymity {anonymity} needs at least {anonymity} vectors, not {len(vectors)}")
    stages = drop if isinstance(drop, Mapping) else dict.fromkeys(drop, Stage.INPUTS)
    named = [v if isinstance(v, Mapping) else {"": v} for v in vectors]
    leaves = [{name: _array(value) for name, value in vector.items()} for vector in named]
    shapes = [{name: leaf.shape for name, leaf in vector.items()} for vector in leaves]
    for place, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise UsageError(f"vector {place} has shape {shape}, but vector 0 has {shapes[0]}")
    exact = {name: all(np.issubdtype(v[name].dtype, np.integer) for v in leaves) for name in leaves[0]}
    out: dict[str, Array] = {}
    for kind in sorted(set(exact.values())):
        names = [name for name in leaves[0] if exact[name] is kind]
        flat = [np.concatenate([vector[name].ravel() for name in names]) for vector in leaves]
        if flat[0].size == 0:
            raise UsageError("the vectors are empty; give at least one number each")
        total = outcome(_run_flat(flat, kind, anonymity, stages, clip, limits))
        ends = np.cumsum([leaves[0][name].size for name in names])
        for name, part in zip(names, np.split(total, ends[:-1]), strict=True):
            out[name] = part.reshape(leaves[0][name].shape)
    return {name: out[name] for name in leaves[0]} if isinstance(vectors[0], Mapping) else out[""]


def _array(value: npt.ArrayLike) -> Array:
    array = np.asarray(value)
    if array.dtype == np.bool_:
        return array.astype(np.uint8)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _run_flat(
    flat: Sequence[Array], exact: bool, anonymity: int, drop: Mapping[int, Stage], clip: float | None, limits: Limits
) -> Result:
    largest = max(float(np.max(np.abs(vector.astype(np.float64)))) for vector in flat)
    if not math.isfinite(largest):
        raise UsageError("a vector contains NaN or infinity")
    identities = make_identities(range(len(flat)))
    plan = Plan(
        training_id=os.urandom(32),
        round=0,
        roster=make_roster(identities),
        length=len(flat[0]),
        schedule=Schedule(name="random", size=len(flat)),
        training_seed=os.urandom(32),
        threshold=limits["threshold"],
        colluders=limits["colluders"],
        policy=Policy(anonymity=anonymity),
        bound=max(int(largest), 1) if exact else None,
        clip=None if exact else clip if clip is not None else 2.0 ** math.ceil(math.log2(largest or 1.0)),
    )
    result = run(plan, dict(enumerate(flat)), identities, drop=drop)
    if not result.groups:
        raise TooFewSurvivors(f"the sum stays hidden: {next(iter(result.closed.values()))}")
    return result
