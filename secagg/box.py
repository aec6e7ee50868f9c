"""Sealed shares between two clients: AES-256-GCM under a key for one sender, one receiver and one plan.

The key comes from the pair's X25519 secret through HKDF with plan hash, sender and receiver, in that
direction, so a box cannot be reflected, redirected or moved to another run. The same three are bound again
as associated data: the box says on its face what it is for.
"""

from __future__ import annotations

import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg import labels
from secagg.errors import PeerError
from secagg.keys import Entropy, hkdf

NONCE_BYTES: Final = 12
OVERHEAD: Final = NONCE_BYTES + 16


def _address(plan_hash: bytes, sender: int, receiver: int) -> bytes:
    return labels.SHARE_BOX + plan_hash + sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")


def seal(
    agreed: bytes, plan_hash: bytes, sender: int, receiver: int, content: bytes, entropy: Entropy = os.urandom
) -> bytes:
    """Nonce, ciphertext and tag: `OVERHEAD` bytes more than the content."""
    address = _address(plan_hash, sender, receiver)
    nonce = entropy(NONCE_BYTES)
    return nonce + AESGCM(hkdf(agreed, address)).encrypt(nonce, content, address)


def unseal(agreed: bytes, plan_hash: bytes, sender: int, receiver: int, box: bytes) -> bytes:
    """The content, or PeerError. The caller treats the failure as a disputed pair, not as the end."""
    address = _address(plan_hash, sender, receiver)
    try:
        return AESGCM(hkdf(agreed, address)).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], address)
    except (InvalidTag, ValueError):
        raise PeerError(f"the box from client {sender} does not open", culprit=sender) from None
