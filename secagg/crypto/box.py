"""Sealed boxes between two clients: AES-256-GCM under a key for one sender, one receiver and one plan.

The key comes from the pair's X25519 secret by HKDF. Its info and the associated data bind the plan hash, the sender and
the receiver in this order, so that a box cannot be reflected, redirected or moved to another run.
"""

import os
from collections.abc import Sequence
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg import labels
from secagg.arguments import drawn, each, raw, whole
from secagg.crypto.keys import KEY_BYTES, hkdf_each
from secagg.errors import PeerError, UsageError
from secagg.types import ClientId, Entropy, u32

NONCE_BYTES: Final = 12
BOX_OVERHEAD: Final = NONCE_BYTES + 16


def _address(plan_hash: bytes, sender: ClientId, receiver: ClientId) -> bytes:
    raw("plan_hash", plan_hash)
    for name, end in (("sender", sender), ("receiver", receiver)):
        whole(name, end, 0, 2**32 - 1)
    # audit: box-binds-pair box-binds-plan
    return labels.SHARE_BOX + plan_hash + u32(sender) + u32(receiver)


def _cipher(key: bytes) -> AESGCM:
    return AESGCM(raw("key", key, KEY_BYTES))


def box_keys(agreed: Sequence[bytes], plan_hash: bytes, ends: Sequence[tuple[ClientId, ClientId]]) -> list[bytes]:
    """The keys of many boxes: one agreed secret, and one (sender, receiver), for each.

    `plan_hash` names the run. Outside the protocol it may be any bytes that both ends know.

    >>> box_keys([bytes(32)], b"run 1", [(1, 2)]) == box_keys([bytes(32)], b"run 1", [(2, 1)])
    False
    """
    agreed, ends = each("agreed", agreed, bytes), each("ends", ends, tuple)
    if len(agreed) != len(ends) or any(len(secret) != KEY_BYTES for secret in agreed):
        raise UsageError(f"expected one agreed secret of {KEY_BYTES} bytes per pair, got {len(agreed)} secrets")
    if any(len(pair) != 2 for pair in ends):
        raise UsageError("ends: expected pairs (sender, receiver)")
    if not ends:
        return []
    # audit: box-keys-bind-pair-and-plan
    addresses = [_address(plan_hash, sender, receiver) for sender, receiver in ends]
    infos = np.frombuffer(b"".join(addresses), np.uint8).reshape(len(ends), -1)
    secrets = np.frombuffer(b"".join(agreed), np.uint8).reshape(-1, KEY_BYTES)
    return [key.tobytes() for key in hkdf_each(secrets, infos)]


def seal(
    key: bytes, plan_hash: bytes, sender: ClientId, receiver: ClientId, content: bytes, entropy: Entropy = os.urandom
) -> bytes:
    """Encrypt under a key of `box_keys`. The box is `BOX_OVERHEAD` bytes longer than the content.

    >>> [key] = box_keys([bytes(32)], b"run 1", [(1, 2)])
    >>> unseal(key, b"run 1", 1, 2, seal(key, b"run 1", 1, 2, b"hello"))
    b'hello'
    """
    nonce = drawn(entropy, NONCE_BYTES)
    return nonce + _cipher(key).encrypt(nonce, raw("content", content), _address(plan_hash, sender, receiver))


def unseal(key: bytes, plan_hash: bytes, sender: ClientId, receiver: ClientId, box: bytes) -> bytes:
    """The content of a box, or PeerError with the sender as culprit if it was changed or is for others.

    >>> unseal(bytes(32), b"run 1", 1, 2, bytes(40))
    Traceback (most recent call last):
    secagg.errors.PeerError: the box from client 1 does not open
    """
    cipher, address, box = _cipher(key), _address(plan_hash, sender, receiver), raw("box", box)
    try:
        return cipher.decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], address)
    except (InvalidTag, ValueError):  # audit: box-authenticated
        raise PeerError(f"the box from client {sender} does not open", culprit=sender) from None
