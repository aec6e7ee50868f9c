"""What a client remembers between two messages, and how it lies in bytes.

Everything here is either public or the client's own secret; nothing of it is the server's business. The
bytes are those of `Client.save` and of the records that a client keeps in its journal.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Final

import numpy as np

from secagg import labels
from secagg.crypto import shamir
from secagg.crypto.hashing import sha256_each
from secagg.crypto.keys import KEY_BYTES
from secagg.crypto.shamir import SHARE_BYTES
from secagg.errors import SecAggError, UsageError
from secagg.protocol import codec
from secagg.protocol.codec import U8, U32, U64, Blob, Fixed, Many, Struct
from secagg.protocol.messages import Dealer, KeyAdvert
from secagg.protocol.wire import ADVERT, DEALER, HASH, IDS, ROWS
from secagg.types import Bytes, ClientId, GroupId


class State(IntEnum):
    """What a client has done so far. FAILED and DONE are final."""

    FAILED = 0
    NEW = 1
    ADVERTISED = 2
    DEALT = 3
    MASKED = 4
    SIGNED = 5
    DONE = 6


@dataclass(frozen=True, slots=True)
class HeldShares:
    """What one dealer gave this client: a share of its mask key, one of each seed, and their nonce."""

    dealer: ClientId
    nonce: bytes = field(repr=False)
    # audit: repr-hides-held-shares
    shares: bytes = field(repr=False)  # (R + 1) * 33 bytes: the mask key's, then one per grouping

    def share(self, secret: int) -> bytes:
        return self.shares[secret * SHARE_BYTES : (secret + 1) * SHARE_BYTES]

    @property
    def canonical(self) -> bool:
        """Whether every share is a field element, written in the only way there is."""
        return all(map(is_canonical, (self.share(k) for k in range(len(self.shares) // SHARE_BYTES))))


def is_canonical(share: bytes) -> bool:
    return int.from_bytes(share, "little") < shamir.PRIME


def share_nonces(pair_nonces: Bytes, secrets: int) -> Bytes:
    """The nonces of all shares between pairs, from one nonce per pair: (pairs * secrets, 32).

    They come from one nonce by hashing, so that one opened nonce reveals no other.
    """
    numbers = np.tile(np.arange(secrets, dtype="<u4").view(np.uint8).reshape(-1, 4), (len(pair_nonces), 1))
    rows = np.concatenate([np.repeat(pair_nonces, secrets, axis=0), numbers], axis=1)
    return sha256_each(labels.SHARE_NONCE, rows)


@dataclass(slots=True, kw_only=True)
class Memory:
    """Everything a client must remember between two messages, and what `Client.save` writes."""

    state: State = State.NEW
    me: ClientId
    round: int
    instance: bytes  # names the records of this run of this client
    step: int = 0
    channel: bytes = field(repr=False)
    mask: bytes = field(repr=False)  # audit: repr-hides-mask-key
    plan: bytes = b""
    adverts: tuple[KeyAdvert, ...] = ()
    seeds: tuple[bytes, ...] = field(default=(), repr=False)  # audit: repr-hides-seeds
    mine: tuple[Dealer, ...] = ()  # my own dealing's public part: the server may not alter it
    dealers: tuple[Dealer, ...] = ()
    held: tuple[HeldShares, ...] = field(default=(), repr=False)
    survivors: tuple[ClientId, ...] = ()
    rows: tuple[GroupId, ...] = ()
    clipped: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """The record of stage 3: what this client agreed to open."""

    plan_hash: bytes
    view: bytes  # whose keys are in it: so another run of the same plan is another opening
    survivors: tuple[ClientId, ...]
    rows: tuple[GroupId, ...]


OPENING: Final = Struct(Opening, (("plan_hash", HASH), ("view", HASH), ("survivors", IDS), ("rows", ROWS)))
_HELD: Final = Struct(HeldShares, (("dealer", U32), ("nonce", HASH), ("shares", Blob())))
_SAVED_CLIENT: Final = b"secagg client 1\n"
_MEMORY: Final = Struct(
    Memory,
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
        ("rows", ROWS),
        ("clipped", U64),
    ),
)
assert [name for name, _ in _MEMORY.fields] == [f.name for f in fields(Memory)]


def save(memory: Memory) -> bytes:
    return _SAVED_CLIENT + codec.to_bytes(_MEMORY, memory)


def restore(data: bytes) -> Memory:
    """The memory that `save` wrote; UsageError for anything else."""
    if data[: len(_SAVED_CLIENT)] != _SAVED_CLIENT:
        raise UsageError("these bytes are not a saved client of this version")
    try:
        memory: Memory = codec.from_bytes(_MEMORY, memoryview(data)[len(_SAVED_CLIENT) :])
        memory.state = State(memory.state)
    except (SecAggError, ValueError) as damaged:
        raise UsageError(f"this saved client is damaged: {damaged}") from None
    return memory
