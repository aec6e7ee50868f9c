"""Sealed shares between two clients: AES-256-GCM under a key for one sender, one receiver and one plan.

The key comes from the pair's X25519 secret through HKDF with plan hash, sender and receiver, in that
direction, so a box cannot be reflected, redirected or moved to another run. The same three are bound again
as associated data: the box says on its face what it is for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg import labels
from secagg.crypto.keys import KEY_BYTES, Entropy, hkdf, hkdf_each
from secagg.errors import PeerError

NONCE_BYTES: Final = 12
OVERHEAD: Final = NONCE_BYTES + 16


def _address(plan_hash: bytes, sender: int, receiver: int) -> bytes:
    # audit: box-binds-pair box-binds-plan
    return labels.SHARE_BOX + plan_hash + sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")


def keys(agreed: Sequence[bytes], plan_hash: bytes, ends: Sequence[tuple[int, int]]) -> list[bytes]:
    """The keys of many boxes: from the agreed secret of each, and its sender and receiver."""
    if not ends:
        return []
    # audit: box-keys-bind-pair-and-plan
    addresses = [_address(plan_hash, sender, receiver) for sender, receiver in ends]
    infos = np.frombuffer(b"".join(addresses), np.uint8).reshape(len(ends), -1)
    secrets = np.frombuffer(b"".join(agreed), np.uint8).reshape(-1, KEY_BYTES)
    return [key.tobytes() for key in hkdf_each(secrets, infos)]


def seal(
    agreed: bytes, plan_hash: bytes, sender: int, receiver: int, content: bytes, entropy: Entropy = os.urandom
) -> bytes:
    """Nonce, ciphertext and tag: `OVERHEAD` bytes more than the content."""
    key = hkdf(agreed, _address(plan_hash, sender, receiver))
    return seal_under(key, plan_hash, sender, receiver, content, entropy)


def unseal(agreed: bytes, plan_hash: bytes, sender: int, receiver: int, box: bytes) -> bytes:
    """The content, or PeerError. The caller treats the failure as a disputed pair, not as the end."""
    key = hkdf(agreed, _address(plan_hash, sender, receiver))
    return unseal_under(key, plan_hash, sender, receiver, box)


def seal_under(
    key: bytes, plan_hash: bytes, sender: int, receiver: int, content: bytes, entropy: Entropy = os.urandom
) -> bytes:
    """`seal` with a key of `keys`."""
    nonce = entropy(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, _address(plan_hash, sender, receiver))


def unseal_under(key: bytes, plan_hash: bytes, sender: int, receiver: int, box: bytes) -> bytes:
    """`unseal` with a key of `keys`."""
    address = _address(plan_hash, sender, receiver)
    try:
        return AESGCM(key).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], address)
    except (InvalidTag, ValueError):  # audit: box-authenticated
        raise PeerError(f"the box from client {sender} does not open", culprit=sender) from None
