"""What an app's replies are as the vector of an agreement, and back.

The vector has a segment `update` (all arrays one after the other, by name: new minus received), one segment for each
metric of training (`train/NAME`) and one for each metric of evaluation (`evaluate/NAME`). A reply to a request to train
has zeros for the metrics of evaluation; a reply to a request to evaluate has zeros for everything else.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fl.errors import ConfigError
from fl.flower.node import MistakeError, RefusedError
from secagg import Terms
from secagg.crypto import FixedPoint, Segment

UPDATE: Final = "update"
TRAIN, EVALUATE = KINDS = ("train", "evaluate")
LISTED: Final = re.compile(r"(.+)\[([1-9][0-9]{0,5})\]")  # a metric that is a list of so many numbers
Flat = NDArray[np.floating[Any]]


def segments_of(
    parameters: int, *, clip: float, train: Mapping[str, float], evaluate: Mapping[str, float]
) -> tuple[Segment, ...]:
    """The segments of an agreement for a model with so many values. Metrics come with their largest absolute value.

    A metric that is a list of three numbers is named `NAME[3]`.

    >>> from fl.flower.apps.vectors import segments_of
    >>> [(s.name, s.shape) for s in segments_of(10, clip=1.0, train={"loss": 20.0}, evaluate={"per-class[3]": 1.0})]
    [('update', (10,)), ('train/loss', ()), ('evaluate/per-class', (3,))]
    """
    metrics = [(TRAIN, name, most) for name, most in train.items()]
    metrics += [(EVALUATE, name, most) for name, most in evaluate.items()]
    found = [Segment(name=UPDATE, shape=(parameters,), clip=clip)]
    for kind, name, most in metrics:
        listed = LISTED.fullmatch(name)
        shape = (int(listed[2]),) if listed else ()
        found.append(Segment(name=f"{kind}/{listed[1] if listed else name}", shape=shape, clip=most))
    return tuple(found)


def check_terms(terms: Terms) -> None:
    """ConfigError unless these are terms for an app, as `share flower propose` writes them."""
    first, *rest = terms.segments
    known = all(segment.name.partition("/")[0] in KINDS and len(segment.shape) < 2 for segment in rest)
    if first.name != UPDATE or len(first.shape) != 1 or not known:
        raise ConfigError(
            f"the agreement {terms.name!r} is not for an app: expected a segment {UPDATE!r} and metrics named "
            f"{TRAIN}/NAME or {EVALUATE}/NAME; `share flower propose` writes such an agreement"
        )


def metric_names(terms: Terms, kind: str) -> tuple[str, ...]:
    """The metrics that the agreement has for this kind of request."""
    found = (segment.name.partition("/") for segment in terms.segments)
    return tuple(name for before, _, name in found if before == kind and name)


def flatten(arrays: ArrayRecord) -> Flat:
    """All values, by the names of their arrays. float32 where every array is of that type, float64 otherwise."""
    parts = [arrays[name].numpy().reshape(-1) for name in sorted(arrays)]
    single = all(part.dtype == np.float32 for part in parts)
    return np.concatenate(parts, dtype=np.float32 if single else np.float64) if parts else np.empty(0, np.float32)


def moved(arrays: ArrayRecord, update: Flat) -> ArrayRecord:
    """The arrays plus an update. Whole numbers, such as counters of batches, are rounded."""
    start, found = 0, {}
    for name in sorted(arrays):
        before = arrays[name].numpy()
        after = before.astype(np.float64) + update[start : start + before.size].reshape(before.shape)
        start += before.size
        rounded = np.rint(after) if before.dtype.kind in "iu" else after
        found[name] = Array(np.asarray(rounded).astype(before.dtype))
    return ArrayRecord({name: found[name] for name in arrays})


def entry_of(
    terms: Terms, weight: float, kind: str, given: ArrayRecord, reply: RecordDict, skip: str
) -> dict[str, Any]:
    """What a member gives to the secure sum for the reply of its app. RefusedError names what does not fit.

    `skip` is the metric that Flower's strategies weigh by: the agreement fixes the weights, so it is not sent.
    """
    length = terms.segments[0].length
    update: Flat = np.zeros(length, np.float32)
    if kind == TRAIN:
        update = _difference(given, reply, length)
    elif reply.array_records:
        raise MistakeError("the app returned arrays for a request to evaluate; return metrics only")
    if reply.config_records:
        raise MistakeError("the app returned a ConfigRecord, which cannot be summed; return arrays and metrics only")
    metrics = _metrics(terms, kind, reply, skip)
    entry: dict[str, Any] = {}
    for segment, encoding in zip(terms.segments, terms.encoding.encodings, strict=True):
        assert isinstance(encoding, FixedPoint)
        value = update if segment.name == UPDATE else metrics.get(segment.name, np.zeros(segment.shape))
        if not np.isfinite(value).all():
            raise RefusedError(f"its {segment.name} has a value that is not finite")
        largest = float(np.max(np.abs(value), initial=0.0)) * weight
        entry[segment.name] = value if largest * encoding.scale > 0.5 else np.zeros_like(value)
    return entry


def _difference(given: ArrayRecord, reply: RecordDict, length: int) -> Flat:
    if len(reply.array_records) != 1:
        raise MistakeError(f"expected one ArrayRecord from the app, got {len(reply.array_records)}")
    (after,) = reply.array_records.values()
    shapes = [{name: tuple(array.shape) for name, array in arrays.items()} for arrays in (given, after)]
    if shapes[0] != shapes[1]:
        names = sorted(set(shapes[0].items()) ^ set(shapes[1].items()))
        raise MistakeError(f"the app returned other arrays than it got: {names[0][0]} has another shape or is missing")
    before, now = flatten(given), flatten(after)
    if len(now) != length:
        raise MistakeError(f"the model has {len(now)} values, but the agreement has {length}")
    return np.asarray(now - before)


def _metrics(terms: Terms, kind: str, reply: RecordDict, skip: str) -> dict[str, Flat]:
    found: dict[str, Flat] = {}
    for record in reply.metric_records.values():
        found |= {f"{kind}/{name}": np.asarray(value, np.float64) for name, value in record.items() if name != skip}
    shapes = {one.name: one.shape for one in terms.segments if one.name.startswith(f"{kind}/")}
    for name in sorted(shapes.keys() | found.keys()):
        if name not in shapes:
            what = "the agreement has no such metric"
        elif name not in found:
            what = "the app did not return it"
        elif found[name].shape != shapes[name]:
            what = f"the app returned {_numbers(found[name].shape)}, the agreement has {_numbers(shapes[name])}"
        else:
            continue
        raise MistakeError(f"{name}: {what}; the app's metrics and the agreement's must be the same")
    return found


def _numbers(shape: tuple[int, ...]) -> str:
    return f"a list of {shape[0]} numbers" if shape else "a number"


def metrics_of(terms: Terms, kind: str, row: Flat) -> dict[str, float | list[float]]:
    """The metrics of this kind of request in a decoded vector."""
    start, found = 0, {}
    for segment in terms.segments:
        if segment.name.startswith(f"{kind}/"):
            values = row[start : start + segment.length].tolist()
            found[segment.name.partition("/")[2]] = values if segment.shape else values[0]
        start += segment.length
    return found


def reply_of(
    arrays: ArrayRecord | None, metrics: Mapping[str, float | list[float]], weight: float, weighted_by: str
) -> RecordDict:
    """The sum of a group as a strategy expects the reply of one node."""
    record = MetricRecord({**metrics, weighted_by: weight})
    return RecordDict({"metrics": record} if arrays is None else {"arrays": arrays, "metrics": record})
