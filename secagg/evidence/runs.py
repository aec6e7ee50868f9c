"""What one run with survivors leaves behind, and its bytes: what clients signed in a cell of a round.

The record has masked vectors, dealings, sums and what clients reveal in stage 4 only as hashes. A proof of blame has
the content too. docs/evidence.md has every byte, and why each may be there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from secagg import codec
from secagg.agreement.plan import MOST_CLIENTS, MOST_CONTEXT, MOST_GROUPINGS, MOST_PLACES, Plan
from secagg.codec import U32, Ascending, AscendingGroups, Blob, Buffer, Fixed, Many, Struct
from secagg.crypto.keys import HASH_BYTES
from secagg.crypto.shamir import SHARE_BYTES
from secagg.errors import WireError
from secagg.evidence.record import (
    CHARGE,
    Absence,
    Hash,
    Id,
    Key,
    LostGroup,
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
class KeysRecord:
    """Stage 0: the two public keys of one client. Its signature in `inputs` or `early` covers them.

    >>> KeysRecord(3, bytes(32), bytes(32)).sender
    3
    """

    sender: Id
    channel: Key
    mask: Key


@dataclass(frozen=True, slots=True)
class DealingRecord:
    """Stage 1: the hash of commitments and root. The sender's signature in `inputs` or `early` covers it.

    >>> DealingRecord(3, bytes(32)).hash == bytes(32)
    True
    """

    sender: Id
    hash: Hash


@dataclass(frozen=True, slots=True)
class EarlySignature:
    """The signature of a client without a masked input: on its dealing, or on its advert if it dealt nothing.

    >>> EarlySignature(3, bytes(64)).sender
    3
    """

    sender: Id
    signature: Signature


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
class ShownDealing:
    """The commitments and the root of a dealing that a proof of blame needs. Its hash is in `dealings`.

    >>> ShownDealing(3, (bytes(32),), bytes(32)).dealer
    3
    """

    dealer: Id
    commitments: Annotated[tuple[bytes, ...], Many(_HASH, MOST_GROUPINGS)]
    root: Hash


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

    If there are openings, `closed` are the groups of the plan that the survivors did not sign to open, and they signed
    all others. `sums` are the hashes of opened sums: of all groups that are not `lost`, in order. `failed` is why the
    run has no result. `wrong` and `dealt` are the proofs of blame, and `shown` the dealings that they need. `unproved`
    are the clients that the hub blames without a proof: there is none, or the record may not have more. `reserved` and
    `settled` are what the run costs a member at most, before and after the sums are opened, if there is noise.

    >>> record = RunRecord(round=0, cell=0, context=b"model")
    >>> RunRecord.from_bytes(record.to_bytes()) == record
    True
    """

    round: RoundNumber
    cell: Annotated[int, U32]
    context: Annotated[bytes, Blob(MOST_CONTEXT)]
    adverts: Annotated[tuple[KeysRecord, ...], _many(KeysRecord)] = ()
    dealings: Annotated[tuple[DealingRecord, ...], _many(DealingRecord)] = ()
    early: Annotated[tuple[EarlySignature, ...], _many(EarlySignature)] = ()
    inputs: Annotated[tuple[SignedInput, ...], _many(SignedInput)] = ()
    closed: Annotated[tuple[GroupId, ...], AscendingGroups()] = ()
    openings: Annotated[tuple[SignedOpening, ...], _many(SignedOpening)] = ()
    unmaskings: Annotated[tuple[SignedUnmasking, ...], _many(SignedUnmasking)] = ()
    sums: Annotated[tuple[bytes, ...], Many(_HASH, MOST_PLACES)] = ()
    lost: Annotated[tuple[LostGroup, ...], Many(Struct.of(LostGroup), MOST_PLACES)] = ()
    absent: Annotated[tuple[Absence, ...], _many(Absence)] = ()
    inconsistent: Annotated[tuple[tuple[GroupId, ...], ...], Many(AscendingGroups(), MOST_PLACES)] = ()
    failed: Text = b""
    shown: Annotated[tuple[ShownDealing, ...], _many(ShownDealing)] = ()
    wrong: Annotated[tuple[WrongUnmasking, ...], _many(WrongUnmasking)] = ()
    dealt: Annotated[tuple[WrongDealing, ...], _many(WrongDealing)] = ()
    unproved: Annotated[tuple[Absence, ...], _many(Absence)] = ()
    reserved: Annotated[tuple[Charge, ...], _CHARGES] = ()
    settled: Annotated[tuple[Charge, ...], _CHARGES] = ()

    def groups(self, plan: Plan) -> tuple[GroupId, ...]:
        """The groups that the survivors signed to open; none if nobody signed.

        >>> from secagg.simulation import make_agreement, run
        >>> agreement, identities = make_agreement(members=6, size=3, length=2, bound=9, groups="survivors")
        >>> result = run(agreement, {v: [v, 1] for v in range(6)}, identities)
        >>> RunRecord.from_bytes(result.record).groups(result.plan)
        ((0, 0), (0, 1))
        """
        closed = frozenset(self.closed)
        return tuple(group for group in every_group(plan) if group not in closed) if self.openings else ()

    def opened(self, plan: Plan) -> dict[GroupId, bytes]:
        """The opened groups and the hashes of their sums; WireError if their numbers differ.

        >>> from secagg.simulation import make_agreement, run
        >>> agreement, identities = make_agreement(members=6, size=3, length=2, bound=9, groups="survivors")
        >>> result = run(agreement, {v: [v, 1] for v in range(6)}, identities)
        >>> sorted(RunRecord.from_bytes(result.record).opened(result.plan)) == sorted(result.groups)
        True
        """
        lost = {one.group for one in self.lost}
        kept = [group for group in every_group(plan) if group not in lost]
        if len(kept) != len(self.sums):  # audit: evidence-run-every-group-ends
            raise WireError(f"it has {len(self.sums)} sums for the {len(kept)} groups that are not lost")
        return dict(zip(kept, self.sums, strict=True))

    def about(self) -> frozenset[ClientId]:
        """The clients whose dealings the proofs of blame need.

        >>> RunRecord(round=0, cell=0, context=b"model").about()
        frozenset()
        """
        senders = {one.sender for one in self.wrong} | {one.dealer for one in self.dealt}
        return frozenset(senders | {dealt.dealer for one in self.wrong for dealt in one.dealt})

    def to_bytes(self) -> bytes:
        """The only encoding of this record."""
        return codec.to_bytes(RUN, self)

    @classmethod
    def from_bytes(cls, data: Buffer) -> RunRecord:
        """The record that these bytes encode; WireError for anything else."""
        record: RunRecord = codec.from_bytes(RUN, data)
        return record


RUN: Final = Struct.of(RunRecord)


def every_group(plan: Plan) -> list[GroupId]:
    """All groups of a plan, in order."""
    return [(r, g) for r, grouping in enumerate(plan.groupings) for g in range(len(grouping))]


def most_proofs(threshold: int, colluders: int) -> int:
    """How many stage-4 messages a record may hold: readers and colluders together have fewer than t shares.

    >>> most_proofs(threshold=7, colluders=3)
    3
    """
    return max(0, threshold - 1 - colluders)
