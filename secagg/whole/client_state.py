"""What a client remembers between two messages, its bytes (`Client.save`), and what it hands out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, Final

from secagg import codec
from secagg.codec import U8, U64, Buffer, Fixed, Many, Struct
from secagg.crypto.keys import KEY_BYTES
from secagg.errors import SecAggError, UsageError
from secagg.evidence.record import AHEAD
from secagg.privacy.budget import MOST_UNITS, Budget, Charge
from secagg.protocol.messages import Hash, Id
from secagg.types import ClientId, Group, Ring32
from secagg.whole import messages
from secagg.whole.messages import Round

MOST_KEYS: Final = AHEAD + 1  # of the round in progress and of those ahead
ANSWER_RECORD: Final = b"answer "  # what begins the record of a slot; a hash follows
RELEASE_RECORD: Final = b"release "


class State(IntEnum):
    """What a client is waiting for: a message, the application's update, or the word that its answer is stored.

    >>> [state.name for state in State]
    ['IDLE', 'ASKED', 'MASKED']
    """

    IDLE = 0
    ASKED = 1
    MASKED = 2


MISPLACED: Final = {
    State.IDLE: "{} came, but no round waits for it: pass a Round to receive() first",
    State.ASKED: "{} came, but the round waits for answer()",
    State.MASKED: "{} came, but an answer is being stored: call stored() first",
}


@dataclass(frozen=True, slots=True)
class Task:
    """A round that waits for an update: what the server sent for it, and the slot that the answer will fill.

    After a roll call, `present` are the members that are summed; the application may refuse to answer for them.

    >>> Task(4, b"model", "00").round
    4
    """

    round: int
    data: bytes = field(repr=False)
    slot: str
    present: Group = ()


@dataclass(frozen=True, slots=True)
class Resend:
    """This round is answered: load the spool of this name and send it again, byte for byte.

    >>> Resend(4, "00").name
    '00'
    """

    round: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """What to store before anything is sent: first the spool under its name, then the record in its slot.

    Both must be durable, and the slot exclusive: `Journal.create` gives what is already there. Then call
    `Client.stored`. After that, the spool named `obsolete` is not needed any more (empty: none). An answer with noise
    has a `charge`, which is paid from the `budget` before anything else (`secagg.protocol.pay`, for the slot).

    >>> release = messages.Release(7, 1, bytes(64))
    >>> sum(map(len, Pending(1, "00", release, "01", b"release ", "").parts))
    78
    """

    round: int
    name: str
    message: messages.Answer | messages.Release
    slot: str
    record: bytes
    obsolete: str
    charge: Charge | None = None  # what this answer costs, with noise
    budget: Budget | None = None

    @property
    def parts(self) -> list[Buffer]:
        """The spool: the bytes of the message, in pieces."""
        return messages.parts(self.message)


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What the application passes with `answer`."""

    task: Task
    values: Any = field(repr=False)
    context: bytes
    out: Ring32 | None


@dataclass(frozen=True, slots=True)
class Giving:
    """What the application passes with `release`."""

    round: int


@dataclass(frozen=True, slots=True)
class Repeated:
    """A Round of the round that was answered last."""

    message: Round


@dataclass(frozen=True, slots=True)
class Stored:
    """What the application passes with `stored`."""

    found: bytes | None


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """The private half of an advert."""

    round: Annotated[int, U64]
    private: Annotated[bytes, Fixed(KEY_BYTES)] = field(repr=False)  # audit: repr-hides-round-key


@dataclass(slots=True, kw_only=True)
class ClientMemory:
    """Everything that a client must remember between two rounds, and what `Client.save` writes.

    `answered` has the last round that is answered or released, if any; `last` is the hash of the last answer.
    """

    me: Id
    fingerprint: Hash
    released: Annotated[int, U8] = 0
    answered: Annotated[tuple[int, ...], Many(U64, 1)] = ()
    last: Hash = bytes(32)
    rho: Annotated[int, U64] = 0  # what its answers have cost, in the units of `Charge`
    eta: Annotated[int, U64] = 0
    keys: Annotated[tuple[PrivateKey, ...], Many(Struct.of(PrivateKey), MOST_KEYS)] = field(default=(), repr=False)


def add_charge(memory: ClientMemory, charge: Charge | None) -> None:
    """Remember what an answer has cost."""
    total = Charge(memory.rho, memory.eta) + (charge or Charge())
    memory.rho, memory.eta = total.rho, total.eta


_SAVED: Final = b"secagg whole client 2\n"
_MEMORY: Final = Struct.of(ClientMemory)


def save(memory: ClientMemory) -> bytes:
    """The bytes that `restore` reads."""
    return _SAVED + codec.to_bytes(_MEMORY, memory)


def restore(data: bytes, me: ClientId, fingerprint: bytes) -> ClientMemory:
    """The memory that `save` wrote for this client and this agreement; UsageError for anything else."""
    if data[: len(_SAVED)] != _SAVED:
        raise UsageError("these bytes are not a saved client of whole groups of this version")
    try:
        memory: ClientMemory = codec.from_bytes(_MEMORY, memoryview(data)[len(_SAVED) :])
    except SecAggError as damaged:
        raise UsageError(f"this saved client is damaged: {damaged}") from None
    if max(memory.rho, memory.eta) > MOST_UNITS:
        raise UsageError("this saved client is damaged: its charges are too large")
    if memory.fingerprint != fingerprint:  # audit: saved-client-of-this-agreement
        raise UsageError("this saved client belongs to another agreement")
    if memory.me != me:
        raise UsageError(f"this saved client is client {memory.me}, expected client {me}")
    return memory
