"""What a client remembers between two messages, and its bytes (`Client.save`), and its opening record.

Everything here is either public or this client's own secret.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Final

from secagg import codec, labels
from secagg.codec import U8, U32, U64, Fixed, Many, Struct
from secagg.crypto.keys import HASH_BYTES
from secagg.crypto.shamir import SECRET_BYTES
from secagg.errors import SecAggError, UsageError
from secagg.protocol.dealing import HeldShares
from secagg.protocol.messages import ADVERT, DEALER, Data, Dealer, Groups, Hash, Id, Ids, Key, KeyAdvert
from secagg.types import Ring32


class State(IntEnum):
    """What a client has done so far. FAILED and DONE are final.

    >>> State.NEW < State.MASKED < State.DONE
    True
    """

    FAILED = 0
    NEW = 1
    ADVERTISED = 2
    DEALT = 3
    MASKED = 4
    SIGNED = 5
    DONE = 6


@dataclass(slots=True, kw_only=True)
class ClientMemory:
    """Everything a client must remember between two messages, and what `Client.save` writes."""

    state: Annotated[State, U8] = State.NEW
    me: Id
    round: Annotated[int, U64]
    agreement: Hash  # its fingerprint
    instance: Annotated[bytes, Fixed(16)]  # names the journal's records of this run of this client
    step: Annotated[int, U32] = 0
    channel: Key = field(repr=False)
    mask: Key = field(repr=False)  # audit: repr-hides-mask-key
    plan: Annotated[tuple[bytes, ...], Many(Fixed(HASH_BYTES), 1)] = ()  # the hash of the plan, once there is one
    context: Data = b""
    adverts: Annotated[tuple[KeyAdvert, ...], Many(ADVERT)] = ()
    # audit: repr-hides-seeds
    seeds: Annotated[tuple[bytes, ...], Many(Fixed(SECRET_BYTES))] = field(default=(), repr=False)
    mine: Annotated[tuple[Dealer, ...], Many(DEALER, 1)] = ()  # its dealing's public part, to compare
    dealers: Annotated[tuple[Dealer, ...], Many(DEALER)] = ()
    held: Annotated[tuple[HeldShares, ...], Many(Struct.of(HeldShares))] = field(default=(), repr=False)
    survivors: Ids = ()
    inputs: Hash = bytes(HASH_BYTES)  # of all masked inputs, as stage 3 showed them
    groups: Groups = ()
    clipped: Annotated[int, U64] = 0
    answered: Annotated[tuple[bytes, ...], Many(Fixed(HASH_BYTES), 1)] = ()  # the hash of the message answered last
    answer: Data = field(default=b"", repr=False)  # what it answered, for a duplicate; no masked vectors


@dataclass(frozen=True, slots=True)
class Opening:
    """The record of stage 3: what this client agreed to open."""

    plan_hash: Hash
    view: Hash  # contains the keys of U2, so another run of the same plan is another opening
    survivors: Ids
    inputs: Hash  # contains the vectors of every survivor
    groups: Groups


@dataclass(frozen=True, slots=True)
class FromApplication:
    """What the application passes along with a message."""

    context: bytes
    encoded: tuple[Ring32, int] | None = field(repr=False)  # with the number of clipped coordinates
    out: Ring32 | None


OPENING: Final = Struct.of(Opening)
_SAVED_CLIENT: Final = b"secagg client %d\n" % labels.VERSION
_MEMORY: Final = Struct.of(ClientMemory)


def forget_secrets(memory: ClientMemory) -> None:
    """Drop every secret of a run that is over. Public data and the last answer stay."""
    memory.channel = memory.mask = b""  # audit: keys-forgotten
    memory.seeds = memory.held = ()  # audit: shares-forgotten


def check_header(data: bytes, header: bytes, what: str) -> None:
    """UsageError unless saved bytes begin with this header, which ends with the version."""
    found = bytes(data[: len(header)])
    if found != header:  # audit: saved-version
        kind, _, version = found.rstrip(b"\n").rpartition(b" ")
        if kind == header.rpartition(b" ")[0] and version.isdigit():
            raise UsageError(f"this saved {what} is of version {int(version)}, this is version {labels.VERSION}")
        raise UsageError(f"these bytes are not a saved {what}")


def save(memory: ClientMemory) -> bytes:
    """The bytes that `restore` reads."""
    return _SAVED_CLIENT + codec.to_bytes(_MEMORY, memory)


def restore(data: bytes) -> ClientMemory:
    """The memory that `save` wrote; UsageError for anything else."""
    check_header(data, _SAVED_CLIENT, "client")
    try:
        memory: ClientMemory = codec.from_bytes(_MEMORY, memoryview(data)[len(_SAVED_CLIENT) :])
        memory.state = State(memory.state)
    except (SecAggError, ValueError) as damaged:
        raise UsageError(f"this saved client is damaged: {damaged}") from None
    return memory
