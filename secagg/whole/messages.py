"""The messages of whole groups, one frozen class each, and their bytes.

A message is the version byte, a type byte (32 Hello, 33 Advert, 34 Round, 35 Answer, 36 Release), then its fields in
order; the type of a field says its layout. Server to client: Hello, Round. Client to server: Advert, Answer, Release.

>>> from secagg.whole import Hello, decode, encode
>>> encode(Hello(bytes(32), 5))[:2].hex(), decode(encode(Hello(bytes(32), 5))).round
('0220', 5)
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

import numpy as np

from secagg.agreement.plan import MOST_CLIENTS, MOST_GROUPINGS
from secagg.codec import U64, AscendingGroups, Blob, Buffer, Fixed, Many, Matrix, Struct, Wire
from secagg.crypto.keys import HASH_BYTES
from secagg.evidence.record import AHEAD
from secagg.protocol.messages import Hash, Id, Key, Signature
from secagg.types import GroupId, Ring32

MOST_DATA: Final = 2**30

RoundNumber = Annotated[int, U64]
Groups = Annotated[tuple[GroupId, ...], AscendingGroups(MOST_GROUPINGS)]


@dataclass(frozen=True, slots=True)
class Hello:
    """The server asks for an advert: in the first round, or after a missed one."""

    fingerprint: Hash
    round: RoundNumber


@dataclass(frozen=True, slots=True)
class Advert:
    """An X25519 public key for one round, signed over fingerprint, round, sender and key."""

    sender: Id
    round: RoundNumber
    key: Key
    signature: Signature


ADVERT: Final = Struct.of(Advert)


@dataclass(frozen=True, slots=True)
class Release:
    """A client's signed statement that it has not answered this round and never will."""

    sender: Id
    round: RoundNumber
    signature: Signature


RELEASE: Final = Struct.of(Release)


@dataclass(frozen=True, slots=True)
class Round:
    """The server begins a round: the application's data, this client's complete groups, and their members' adverts.

    A group is complete if the server has an advert of each member. Each member appears once in `adverts`, by ascending
    id, even if it shares several groups with the receiver. `releases` are those of members of a flat sum, by id.
    """

    fingerprint: Hash
    round: RoundNumber
    data: Annotated[bytes, Blob(MOST_DATA)] = field(repr=False)
    groups: Groups
    adverts: Annotated[tuple[Advert, ...], Many(ADVERT, MOST_CLIENTS)]
    releases: Annotated[tuple[Release, ...], Many(RELEASE, MOST_CLIENTS)] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A client's masked vectors, one per group, and its next adverts.

    `context` is the hash of what the update was computed from. `seen` has one hash per group of `groups`: of the ids
    and keys of all its members. `previous` is the hash of this client's answer before (zeros: none). The signature
    covers every field, the vectors by their hashes (`transcript.answer_hash`).
    """

    sender: Id
    round: RoundNumber
    context: Hash
    groups: Groups
    seen: Annotated[tuple[bytes, ...], Many(Fixed(HASH_BYTES), MOST_GROUPINGS)]
    previous: Hash
    adverts: Annotated[tuple[Advert, ...], Many(ADVERT, AHEAD)]
    signature: Signature
    vectors: Annotated[Ring32, Matrix()] = field(repr=False)


ToClient = Hello | Round
ToServer = Advert | Answer | Release
Message = ToClient | ToServer

_WIRE: Final = Wire((Hello, Advert, Round, Answer, Release), first=32)
LAYOUTS: Final = _WIRE.layouts
TYPES: Final = _WIRE.types
NO_VECTORS: Final = np.empty((0, 0), np.uint32)


def parts(message: Message) -> list[Buffer]:
    """The message as buffers to send one after the other; vectors are views, not copies."""
    return _WIRE.parts(message)


def encode(message: Message) -> bytes:
    r"""The message as one byte string.

    >>> from secagg.whole import Release, encode
    >>> encode(Release(7, 1, bytes(64)))[:14]
    b'\x02$\x07\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00'
    """
    return b"".join(parts(message))


def size(message: Message) -> int:
    """The number of bytes that `encode` would make, without making them."""
    return sum(len(part) for part in parts(message))


def decode(data: Buffer) -> Message:
    """One message from exactly these bytes, or WireError. Vectors are a read-only view of `data`.

    >>> from secagg.whole import decode
    >>> decode(bytes([2, 77]))
    Traceback (most recent call last):
    secagg.errors.WireError: unknown message type 77
    """
    message: Message = _WIRE.decode(data)
    return message
