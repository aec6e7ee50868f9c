"""The sum or mean of a list of vectors, with real secure aggregation, in one call."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.agreement.terms import Terms
from secagg.arguments import ids, whole
from secagg.crypto.arrays import Array, labels_of, plain_array
from secagg.crypto.fixedpoint import LEAST_CLIP
from secagg.crypto.segments import Segment
from secagg.errors import TooFewSurvivors, UsageError
from secagg.exposure import Policy, Schedule
from secagg.protocol.result import Result, Stage
from secagg.simulation.agree import agree_on
from secagg.simulation.run import make_identities, make_roster, run

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
    rounded up to a power of two) sets range and resolution. A dict of arrays gives a dict of arrays, and each entry
    has its own range. Sums of floats are float64. LossWarning tells what was clipped or too small.

    The sum is opened only if it has at least `anonymity` clients: from a sum of two, each learns the other's vector.
    `drop` lists positions of vectors; their clients drop out after sharing keys, or at the given stage.

    >>> secure_sum([{"w": [0.5, 1e6], "n": 2}, {"w": [0.25, 2.0], "n": 3}, {"w": [0.0, 1.0], "n": 5}])
    {'w': array([7.500000e-01, 1.000003e+06]), 'n': array(10)}
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
    outcome: Callable[[Result], Any],
    anonymity: int,
    drop: Collection[int] | Mapping[int, Stage],
    clip: float | None,
    **limits: Any,
) -> Any:
    if isinstance(vectors, (str, bytes, Mapping)) or not isinstance(vectors, Iterable):
        raise UsageError(f"vectors: expected a sequence with one vector per client, got {type(vectors).__name__}")
    vectors, anonymity = list(vectors), whole("anonymity", anonymity, 2)
    dropouts = ids("drop", drop, range(len(vectors)))
    if len(vectors) < anonymity:
        raise UsageError(f"anonymity {anonymity} needs at least {anonymity} vectors, not {len(vectors)}")
    entries = _entries(vectors)
    segments = tuple(_segment(name, [vector[name] for vector in entries], clip) for name in entries[0])
    identities = make_identities(range(len(vectors)))
    terms = Terms(
        name="secure sum",
        members=make_roster(identities),
        segments=segments,
        schedule=Schedule(name="fixed", size=len(vectors)),
        last_round=0,
        groups="survivors",
        policy=Policy(anonymity=anonymity),
        threshold=limits["threshold"],
        colluders=limits["colluders"],
    )
    inputs = {place: vector if terms.encoding.named else vector[""] for place, vector in enumerate(entries)}
    stages = drop if isinstance(drop, Mapping) else dict.fromkeys(dropouts, Stage.INPUTS)
    result = run(agree_on(terms, identities), inputs, identities, drop=stages)
    if not result.groups:
        raise TooFewSurvivors(f"the sum stays hidden: {next(iter(result.closed.values()))}")
    return outcome(result)


def _entries(vectors: Sequence[Value]) -> list[dict[str, Array]]:
    """The arrays of every vector by name ("" for a single one), checked against those of the first vector."""
    for place, vector in enumerate(vectors):
        if isinstance(vector, Mapping) is not isinstance(vectors[0], Mapping):
            raise UsageError(f"vector {place}: expected all vectors to be dicts, or none, but vector 0 differs")
        if isinstance(vector, Mapping) and not (vector and all(isinstance(name, str) and name for name in vector)):
            raise UsageError(f"vector {place}: expected a dict with text as names, got {list(vector)}")
    named = [vector if isinstance(vector, Mapping) else {"": vector} for vector in vectors]
    entries = []
    for place, vector in enumerate(named):
        _check_labels(place, vector, named[0])
        what = {name: f"vector {place}" + f", entry {name!r}" * bool(name) for name in vector}
        entries.append({name: plain_array(value, what[name], labelled=True) for name, value in vector.items()})
        shapes, first = ({name: array.shape for name, array in of.items()} for of in (entries[place], entries[0]))
        if shapes != first:
            raise UsageError(f"vector {place} has shape {shapes}, but vector 0 has {first}")
    for name, array in entries[0].items():
        if array.size == 0:
            raise UsageError(
                f"the vectors are empty{f' in entry {name!r}' * bool(name)}; give at least one number each"
            )
    return entries


def _check_labels(place: int, vector: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Refuse Series and DataFrames whose labels differ from those of the first vector: rows are added by position."""
    for name in vector.keys() & first.keys():
        mine, theirs = labels_of(vector[name]), labels_of(first[name])
        # audit: labels-compared
        if len(mine) != len(theirs) or not all(map(np.array_equal, mine, theirs)):
            raise UsageError(
                f"vector {place} has other row or column labels than vector 0, but rows are added by position; "
                "reindex them all in the same way"
            )


def _segment(name: str, arrays: Sequence[Array], clip: float | None) -> Segment:
    """An entry's own range: the largest magnitude among all vectors, for floats rounded up to a power of two."""
    shape = arrays[0].shape
    if all(array.dtype.kind in "iu" for array in arrays):
        largest = max(max(int(array.max()), -int(array.min())) for array in arrays)
        return Segment(name=name, shape=shape, bound=max(largest, 1))
    magnitude = max(max(float(array.max()), -float(array.min())) for array in arrays)
    if not all(np.isfinite(array).all() for array in arrays):
        raise UsageError(f"{f'entry {name!r}: ' * bool(name)}a vector contains NaN or infinity")
    return Segment(name=name, shape=shape, clip=_power_of_two(magnitude) if clip is None else clip)


def _power_of_two(magnitude: float) -> float:
    """The least power of two that is not smaller, within what an encoding allows; 1 for zero."""
    fraction, exponent = math.frexp(magnitude or 1.0)
    return max(math.ldexp(1.0, exponent - (fraction == 0.5)), LEAST_CLIP)
