"""One frozen class per message, in the order in which a run sends them.

What each field is, who signs it and how it lies in bytes is in docs/protocol.md; `wire.py` holds the
layouts. Client to server: KeyAdvert, Dealing, MaskedInput, Consistency, Unmasking. Server to client:
KeyList, Bundle, Survivors, Signatures. No message to a client carries a sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secagg.types import ClientId, GroupId, Ring32


@dataclass(frozen=True, slots=True)
class KeyAdvert:
    """Stage 0: two X25519 public keys, signed over training id, round and roster hash."""

    sender: ClientId
    channel: bytes
    mask: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class KeyList:
    """The plan, and the keys of U1 (of this client's peers, in the sparse mode)."""

    plan: bytes
    adverts: tuple[KeyAdvert, ...]


@dataclass(frozen=True, slots=True)
class Dealing:
    """Stage 1: a sealed box per peer, the public hash of every share, a commitment to every seed.

    `hashes` holds, for each holder (the sender's peers in U1, itself included, ascending) and each secret
    (the mask key, then the seed of each grouping), 32 bytes. `boxes` holds one box per holder but itself.
    The signature covers the sender's keys, the commitments and the root of the tree over `hashes`.
    """

    sender: ClientId
    commitments: tuple[bytes, ...]
    root: bytes
    signature: bytes
    hashes: bytes = field(repr=False)
    boxes: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Dealer:
    """The public part of one Dealing, as every client sees it."""

    id: ClientId
    commitments: tuple[bytes, ...]
    root: bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    """U2 with the public part of every dealing, and this client's boxes and proofs: one per other dealer."""

    dealers: tuple[Dealer, ...]
    boxes: bytes = field(repr=False)
    proofs: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class MaskedInput:
    """Stage 2: the masked vectors, one per grouping, and a signature over the view of U2 and the disputes."""

    sender: ClientId
    disputes: tuple[ClientId, ...]
    signature: bytes
    vectors: Ring32 = field(repr=False)


@dataclass(frozen=True, slots=True)
class Survivor:
    """A member of U3, with what it signed in stage 2."""

    id: ClientId
    disputes: tuple[ClientId, ...]
    signature: bytes


@dataclass(frozen=True, slots=True)
class Survivors:
    """U3, everyone's stage-2 signature, and the rows to open."""

    members: tuple[Survivor, ...]
    rows: tuple[GroupId, ...]


@dataclass(frozen=True, slots=True)
class Consistency:
    """Stage 3: a signature over plan hash, view of U2, U3 and rows."""

    sender: ClientId
    signature: bytes


@dataclass(frozen=True, slots=True)
class Endorsement:
    """One stage-3 signature, passed on."""

    id: ClientId
    signature: bytes


@dataclass(frozen=True, slots=True)
class Signatures:
    """At least t stage-3 signatures over the same statement."""

    endorsements: tuple[Endorsement, ...]


@dataclass(frozen=True, slots=True)
class Unmasking:
    """Stage 4: one kind of share per peer. Each entry is a share (33 bytes) and its nonce (32 bytes).

    `seeds` holds, for each id of `seed_owners`, one entry per opened row of that owner, by grouping;
    `keys` holds one entry per id of `key_owners`.
    """

    sender: ClientId
    seed_owners: tuple[ClientId, ...]
    seeds: bytes = field(repr=False)  # audit: repr-hides-sent-shares
    key_owners: tuple[ClientId, ...]
    keys: bytes = field(repr=False)
    signature: bytes


ToServer = KeyAdvert | Dealing | MaskedInput | Consistency | Unmasking
ToClient = KeyList | Bundle | Survivors | Signatures
Message = ToServer | ToClient
