"""Vectors with parts of their own: each segment has a name, a shape, and a clip (floats) or a bound (integers).

So that 1e6 in one entry and 1e-3 in another survive the same sum. What an entry loses is told to the client that
encodes it, before anything is sent.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.arguments import each, real, whole
from secagg.crypto.arrays import Array, plain_array
from secagg.crypto.clipping import SegmentNoise, draw_noise, encode_clipped
from secagg.crypto.fixedpoint import Encoding, FixedPoint, Integers, checked_total, encode_floats, target
from secagg.errors import EntryVanished, LossWarning, UsageError
from secagg.types import Entropy, Ring32

MOST_LENGTH: Final = 2**31 - 1
MOST_NAME: Final = 200
MANY: Final = 100  # one vanished value among this many is told

Update = npt.ArrayLike | Mapping[str, npt.ArrayLike]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of a vector. Give exactly one of `clip` (floats in fixed point) and `bound` (exact integers).

    >>> Segment(name="weights", shape=(3, 4), clip=1.0).length
    12
    """

    shape: tuple[int, ...]
    name: str = ""
    clip: float | None = None
    bound: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or len(self.name) > MOST_NAME or not self.name.isprintable():
            raise UsageError(f"name of a segment: expected at most {MOST_NAME} printable characters, got {self.name!r}")
        where = f"segment {self.name!r}: shape"
        object.__setattr__(self, "shape", tuple(whole(where, side) for side in each(where, self.shape, object)))
        if not all(side >= 1 for side in self.shape) or self.length > MOST_LENGTH:
            raise UsageError(f"segment {self.name!r}: expected 1 to {MOST_LENGTH} values, got shape {self.shape}")
        if (self.clip is None) == (self.bound is None):
            raise UsageError(f"segment {self.name!r}: give either clip (for floats) or bound (for integers)")
        if self.clip is not None:
            object.__setattr__(self, "clip", real(f"segment {self.name!r}: clip", self.clip))
        else:
            object.__setattr__(self, "bound", whole(f"segment {self.name!r}: bound", self.bound))

    @property
    def length(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one entry lost: of its `values`, how many were `clipped` and how many `vanished`, that is became zero.

    >>> Loss(name="bias", values=10, clipped=2, vanished=0).clipped
    2
    """

    name: str
    values: int
    clipped: int
    vanished: int


@dataclass(frozen=True, slots=True)
class Losses:
    """What an update lost when it was encoded, entry by entry. Do not send it: it says something of the update.

    >>> _, losses = Segments(clients=3, segments=(Segment(shape=(2,), clip=8.0),)).encode([1.0, 2.0])
    >>> losses.clipped, losses.vanished, losses.entries[0].values
    (0, 0, 2)
    """

    entries: tuple[Loss, ...]

    @property
    def clipped(self) -> int:
        return sum(entry.clipped for entry in self.entries)

    @property
    def vanished(self) -> int:
        return sum(entry.vanished for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """The encoding of a vector in segments, for sums of at most `clients` updates.

    An update is a dict with one array per segment, or an array for a single segment without a name. Floats are
    multiplied by the client's weight; integers never are. With `noise`, one for each segment, an update is clipped to
    a norm, rounded toward zero, and `draw_noise` gives what is to be added to it.

    >>> import numpy as np
    >>> parts = (Segment(name="income", shape=(2,), clip=2.0**20), Segment(name="dose", shape=(1,), clip=2.0**-9),
    ...          Segment(name="cases", shape=(), bound=1000))
    >>> encoding = Segments(clients=4, segments=parts)
    >>> encoded, losses = encoding.encode({"income": [1e6, 3.5], "dose": [2.0**-10], "cases": 7})
    >>> encoding.decode(encoded + encoded)
    {'income': array([2.e+06, 7.e+00]), 'dose': array([0.00195312]), 'cases': array(14)}
    """

    clients: int
    segments: tuple[Segment, ...]
    noise: tuple[SegmentNoise, ...] = ()
    encodings: tuple[Encoding, ...] = field(init=False, repr=False, compare=False)
    length: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        segments = each("segments", self.segments, Segment)
        if not segments:
            raise UsageError("segments: expected at least one Segment, got none")
        names = [segment.name for segment in segments]
        if len(set(names)) < len(names) or (len(names) > 1 and "" in names):
            raise UsageError(f"segments: expected a different name for each, got {names}")
        length = sum(segment.length for segment in segments)
        if length > MOST_LENGTH:
            raise UsageError(f"segments: at most {MOST_LENGTH} values together, got {length}")
        noise = each("noise", self.noise, SegmentNoise)
        if noise and len(noise) != len(segments):
            raise UsageError(
                f"noise: expected one clip and sigma for each of {len(segments)} segments, got {len(noise)}"
            )
        object.__setattr__(self, "segments", segments)
        object.__setattr__(self, "noise", noise)
        object.__setattr__(self, "length", length)
        object.__setattr__(self, "encodings", tuple(map(self._encoding, segments)))

    def _encoding(self, segment: Segment) -> Encoding:
        """The encoding of one segment; UsageError if the sum of `clients` of them could wrap."""
        try:
            if segment.clip is not None:
                return FixedPoint(clients=self.clients, clip=segment.clip)
            assert segment.bound is not None
            return Integers(clients=self.clients, bound=segment.bound)
        except UsageError as error:
            raise UsageError(f"{_called(segment)}{error}") from None

    def _check_noise(self) -> None:
        if not self.noise:
            raise UsageError("these segments have no noise")

    def draw_noise(self, entropy: Entropy, threads: int | None = None) -> Ring32:
        """Noise for one update, to be added modulo 2^32. Its time depends on it: draw it before it is asked for."""
        self._check_noise()
        lengths = [segment.length for segment in self.segments]
        return draw_noise(list(zip(lengths, (one.sigma for one in self.noise), strict=True)), entropy, threads)

    def norms(self, weight: float) -> tuple[int, ...]:
        """The largest norm of each encoded segment, in steps of its grid; with noise."""
        self._check_noise()
        return tuple(one.steps(part, weight) for one, part in zip(self.noise, self.encodings, strict=True))

    def reach(self, members: int) -> tuple[int, ...]:
        """What the sum of this many honest members does not exceed, for each segment."""
        members = whole("members", members, 0)
        if not self.noise:
            return tuple(members * part.largest for part in self.encodings)
        return tuple(one.reach(part, members) for one, part in zip(self.noise, self.encodings, strict=True))

    @property
    def named(self) -> bool:
        """Whether an update is a dict; otherwise it is one array."""
        return bool(self.segments[0].name)

    def _parts(self) -> Iterator[tuple[Segment, Encoding, slice]]:
        start = 0
        for segment, encoding in zip(self.segments, self.encodings, strict=True):
            yield segment, encoding, slice(start, start + segment.length)
            start += segment.length

    def encode(self, update: Update, *, weight: float = 1.0, out: Ring32 | None = None) -> tuple[Ring32, Losses]:
        """The code of an update, and what it lost.

        LossWarning names each entry that lost something: values that were clipped, or a hundredth or more of its
        nonzero values that became zero. (A value that becomes zero errs by half a step at most, as every value
        does.) EntryVanished if all nonzero values of an entry became zero. An entry that is clipped as a whole is no
        error: it still counts, with the clip. After an error `out` is all zero.
        """
        values = self._entries(update)
        encoded = target(out, self.length, np.uint32)
        found = []
        try:
            norms = self.norms(weight) if self.noise else (None,) * len(self.segments)
            for value, norm, (segment, encoding, part) in zip(values, norms, self._parts(), strict=True):
                found.append(_encode(value, segment, encoding, weight, norm, encoded[part]))
        except UsageError:
            encoded[:] = 0
            raise
        return encoded, Losses(tuple(found))

    def _entries(self, update: Update) -> Iterator[Array]:
        """The arrays of the update in the order of the segments, each checked when it is asked for."""
        if self.named:
            if not isinstance(update, Mapping):
                raise UsageError(
                    f"update: expected a dict with the entries {self._names()}, got {type(update).__name__}"
                )
            wanted = {segment.name for segment in self.segments}
            if update.keys() != wanted:
                extra = sorted(map(str, update.keys() - wanted))
                raise UsageError(f"update: missing entries {sorted(wanted - update.keys())}, unknown entries {extra}")
            entries: Mapping[str, npt.ArrayLike] = update
        elif isinstance(update, Mapping):
            raise UsageError(f"update: expected one array of shape {self.segments[0].shape}, got a dict")
        else:
            entries = {"": update}
        for segment in self.segments:
            value = plain_array(entries[segment.name], _called(segment).removesuffix(": ") or "update")
            if value.shape != segment.shape:
                raise UsageError(
                    f"{_called(segment)}the update has shape {value.shape}, the agreed shape is {segment.shape}"
                )
            yield value

    def _names(self) -> list[str]:
        return [segment.name for segment in self.segments]

    def decode(
        self,
        total: Ring32,
        *,
        divisor: float = 1.0,
        count: float | None = None,
        out: npt.NDArray[np.floating[Any]] | None = None,
    ) -> Any:
        """The sums that a total encodes, as a dict for named segments: floats in float64, integers in int64.

        For means, `divisor` is the sum of the clients' weights, and `count` their number: integers are not weighted
        and are divided by it, in float64. With `out`, a flat vector of float32 or float64, all values are written
        there, one segment after the other, and `out` is returned.
        """
        total = checked_total(total)
        if len(total) != self.length:
            raise UsageError(f"a total of {self.length} values is expected, not {len(total)}")
        if count is None and divisor != 1 and any(isinstance(encoding, Integers) for encoding in self.encodings):
            raise UsageError("for a mean of integers give count, the number of clients: they are not weighted")
        if count is not None and not 0 < real("count", count) < math.inf:
            raise UsageError(f"count is a positive number of clients, not {count}")
        if out is not None:
            single = getattr(out, "dtype", None) == np.float32
            out = target(out, self.length, np.float32 if single else np.float64)
        decoded = {}
        for segment, encoding, part in self._parts():
            if isinstance(encoding, FixedPoint):
                values: Array = encoding.decode(total[part], divisor=divisor, out=None if out is None else out[part])
            else:
                sums = encoding.decode(total[part])
                values = sums if count is None else sums / count
                if out is not None:
                    out[part] = values
            if out is None:
                decoded[segment.name] = values.reshape(segment.shape)
        if out is not None:
            return out
        return decoded if self.named else decoded[""]


def _encode(value: Array, segment: Segment, encoding: Encoding, weight: float, norm: int | None, out: Ring32) -> Loss:
    """Encode one entry into `out` and tell what it lost."""
    flat = value.reshape(-1)
    clipped = vanished = zeros = 0
    try:
        if norm is not None:
            if isinstance(encoding, Integers) and flat.dtype.kind not in "iu":
                raise UsageError(f"integers are expected, not {flat.dtype}")
            clipped, vanished = encode_clipped(flat, encoding, weight, norm, out)
            return Loss(name=segment.name, values=len(out), clipped=clipped, vanished=vanished)
        if isinstance(encoding, Integers):
            encoding.encode(flat, out=out)
        else:
            flat = flat if flat.dtype.kind == "f" else flat.astype(np.float64)  # whole numbers
            clipped, vanished, zeros = encode_floats(encoding, flat, weight, out)
    except UsageError as error:
        raise UsageError(f"{_called(segment)}{error}") from None
    nonzero = len(out) - zeros
    if vanished and vanished == nonzero:  # audit: vanished-entry-refused
        raise EntryVanished(
            f"{_called(segment)}all values are smaller than half a step and would become zero; use a smaller clip than "
            f"{segment.clip:g}, or give zeros"
        )
    told = []
    if clipped:
        told.append(f"{clipped} of {len(out)} values were clipped to ±{segment.clip:g} (a larger clip would keep them)")
    if vanished and vanished * MANY >= nonzero:
        told.append(f"{vanished} of {len(out)} values became zero (a smaller clip would keep them)")
    if told:
        warnings.warn(_called(segment) + ", ".join(told), LossWarning, stacklevel=3)
    return Loss(name=segment.name, values=len(out), clipped=clipped, vanished=vanished)


def _called(segment: Segment) -> str:
    return f"entry {segment.name!r}: " if segment.name else ""
