"""What a round with whole groups leaves behind, and its bytes.

A record has every signed message of its round without the vectors, which are there by their hashes. It holds nothing
that a client keeps secret: keys are public, masked vectors and sums are hashed. docs/evidence.md has every byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from secagg import codec
from secagg.agreement.plan import MOST_CLIENTS, MOST_PLACES
from secagg.codec import U16, U32, U64, Ascending, AscendingGroups, Blob, Buffer, Fixed, Many, Struct
from secagg.crypto.keys import HASH_BYTES, KEY_BYTES, SIGNATURE_BYTES
from secagg.privacy.budget import Charge
from secagg.types import ClientId, GroupId

MOST_TEXT: Final = 2**16
AHEAD: Final = 3  # how many rounds ahead a client of a whole group advertises keys

Id = Annotated[ClientId, U32]
RoundNumber = Annotated[int, U64]
Hash = Annotated[bytes, Fixed(HASH_BYTES)]
Key = Annotated[bytes, Fixed(KEY_BYTES)]
Signature = Annotated[bytes, Fixed(SIGNATURE_BYTES)]
Text = Annotated[bytes, Blob(MOST_TEXT)]  # audit: evidence-texts-bounded


def text(reason: str) -> bytes:
    """A reason as it is written: printable, so that it cannot look like a verdict on somebody's screen, and not long.

    >>> text("gone" + chr(10) + "The evidence holds.")
    b'gone?The evidence holds.'
    """
    shown = "".join(letter if letter.isprintable() else "?" for letter in reason)
    return shown.encode(errors="replace")[:MOST_TEXT].decode(errors="ignore").encode()


def shown(reason: bytes) -> str:
    """A reason of a file, as it may be printed."""
    return text(reason.decode(errors="replace")).decode()  # audit: evidence-reasons-shown-printable


def printable(reasons: Iterable[bytes]) -> bool:
    """Whether these are texts that `text` could have written."""
    try:
        return all(reason.decode().isprintable() for reason in reasons)  # audit: evidence-texts-printable
    except UnicodeDecodeError:
        return False  # audit: evidence-texts-utf8


@dataclass(frozen=True, slots=True)
class SignedKey:
    """An advert: the public key of one client for one round, and its signature.

    >>> SignedKey(3, 7, bytes(32), bytes(64)).round
    7
    """

    sender: Id
    round: RoundNumber
    key: Key
    signature: Signature


@dataclass(frozen=True, slots=True)
class SignedRelease:
    """A client's signed statement that it does not answer the record's round.

    >>> SignedRelease(3, bytes(64)).sender
    3
    """

    sender: Id
    signature: Signature


_KEY: Final = Struct.of(SignedKey)
_RELEASES: Final = Many(Struct.of(SignedRelease), MOST_CLIENTS)


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """An answer with the hash of its vectors in their place. Context, groups and keys are those of the round.

    >>> AnswerRecord(3, bytes(32), (), bytes(32), bytes(64)).previous == bytes(32)
    True
    """

    sender: Id
    previous: Hash
    ahead: Annotated[tuple[SignedKey, ...], Many(_KEY, AHEAD)]
    vectors_hash: Hash
    signature: Signature


@dataclass(frozen=True, slots=True)
class OpenedSum:
    """An opened group and the hash of its sum.

    >>> OpenedSum(0, 4, bytes(32)).group
    (0, 4)
    """

    grouping: Annotated[int, U16]
    number: Annotated[int, U32]
    sum: Hash

    @property
    def group(self) -> GroupId:
        return (self.grouping, self.number)


@dataclass(frozen=True, slots=True)
class LostGroup:
    """A group that was not opened, and why.

    >>> LostGroup(0, 4, b"client 3: did not answer").group
    (0, 4)
    """

    grouping: Annotated[int, U16]
    number: Annotated[int, U32]
    reason: Text

    @property
    def group(self) -> GroupId:
        return (self.grouping, self.number)


@dataclass(frozen=True, slots=True)
class Absence:
    """A client without an accepted answer, and why.

    >>> Absence(3, b"it sent no advert").reason.decode()
    'it sent no advert'
    """

    client: Id
    reason: Text


CHARGE: Final = Struct(Charge, (("rho", U64), ("eta", U64)))
_ANSWERS: Final = Many(Struct.of(AnswerRecord), MOST_CLIENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """What one round leaves behind.

    `adverts` are the keys that the round began with. `second` has what convicts a client beside `answers`: another
    answer that it signed, or an answer to a round that it had released. `after` has releases signed after an answer.
    `charge` is what the round costs a member at most, if there is noise.

    >>> record = RoundRecord(round=0, context=bytes(32))
    >>> RoundRecord.from_bytes(record.to_bytes()) == record
    True
    """

    round: RoundNumber
    context: Hash
    present: Annotated[tuple[ClientId, ...], Ascending(MOST_CLIENTS)] = ()
    adverts: Annotated[tuple[SignedKey, ...], Many(_KEY, MOST_CLIENTS)] = ()
    releases: Annotated[tuple[SignedRelease, ...], _RELEASES] = ()
    answers: Annotated[tuple[AnswerRecord, ...], _ANSWERS] = ()
    second: Annotated[tuple[AnswerRecord, ...], _ANSWERS] = ()
    after: Annotated[tuple[SignedRelease, ...], _RELEASES] = ()
    opened: Annotated[tuple[OpenedSum, ...], Many(Struct.of(OpenedSum), MOST_PLACES)] = ()
    lost: Annotated[tuple[LostGroup, ...], Many(Struct.of(LostGroup), MOST_PLACES)] = ()
    absent: Annotated[tuple[Absence, ...], Many(Struct.of(Absence), MOST_CLIENTS)] = ()
    inconsistent: Annotated[tuple[tuple[GroupId, ...], ...], Many(AscendingGroups(), MOST_PLACES)] = ()
    skipped: Text = b""
    charge: Annotated[tuple[Charge, ...], Many(CHARGE, 1)] = ()

    def to_bytes(self) -> bytes:
        """The only encoding of this record."""
        return codec.to_bytes(ROUND, self)

    @classmethod
    def from_bytes(cls, data: Buffer) -> RoundRecord:
        """The record that these bytes encode; WireError for anything else."""
        record: RoundRecord = codec.from_bytes(ROUND, data)
        return record


ROUND: Final = Struct.of(RoundRecord)
