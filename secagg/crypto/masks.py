"""Mask keys from agreed secrets and seeds, and the sign of each pairwise mask.

SHARE, Appendix C.1; Bonawitz et al. 2017, section 4.1. A key is 16 bytes from HKDF-SHA256. Its info binds the
version, the plan hash, the ids and the number of the grouping. `prg` expands keys to masks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from secagg import labels
from secagg.crypto.keys import hkdf, hkdf_each
from secagg.crypto.prg import MASK_KEY_BYTES
from secagg.types import Bytes, ClientId, u32


def pairwise_keys(agreed: Bytes, plan_hash: bytes, pairs: npt.NDArray[np.uint32]) -> Bytes:
    """The keys of many pairs: one agreed secret and one (a, b, grouping) per row.

    a and b may be in either order, so both clients get the same key.
    """
    ids = np.array(pairs, "<u4", order="C")
    ids[:, :2].sort(axis=1)  # audit: pairwise-keys-same-from-both-sides
    opening = np.frombuffer(labels.PAIRWISE_MASK + plan_hash, np.uint8)  # audit: pairwise-keys-bind-plan
    # audit: pairwise-keys-bind-grouping
    infos = np.concatenate([np.broadcast_to(opening, (len(ids), len(opening))), ids.view(np.uint8)], axis=1)
    return hkdf_each(agreed, infos)[:, :MASK_KEY_BYTES]


def self_key(seed: bytes, plan_hash: bytes, owner: ClientId, grouping: int) -> bytes:
    """The key of a client's own mask for one grouping."""
    # audit: self-key-binds-plan self-key-binds-grouping
    return hkdf(seed, labels.SELF_MASK + plan_hash + u32(owner) + u32(grouping), MASK_KEY_BYTES)


def pairwise_sign(me: ClientId, peer: ClientId) -> int:
    """+1 for the lower id and -1 for the higher, so that the two masks cancel in the sum."""
    return 1 if me < peer else -1
