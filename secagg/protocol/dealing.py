"""What both roles must agree on about stages 0 and 1: valid keys, shares and their hashes, boxes, proofs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from secagg import labels
from secagg.agreement.plan import Plan
from secagg.arguments import instance
from secagg.crypto import box, hashtree, shamir
from secagg.crypto.hashing import sha256_each
from secagg.crypto.keys import HASH_BYTES, check_public_key, verify
from secagg.crypto.shamir import SHARE_BYTES
from secagg.errors import PeerError
from secagg.protocol import transcript
from secagg.protocol.messages import Bundle, Data, Dealer, Dealing, Hash, Id, KeyAdvert
from secagg.types import Bytes, ClientId, Entropy


def check_advert(plan: Plan, advert: KeyAdvert) -> None:
    """PeerError, naming the sender, unless a stage-0 message has good keys and its sender's signature.

    >>> from secagg.protocol import KeyAdvert, check_advert
    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=3, size=3, length=2, clip=1.0, groups="survivors")
    >>> weak = KeyAdvert(2, channel=bytes(32), mask=bytes(32), signature=bytes(64))
    >>> check_advert(agreement.plan(0, 0, b""), weak)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    secagg.errors.PeerError: client 2: ...
    """
    instance("plan", plan, Plan)
    if instance("advert", advert, KeyAdvert).sender not in plan.identities:
        raise PeerError(f"client {advert.sender} is not on the roster")
    try:
        check_public_key(advert.channel)  # audit: channel-key-checked
        check_public_key(advert.mask)  # audit: mask-key-checked
    except PeerError as bad:
        # audit: bad-key-names-owner
        raise PeerError(f"client {advert.sender}: {bad}", culprit=advert.sender) from None
    if advert.channel == advert.mask:  # audit: two-distinct-keys
        raise PeerError(f"client {advert.sender}: channel key and mask key are the same", culprit=advert.sender)
    statement = transcript.key_statement(plan.training_id, plan.round, plan.roster_hash, advert)
    # audit: advert-signed
    verify(plan.identities[advert.sender], advert.signature, statement, signer=advert.sender)


# --- shares ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldShares:
    """The shares that one dealer gave to one client, and the nonce of this pair of clients."""

    dealer: Id
    nonce: Hash = field(repr=False)
    # audit: repr-hides-held-shares
    shares: Data = field(repr=False)  # (R + 1) * 33 bytes: of the mask key, then of the seed per grouping

    def share(self, secret: int) -> bytes:
        return self.shares[secret * SHARE_BYTES : (secret + 1) * SHARE_BYTES]

    @property
    def canonical(self) -> bool:
        """Whether every share is a field element in its only encoding."""
        shares = np.frombuffer(self.shares, np.uint8).reshape(-1, SHARE_BYTES)
        return bool(shamir.canonical(shares).all())


def share_nonces(pair_nonces: Bytes, secrets: int) -> Bytes:
    """The nonces of all shares between pairs, from one nonce per pair: (pairs * secrets, 32).

    They come from one nonce by hashing, so that one opened nonce reveals no other.
    """
    numbers = np.tile(np.arange(secrets, dtype="<u4").view(np.uint8).reshape(-1, 4), (len(pair_nonces), 1))
    rows = np.concatenate([np.repeat(pair_nonces, secrets, axis=0), numbers], axis=1)
    return sha256_each(labels.SHARE_NONCE, rows)


def nonces_of(plan: Plan, dealt: Sequence[HeldShares]) -> Bytes:
    """One nonce per dealing and secret: (dealings, secrets, 32)."""
    pairs = np.frombuffer(b"".join(held.nonce for held in dealt), np.uint8).reshape(-1, HASH_BYTES)
    secrets = len(plan.groupings) + 1
    return share_nonces(pairs, secrets).reshape(-1, secrets, HASH_BYTES)


def share_hashes(plan: Plan, dealt: Sequence[HeldShares], holders: Sequence[ClientId]) -> Bytes:
    """For each dealer and holder, the content of their leaf: the hashes of all shares between them."""
    secrets = len(plan.groupings) + 1
    nonces = nonces_of(plan, dealt).reshape(-1, HASH_BYTES)
    shares = np.frombuffer(b"".join(held.shares for held in dealt), np.uint8)
    entries = np.concatenate([shares.reshape(-1, SHARE_BYTES), nonces], axis=1)
    ids = np.empty((len(dealt), secrets, 3), np.uint32)
    ids[:, :, 0] = np.array([held.dealer for held in dealt], np.uint32)[:, None]
    ids[:, :, 1] = np.array(holders, np.uint32)[:, None]
    ids[:, :, 2] = np.arange(secrets)
    hashes = transcript.share_hashes(plan.hash, ids.reshape(-1, 3), entries)
    return hashes.reshape(-1, secrets * HASH_BYTES)


def deal(
    plan: Plan,
    me: ClientId,
    secrets: Sequence[bytes],
    holders: Sequence[ClientId],
    box_keys: Callable[[], Sequence[bytes]],
    entropy: Entropy,
) -> tuple[HeldShares, Dealing]:
    """Share the secrets (the mask key, then the seeds) with all holders: its own shares, and the message.

    `box_keys` gives one key per holder except the client. The message is not signed yet.
    """
    shares = shamir.split_each(list(secrets), plan.t, [plan.index[v] for v in holders], entropy)
    keys = iter(box_keys())
    dealt, boxes = [], []
    for place, holder in enumerate(holders):
        held = HeldShares(me, entropy(HASH_BYTES), shares[:, place].tobytes())
        dealt.append(held)
        if holder != me:
            boxes.append(box.seal(next(keys), plan.hash, me, holder, held.nonce + held.shares, entropy))
    hashes = share_hashes(plan, dealt, holders)
    commitments = tuple(transcript.seed_commitment(plan.hash, me, r, seed) for r, seed in enumerate(secrets[1:]))
    root = hashtree.levels(hashtree.leaves(hashes))[-1]
    return dealt[holders.index(me)], Dealing(me, commitments, root, b"", hashes.tobytes(), b"".join(boxes))


# --- boxes and proofs ------------------------------------------------------------------------------------


def box_bytes(plan: Plan) -> int:
    """The size of every box of a run."""
    return box.BOX_OVERHEAD + HASH_BYTES + (len(plan.groupings) + 1) * SHARE_BYTES


def open_boxes(
    plan: Plan, me: ClientId, dealers: Sequence[Dealer], derive_keys: Callable[[], Sequence[bytes]], message: Bundle
) -> tuple[list[HeldShares], tuple[ClientId, ...]]:
    """The shares that dealers sent to a client, and the dealers whose box or shares it disputes.

    Keys are derived after the sizes are checked, so that a malformed bundle costs no key agreements.
    """
    size, proofs = box_bytes(plan), read_proofs(message.proofs)
    # audit: one-box-and-proof-per-dealer
    if len(message.boxes) != len(dealers) * size or len(proofs) != len(dealers):
        raise PeerError(f"wrong bundle size: expected {len(dealers)} boxes and proofs")
    opened: list[tuple[HeldShares, Dealer, int, tuple[bytes, ...]]] = []
    held, disputes = [], []
    for number, (dealer, key, (place, path)) in enumerate(zip(dealers, derive_keys(), proofs, strict=True)):
        sealed = message.boxes[number * size : (number + 1) * size]
        try:
            content = box.unseal(key, plan.hash, dealer.id, me, sealed)
        except PeerError:
            disputes.append(dealer.id)  # audit: unopened-box-disputed
            continue
        shares = HeldShares(dealer.id, content[:HASH_BYTES], content[HASH_BYTES:])
        opened.append((shares, dealer, place, path))
    contents = share_hashes(plan, [shares for shares, *_ in opened], [me] * len(opened))
    leaves = np.frombuffer(hashtree.leaves(contents), np.uint8).reshape(-1, HASH_BYTES)
    roots = hashtree.roots(leaves, [place for *_, place, _ in opened], [path for *_, path in opened])
    for (shares, dealer, _, _), root in zip(opened, roots, strict=True):
        # audit: share-matches-signed-root share-in-field-or-disputed
        if shares.canonical and root == dealer.root:
            held.append(shares)
        else:
            disputes.append(dealer.id)
    return held, tuple(sorted(disputes))


def read_proofs(data: bytes) -> list[tuple[int, tuple[bytes, ...]]]:
    """Consecutive proofs: u16 place in the dealer's tree, u8 number of siblings, the siblings."""
    proofs, start = [], 0
    while start < len(data):
        place = int.from_bytes(data[start : start + 2], "little")
        depth = int.from_bytes(data[start + 2 : start + 3])
        end = start + 3 + depth * HASH_BYTES
        if end > len(data):  # audit: proofs-not-cut
            raise PeerError(f"the proofs end {end - len(data)} bytes too early")
        proofs.append((place, tuple(data[i : i + HASH_BYTES] for i in range(start + 3, end, HASH_BYTES))))
        start = end
    return proofs


def write_proof(place: int, siblings: Sequence[bytes]) -> bytes:
    """One proof as `read_proofs` reads it."""
    return _proof_head(place, len(siblings)) + b"".join(siblings)


def write_proofs(place: int, forest: hashtree.Forest) -> npt.NDArray[np.uint8]:
    """The proofs of the same place in all trees of a forest, one per row."""
    paths = [level[place >> height ^ 1] for height, level in enumerate(forest)]
    head = np.frombuffer(_proof_head(place, len(paths)), np.uint8)
    return np.concatenate([np.broadcast_to(head, (len(paths[0]), len(head))), *paths], axis=1)


def _proof_head(place: int, siblings: int) -> bytes:
    return place.to_bytes(2, "little") + siblings.to_bytes(1, "little")
