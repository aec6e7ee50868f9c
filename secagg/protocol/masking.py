"""Masked vectors: an encoded update under its client's self-mask and pairwise masks, once per grouping."""

from collections.abc import Mapping

import numpy as np

from secagg.agreement.plan import Plan
from secagg.crypto.keys import KEY_BYTES, AgreementKey
from secagg.crypto.prg import add_masks, pairwise_keys, pairwise_sign, self_key
from secagg.crypto.segments import Update
from secagg.errors import UsageError
from secagg.protocol.client_state import ClientMemory
from secagg.protocol.messages import KeyAdvert
from secagg.protocol.noise import NoiseSource
from secagg.types import ClientId, Ring32


def encoded_update(
    plan: Plan, me: ClientId, update: Update | None, out: Ring32 | None, noise: NoiseSource
) -> tuple[Ring32, int]:
    """The code of a client's update, with noise if the plan has it, and the number of clipped values."""
    if update is None:
        raise UsageError("pass the update with the Bundle: receive(bundle, update=...)")
    shape = (len(plan.groupings), plan.length)
    if out is not None and (out.shape != shape or out.dtype != np.uint32 or not out.flags.carray):
        raise UsageError(f"out must be writable, contiguous uint32 of shape {shape}")
    encoded, losses = plan.encoding.encode(update, weight=plan.relative_weight(me))
    noise.add_to(plan.encoding, encoded)  # audit: survivors-add-noise
    return encoded, losses.clipped


def masked_vectors(
    plan: Plan,
    memory: ClientMemory,
    members: Mapping[ClientId, KeyAdvert],
    encoded: Ring32,
    *,
    out: Ring32 | None = None,
    threads: int | None = None,
) -> Ring32:
    """One masked vector per group of this client, with a pairwise mask for each other member of U2 in it."""
    me, groups = memory.me, plan.groups_of[memory.me]
    shape = (len(groups), plan.length if groups else 0)
    vectors = np.empty(shape, np.uint32) if out is None else out[: shape[0], : shape[1]]
    # audit: pairwise-masks-added
    peers = [[v for v in plan.groupings[r][g] if v != me and v in members] for r, g in groups]
    mask_key = AgreementKey.from_private(memory.mask)
    agreed = {v: mask_key.agree(members[v].mask) for v in set().union(*peers)}
    pairs = [(me, v, r) for (r, _), others in zip(groups, peers, strict=True) for v in others]
    secrets = np.frombuffer(b"".join([agreed[v] for _, v, _ in pairs]), np.uint8).reshape(-1, KEY_BYTES)
    keys = iter(pairwise_keys(secrets, plan.hash, np.array(pairs, np.uint32).reshape(-1, 3)))
    for vector, (r, _), others in zip(vectors, groups, peers, strict=True):
        own = self_key(memory.seeds[r], plan.hash, me, r)
        signs = [1, *(pairwise_sign(me, v) for v in others)]
        vector[:] = encoded
        # audit: self-mask-added
        add_masks(vector, [own, *(next(keys).tobytes() for _ in others)], signs, threads=threads)
    return vectors
