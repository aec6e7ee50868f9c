"""The exact bytes that are hashed and signed at each stage.

Every statement begins with its own label and binds the plan hash. Stage 0 comes before the plan and binds
training id, round and roster hash. All parts have fixed lengths or carry their count, so two different
statements never have the same bytes.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from secagg import labels
from secagg.agreement.plan import Plan
from secagg.arguments import instance, raw
from secagg.codec import to_bytes
from secagg.crypto.hashing import row_hashes, sha256_each
from secagg.crypto.keys import digest
from secagg.protocol.messages import GROUPS, IDS, Dealer, Dealing, KeyAdvert, Survivor, Unmasking
from secagg.types import Bytes, ClientId, GroupId, Ring32, u32

KEY_SECRET = 0  # numbers of a client's secrets: 0 is its mask key, r + 1 its seed of grouping r


def key_statement(training_id: bytes, round: int, roster_hash: bytes, advert: KeyAdvert) -> bytes:
    """What stage 0 signs. It names no plan, so that a client may send keys ahead of time."""
    return b"".join(
        (
            labels.SIGN_KEYS,
            training_id,  # audit: stage-0-binds-training
            round.to_bytes(8, "little"),  # audit: stage-0-binds-round
            roster_hash,  # audit: stage-0-binds-roster
            u32(advert.sender),
            advert.channel,
            advert.mask,
        )
    )


def seed_commitment(plan_hash: bytes, owner: ClientId, grouping: int, seed: bytes) -> bytes:
    """Hiding because a seed is 32 uniform bytes; binding because SHA-256 is collision resistant."""
    # audit: seed-commitment-binds-plan seed-commitment-binds-grouping
    return digest(labels.SEED_COMMITMENT, plan_hash, u32(owner), u32(grouping), seed)


def share_hashes(plan_hash: bytes, ids: npt.NDArray[np.uint32], entries: Bytes) -> Bytes:
    """The public hashes of shares, which their dealer signs, so that nobody can replace a share.

    A row of ids is (dealer, holder, secret); a row of entries is a share and its nonce.
    """
    # audit: share-hash-binds-pair share-hash-binds-secret
    rows = np.concatenate([np.ascontiguousarray(ids, "<u4").view(np.uint8), entries], axis=1)
    return sha256_each(labels.SHARE_LEAF + plan_hash, rows)  # audit: share-hash-binds-plan


def dealing_hash(dealing: Dealing | Dealer) -> bytes:
    """The hash of what a dealer makes public: its commitments and the root of its tree of share hashes."""
    # audit: dealing-binds-commitments dealing-binds-root
    return digest(labels.DEALING, u32(len(dealing.commitments)), *dealing.commitments, dealing.root)


def dealing_statement(plan_hash: bytes, advert: KeyAdvert, dealing: Dealing | Dealer) -> bytes:
    """What stage 1 signs: the dealer's keys, commitments and tree of share hashes."""
    return b"".join(
        (
            labels.SIGN_SHARES,
            plan_hash,  # audit: stage-1-binds-plan
            u32(advert.sender),
            advert.channel,
            advert.mask,
            dealing_hash(dealing),  # audit: stage-1-binds-dealing
        )
    )


def view(plan_hash: bytes, members: Iterable[tuple[KeyAdvert, Dealer]]) -> bytes:
    """A client's view of U2: ids, keys, commitments and roots, ascending by id."""
    rows = [
        # audit: view-binds-keys view-binds-dealings
        b"".join((u32(dealer.id), advert.channel, advert.mask, dealing_hash(dealer)))
        for advert, dealer in members
    ]
    return digest(labels.VIEW, plan_hash, u32(len(rows)), *rows)


def vectors_hash(vectors: Ring32, threads: int | None = None) -> bytes:
    """The hash of a client's masked vectors: their number, then the SHA-256 of each."""
    return digest(labels.INPUT_VECTORS, u32(len(vectors)), row_hashes(vectors, threads))


def view_statement(
    plan_hash: bytes, sender: ClientId, view_digest: bytes, disputes: Sequence[ClientId], hashed: bytes
) -> bytes:
    """What stage 2 signs; `hashed` is the `vectors_hash` of the sender's masked vectors."""
    disputed = digest(labels.DISPUTES, to_bytes(IDS, disputes))
    # audit: stage-2-binds-plan stage-2-binds-disputes stage-2-binds-vectors
    return labels.SIGN_VIEW + plan_hash + u32(sender) + view_digest + disputed + hashed


def inputs_hash(members: Iterable[Survivor]) -> bytes:
    """The hash of all masked inputs of a run: the id and the `vectors_hash` of every survivor, ascending by id."""
    rows = [u32(member.id) + member.vectors_hash for member in members]
    return digest(labels.INPUTS, u32(len(rows)), *rows)


def opening(
    plan: Plan, view_digest: bytes, survivors: Sequence[ClientId], inputs: bytes, groups: Sequence[GroupId]
) -> bytes:
    """What stage 3 signs: the one survivor set, the vectors of its members (`inputs_hash`), and the groups to open.

    In sparse mode each client has a view of its own neighbourhood, so the statement leaves the view out.
    """
    bound_view = bytes(32) if plan.semi_honest_only else view_digest
    members, opened = to_bytes(IDS, survivors), to_bytes(GROUPS, groups)
    # audit: stage-3-binds-plan stage-3-binds-view stage-3-binds-survivors stage-3-binds-vectors stage-3-binds-sums
    return labels.SIGN_OPENING + digest(labels.OPENING, plan.hash, bound_view, members, inputs, opened)


def unmasking_statement(plan_hash: bytes, message: Unmasking) -> bytes:
    """What stage 4 signs, so that a wrong share convicts its sender.

    >>> from secagg.protocol import Unmasking, unmasking_statement
    >>> unsigned = Unmasking(3, own=b"", seed_owners=(), seeds=b"", key_owners=(), keys=b"", signature=b"")
    >>> len(unmasking_statement(bytes(32), unsigned))
    93
    """
    raw("plan_hash", plan_hash)
    instance("message", message, Unmasking)
    content = digest(
        labels.UNMASKING,
        u32(len(message.own)),
        message.own,  # audit: stage-4-binds-own-seeds
        to_bytes(IDS, message.seed_owners),
        u32(len(message.seeds)),
        message.seeds,
        to_bytes(IDS, message.key_owners),
        u32(len(message.keys)),
        message.keys,
    )
    return labels.SIGN_UNMASKING + plan_hash + u32(message.sender) + content  # audit: stage-4-binds-plan
