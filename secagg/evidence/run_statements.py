"""What was hashed and signed in a run with survivors, written from docs/protocol.md for the verifier alone.

The server and the clients have their own code for this (`secagg.protocol.transcript`); evidence is not judged by the
code that made it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256

from secagg import labels
from secagg.agreement.plan import Plan
from secagg.crypto.keys import digest
from secagg.evidence.runs import DealingRecord, KeysRecord, ShownDealing, SignedInput, WrongUnmasking
from secagg.types import ClientId, GroupId, u32


def _ids(clients: Sequence[ClientId]) -> bytes:
    return u32(len(clients)) + b"".join(map(u32, clients))


def _blob(data: bytes) -> bytes:
    return u32(len(data)) + data


def advert(plan: Plan, keys: KeysRecord) -> bytes:
    round = plan.round.to_bytes(8, "little")
    return labels.SIGN_KEYS + plan.training_id + round + plan.roster_hash + u32(keys.sender) + keys.channel + keys.mask


def dealing_hash(shown: ShownDealing) -> bytes:
    """The hash of a dealing: of its commitments and its root."""
    return digest(labels.DEALING, u32(len(shown.commitments)), *shown.commitments, shown.root)


def dealing(plan: Plan, keys: KeysRecord, dealt: DealingRecord) -> bytes:
    return labels.SIGN_SHARES + plan.hash + u32(keys.sender) + keys.channel + keys.mask + dealt.hash


def view(plan: Plan, members: Iterable[tuple[KeysRecord, DealingRecord]]) -> bytes:
    """The hash of U2 as one client saw it."""
    rows = [u32(keys.sender) + keys.channel + keys.mask + dealt.hash for keys, dealt in members]
    return digest(labels.VIEW, plan.hash, u32(len(rows)), *rows)


def masked_input(plan: Plan, seen: bytes, given: SignedInput) -> bytes:
    disputed = digest(labels.DISPUTES, _ids(given.disputes))
    # audit: evidence-run-vectors-signed
    return labels.SIGN_VIEW + plan.hash + u32(given.sender) + seen + disputed + given.vectors_hash


def inputs(given: Sequence[SignedInput]) -> bytes:
    """The hash of all masked inputs of a run."""
    return digest(labels.INPUTS, u32(len(given)), *(u32(one.sender) + one.vectors_hash for one in given))


def opening(plan: Plan, seen: bytes, given: Sequence[SignedInput], groups: Sequence[GroupId]) -> bytes:
    bound, survivors = bytes(32) if plan.degree else seen, _ids([one.sender for one in given])
    listed = u32(len(groups)) + b"".join(struct.pack("<HI", *group) for group in groups)
    # audit: evidence-run-vectors-endorsed
    return labels.SIGN_OPENING + digest(labels.OPENING, plan.hash, bound, survivors, inputs(given), listed)


def unmasking(plan: Plan, sender: ClientId, content: bytes) -> bytes:
    return labels.SIGN_UNMASKING + plan.hash + u32(sender) + content


def content(given: WrongUnmasking) -> bytes:
    """The hash of what a client gave in stage 4."""
    seeds, keys = _ids(given.seed_owners) + _blob(given.seeds), _ids(given.key_owners) + _blob(given.keys)
    return digest(labels.UNMASKING, _blob(given.own), seeds, keys)


def share_hash(plan: Plan, dealer: ClientId, holder: ClientId, secret: int, entry: bytes) -> bytes:
    """The hash of a share and its nonce, which follows it."""
    return digest(labels.SHARE_LEAF, plan.hash, u32(dealer), u32(holder), u32(secret), entry)


def commitment(plan: Plan, owner: ClientId, grouping: int, seed: bytes) -> bytes:
    return digest(labels.SEED_COMMITMENT, plan.hash, u32(owner), u32(grouping), seed)


def root(hashes: bytes, width: int) -> bytes:
    """The root of the tree whose leaves have these hashes, so many bytes each."""
    level = [sha256(labels.TREE_LEAF + hashes[i : i + width]).digest() for i in range(0, len(hashes), width)]
    while len(level) > 1:
        level += [sha256(labels.TREE_EMPTY).digest()] * (len(level) % 2)
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [sha256(labels.TREE_NODE + left + right).digest() for left, right in pairs]
    return level[0] if level else b""


def record_name(label: bytes, identity: bytes, fingerprint: bytes, round: int) -> str:
    """The name of a client's record about its update of a round."""
    return f"v{labels.VERSION}-{digest(label, identity, fingerprint, round.to_bytes(8, 'little')).hex()}"
