"""One frozen class per message, in the order in which a run sends them.

docs/protocol.md says what each field is and who signs it. The type of a field says its layout in bytes.
Client to server: KeyAdvert, Dealing, MaskedInput, Consistency, Unmasking. Server to client: KeyList, Bundle,
Survivors, Signatures. No message to a client carries a sum.

>>> from secagg.protocol import Consistency, decode, encode
>>> message = Consistency(sender=3, signature=bytes(64))
>>> len(encode(message)), decode(encode(message)) == message
(70, True)
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from secagg.agreement.plan import MOST_CLIENTS, MOST_GROUPINGS
from secagg.arguments import function, ids
from secagg.codec import U32, Ascending, AscendingGroups, Blob, Fixed, Many, Matrix, Struct
from secagg.crypto.keys import HASH_BYTES, KEY_BYTES, SIGNATURE_BYTES
from secagg.types import ClientId, GroupId, Ring32

IDS: Final = Ascending(MOST_CLIENTS)
GROUPS: Final = AscendingGroups()
Id = Annotated[ClientId, U32]
Ids = Annotated[tuple[ClientId, ...], IDS]
Groups = Annotated[tuple[GroupId, ...], GROUPS]
Hash = Annotated[bytes, Fixed(HASH_BYTES)]
Key = Annotated[bytes, Fixed(KEY_BYTES)]
Signature = Annotated[bytes, Fixed(SIGNATURE_BYTES)]
Data = Annotated[bytes, Blob()]
Commitments = Annotated[tuple[bytes, ...], Many(Fixed(HASH_BYTES), MOST_GROUPINGS)]


@dataclass(frozen=True, slots=True)
class KeyAdvert:
    """Stage 0: two X25519 public keys, signed over training id, round and roster hash."""

    sender: Id
    channel: Key
    mask: Key
    signature: Signature


ADVERT: Final = Struct.of(KeyAdvert)


@dataclass(frozen=True, slots=True)
class KeyList:
    """The hash of the plan, those of its parts, and the keys of U1 (in sparse mode, of this client's peers)."""

    plan: Hash
    parts: Annotated[tuple[bytes, ...], Many(Fixed(HASH_BYTES), 64)]
    adverts: Annotated[tuple[KeyAdvert, ...], Many(ADVERT, MOST_CLIENTS)]


@dataclass(frozen=True, slots=True)
class Dealing:
    """Stage 1: a sealed box per peer, the public hash of every share, a commitment to every seed.

    `hashes` holds 32 bytes for each holder (the sender's peers in U1, itself included, ascending) and each
    secret (the mask key, then the seed of each grouping). `boxes` holds one box per holder except the sender.
    The signature covers the sender's keys, the commitments and the root of the tree over `hashes`.
    """

    sender: Id
    commitments: Commitments
    root: Hash
    signature: Signature
    hashes: Data = field(repr=False)
    boxes: Data = field(repr=False)


@dataclass(frozen=True, slots=True)
class Dealer:
    """The public part of one Dealing, as every client sees it."""

    id: Id
    commitments: Commitments
    root: Hash


DEALER: Final = Struct.of(Dealer)


@dataclass(frozen=True, slots=True)
class Bundle:
    """U2 with the public part of every dealing, and this client's boxes and proofs: one per other dealer."""

    dealers: Annotated[tuple[Dealer, ...], Many(DEALER, MOST_CLIENTS)]
    boxes: Data = field(repr=False)
    proofs: Data = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class MaskedInput:
    """Stage 2: the masked vectors, one per grouping, and a signature over them, the view of U2 and the disputes."""

    sender: Id
    disputes: Ids
    signature: Signature
    vectors: Annotated[Ring32, Matrix()] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Survivor:
    """A member of U3, with what it signed in stage 2."""

    id: Id
    disputes: Ids
    vectors_hash: Hash
    signature: Signature


SURVIVOR: Final = Struct.of(Survivor)


@dataclass(frozen=True, slots=True)
class Survivors:
    """U3, the stage-2 signature of each member, and the groups to open."""

    members: Annotated[tuple[Survivor, ...], Many(SURVIVOR, MOST_CLIENTS)]
    groups: Groups


@dataclass(frozen=True, slots=True)
class Consistency:
    """Stage 3: a signature over plan hash, view of U2, U3 and groups."""

    sender: Id
    signature: Signature


@dataclass(frozen=True, slots=True)
class Endorsement:
    """One stage-3 signature, relayed by the server."""

    id: Id
    signature: Signature


@dataclass(frozen=True, slots=True)
class Signatures:
    """At least t stage-3 signatures over the same statement."""

    endorsements: Annotated[tuple[Endorsement, ...], Many(Struct.of(Endorsement), MOST_CLIENTS)]


@dataclass(frozen=True, slots=True)
class Unmasking:
    """Stage 4: the sender's own seeds of opened groups, and one kind of share per peer.

    `own` holds 32 bytes per opened group of the sender, by grouping; it is empty if the sender is not summed.
    Each entry of the others is a share (33 bytes) and its nonce (32 bytes):
    `seeds` holds, for each id of `seed_owners`, one entry per opened group of that owner, by grouping;
    `keys` holds one entry per id of `key_owners`.
    """

    sender: Id
    own: Data = field(repr=False)  # audit: repr-hides-own-seeds
    seed_owners: Ids
    seeds: Data = field(repr=False)  # audit: repr-hides-sent-shares
    key_owners: Ids
    keys: Data = field(repr=False)
    signature: Signature


ToServer = KeyAdvert | Dealing | MaskedInput | Consistency | Unmasking
ToClient = KeyList | Bundle | Survivors | Signatures
Message = ToServer | ToClient


class Outbox(Mapping[ClientId, ToClient]):
    """The messages of one stage by receiver. Each is made when it is looked up, to save memory.

    >>> from secagg.protocol import Outbox, Signatures
    >>> outbox = Outbox((0, 1), lambda client: Signatures(()))
    >>> list(outbox), outbox[1]
    ([0, 1], Signatures(endorsements=()))
    """

    def __init__(self, receivers: tuple[ClientId, ...], make: Callable[[ClientId], ToClient]) -> None:
        function("make", make)
        self._receivers, self._make = dict.fromkeys(ids("receivers", receivers)), make

    def __getitem__(self, client: ClientId) -> ToClient:
        if client not in self._receivers:
            raise KeyError(client)
        return self._make(client)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._receivers)

    def __len__(self) -> int:
        return len(self._receivers)
