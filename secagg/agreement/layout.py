"""Segments as bytes, in terms and in plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from secagg.codec import U8, U32, Blob, Codec, Float, Many, Struct
from secagg.crypto.segments import Segment
from secagg.errors import WireError

MOST_TEXT: Final = 4 * 200  # bytes of a name in UTF-8
MOST_SEGMENTS: Final = 65535
TEXT: Final = Blob(MOST_TEXT)
SEGMENTS: Final[Codec] = Many(
    Struct(dict, (("name", TEXT), ("shape", Many(U32, 32)), ("floats", U8), ("clip", Float()), ("bound", U32))),
    MOST_SEGMENTS,
)


def flat_segments(segments: Sequence[Segment]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "name": segment.name.encode(),
            "shape": segment.shape,
            "floats": int(segment.clip is not None),
            "clip": segment.clip or 0.0,
            "bound": segment.bound or 0,
        }
        for segment in segments
    )


def segments_from(values: Sequence[dict[str, Any]]) -> tuple[Segment, ...]:
    return tuple(map(_segment, values))


def _segment(values: dict[str, Any]) -> Segment:
    if values["floats"] > 1:
        raise WireError(f"unknown encoding ({values['floats']}) of a segment")
    number = {"clip": values["clip"]} if values["floats"] else {"bound": values["bound"]}
    return Segment(name=text(values["name"]), shape=values["shape"], **number)


def text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise WireError("a name is not UTF-8") from None
