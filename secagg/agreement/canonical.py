"""The only encoding of terms as bytes. What people read is the TOML file; what they sign is the hash of these bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from secagg import codec, labels
from secagg.agreement import sections
from secagg.agreement.beacon import NAMED_PULSE
from secagg.agreement.keeping import KEPT
from secagg.agreement.layout import SEGMENTS, TEXT, flat_segments, segments_from, text
from secagg.agreement.plan import MODES, MOST_CLIENTS, Member
from secagg.codec import U8, U16, U32, U64, Codec, Fixed, Float, Many, Reader, Struct
from secagg.crypto.keys import HASH_BYTES, KEY_BYTES
from secagg.errors import WireError
from secagg.exposure.audit import MEMORIES, Policy
from secagg.exposure.schedules import SCHEDULES, Schedule

MOST_PREDECESSORS: Final = 64
GROUPS: Final = ("whole", "survivors")

_MEMBER: Final = Struct(dict, (("id", U32), ("identity", Fixed(KEY_BYTES)), ("name", TEXT), ("weight", U32)))
_FIELDS: Final[tuple[tuple[str, Codec, Callable[[Any], Any]], ...]] = (
    ("version", U8, lambda t: labels.VERSION),
    ("name", TEXT, lambda t: t.name.encode()),
    ("members", Many(_MEMBER, MOST_CLIENTS), lambda t: tuple(map(_flat_member, t.members))),
    ("first_round", U64, lambda t: t.first_round),
    ("last_round", U64, lambda t: t.last_round),
    ("segments", SEGMENTS, lambda t: flat_segments(t.segments)),
    ("schedule", U8, lambda t: SCHEDULES.index(t.schedule.name)),
    ("size", U32, lambda t: t.schedule.size),
    ("groupings", U16, lambda t: t.schedule.groupings),
    ("atom", U32, lambda t: t.schedule.atom),
    ("groups", U8, lambda t: GROUPS.index(t.groups)),
    ("sample", U32, lambda t: t.sample),
    ("least_groups", U32, lambda t: t.least_groups),
    ("colluders", Many(U32, 1), lambda t: () if t.colluders is None else (t.colluders,)),
    ("threshold", Many(U32, 1), lambda t: () if t.threshold is None else (t.threshold,)),
    ("cell", U32, lambda t: t.cell),
    ("degree", U32, lambda t: t.degree),
    ("roll_call", U8, lambda t: int(t.roll_call)),
    ("min_survivors", U32, lambda t: t.policy.min_survivors),
    ("anonymity", U32, lambda t: t.policy.anonymity),
    ("max_leverage", Float(), lambda t: t.policy.max_leverage),
    ("mode", U8, lambda t: MODES.index(t.policy.mode)),
    ("memory", U8, lambda t: MEMORIES.index(t.policy.memory)),
    ("beacon", Many(NAMED_PULSE, 1), lambda t: () if t.beacon is None else (t.beacon,)),
    ("predecessors", Many(Fixed(HASH_BYTES), MOST_PREDECESSORS), lambda t: t.predecessors),
    ("keep", Many(KEPT, 1), lambda t: () if t.keep is None else (t.keep,)),
)
LAYOUT: Final = Struct(dict, tuple((name, layout) for name, layout, _ in _FIELDS))


def terms_to_bytes(terms: Any) -> bytes:
    """`terms` is a `Terms`: its module imports this one."""
    return codec.to_bytes(LAYOUT, {name: get(terms) for name, _, get in _FIELDS}) + sections.to_bytes(terms)


def fields_from_bytes(data: codec.Buffer) -> dict[str, Any]:
    """The arguments of `Terms` that these bytes encode; WireError for anything else."""
    reader = Reader(data)
    (version,) = Reader(data).take(1)
    if version != labels.VERSION:  # audit: terms-version
        raise WireError(f"terms of version {version}, this is version {labels.VERSION}")
    values = LAYOUT.get(reader)
    del values["version"]
    for name, choices in (("schedule", SCHEDULES), ("groups", GROUPS), ("mode", MODES), ("memory", MEMORIES)):
        if values[name] >= len(choices):
            raise WireError(f"unknown {name} ({values[name]}) in the terms")
        values[name] = choices[values[name]]
    take = values.pop
    values["schedule"] = Schedule(
        name=take("schedule"), size=take("size"), groupings=take("groupings"), atom=take("atom")
    )
    limits = ("min_survivors", "anonymity", "max_leverage", "mode", "memory")
    values["policy"] = Policy(**{name: take(name) for name in limits})
    if values["roll_call"] > 1:
        raise WireError(f"roll_call: expected 0 or 1, got {values['roll_call']}")
    values["roll_call"] = bool(values["roll_call"])
    for name in ("colluders", "threshold", "beacon", "keep"):
        values[name] = values[name][0] if values[name] else None
    values["name"] = text(values["name"])
    values["members"] = tuple(Member(**{**member, "name": text(member["name"])}) for member in values["members"])
    values["segments"] = segments_from(values["segments"])
    return {**values, **sections.read(reader)}


def _flat_member(member: Member) -> dict[str, Any]:
    return {"id": member.id, "identity": member.identity, "name": member.name.encode(), "weight": member.weight}
