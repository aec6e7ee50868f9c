"""The section `noise` of an agreement: the norm that updates are clipped to, and how much noise each client adds.

Noise is added by each client to its own encoded update, once, the same in all groupings. `sigma` counts steps of the
grid, so the grid is part of the promise: for floats it follows from the segment's clip (its range) and the group size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from secagg.agreement.layout import MOST_SEGMENTS
from secagg.agreement.section import Section
from secagg.agreement.table import Table, show
from secagg.arguments import MOST_ID, each, settle, whole
from secagg.codec import U32, Float, Many, Struct
from secagg.crypto.clipping import SegmentNoise
from secagg.crypto.noise import MOST_SIGMA
from secagg.crypto.segments import Segments
from secagg.errors import UsageError, WireError


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise that every client of an agreement adds, one `SegmentNoise` for each segment.

    `colluders` is the number of clients that may share their noise with the server, or add none: what a round costs is
    counted without theirs.

    >>> from secagg.crypto import SegmentNoise
    >>> Noise(segments=(SegmentNoise(clip=1.0, sigma=1000),), colluders=1).colluders
    1
    """

    segments: tuple[SegmentNoise, ...]
    colluders: int = 0

    def __post_init__(self) -> None:
        settle(self, each, "segments", kind=SegmentNoise)
        settle(self, whole, "colluders", least=0, most=MOST_ID)
        if not 1 <= len(self.segments) <= MOST_SEGMENTS:
            raise UsageError(f"noise: expected a clip and a sigma for each segment, got {len(self.segments)}")

    def check(self, encoding: Segments, weights: tuple[float, ...], members: int, sums: int) -> None:
        """UsageError unless every member's clip is at least a step, and sums have room for the noise in the ring.

        `weights` are the members' relative weights, `sums` the number of sums of the agreement.
        """
        if self.colluders >= members:
            raise UsageError(
                f"noise.colluders: expected at most {members - 1}, all members but one, got {self.colluders}"
            )
        parts = zip(encoding.segments, encoding.encodings, self.segments, strict=True)
        for segment, part, noise in parts:
            name = f"segment {segment.name!r}: " if segment.name else ""
            if noise.steps(part, min(weights)) < 1:  # audit: clip-of-a-step
                raise UsageError(
                    f"noise: {name}the clip {noise.clip:g} is smaller than a step of the grid for some member; use a "
                    "larger one, or a smaller clip of the segment (its grid is then finer)"
                )
            try:
                noise.check_room(part, max(weights), sums * segment.length)
            except UsageError as bad:
                raise UsageError(f"{name}{bad}") from None


# --- bytes and file ----------------------------------------------------------------------------------------

_LAYOUT: Final = Struct(
    dict,
    (("colluders", U32), ("segments", Many(Struct(dict, (("clip", Float()), ("sigma", U32))), MOST_SEGMENTS))),
)


def _flat(value: Noise) -> dict[str, Any]:
    segments = tuple({"clip": one.clip, "sigma": one.sigma} for one in value.segments)
    return {"colluders": value.colluders, "segments": segments}


def _build(values: Mapping[str, Any]) -> Noise:
    try:
        return Noise(segments=tuple(SegmentNoise(**one) for one in values["segments"]), colluders=values["colluders"])
    except UsageError as bad:
        raise WireError(f"noise that cannot be kept: {bad}") from None


def _read(values: object) -> Noise:
    table = Table(values, "noise", ("clip", "sigma", "colluders"))
    clips, sigmas = _each(table, "clip"), _each(table, "sigma")
    if len(clips) != len(sigmas):
        raise UsageError(f"noise: expected as many clips as sigmas, got {len(clips)} and {len(sigmas)}")
    rows = [
        Table({"clip": c, "sigma": s}, f"noise[{i}]", ("clip", "sigma"))
        for i, (c, s) in enumerate(zip(clips, sigmas, strict=True))
    ]
    return Noise(
        segments=tuple(
            SegmentNoise(clip=row.number("clip"), sigma=row.whole("sigma", most=MOST_SIGMA)) for row in rows
        ),
        colluders=table.whole("colluders", most=MOST_ID),
    )


def _each(table: Table, key: str) -> list[Any]:
    """One value for [vector], or a list with one for each of [[segments]]."""
    value = table.raw(key)
    if value is None:
        raise UsageError(
            f"{table.path(key)}: expected a number, or a list with one for each segment, but the key is missing"
        )
    if isinstance(value, dict):
        raise UsageError(
            f"{table.path(key)}: expected a number, or a list with one for each segment, got {show(value)}"
        )
    return value if isinstance(value, list) else [value]


def _lines(value: Noise) -> Iterator[str]:
    yield "[noise]"
    for name in ("clip", "sigma"):
        values = ", ".join(repr(getattr(one, name)) for one in value.segments)
        yield f"{name} = " + (values if len(value.segments) == 1 else f"[{values}]")
    yield f"colluders = {value.colluders}"


NOISE: Final = Section(
    number=5, version=1, name="noise", layout=_LAYOUT, flat=_flat, build=_build, read=_read, lines=_lines
)
