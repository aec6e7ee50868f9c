"""What both roles must agree on about stages 0 and 1: valid keys, the size of a box, the form of a proof."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from secagg.crypto import box, hashtree
from secagg.crypto.keys import HASH_BYTES, check_public_key, verify
from secagg.crypto.shamir import SHARE_BYTES
from secagg.errors import PeerError
from secagg.protocol import transcript
from secagg.protocol.messages import KeyAdvert
from secagg.protocol.plan import Plan


def check_advert(plan: Plan, advert: KeyAdvert) -> None:
    """PeerError, naming the sender, unless a stage-0 message is well made and signed."""
    try:
        check_public_key(advert.channel)  # audit: channel-key-checked
        check_public_key(advert.mask)  # audit: mask-key-checked
    except PeerError as bad:
        # audit: bad-key-names-owner
        raise PeerError(f"client {advert.sender}: {bad}", culprit=advert.sender) from None
    if advert.channel == advert.mask:  # audit: two-distinct-keys
        raise PeerError(f"client {advert.sender}: one key for two purposes", culprit=advert.sender)
    statement = transcript.key_statement(plan.training_id, plan.round, plan.roster_hash, advert)
    # audit: advert-signed
    verify(plan.identities[advert.sender], advert.signature, statement, signer=advert.sender)


def box_bytes(plan: Plan) -> int:
    """The size of every box of a run."""
    return box.BOX_OVERHEAD + HASH_BYTES + (len(plan.groupings) + 1) * SHARE_BYTES


def read_proofs(data: bytes) -> list[tuple[int, tuple[bytes, ...]]]:
    """One proof after the other: u16 place in the dealer's tree, u8 number of siblings, the siblings."""
    proofs, start = [], 0
    while start < len(data):
        place, depth = (
            int.from_bytes(data[start : start + 2], "little"),
            int.from_bytes(data[start + 2 : start + 3]),
        )
        end = start + 3 + depth * HASH_BYTES
        if end > len(data):  # audit: proofs-not-cut
            raise PeerError("the proofs end too early")
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
