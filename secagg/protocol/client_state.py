"""What a client remembers between two messages, and its bytes (`Client.save`), and its opening record.

Everything here is either public or this client's own secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Final

from secagg.crypto import shamir
from secagg.crypto.keys import KEY_BYTES
from secagg.errors import SecAggError, UsageError
from secagg.protocol import codec
from secagg.protocol.codec import U8, U32, U64, Blob, Fixed, Many, Struct
from secagg.protocol.dealing import HeldShares
from secagg.protocol.messages import Dealer, KeyAdvert
from secagg.protocol.wire import ADVERT, DEALER, GROUPS, HASH, IDS
from secagg.types import ClientId, GroupId


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

    state: State = State.NEW
    me: ClientId
    round: int
    instance: bytes  # names the journal's records of this run of this client
    step: int = 0
    channel: bytes = field(repr=False)
    mask: bytes = field(repr=False)  # audit: repr-hides-mask-key
    plan: bytes = b""
    adverts: tuple[KeyAdvert, ...] = ()
    seeds: tuple[bytes, ...] = field(default=(), repr=False)  # audit: repr-hides-seeds
    mine: tuple[Dealer, ...] = ()  # the public part of this client's dealing: the server may not alter it
    dealers: tuple[Dealer, ...] = ()
    held: tuple[HeldShares, ...] = field(default=(), repr=False)
    survivors: tuple[ClientId, ...] = ()
    groups: tuple[GroupId, ...] = ()
    clipped: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """The record of stage 3: what this client agreed to open."""

    plan_hash: bytes
    view: bytes  # contains the keys of U2, so another run of the same plan is another opening
    survivors: tuple[ClientId, ...]
    groups: tuple[GroupId, ...]


OPENING: Final = Struct(
    Opening, (("plan_hash", HASH), ("view", HASH), ("survivors", IDS), ("groups", GROUPS))
)
_HELD: Final = Struct(HeldShares, (("dealer", U32), ("nonce", HASH), ("shares", Blob())))
_SAVED_CLIENT: Final = b"secagg client 1\n"
_MEMORY: Final = Struct(
    ClientMemory,
    (
        ("state", U8),
        ("me", U32),
        ("round", U64),
        ("instance", Fixed(16)),
        ("step", U32),
        ("channel", Fixed(KEY_BYTES)),
        ("mask", Fixed(KEY_BYTES)),
        ("plan", Blob()),
        ("adverts", Many(ADVERT)),
        ("seeds", Many(Fixed(shamir.SECRET_BYTES))),
        ("mine", Many(DEALER, 1)),
        ("dealers", Many(DEALER)),
        ("held", Many(_HELD)),
        ("survivors", IDS),
        ("groups", GROUPS),
        ("clipped", U64),
    ),
)
assert [name for name, _ in _MEMORY.fields] == [f.name for f in fields(ClientMemory)]


def save(memory: ClientMemory) -> bytes:
    """The bytes that `restore` reads."""
    return _SAVED_CLIENT + codec.to_bytes(_MEMORY, memory)


def restore(data: bytes) -> ClientMemory:
    """The memory that `save` wrote; UsageError for anything else."""
    if data[: len(_SAVED_CLIENT)] != _SAVED_CLIENT:
        raise UsageError("these bytes are not a saved client of this version")
    try:
        memory: ClientMemory = codec.from_bytes(_MEMORY, memoryview(data)[len(_SAVED_CLIENT) :])
        memory.state = State(memory.state)
    except (SecAggError, ValueError) as damaged:
        raise UsageError(f"this saved client is damaged: {damaged}") from None
    return memory
