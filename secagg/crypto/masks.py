"""From agreed secrets and seeds to mask keys: which key, and who adds and who subtracts.

SHARE, Appendix C.1; Bonawitz et al. 2017, section 4.1. A key is 16 bytes from HKDF-SHA256 with labels that
bind version, plan hash, ids and the grouping's number; `prg` expands it. Nothing else makes a mask.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from secagg import labels
from secagg.crypto.hashing import Bytes
from secagg.crypto.keys import hkdf, hkdf_each
from secagg.crypto.prg import KEY_BYTES
from secagg.types import ClientId, u32


def pairwise_key(agreed: bytes, plan_hash: bytes, a: ClientId, b: ClientId, grouping: int) -> bytes:
    """The key that clients a and b share for one grouping; the same from both sides."""
    low, high = sorted((a, b))
    # audit: pairwise-key-binds-grouping pairwise-key-binds-plan
    return hkdf(agreed, labels.PAIRWISE_MASK + plan_hash + u32(low) + u32(high) + u32(grouping), KEY_BYTES)


def pairwise_keys(agreed: Bytes, plan_hash: bytes, pairs: npt.NDArray[np.uint32]) -> Bytes:
    """`pairwise_key` of many: one agreed secret and one (a, b, grouping) per row."""
    ids = np.array(pairs, "<u4", order="C")
    ids[:, :2].sort(axis=1)
    opening = np.frombuffer(labels.PAIRWISE_MASK + plan_hash, np.uint8)  # audit: pairwise-keys-bind-plan
    # audit: pairwise-keys-bind-grouping
    infos = np.concatenate([np.broadcast_to(opening, (len(ids), len(opening))), ids.view(np.uint8)], axis=1)
    return hkdf_each(agreed, infos)[:, :KEY_BYTES]


def self_key(seed: bytes, plan_hash: bytes, owner: ClientId, grouping: int) -> bytes:
    """The key of a client's own mask for one grouping."""
    # audit: self-key-binds-plan
    return hkdf(seed, labels.SELF_MASK + plan_hash + u32(owner) + u32(grouping), KEY_BYTES)


def pairwise_sign(me: ClientId, peer: ClientId) -> int:
    """The lower id adds, the higher subtracts, so that the two cancel in the sum."""
    return 1 if me < peer else -1
