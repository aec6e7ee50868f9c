"""What a server remembers between two messages, and its bytes (`Server.save`)."""

from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np

from secagg import codec, labels
from secagg.agreement.plan import Plan
from secagg.codec import U8, U32, Blob, Fixed, Many, Matrix, Struct
from secagg.errors import SecAggError, UsageError
from secagg.evidence.record import MOST_TEXT
from secagg.protocol.client_state import check_header
from secagg.protocol.messages import ADVERT, GROUPS, SURVIVOR, Consistency, Dealing, KeyAdvert, Survivor, Unmasking
from secagg.protocol.result import Dropout, Stage
from secagg.protocol.wire import LAYOUTS
from secagg.types import ClientId, GroupId, Ring32


@dataclass(slots=True, kw_only=True)
class ServerMemory:
    """Everything a server must remember between two messages. Dicts are in order of arrival.

    `survivors` sent masked inputs; they are U3 once stage 2 is closed. `sums` are the masked sums by group,
    or by (grouping, atom) while an atom may still leave. `groups` are the groups to open.
    """

    plan: Plan
    instance: bytes  # names the journal's records of this run of this server
    stage: Stage = Stage.KEYS
    adverts: dict[ClientId, KeyAdvert] = field(default_factory=dict)
    dealings: dict[ClientId, Dealing] = field(default_factory=dict)
    survivors: dict[ClientId, Survivor] = field(default_factory=dict)
    sums: dict[GroupId, Ring32] = field(default_factory=dict, repr=False)
    groups: tuple[GroupId, ...] = ()
    endorsements: dict[ClientId, Consistency] = field(default_factory=dict)
    unmaskings: dict[ClientId, Unmasking] = field(default_factory=dict)
    dropouts: dict[ClientId, Dropout] = field(default_factory=dict)


_SAVED_SERVER: Final = b"secagg server %d\n" % labels.VERSION
_OF_AGREEMENT: Final = b"secagg server %d of an agreement\n" % labels.VERSION  # its bytes omit what was drawn
_DROPOUT: Final = Struct(dict, (("id", U32), ("stage", U8), ("reason", Blob(MOST_TEXT))))
_MEMORY: Final = Struct(
    dict,
    (
        ("stage", U8),
        ("instance", Fixed(16)),
        ("plan", Blob()),
        ("adverts", Many(ADVERT)),
        ("dealings", Many(LAYOUTS[3])),
        ("survivors", Many(SURVIVOR)),
        ("sum_ids", GROUPS),
        ("sums", Matrix()),
        ("groups", GROUPS),
        ("endorsements", Many(LAYOUTS[7])),
        ("unmaskings", Many(LAYOUTS[9])),
        ("dropouts", Many(_DROPOUT)),
    ),
)
_SAVED_FIELDS: Final = {name for name, _ in _MEMORY.fields} - {"sum_ids"}
assert {one.name for one in fields(ServerMemory)} == _SAVED_FIELDS, "the saved layout must name every field"


def _cut(reason: str) -> bytes:
    """As much of a reason as the evidence has room for; it shows the same text."""
    return reason.encode(errors="replace")[:MOST_TEXT].decode(errors="ignore").encode()


def save(memory: ServerMemory) -> bytes:
    """The bytes that `restore` reads."""
    sum_ids = sorted(memory.sums)
    values = {name: getattr(memory, name) for name in _SAVED_FIELDS}
    values |= {name: tuple(value.values()) for name, value in values.items() if isinstance(value, dict)}
    values |= {
        "plan": memory.plan.to_bytes(),
        "sum_ids": sum_ids,
        "sums": np.stack([memory.sums[i] for i in sum_ids]) if sum_ids else np.empty((0, 0), np.uint32),
        "dropouts": [
            {"id": v, "stage": dropout.stage, "reason": _cut(dropout.reason)} for v, dropout in memory.dropouts.items()
        ],
    }
    plan = memory.plan
    header = _SAVED_SERVER if plan.drawn is None and not plan.members else _OF_AGREEMENT
    return header + codec.to_bytes(_MEMORY, values)


def restore(data: bytes, plan: Plan | None = None) -> ServerMemory:
    """The memory that `save` wrote; UsageError for anything else. `plan` is the one that an agreement gave."""
    header = _OF_AGREEMENT if data.startswith(_OF_AGREEMENT) else _SAVED_SERVER
    check_header(data, header, "server")
    if plan is None and header == _OF_AGREEMENT:  # audit: restored-server-needs-plan
        raise UsageError("this server was saved under the plan of an agreement: give plan=agreement.plan(...)")
    try:
        values: dict[str, Any] = codec.from_bytes(_MEMORY, memoryview(data)[len(header) :])
        saved = Plan.from_bytes(values["plan"])
        sum_ids, sums = values.pop("sum_ids"), values["sums"]
        if len(sum_ids) != len(sums):
            raise ValueError(f"it has {len(sums)} sums for {len(sum_ids)} groups")
        for name in ("adverts", "dealings", "endorsements", "unmaskings"):
            values[name] = {message.sender: message for message in values[name]}
        values |= {
            "stage": Stage(values["stage"]),
            "plan": saved if plan is None else plan,
            "survivors": {survivor.id: survivor for survivor in values["survivors"]},
            "sums": {i: vector.copy() for i, vector in zip(sum_ids, sums, strict=True)},
            "dropouts": {out["id"]: Dropout(Stage(out["stage"]), out["reason"].decode()) for out in values["dropouts"]},
        }
    except (SecAggError, ValueError) as damaged:
        raise UsageError(f"this saved server is damaged: {damaged}") from None
    if plan is not None and plan.to_bytes() != saved.to_bytes():  # audit: restored-server-checks-plan
        raise UsageError("this server was saved under another plan than the one given")
    return ServerMemory(**values)
