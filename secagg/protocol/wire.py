"""Messages to bytes and back: a version byte, a type byte, then the fields of `LAYOUTS`, and nothing else.

docs/protocol.md prints these layouts, and a test compares the two. `decode(encode(x))` is x, and
`encode(decode(b))` is b. Nothing is allocated for a length that the bytes do not hold.
"""

from typing import Final

from secagg.codec import Buffer, Wire
from secagg.protocol import messages as m

_IN_ORDER: Final = (
    m.KeyAdvert,
    m.KeyList,
    m.Dealing,
    m.Bundle,
    m.MaskedInput,
    m.Survivors,
    m.Consistency,
    m.Signatures,
    m.Unmasking,
)
_WIRE: Final = Wire(_IN_ORDER, first=1)
LAYOUTS: Final = _WIRE.layouts
TYPES: Final = _WIRE.types


def parts(message: m.Message) -> list[Buffer]:
    """The message as buffers to send one after the other; large vectors are views, not copies."""
    return _WIRE.parts(message)


def encode(message: m.Message) -> bytes:
    r"""The message as one byte string.

    >>> from secagg.protocol import Signatures, encode
    >>> encode(Signatures(()))
    b'\x02\x08\x00\x00\x00\x00'
    """
    return b"".join(parts(message))


def size(message: m.Message) -> int:
    """The number of bytes that `encode` would make, without making them."""
    return sum(len(part) for part in parts(message))


def decode(data: Buffer) -> m.Message:
    """One message from exactly these bytes, or WireError. A vector is a read-only view of `data`.

    >>> from secagg.protocol import decode
    >>> decode(bytes([2, 8, 0, 0, 0, 0]))
    Signatures(endorsements=())
    """
    message: m.Message = _WIRE.decode(data)
    return message
