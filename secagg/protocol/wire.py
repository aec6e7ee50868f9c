"""Messages to bytes and back: a version byte, a type byte, then the fields of `LAYOUTS`, and nothing else.

docs/protocol.md prints these layouts, and a test compares the two. `decode(encode(x))` is x, and
`encode(decode(b))` is b. Nothing is allocated for a length that the bytes do not hold.
"""

from __future__ import annotations

from typing import Final

from secagg.crypto.keys import HASH_BYTES, KEY_BYTES, SIGNATURE_BYTES
from secagg.errors import WireError
from secagg.labels import VERSION
from secagg.protocol import messages as m
from secagg.protocol.codec import (
    U32,
    Ascending,
    AscendingGroups,
    Blob,
    Buffer,
    Codec,
    Fixed,
    Many,
    Matrix,
    Reader,
    Struct,
)
from secagg.protocol.plan import MOST_CLIENTS, MOST_GROUPINGS

IDS: Final = Ascending(MOST_CLIENTS)
GROUPS: Final = AscendingGroups()
HASH: Final = Fixed(HASH_BYTES)
KEY: Final = Fixed(KEY_BYTES)
SIGNATURE: Final = Fixed(SIGNATURE_BYTES)
COMMITMENTS: Final = Many(HASH, MOST_GROUPINGS)

ADVERT: Final = Struct(
    m.KeyAdvert, (("sender", U32), ("channel", KEY), ("mask", KEY), ("signature", SIGNATURE))
)
DEALER: Final = Struct(m.Dealer, (("id", U32), ("commitments", COMMITMENTS), ("root", HASH)))
SURVIVOR: Final = Struct(m.Survivor, (("id", U32), ("disputes", IDS), ("signature", SIGNATURE)))
ENDORSEMENT: Final = Struct(m.Endorsement, (("id", U32), ("signature", SIGNATURE)))

LAYOUTS: Final[dict[int, Struct]] = {
    1: ADVERT,
    2: Struct(m.KeyList, (("plan", Blob()), ("adverts", Many(ADVERT, MOST_CLIENTS)))),
    3: Struct(
        m.Dealing,
        (
            ("sender", U32),
            ("commitments", COMMITMENTS),
            ("root", HASH),
            ("signature", SIGNATURE),
            ("hashes", Blob()),
            ("boxes", Blob()),
        ),
    ),
    4: Struct(m.Bundle, (("dealers", Many(DEALER, MOST_CLIENTS)), ("boxes", Blob()), ("proofs", Blob()))),
    5: Struct(
        m.MaskedInput,
        (("sender", U32), ("disputes", IDS), ("signature", SIGNATURE), ("vectors", Matrix())),
    ),
    6: Struct(m.Survivors, (("members", Many(SURVIVOR, MOST_CLIENTS)), ("groups", GROUPS))),
    7: Struct(m.Consistency, (("sender", U32), ("signature", SIGNATURE))),
    8: Struct(m.Signatures, (("endorsements", Many(ENDORSEMENT, MOST_CLIENTS)),)),
    9: Struct(
        m.Unmasking,
        (
            ("sender", U32),
            ("seed_owners", IDS),
            ("seeds", Blob()),
            ("key_owners", IDS),
            ("keys", Blob()),
            ("signature", SIGNATURE),
        ),
    ),
}
TYPES: Final = {layout.cls: tag for tag, layout in LAYOUTS.items()}


def parts(message: m.Message) -> list[Buffer]:
    """The message as buffers to send one after the other; large vectors are views, not copies."""
    tag = TYPES[type(message)]
    out: list[Buffer] = [bytes((VERSION, tag))]
    LAYOUTS[tag].put(out, message)
    return out


def encode(message: m.Message) -> bytes:
    r"""The message as one byte string.

    >>> from secagg.protocol import Signatures, encode
    >>> encode(Signatures(()))
    b'\x01\x08\x00\x00\x00\x00'
    """
    return b"".join(parts(message))


def size(message: m.Message) -> int:
    """The number of bytes that `encode` would make, without making them."""
    return sum(len(part) for part in parts(message))


def decode(data: Buffer) -> m.Message:
    """One message from exactly these bytes, or WireError. A vector is a read-only view of `data`.

    >>> from secagg.protocol import decode
    >>> decode(bytes([1, 8, 0, 0, 0, 0]))
    Signatures(endorsements=())
    """
    reader = Reader(data)
    version, tag = reader.take(2)
    if version != VERSION:  # audit: wire-version
        raise WireError(f"wire version {version}, this is version {VERSION}")
    layout: Codec | None = LAYOUTS.get(tag)
    if layout is None:
        raise WireError(f"unknown message type {tag}")
    message: m.Message = layout.get(reader)
    reader.end()
    return message
