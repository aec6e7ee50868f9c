"""What is hashed and signed. All integers are little-endian and of fixed width, so no two lists give the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from secagg import codec, labels
from secagg.codec import Blob, Buffer, Struct
from secagg.crypto.hashing import row_hashes as row_hashes  # used as transcript.row_hashes
from secagg.crypto.keys import digest
from secagg.protocol.journal import record_name
from secagg.types import ClientId, GroupId, u32
from secagg.whole.messages import LAYOUTS, Advert, Answer, Release

FIRST: Final = bytes(32)  # stands for the answer before the first one
NO_SIGNATURE: Final = bytes(64)
_HEADER: Final = Struct(Answer, LAYOUTS[35].fields[:-2])  # all but the signature and the vectors, which come last
_BARE: Final = NO_SIGNATURE + bytes(8)  # a signature of zeros and a matrix of no rows and no columns


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def advert_statement(fingerprint: bytes, advert: Advert) -> bytes:
    """What a client signs in an advert: label, fingerprint, round, id, key."""
    # audit: advert-binds-agreement advert-binds-round
    return labels.SIGN_ADVERT + fingerprint + u64(advert.round) + u32(advert.sender) + advert.key


def context_hash(data: Buffer, context: bytes) -> bytes:
    """The hash of all that an update was computed from: the round's data, and the application's own context."""
    blob = Blob()
    # audit: context-binds-data
    return digest(labels.CONTEXT, codec.to_bytes(blob, data), codec.to_bytes(blob, context))


def adverts_hash(fingerprint: bytes, round: int, group: GroupId, members: Iterable[Advert]) -> bytes:
    """The hash of one group's adverts: label, fingerprint, round, grouping, group, then id and key of each member."""
    keys = b"".join(u32(advert.sender) + advert.key for advert in members)
    return digest(labels.GROUP_ADVERTS, fingerprint, u64(round), u32(group[0]), u32(group[1]), keys)


def present_hash(fingerprint: bytes, round: int, members: Iterable[ClientId]) -> bytes:
    """The hash of the members that a roll call found: label, fingerprint, round, then their ids, ascending."""
    return digest(labels.PRESENT, fingerprint, u64(round), b"".join(map(u32, members)))


def vectors_hash(rows: bytes) -> bytes:
    """The hash of an answer's vectors, from the hashes of the vectors one after the other (`row_hashes`)."""
    return digest(labels.ANSWER_VECTORS, rows)


def answer_hash(fingerprint: bytes, answer: Answer, rows: bytes) -> bytes:
    """The hash that names an answer: label, fingerprint, the answer's fields, and the hash of its vectors.

    The fields are those of the wire, with a signature of zeros and a matrix of no rows; `rows` are the hashes of the
    vectors (`row_hashes`).
    """
    fields = codec.to_bytes(_HEADER, answer) + _BARE
    # audit: answer-binds-vectors
    return digest(labels.ANSWER, fingerprint, fields, vectors_hash(rows))


def answer_statement(hash: bytes) -> bytes:
    """What a client signs in an answer; the hash binds the agreement."""
    return labels.SIGN_ANSWER + hash


def release_statement(fingerprint: bytes, release: Release) -> bytes:
    """What a client signs in a release: label, fingerprint, round, id."""
    return labels.SIGN_RELEASE + fingerprint + u64(release.round) + u32(release.sender)


def slot_name(identity: bytes, fingerprint: bytes, round: int) -> str:
    """The name of the exclusive record of one client's round: an answer or a release, never both."""
    return record_name(labels.ANSWER_RECORD, identity, fingerprint, u64(round))


def mask_infos(
    fingerprint: bytes,
    round: int,
    context: bytes,
    pairs: Iterable[tuple[int, ClientId, bytes, ClientId, bytes]],
    present: bytes = b"",
) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """One HKDF info per (grouping, low id, low key, high id, high key). `present` is the hash of a roll call."""
    # audit: mask-binds-agreement mask-binds-round mask-binds-context mask-binds-present
    opening = labels.GROUP_MASK + fingerprint + u64(round) + context + present
    infos = [
        # audit: mask-binds-grouping mask-binds-keys
        opening + u32(grouping) + u32(low) + low_key + u32(high) + high_key
        for grouping, low, low_key, high, high_key in pairs
    ]
    return np.frombuffer(b"".join(infos), np.uint8).reshape(len(infos), -1)
