"""X25519 agreement (RFC 7748), Ed25519 identities (RFC 8032) and HKDF-SHA256 (RFC 5869).

Keys travel as 32 raw bytes. OpenSSL (`cryptography`) makes key pairs and signatures. libsodium (`PyNaCl`) computes
agreements: it is as fast, and it releases Python's global lock, so that a server's threads run in parallel.

libsodium also verifies signatures: it takes half the time, and it refuses identities and commitments of small order,
which OpenSSL accepts; with such an identity, one signature fits every message. All clients must verify by the same
rule, or an attacker can split them with a signature that only some accept. So there is no second verifier, and a
libsodium with another rule is not used.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from nacl.bindings import crypto_scalarmult, crypto_sign_open
from nacl.exceptions import BadSignatureError, CryptoError

from secagg.arguments import BUFFERS, drawn, raw, whole
from secagg.crypto.hashing import KERNEL_ROWS, sha256_each
from secagg.errors import PeerError, SecAggError, UsageError
from secagg.types import Bytes, ClientId, Entropy

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
HASH_BYTES: Final = 32
_FIELD_25519: Final = 2**255 - 19

# The u-coordinates of the points of order 1, 2, 4 and 8 on Curve25519 and its twist, in canonical form
# (RFC 7748, section 7). The canonical check refuses their other encodings.
_LOW_ORDER = [0, 1, 2**255 - 20, 325606250916557431795983626356110631294008115727848805560023387167927233504]
_LOW_ORDER += [39382357235489614581723060781553021112529911719440698176882885853963445705823]
LOW_ORDER_POINTS: Final = frozenset(value.to_bytes(32, "little") for value in _LOW_ORDER)


def hkdf(secret: bytes, info: bytes, length: int = 32) -> bytes:
    """Derive a key of 1 to 32 bytes: HKDF-SHA256 with an empty salt (RFC 5869).

    `info` says what the key is for. Two different uses of one secret need two different infos.

    >>> hkdf(bytes(32), b"my protocol/v1/file key", length=16).hex()
    '676766e58a203b89d5070fff1581123d'
    """
    length = whole("length", length, 1, 32)
    extracted = hmac.digest(bytes(32), raw("secret", secret), "sha256")
    return hmac.digest(extracted, raw("info", info) + b"\x01", "sha256")[:length]


def hkdf_each(secrets: Bytes, infos: Bytes) -> Bytes:
    """HKDF of many: 32 bytes from each row of 32-byte secrets and the same row of infos."""
    if secrets.shape[1:] != (32,) or len(secrets) != len(infos):
        raise UsageError(f"expected one secret of 32 bytes per info, got {secrets.shape} and {infos.shape}")
    if len(secrets) < KERNEL_ROWS:  # one by one, without the overhead of arrays
        extracts = [hmac.digest(bytes(32), secret.tobytes(), "sha256") for secret in secrets]
        pairs = zip(extracts, infos, strict=True)
        derived = [hmac.digest(extract, info.tobytes() + b"\x01", "sha256") for extract, info in pairs]
        return np.frombuffer(b"".join(derived), np.uint8).reshape(-1, 32)
    extracted = _hmac_each(np.zeros_like(secrets), secrets)
    return _hmac_each(extracted, np.pad(infos, ((0, 0), (0, 1)), constant_values=1))


def _hmac_each(keys: Bytes, messages: Bytes) -> Bytes:
    """HMAC-SHA256 (RFC 2104) of each message under the 32-byte key of the same row."""
    blocks = np.pad(keys, ((0, 0), (0, 32)))
    inner = sha256_each(b"", np.concatenate([blocks ^ np.uint8(0x36), messages], axis=1))
    return sha256_each(b"", np.concatenate([blocks ^ np.uint8(0x5C), inner], axis=1))


def digest(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 of a label and parts. Each part must have a fixed length or carry its own."""
    return hashlib.sha256(b"".join((label, *parts))).digest()


def check_public_key(public: bytes) -> bytes:
    """Refuse low-order and non-canonical X25519 public keys, so that no agreement is all zeros."""
    if len(raw("public", public)) != KEY_BYTES:
        raise PeerError(f"an X25519 key has 32 bytes, not {len(public)}")
    if int.from_bytes(public, "little") >= _FIELD_25519:  # audit: non-canonical-refused
        raise PeerError("non-canonical X25519 key")
    if public in LOW_ORDER_POINTS:  # audit: low-order-refused
        raise PeerError("low-order X25519 key")
    return public


@dataclass(frozen=True, slots=True, eq=False)
class AgreementKey:
    """An X25519 key pair. Two parties that know each other's public half agree on one secret.

    >>> alice, bob = AgreementKey.generate(), AgreementKey.generate()
    >>> alice.agree(bob.public) == bob.agree(alice.public)
    True
    """

    public: bytes
    _private: bytes = field(repr=False)  # audit: repr-hides-agreement-key

    @classmethod
    def generate(cls, entropy: Entropy = os.urandom) -> AgreementKey:
        return cls.from_private(drawn(entropy, KEY_BYTES))

    @classmethod
    def from_private(cls, private: bytes) -> AgreementKey:
        private = raw("an X25519 private key", private, KEY_BYTES)  # audit: agreement-key-length
        key = X25519PrivateKey.from_private_bytes(private)
        return cls(key.public_key().public_bytes_raw(), private)

    def __reduce_ex__(self, protocol: object) -> str:
        raise UsageError("an agreement key is not copied or pickled")  # audit: agreement-key-not-copied

    def agree(self, public: bytes) -> bytes:
        """The raw shared secret, 32 bytes. Use it as the secret of `hkdf` and for nothing else."""
        try:
            return crypto_scalarmult(self._private, check_public_key(public))
        except CryptoError:  # PyNaCl's error for an all-zero result; unreachable after the check above
            raise PeerError("X25519 agreement failed") from None


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """A long-term Ed25519 key pair that signs messages.

    >>> identity = Identity.generate()
    >>> verify(identity.public, identity.sign(b"message"), b"message", signer=7)
    """

    private: bytes = field(repr=False)  # audit: repr-hides-identity
    public: bytes
    _key: Ed25519PrivateKey = field(init=False, repr=False)  # deriving it takes as long as signing

    def __post_init__(self) -> None:
        private = raw("an Ed25519 private key", self.private, KEY_BYTES)
        raw("an Ed25519 public key", self.public, KEY_BYTES)
        object.__setattr__(self, "_key", Ed25519PrivateKey.from_private_bytes(private))

    @classmethod
    def generate(cls, entropy: Entropy = os.urandom) -> Identity:
        return cls.from_private(drawn(entropy, KEY_BYTES))

    @classmethod
    def from_private(cls, private: bytes) -> Identity:
        private = raw("an Ed25519 private key", private, KEY_BYTES)
        key = Ed25519PrivateKey.from_private_bytes(private)
        return cls(private, key.public_key().public_bytes_raw())

    def __reduce_ex__(self, protocol: object) -> str:
        raise UsageError("an identity is not copied or pickled; store its private bytes with care")

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(raw("message", message))


def verify(public: bytes, signature: bytes, message: bytes, *, signer: ClientId) -> None:
    """Raise PeerError, with the signer as culprit, unless the signature is valid.

    >>> verify(Identity.generate().public, bytes(64), b"message", signer=7)
    Traceback (most recent call last):
    secagg.errors.PeerError: client 7: wrong signature
    """
    if not (isinstance(public, BUFFERS) and isinstance(signature, BUFFERS) and isinstance(message, BUFFERS)):
        raise UsageError("expected the public key, the signature and the message as bytes")
    _check_library()  # audit: libsodium-rule
    if not _accepts(public, signature, message):  # audit: signature-verified
        # audit: wrong-signature-names-signer
        raise PeerError(f"client {signer}: wrong signature", culprit=signer)


def _accepts(public: bytes, signature: bytes, message: bytes) -> bool:
    # audit: signature-length identity-length
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:  # libsodium does not see the lengths
        return False
    try:
        crypto_sign_open(bytes(signature) + message, bytes(public))
    except BadSignatureError:
        return False
    return True


@cache
def _check_library() -> None:
    """SecAggError if this libsodium accepts other signatures than the rule of docs/protocol.md allows."""
    for name, accepted, public, signature in _RULE:
        if _accepts(bytes.fromhex(public), bytes.fromhex(signature), b"which rule") != accepted:
            raise SecAggError(f"this libsodium has another Ed25519 rule than secagg needs: {name}")


# One identity and one message, made by tests/secagg/edwards.py. A verifier that multiplies by the cofactor
# accepts the second signature. A verifier that allows small orders, as OpenSSL does, accepts the other two.
_HONEST: Final = "ce0835d5eef35d3d7194904428ab19ee30b76afce559883b3b3542994e42af45"
_COMMITMENT: Final = "328188fcc427806b93c206b2a764b608a122252c1ff98b0ddd8b67c567f9a264"
_SHIFTED: Final = "6d90bfb78b0bcaf21f54472577eb531cc671a48c8ee0b06a591bfd6718b19963"
_NEUTRAL: Final = "01" + "00" * 31
_RULE: Final = tuple(
    (name, accepted, public, commitment + scalar)
    for name, accepted, public, commitment, scalar in (
        ("an honest signature", True, _HONEST, _COMMITMENT,
         "d2a35a6409cea893166d552e9361d129f03e33dfa845380f08ee575c61dd8408"),
        ("a commitment off by a point of order 8", False, _HONEST, _SHIFTED,
         "697499bc7e43eca60719f703e83d8c13f0c24ae1ce9298df6db36f374dfe1e01"),
        ("an identity of small order", False, _NEUTRAL, _COMMITMENT,
         "badcfe2143658709badcfe000000000000000000000000000000000000000000"),
        ("a commitment of small order", False, _HONEST, _NEUTRAL,
         "6868aacd88192948701470d91f90b26f7ff4d59f8ec55c517dc9be118a0c4d0f"),
    )
)  # fmt: skip
