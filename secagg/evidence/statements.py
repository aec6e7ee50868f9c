"""What was hashed and signed in a round with whole groups, written from docs/protocol-whole.md for the verifier alone.

The server and the clients have their own code for this (`secagg.whole.transcript`); evidence is not judged by the code
that made it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from secagg import labels
from secagg.crypto.keys import digest
from secagg.evidence.record import AnswerRecord, SignedKey
from secagg.types import ClientId, GroupId, u32


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def advert(fingerprint: bytes, key: SignedKey) -> bytes:
    return labels.SIGN_ADVERT + fingerprint + u64(key.round) + u32(key.sender) + key.key


def release(fingerprint: bytes, round: int, sender: ClientId) -> bytes:
    return labels.SIGN_RELEASE + fingerprint + u64(round) + u32(sender)


def answer(hash: bytes) -> bytes:
    return labels.SIGN_ANSWER + hash


def seen(fingerprint: bytes, round: int, group: GroupId, members: Iterable[SignedKey]) -> bytes:
    """The hash of a group's adverts that each answer repeats."""
    keys = b"".join(u32(member.sender) + member.key for member in members)
    return digest(labels.GROUP_ADVERTS, fingerprint, u64(round), u32(group[0]), u32(group[1]), keys)


def answer_hash(
    fingerprint: bytes,
    round: int,
    context: bytes,
    groups: Sequence[GroupId],
    shown: Sequence[bytes],
    given: AnswerRecord,
) -> bytes:
    """The hash that names an answer and that its sender signed."""
    fields = [u32(given.sender), u64(round), context, u32(len(groups))]
    fields += [struct.pack("<HI", *group) for group in groups]
    fields += [u32(len(shown)), *shown, given.previous, u32(len(given.ahead))]
    fields += [u32(key.sender) + u64(key.round) + key.key + key.signature for key in given.ahead]
    fields += [bytes(64 + 8)]  # no signature, and a matrix without rows and columns
    return digest(labels.ANSWER, fingerprint, *fields, given.vectors_hash)


def slot_name(identity: bytes, fingerprint: bytes, round: int) -> str:
    """The name of the record in which a client's journal says how it ended a round."""
    return f"v{labels.VERSION}-{digest(labels.ANSWER_RECORD, identity, fingerprint, u64(round)).hex()}"
