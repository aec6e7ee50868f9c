"""What the hub says to a site beside the messages of the protocols: a run begins, a round is over, or all rounds are.

A message is the version byte, a type byte (64 Begin, 65 End, 66 Over), then its fields in order. The type byte of every
message to a site says which protocol it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from secagg import labels
from secagg.codec import U32, U64, Blob, Buffer, Fixed, Wire
from secagg.crypto.keys import HASH_BYTES, digest
from secagg.errors import WireError

MOST_DATA: Final = 2**30
MOST_TEXT: Final = 1000
WHOLE_TYPES: Final = range(32, 64)
NET_TYPES: Final = range(64, 67)


@dataclass(frozen=True, slots=True)
class Begin:
    """A run of survivors begins: the site sends its keys. `attempt` counts the runs of one round."""

    fingerprint: Annotated[bytes, Fixed(HASH_BYTES)]
    round: Annotated[int, U64]
    attempt: Annotated[int, U32]
    data: Annotated[bytes, Blob(MOST_DATA)] = field(repr=False)


@dataclass(frozen=True, slots=True)
class End:
    """The hub has no more rounds for now. Sites that stay ask again later."""

    fingerprint: Annotated[bytes, Fixed(HASH_BYTES)]
    text: Annotated[bytes, Blob(MOST_TEXT)]


@dataclass(frozen=True, slots=True)
class Over:
    """How a round ended for this site: `sites` are those in its opened sum, or 0 and why nothing was opened.

    A site shows it to people and answers nothing. It is the hub's word: no key depends on it.
    """

    fingerprint: Annotated[bytes, Fixed(HASH_BYTES)]
    round: Annotated[int, U64]
    sites: Annotated[int, U32]
    text: Annotated[bytes, Blob(MOST_TEXT)]


Message = Begin | End | Over
_WIRE: Final = Wire((Begin, End, Over), first=NET_TYPES.start)


def encode(message: Message) -> bytes:
    return b"".join(_WIRE.parts(message))


def decode(data: Buffer) -> Message:
    """One message from exactly these bytes, or WireError."""
    message: Message = _WIRE.decode(data)
    return message


def type_of(data: Buffer) -> int:
    """The type byte of a message."""
    if len(data) < 2:
        raise WireError("message ends too early")
    return int(data[1])


def run_context(data: bytes) -> bytes:
    """The context of a run of survivors: the hash of what the hub sent for it. A site computes it from what it got."""
    return digest(labels.NET_DATA, data)
