"""How SHARE's bytes travel in Flower's messages: a round, a few words, and named byte strings.

Byte strings go as Flower arrays of raw bytes, which Flower cuts into pieces on the wire, so a masked vector
of any size passes. Nothing is unpickled and no array file is parsed: `secagg` decodes its own bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

HELLO: Final = "hello"
DEAL: Final = "deal"
MASK: Final = "mask"
SIGN: Final = "sign"
UNMASK: Final = "unmask"
ACTIONS: Final = (HELLO, DEAL, MASK, SIGN, UNMASK)
"""What a server asks for. The four exchanges of a round are the last four; `hello` opens a training."""

_STYPE: Final = "share.bytes"
MOST_TEXT: Final = 300
MOST_SECONDS: Final = 1e6  # sums of them stay finite


class MalformedError(Exception):
    """A message that is not an envelope."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message, either way. `refused` says why a node did not do what it was asked."""

    round: int
    parts: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    seconds: float = 0.0  # of computing that the answer took
    refused: str = ""
    clock: float = 0.0  # seconds that went by meanwhile

    @property
    def size(self) -> int:
        return sum(map(len, self.parts.values()))


def pack(envelope: Envelope) -> RecordDict:
    """An envelope as Flower carries it."""
    told = ConfigRecord(
        {
            "round": envelope.round,
            "seconds": envelope.seconds,
            "clock": envelope.clock,
            "refused": envelope.refused[:MOST_TEXT],
        }
    )
    arrays = {name: Array("uint8", (len(part),), _STYPE, part) for name, part in envelope.parts.items()}
    return RecordDict({"share": told, "parts": ArrayRecord(arrays)})


def unpack(content: RecordDict) -> Envelope:
    """The envelope in a message; MalformedError for anything else, whatever a peer put there."""
    try:
        told, arrays = content["share"], content["parts"]
        if not isinstance(told, ConfigRecord) or not isinstance(arrays, ArrayRecord):
            raise TypeError("records of other kinds")
        round, seconds, clock = told["round"], told["seconds"], told["clock"]
        refused = told["refused"]
        if type(round) is not int or type(seconds) is not float or type(clock) is not float:
            raise TypeError("values of other types")
        if type(refused) is not str:
            raise TypeError("values of other types")
        if not 0 <= round < 2**63:
            raise ValueError("a round that does not exist")
        parts = {str(name): bytes(array.data) for name, array in arrays.items()}
        if not 0 <= seconds < MOST_SECONDS or not 0 <= clock < MOST_SECONDS:
            raise ValueError("a duration that does not exist")
        return Envelope(round, parts, seconds, _printable(refused), clock)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedError(f"not a message of SHARE: {error}") from None


def _printable(text: str) -> str:
    """A peer's words end up in records and on terminals: no control characters, and not many bytes."""
    short = text.encode("utf-8", "replace")[:MOST_TEXT].decode("utf-8", "ignore")
    return "".join(c if c.isprintable() else " " for c in short)
