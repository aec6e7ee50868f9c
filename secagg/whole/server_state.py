"""What a server remembers between two messages, and its bytes (`Server.save`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Final

import numpy as np

from secagg import codec
from secagg.agreement.agreement import Agreement
from secagg.agreement.plan import MOST_CLIENTS
from secagg.codec import U8, U32, U64, Ascending, AscendingGroups, Blob, Fixed, Many, Matrix, Struct
from secagg.crypto.keys import HASH_BYTES, SIGNATURE_BYTES
from secagg.errors import SecAggError, UsageError
from secagg.evidence.record import AnswerRecord, SignedRelease
from secagg.types import ClientId, GroupId, Ring32
from secagg.whole import flat
from secagg.whole.layout import layout
from secagg.whole.messages import ADVERT, RELEASE, Advert, Release


class Stage(IntEnum):
    """What a server does: it waits for the next round, or collects the answers of one.

    >>> [stage.name for stage in Stage]
    ['IDLE', 'OPEN']
    """

    IDLE = 0
    OPEN = 1


@dataclass(slots=True, kw_only=True)
class ServerMemory:
    """Everything that a server must remember between two messages.

    `rounds` has the round that was begun last, if any; `next` is the one that is prepared. `adverts` are by round and
    client, of this round and later ones. `present` are the members that a roll call found. `complete` are the groups of
    this round that were sent. `answers` are hash and signature of each accepted answer; `sums` the masked sums so far;
    `spoiled` why groups are lost beside missing answers. For the evidence, `kept` has each accepted answer without its
    vectors, `second` and `after` the answers and releases that convict their sender. `last` has the hash of each
    client's last accepted answer. `unsure` are the clients that may have answered after that: the
    answer was not accepted, or another server ran the round.
    """

    fingerprint: bytes
    stage: Stage = Stage.IDLE
    rounds: tuple[int, ...] = ()
    next: int
    data: bytes = field(default=b"", repr=False)
    context: bytes = bytes(HASH_BYTES)
    adverts: dict[int, dict[ClientId, Advert]] = field(default_factory=dict)
    releases: dict[int, dict[ClientId, Release]] = field(default_factory=dict)
    present: tuple[ClientId, ...] = ()
    complete: tuple[GroupId, ...] = ()
    answers: dict[ClientId, tuple[bytes, bytes]] = field(default_factory=dict)
    sums: dict[GroupId, Ring32] = field(default_factory=dict, repr=False)
    spoiled: dict[GroupId, str] = field(default_factory=dict)
    dropouts: dict[ClientId, str] = field(default_factory=dict)
    blamed: dict[ClientId, str] = field(default_factory=dict)
    kept: dict[ClientId, AnswerRecord] = field(default_factory=dict)
    second: dict[ClientId, AnswerRecord] = field(default_factory=dict)
    after: dict[ClientId, SignedRelease] = field(default_factory=dict)
    last: dict[ClientId, bytes] = field(default_factory=dict)
    unsure: set[ClientId] = field(default_factory=set)


_SAVED: Final = b"secagg whole server 2\n"
MOST_REASON: Final = 1000  # characters of a reason that a client's own message can make long
_TEXT: Final = Blob(4 * MOST_REASON)
_REASONS: Final = Many(Struct(dict, (("id", U32), ("reason", _TEXT))))
_ANSWER: Final = Struct(dict, (("id", U32), ("hash", Fixed(HASH_BYTES)), ("signature", Fixed(SIGNATURE_BYTES))))
_GROUPS: Final = AscendingGroups()
_MEMORY: Final = Struct(
    dict,
    (
        ("fingerprint", Fixed(HASH_BYTES)),
        ("stage", U8),
        ("rounds", Many(U64, 1)),
        ("next", U64),
        ("data", Blob()),
        ("context", Fixed(HASH_BYTES)),
        ("adverts", Many(ADVERT, 2**20)),
        ("releases", Many(RELEASE, 2**20)),
        ("present", Many(U32)),
        ("complete", _GROUPS),
        ("answers", Many(_ANSWER)),
        ("sum_ids", _GROUPS),
        ("sums", Matrix()),
        ("spoiled_ids", _GROUPS),
        ("spoiled", Many(_TEXT, 2**20)),
        ("dropouts", _REASONS),
        ("blamed", _REASONS),
        ("kept", Many(Struct.of(AnswerRecord))),
        ("second", Many(Struct.of(AnswerRecord))),
        ("after", Many(Struct.of(SignedRelease))),
        ("last", Many(Struct(dict, (("id", U32), ("hash", Fixed(HASH_BYTES)))))),
        ("unsure", Ascending(MOST_CLIENTS)),
    ),
)
_SAVED_FIELDS: Final = {name for name, _ in _MEMORY.fields} - {"sum_ids", "spoiled_ids"}
assert {one.name for one in fields(ServerMemory)} == _SAVED_FIELDS, "the saved layout must name every field"


def save(memory: ServerMemory) -> bytes:
    """The bytes that `restore` reads."""
    sum_ids, spoiled_ids = sorted(memory.sums), sorted(memory.spoiled)
    values: dict[str, Any] = {name: getattr(memory, name) for name in _SAVED_FIELDS}
    for name in ("adverts", "releases"):
        values[name] = [message for messages in values[name].values() for message in messages.values()]
    for name in ("kept", "second", "after"):
        values[name] = list(values[name].values())
    for name in ("dropouts", "blamed"):
        values[name] = [{"id": v, "reason": reason.encode()} for v, reason in values[name].items()]
    values |= {
        "last": [{"id": v, "hash": hash} for v, hash in memory.last.items()],
        "unsure": sorted(memory.unsure),
        "answers": [{"id": v, "hash": hash, "signature": sign} for v, (hash, sign) in memory.answers.items()],
        "sum_ids": sum_ids,
        "sums": np.stack([memory.sums[i] for i in sum_ids]) if sum_ids else np.empty((0, 0), np.uint32),
        "spoiled_ids": spoiled_ids,
        "spoiled": [memory.spoiled[i].encode() for i in spoiled_ids],
    }
    return _SAVED + codec.to_bytes(_MEMORY, values)


def restore(data: bytes, agreement: Agreement) -> ServerMemory:
    """The memory that `save` wrote for this agreement; UsageError for anything else."""
    if data[: len(_SAVED)] != _SAVED:
        raise UsageError("these bytes are not a saved server of whole groups of this version")
    try:
        values: dict[str, Any] = codec.from_bytes(_MEMORY, memoryview(data)[len(_SAVED) :])
        sum_ids, spoiled_ids = values.pop("sum_ids"), values.pop("spoiled_ids")
        for name in ("adverts", "releases"):
            kept: dict[int, dict[ClientId, Any]] = {}
            for message in values[name]:
                kept.setdefault(message.round, {})[message.sender] = message
            values[name] = kept
        for name in ("kept", "second", "after"):
            values[name] = {record.sender: record for record in values[name]}
        for name in ("dropouts", "blamed"):
            values[name] = {entry["id"]: entry["reason"].decode() for entry in values[name]}
        values |= {
            "stage": Stage(values["stage"]),
            "last": {entry["id"]: entry["hash"] for entry in values["last"]},
            "unsure": set(values["unsure"]),
            "answers": {entry["id"]: (entry["hash"], entry["signature"]) for entry in values["answers"]},
            "sums": {i: vector.copy() for i, vector in zip(sum_ids, values["sums"], strict=True)},
            "spoiled": {i: reason.decode() for i, reason in zip(spoiled_ids, values["spoiled"], strict=True)},
        }
    except (SecAggError, ValueError) as damaged:
        raise UsageError(f"this saved server is damaged: {damaged}") from None
    if values["fingerprint"] != agreement.fingerprint:
        raise UsageError("this saved server belongs to another agreement")
    memory = ServerMemory(**values)
    wrong = _contradiction(memory, agreement)
    if wrong:  # audit: saved-server-consistent
        raise UsageError(f"this saved server is damaged: {wrong}")
    return memory


def _contradiction(memory: ServerMemory, agreement: Agreement) -> str:
    """What in the memory cannot follow from the agreement, or nothing."""
    terms = agreement.terms
    known: list[Mapping[ClientId, object]] = [
        dict.fromkeys(memory.present),
        memory.answers,
        memory.dropouts,
        memory.blamed,
        memory.last,
        dict.fromkeys(memory.unsure),
    ]
    known += [*memory.adverts.values(), *memory.releases.values()]
    if any(not terms.identities.keys() >= clients.keys() for clients in known):
        return "it names a client that is not a member"
    if any(round not in terms.rounds for round in (*memory.rounds, *memory.adverts, *memory.releases)):
        return "it names a round that is not in the agreement"
    if memory.stage is Stage.IDLE:
        return ""
    if not memory.rounds:
        return "a round is open, but it does not say which"
    groups, adverts = layout(agreement, memory.rounds[0]).groups, memory.adverts.get(memory.rounds[0], {})
    if not groups.keys() >= {*memory.complete, *memory.sums, *memory.spoiled}:
        return "it names a group that the round does not have"
    released = memory.releases.get(memory.rounds[0], {})
    for group in memory.complete:
        members = flat.summed(agreement, layout(agreement, memory.rounds[0]), group, released, memory.present)
        if not adverts.keys() >= set(members):
            return f"group {group} lacks an advert"
        if terms.roll_call and (flat.objection(terms, members) or set(members) != set(memory.present)):
            return "it has sent a roll call that breaks the policy"
        added = memory.answers.keys() & set(members)
        if bool(added) != (group in memory.sums) and group not in memory.spoiled:
            return f"group {group} has answers without a sum, or a sum without answers"
    if memory.kept.keys() != memory.answers.keys():
        return "it has an answer without its record, or a record without its answer"
    if any(total.shape != (terms.length,) for total in memory.sums.values()):
        return "a sum has the wrong length"
    return ""
