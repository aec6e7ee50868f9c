"""X25519 agreement, Ed25519 identities and HKDF-SHA256: thin, strict wrappers of OpenSSL and libsodium.

RFC 7748 (X25519), RFC 8032 (Ed25519), RFC 5869 (HKDF). Keys travel as 32 raw bytes. A public key that
could make an agreement predictable, or that has two encodings, is refused before it is used.

Key pairs and signatures are made by OpenSSL (`cryptography`). Agreements are computed by libsodium
(`PyNaCl`), which takes as long but lets go of Python's global lock, so that a server's threads work side by
side.

Signatures are verified by libsodium too: verification is most of a client's work, libsodium takes half the
time, and it is stricter. It refuses identities and commitments of small order, which OpenSSL takes: with such
an identity one signature fits every message. Everybody must verify by one rule, or a cheater could split them
with a signature that only some accept; so there is no second verifier to fall back on, and a libsodium with
another rule is found out before it is used.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from nacl.bindings import crypto_scalarmult, crypto_sign_open
from nacl.exceptions import BadSignatureError, CryptoError

from secagg.crypto.hashing import Bytes, sha256_each
from secagg.errors import PeerError, SecAggError, UsageError

Entropy = Callable[[int], bytes]

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
HASH_BYTES: Final = 32
_FIELD_25519: Final = 2**255 - 19

# The u-coordinates of the points of order 1, 2, 4 and 8 on Curve25519 and its twist, in canonical form
# (RFC 7748, section 7). Their non-canonical encodings fall to the canonical check.
LOW_ORDER_POINTS: Final = frozenset(
    value.to_bytes(32, "little")
    for value in (
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        2**255 - 20,
    )
)


def hkdf(secret: bytes, info: bytes, length: int = 32) -> bytes:
    """HKDF-SHA256 with an empty salt (RFC 5869); `info` always opens with a label of `labels.py`."""
    if not 0 < length <= 32:
        raise UsageError("one block of HKDF-SHA256 gives 1 to 32 bytes")
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")[:length]


def hkdf_each(secrets: Bytes, infos: Bytes) -> Bytes:
    """`hkdf` of many: the 32 bytes of each row of 32-byte secrets with the same row of infos."""
    if secrets.shape[1:] != (32,) or len(secrets) != len(infos):
        raise UsageError("HKDF of many takes one secret of 32 bytes per info")
    extracted = _hmac_each(np.zeros_like(secrets), secrets)
    return _hmac_each(extracted, np.pad(infos, ((0, 0), (0, 1)), constant_values=1))


def _hmac_each(keys: Bytes, messages: Bytes) -> Bytes:
    """HMAC-SHA256 (RFC 2104) of each message under the 32-byte key of the same row."""
    blocks = np.pad(keys, ((0, 0), (0, 32)))
    inner = sha256_each(b"", np.concatenate([blocks ^ np.uint8(0x36), messages], axis=1))
    return sha256_each(b"", np.concatenate([blocks ^ np.uint8(0x5C), inner], axis=1))


def digest(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 of a label and parts, which are of fixed length or carry their own."""
    return hashlib.sha256(b"".join((label, *parts))).digest()


def check_public_key(public: bytes) -> bytes:
    """Refuse low-order and non-canonical X25519 public keys, so that no agreement is all zeros."""
    if len(public) != KEY_BYTES:
        raise PeerError(f"an X25519 key has 32 bytes, not {len(public)}")
    if int.from_bytes(public, "little") >= _FIELD_25519:  # audit: non-canonical-refused
        raise PeerError("non-canonical X25519 key")
    if public in LOW_ORDER_POINTS:  # audit: low-order-refused
        raise PeerError("low-order X25519 key")
    return public


@dataclass(frozen=True, slots=True, eq=False)
class AgreementKey:
    """An X25519 key pair for one run. The private half is 32 bytes that Shamir shares as they are."""

    public: bytes
    _private: bytes = field(repr=False)  # audit: repr-hides-agreement-key

    @classmethod
    def from_private(cls, private: bytes) -> AgreementKey:
        if len(private) != KEY_BYTES:
            # audit: agreement-key-length
            raise UsageError(f"an X25519 private key has 32 bytes, not {len(private)}")
        key = X25519PrivateKey.from_private_bytes(private)
        return cls(key.public_key().public_bytes_raw(), bytes(private))

    def __reduce_ex__(self, protocol: object) -> str:
        raise UsageError("an agreement key is not copied or pickled")  # audit: agreement-key-not-copied

    def agree(self, public: bytes) -> bytes:
        """The raw shared secret. It goes into HKDF and nowhere else."""
        try:
            return crypto_scalarmult(self._private, check_public_key(public))
        except CryptoError:  # what PyNaCl says of an all-zero result; unreachable after the check above
            raise PeerError("X25519 agreement failed") from None


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """A client's long-term Ed25519 key. The roster lists the public half; every stage is signed with it."""

    private: bytes = field(repr=False)  # audit: repr-hides-identity
    public: bytes

    @classmethod
    def generate(cls, entropy: Entropy = os.urandom) -> Identity:
        return cls.from_private(entropy(KEY_BYTES))

    @classmethod
    def from_private(cls, private: bytes) -> Identity:
        if len(private) != KEY_BYTES:
            raise UsageError(f"an Ed25519 private key has 32 bytes, not {len(private)}")
        key = Ed25519PrivateKey.from_private_bytes(private)
        return cls(private, key.public_key().public_bytes_raw())

    def __reduce_ex__(self, protocol: object) -> str:
        raise UsageError("an identity is not copied or pickled; store its private bytes with care")

    def sign(self, message: bytes) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self.private).sign(message)


def verify(public: bytes, signature: bytes, message: bytes, *, signer: int) -> None:
    """Raise PeerError, naming the signer, unless the signature is right."""
    _know_the_rule()  # audit: libsodium-rule
    if not _accepts(public, signature, message):  # audit: signature-verified
        # audit: wrong-signature-names-signer
        raise PeerError(f"client {signer}: wrong signature", culprit=signer)


def _accepts(public: bytes, signature: bytes, message: bytes) -> bool:
    # audit: signature-length identity-length
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:  # libsodium is told neither length
        return False
    try:
        crypto_sign_open(bytes(signature) + message, bytes(public))
    except BadSignatureError:
        return False
    return True


@cache
def _know_the_rule() -> None:
    """SecAggError if this libsodium accepts other signatures than the rule of docs/protocol.md does."""
    for name, accepted, public, signature in _RULE:
        if _accepts(bytes.fromhex(public), bytes.fromhex(signature), b"which rule") != accepted:
            raise SecAggError(f"libsodium verifies Ed25519 by another rule than this version needs: {name}")


# One identity A, one message; made by tests/secagg/edwards.py. A verifier that multiplies by the cofactor
# accepts the second; one that allows small orders, as OpenSSL does, the other two.
_HONEST: Final = "ce0835d5eef35d3d7194904428ab19ee30b76afce559883b3b3542994e42af45"
_RULE: Final = (
    (
        "an honest signature",
        True,
        _HONEST,
        "328188fcc427806b93c206b2a764b608a122252c1ff98b0ddd8b67c567f9a264"
        "d2a35a6409cea893166d552e9361d129f03e33dfa845380f08ee575c61dd8408",
    ),
    (
        "a commitment off by a point of order 8",
        False,
        _HONEST,
        "6d90bfb78b0bcaf21f54472577eb531cc671a48c8ee0b06a591bfd6718b19963"
        "697499bc7e43eca60719f703e83d8c13f0c24ae1ce9298df6db36f374dfe1e01",
    ),
    (
        "an identity of small order",
        False,
        "01" + "00" * 31,
        "328188fcc427806b93c206b2a764b608a122252c1ff98b0ddd8b67c567f9a264"
        "badcfe2143658709badcfe000000000000000000000000000000000000000000",
    ),
    (
        "a commitment of small order",
        False,
        _HONEST,
        "01" + "00" * 31 + "6868aacd88192948701470d91f90b26f7ff4d59f8ec55c517dc9be118a0c4d0f",
    ),
)
