"""What one run with survivors leaves behind, and its bytes: every signed message of a cell in a round.

Masked vectors are there by the hash that their sender signed, sums by their hashes. What clients reveal in stage 4 is
there by its hash, except in a proof of blame. docs/evidence.md has every byte, and why each may be there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from secagg import codec
from secagg.agreement.plan import MOST_CLIENTS, MOST_CONTEXT, MOST_GROUPINGS, MOST_PLACES
from secagg.codec import U32, Ascending, AscendingGroups, Blob, Buffer, Fixed, Many, Struct
from secagg.crypto.keys import HASH_BYTES, SIGNATURE_BYTES
from secagg.crypto.shamir import SHARE_BYTES
from secagg.evidence.record import (
    CHARGE,
    Absence,
    Hash,
    Id,
    Key,
    LostGroup,
    OpenedSum,
    RoundNumber,
    Signature,
    Text,
)
from secagg.privacy.budget import Charge
from secagg.types import ClientId, GroupId

_HASH: Final = Fixed(HASH_BYTES)
_CHARGES: Final = Many(CHARGE, 1)
Ids = Annotated[tuple[ClientId, ...], Ascending(MOST_CLIENTS)]
Data = Annotated[bytes, Blob()]


@dataclass(frozen=True, slots=True)
class SignedKeys:
    """Stage 0: the two public keys of one client, and its signature.

    >>> SignedKeys(3, bytes(32), bytes(32), bytes(64)).sender
    3
    """

    sender: Id
    channel: Key
    mask: Key
    signature: Signature


@dataclass(frozen=True, slots=True)
class SignedDealing:
    """Stage 1: commitments and root. The signature is there if the sender's stage-2 signature is not: that covers it.

    >>> SignedDealing(3, (bytes(32),), bytes(32), ()).signature
    ()
    """

    sender: Id
    commitments: Annotated[tuple[bytes, ...], Many(_HASH, MOST_GROUPINGS)]
    root: Hash
    signature: Annotated[tuple[bytes, ...], Many(Fixed(SIGNATURE_BYTES), 1)]


@dataclass(frozen=True, slots=True)
class SignedInput:
    """Stage 2 without the masked vectors: whom the sender disputes, the hash of the vectors, and its signature.

    >>> SignedInput(3, (5,), bytes(32), bytes(64)).disputes
    (5,)
    """

    sender: Id
    disputes: Ids
    vectors_hash: Hash
    signature: Signature


@dataclass(frozen=True, slots=True)
class SignedOpening:
    """Stage 3: a client's signature over the survivors, their vectors and the groups to open.

    >>> SignedOpening(3, bytes(64)).sender
    3
    """

    sender: Id
    signature: Signature


@dataclass(frozen=True, slots=True)
class SignedUnmasking:
    """Stage 4: the hash of the seeds and shares that a client gave, and its signature.

    >>> SignedUnmasking(3, bytes(32), bytes(64)).content == bytes(32)
    True
    """

    sender: Id
    content: Hash
    signature: Signature


@dataclass(frozen=True, slots=True)
class DealtHashes:
    """The hashes of all shares that one dealer made, leaf after leaf: the root that it signed follows from them.

    All of them are shown, because no signature says which holder a leaf is for.

    >>> DealtHashes(5, bytes(64)).dealer
    5
    """

    dealer: Id
    hashes: Data


@dataclass(frozen=True, slots=True)
class WrongUnmasking:
    """The proof against a client that gave wrong seeds or shares: all that it gave, and at most one dealer's hashes.

    >>> WrongUnmasking(3, b"", (), b"", (), b"", ()).sender
    3
    """

    sender: Id
    own: Data = field(repr=False)
    seed_owners: Ids
    seeds: Data = field(repr=False)
    key_owners: Ids
    keys: Data = field(repr=False)
    dealt: Annotated[tuple[DealtHashes, ...], Many(Struct.of(DealtHashes), 1)]


@dataclass(frozen=True, slots=True)
class ShownShare:
    """One share of a dealer's secret with its nonce.

    >>> ShownShare(3, bytes(33), bytes(32)).holder
    3
    """

    holder: Id
    share: Annotated[bytes, Fixed(SHARE_BYTES)] = field(repr=False)
    nonce: Hash = field(repr=False)


@dataclass(frozen=True, slots=True)
class WrongDealing:
    """The proof against a dealer: t of its own shares that do not give its secret (0 its mask key, r + 1 its seed r).

    >>> WrongDealing(3, 0, bytes(64), ()).secret
    0
    """

    dealer: Id
    secret: Annotated[int, U32]
    hashes: Data
    shares: Annotated[tuple[ShownShare, ...], Many(Struct.of(ShownShare), MOST_CLIENTS)]


def _many(of: type[object]) -> Many:
    return Many(Struct.of(of), MOST_CLIENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What one run of one cell leaves behind.

    `groups` are those that the survivors signed to open, `failed` why the run has no result. `wrong` and `dealt` are
    the proofs of blame; the hub blames those in `unproved` too, but their proofs are not here. `reserved` and `settled`
    are what the run costs a member at most, before and after the sums are opened, if there is noise.

    >>> record = RunRecord(round=0, cell=0, context=b"model")
    >>> RunRecord.from_bytes(record.to_bytes()) == record
    True
    """

    round: RoundNumber
    cell: Annotated[int, U32]
    context: Annotated[bytes, Blob(MOST_CONTEXT)]
    adverts: Annotated[tuple[SignedKeys, ...], _many(SignedKeys)] = ()
    dealings: Annotated[tuple[SignedDealing, ...], _many(SignedDealing)] = ()
    inputs: Annotated[tuple[SignedInput, ...], _many(SignedInput)] = ()
    groups: Annotated[tuple[GroupId, ...], AscendingGroups()] = ()
    openings: Annotated[tuple[SignedOpening, ...], _many(SignedOpening)] = ()
    unmaskings: Annotated[tuple[SignedUnmasking, ...], _many(SignedUnmasking)] = ()
    opened: Annotated[tuple[OpenedSum, ...], Many(Struct.of(OpenedSum), MOST_PLACES)] = ()
    lost: Annotated[tuple[LostGroup, ...], Many(Struct.of(LostGroup), MOST_PLACES)] = ()
    absent: Annotated[tuple[Absence, ...], _many(Absence)] = ()
    inconsistent: Annotated[tuple[tuple[GroupId, ...], ...], Many(AscendingGroups(), MOST_PLACES)] = ()
    failed: Text = b""
    wrong: Annotated[tuple[WrongUnmasking, ...], _many(WrongUnmasking)] = ()
    dealt: Annotated[tuple[WrongDealing, ...], _many(WrongDealing)] = ()
    unproved: Annotated[tuple[Absence, ...], _many(Absence)] = ()
    reserved: Annotated[tuple[Charge, ...], _CHARGES] = ()
    settled: Annotated[tuple[Charge, ...], _CHARGES] = ()

    def to_bytes(self) -> bytes:
        """The only encoding of this record."""
        return codec.to_bytes(RUN, self)

    @classmethod
    def from_bytes(cls, data: Buffer) -> RunRecord:
        """The record that these bytes encode; WireError for anything else."""
        record: RunRecord = codec.from_bytes(RUN, data)
        return record


RUN: Final = Struct.of(RunRecord)


def most_proofs(threshold: int, colluders: int) -> int:
    """How many stage-4 messages a record may hold: readers and colluders together have fewer than t shares.

    >>> most_proofs(threshold=7, colluders=3)
    3
    """
    return max(0, threshold - 1 - colluders)
