"""Masks between the members of a group, and the vectors under them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from secagg.crypto.keys import KEY_BYTES, hkdf_each
from secagg.crypto.prg import MASK_KEY_BYTES, add_masks, pairwise_sign
from secagg.types import Bytes, ClientId, Group, GroupId, Ring32
from secagg.whole import transcript
from secagg.whole.messages import Advert


def mask_keys(
    fingerprint: bytes,
    round: int,
    context: bytes,
    me: Advert,
    mates: Sequence[tuple[int, Advert]],
    agreed: Mapping[ClientId, bytes],
    present: bytes = b"",
) -> Bytes:
    """One mask key per (grouping, mate). Both ends of a pair get the same one. `present` is the hash of a roll call."""
    pairs = []
    for grouping, mate in mates:
        low, high = (me, mate) if me.sender < mate.sender else (mate, me)
        pairs.append((grouping, low.sender, low.key, high.sender, high.key))
    infos = transcript.mask_infos(fingerprint, round, context, pairs, present)
    secrets = np.frombuffer(b"".join(agreed[mate.sender] for _, mate in mates), np.uint8).reshape(-1, KEY_BYTES)
    return hkdf_each(secrets, infos)[:, :MASK_KEY_BYTES]


def masked(
    encoded: Ring32,
    me: ClientId,
    groups: Sequence[tuple[GroupId, Group]],
    keys: Bytes,
    *,
    out: Ring32 | None = None,
    threads: int | None = None,
) -> Ring32:
    """One masked copy of the encoded update per group. `keys` are in the order of the groups and of their mates.

    `out` is memory for the vectors: uint32, at least one row per group.
    """
    vectors = np.empty((len(groups), len(encoded)), np.uint32) if out is None else out[: len(groups), : len(encoded)]
    start = 0
    for vector, (_, members) in zip(vectors, groups, strict=True):
        signs = [pairwise_sign(me, mate) for mate in members if mate != me]
        vector[:] = encoded
        # audit: every-mate-masks
        add_masks(vector, keys[start : start + len(signs)], signs, threads=threads)
        start += len(signs)
    return vectors
