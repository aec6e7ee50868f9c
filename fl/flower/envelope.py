"""How the bytes of SHARE travel in Flower's messages: a round, a few values, and named byte strings.

Byte strings travel as Flower arrays of raw bytes. Flower splits these on the wire, so a masked vector may have any
size. Each record and each array costs Flower a request at every hop, so short strings may travel inside the record of
the values. Nothing is unpickled and no array file is parsed: `secagg` decodes its own bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from secagg import Stage

HELLO, DEAL, MASK, SIGN, UNMASK = ACTIONS = ("hello", "deal", "mask", "sign", "unmask")
STAGES: Final = (Stage.KEYS, Stage.SHARES, Stage.INPUTS, Stage.CONSISTENCY, Stage.UNMASKING)
STAGE_OF: Final = dict(zip(ACTIONS, STAGES, strict=True))
"""The stage of secure aggregation that each action of the server belongs to, with survivors."""
ROUND: Final = "round"  # with whole groups, a round is this one action

_STYPE: Final = "share.bytes"
_INSIDE: Final = "part:"  # before the name of a byte string inside the record of the values
MOST_INSIDE: Final = 2**20  # bytes, of all strings of a message
MOST_TEXT: Final = 300
MOST_SECONDS: Final = 1e6  # so that sums stay finite


class MalformedError(Exception):
    """A message is not an envelope."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message, in either direction. `refused` says why a node did not do what the server asked.

    If the refusal is `permanent`, the node refuses every later round as well, until its operator changes something.
    """

    round: int
    parts: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    seconds: float = 0.0  # CPU time that the answer took
    refused: str = ""
    clock: float = 0.0  # wall-clock time that the answer took
    permanent: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.parts.values()))


def pack(envelope: Envelope, *, inside: bool = False) -> RecordDict:
    """An envelope as Flower carries it; with `inside`, short byte strings need no records of their own."""
    refused, seconds, clock = envelope.refused[:MOST_TEXT], envelope.seconds, envelope.clock
    values = ConfigRecord({"round": envelope.round, "seconds": seconds, "clock": clock, "refused": refused})
    values["permanent"] = envelope.permanent
    if inside and envelope.size <= MOST_INSIDE:
        for name, part in envelope.parts.items():
            values[_INSIDE + name] = bytes(part)
        return RecordDict({"share": values})
    arrays = {name: Array("uint8", (len(part),), _STYPE, part) for name, part in envelope.parts.items()}
    return RecordDict({"share": values, "parts": ArrayRecord(arrays)})


def unpack(content: RecordDict) -> Envelope:
    """The envelope in a message. MalformedError if there is none, whatever the peer sent."""
    try:
        values, arrays = content["share"], content.get("parts")
        if not isinstance(values, ConfigRecord) or not isinstance(arrays, ArrayRecord | None):
            raise TypeError("wrong kinds of records")
        names = ("round", "seconds", "clock", "refused", "permanent")
        found: list[Any] = [values[name] for name in names]
        round, seconds, clock, refused, permanent = found
        if [type(value) for value in found] != [int, float, float, str, bool]:
            raise TypeError("wrong types of values")
        if not 0 <= round < 2**63:
            raise ValueError("impossible round")
        parts = {str(name): bytes(array.data) for name, array in (arrays or {}).items()}
        for name, value in values.items():
            if name.startswith(_INSIDE):
                if not isinstance(value, bytes):
                    raise TypeError("a part is not bytes")
                parts[name.removeprefix(_INSIDE)] = value
        if not 0 <= seconds < MOST_SECONDS or not 0 <= clock < MOST_SECONDS:
            raise ValueError("impossible duration")
        return Envelope(round, parts, seconds, _printable(refused), clock, permanent)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedError(f"not a message of SHARE: {error}") from None


def _printable(text: str) -> str:
    """A peer's text appears in records and on terminals: no control characters, and a limited length."""
    short = text.encode("utf-8", "replace")[:MOST_TEXT].decode("utf-8", "ignore")
    return "".join(c if c.isprintable() else " " for c in short)
