"""Keys, against the RFCs and against `cryptography`'s own HKDF."""

import copy
import pickle

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.crypto import keys
from secagg.crypto.keys import LOW_ORDER_POINTS, AgreementKey, Identity, check_public_key, hkdf, verify
from secagg.errors import PeerError, SecAggError, UsageError
from tests.secagg import edwards

FIELD = 2**255 - 19


@given(st.binary(max_size=80), st.binary(max_size=80), st.integers(1, 32))
def test_hkdf_is_rfc_5869_with_an_empty_salt(secret: bytes, info: bytes, length: int) -> None:
    expected = HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(secret)
    assert hkdf(secret, info, length) == expected


@pytest.mark.parametrize("length", [0, 33])
def test_hkdf_gives_one_block_only(length: int) -> None:
    with pytest.raises(UsageError):
        hkdf(b"secret", b"info", length)


def test_agreement_is_rfc_7748() -> None:
    # RFC 7748, section 5.2, first vector
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    shared = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert AgreementKey.from_private(scalar).agree(point).hex() == shared


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_agreements_by_libsodium_are_those_of_openssl(one: bytes, other: bytes) -> None:
    public = AgreementKey.from_private(other).public
    agreed = X25519PrivateKey.from_private_bytes(one).exchange(X25519PublicKey.from_public_bytes(public))
    assert AgreementKey.from_private(one).agree(public) == agreed


@pytest.mark.parametrize("point", sorted(LOW_ORDER_POINTS), ids=lambda point: point.hex()[:8])
def test_low_order_points_are_refused(point: bytes) -> None:
    with pytest.raises(PeerError, match="low-order"):
        check_public_key(point)


@pytest.mark.parametrize("point", sorted(LOW_ORDER_POINTS), ids=lambda point: point.hex()[:8])
def test_the_listed_points_really_are_of_low_order(point: bytes) -> None:
    with pytest.raises(ValueError, match="shared key"):  # OpenSSL refuses the all-zero result
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(point))


@given(st.integers(FIELD, 2**256 - 1))
def test_non_canonical_encodings_are_refused(value: int) -> None:
    with pytest.raises(PeerError, match="non-canonical"):
        check_public_key(value.to_bytes(32, "little"))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_keys_of_another_length_are_refused(size: int) -> None:
    with pytest.raises(PeerError, match="32 bytes"):
        check_public_key(bytes(size))


def test_agree_checks_the_key_itself() -> None:
    with pytest.raises(PeerError):
        AgreementKey.from_private(bytes(range(32))).agree(bytes(32))


def test_a_wrong_signature_names_its_signer() -> None:
    identity = Identity.generate()
    signature = identity.sign(b"statement")
    verify(identity.public, signature, b"statement", signer=7)
    for public, signed, message in (
        (identity.public, signature, b"another statement"),
        (identity.public, bytes(64), b"statement"),
        (Identity.generate().public, signature, b"statement"),
        (b"\xff" * 32, signature, b"statement"),
    ):
        with pytest.raises(PeerError, match="client 7") as caught:
            verify(public, signed, message, signer=7)
        assert caught.value.culprit == 7


def test_the_border_between_signature_and_message_is_fixed() -> None:
    identity = Identity.generate()
    good = identity.sign(b"message")
    verify(identity.public, good, b"message", signer=7)
    for border in (0, 1, 63, 65, 71):
        joined = good + b"message"
        with pytest.raises(PeerError, match="client 7"):
            verify(identity.public, joined[:border], joined[border:], signer=7)


SMALL = edwards.small_order()


@pytest.mark.parametrize("point", SMALL)
@given(message=st.binary(max_size=100), r=st.integers(1, edwards.ORDER - 1))
@settings(max_examples=5, deadline=None)
def test_an_identity_of_small_order_signs_nothing(point: edwards.Point, message: bytes, r: int) -> None:
    """With the neutral element as identity, one signature fits every message, as OpenSSL sees it."""
    commitment = edwards.times(r, edwards.BASE)
    everything = edwards.signature(commitment, r)
    if point == edwards.NEUTRAL:
        Ed25519PublicKey.from_public_bytes(edwards.encode(point)).verify(everything, message)
    with pytest.raises(PeerError, match="client 3: wrong signature"):
        verify(edwards.encode(point), everything, message, signer=3)


@pytest.mark.parametrize("point", SMALL)
@given(message=st.binary(max_size=100), a=st.integers(1, edwards.ORDER - 1))
@settings(max_examples=5, deadline=None)
def test_commitments_of_small_order_or_off_by_one_are_refused(point: edwards.Point, message: bytes, a: int) -> None:
    identity, public = edwards.times(a, edwards.BASE), edwards.encode(edwards.times(a, edwards.BASE))
    small = edwards.signature(point, edwards.challenge(point, identity, message) * a)
    with pytest.raises(PeerError, match="client 3"):
        verify(public, small, message, signer=3)
    shifted = edwards.add(edwards.times(7, edwards.BASE), point)
    signed = edwards.signature(shifted, 7 + edwards.challenge(shifted, identity, message) * a)
    if point == edwards.NEUTRAL:
        verify(public, signed, message, signer=3)
    else:
        with pytest.raises(PeerError, match="client 3"):
            verify(public, signed, message, signer=3)


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_an_identity_of_another_length_signs_nothing(size: int) -> None:
    identity = Identity.generate()
    public = (identity.public * 2)[:size]
    with pytest.raises(PeerError, match="client 5"):
        verify(public, identity.sign(b"message"), b"message", signer=5)


@pytest.mark.parametrize("place", range(4))
def test_a_library_with_another_rule_is_not_used(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, accepted, public, signature = keys._RULE[place]
    other = (*keys._RULE[:place], (name, not accepted, public, signature), *keys._RULE[place + 1 :])
    monkeypatch.setattr(keys, "_RULE", other)
    keys._check_library.cache_clear()
    identity = Identity.generate()
    try:
        with pytest.raises(SecAggError, match=name):
            verify(identity.public, identity.sign(b""), b"", signer=0)
    finally:
        keys._check_library.cache_clear()


@given(st.binary(max_size=300), st.binary(min_size=32, max_size=32))
def test_what_is_verified_is_what_openssl_verifies(message: bytes, private: bytes) -> None:
    """Both ways on honest signatures; with one bit changed, neither accepts."""
    identity = Identity.from_private(private)
    signature = identity.sign(message)
    verify(identity.public, signature, message, signer=0)
    Ed25519PublicKey.from_public_bytes(identity.public).verify(signature, message)
    for place in (0, 31, 32, 63):
        bent = bytes(b ^ (i == place) for i, b in enumerate(signature))
        with pytest.raises(PeerError):
            verify(identity.public, bent, message, signer=0)
        with pytest.raises(InvalidSignature):
            Ed25519PublicKey.from_public_bytes(identity.public).verify(bent, message)


def test_secrets_are_not_in_repr_and_keys_are_not_copied() -> None:
    identity, key = Identity.generate(), AgreementKey.from_private(bytes(range(32)))
    assert identity.private.hex() not in repr(identity)
    assert repr(identity.private) not in repr(identity)
    assert bytes(range(32)).hex() not in repr(key)
    assert repr(bytes(range(32))) not in repr(key)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        for secret in (identity, key):
            with pytest.raises(UsageError, match="not copied or pickled"):
                duplicate(secret)


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_private_keys_of_another_length_are_refused(size: int) -> None:
    with pytest.raises(UsageError, match="32 bytes"):
        Identity.from_private(bytes(size))
    with pytest.raises(UsageError, match="32 bytes"):
        AgreementKey.from_private(bytes(size))


def roots(value: int) -> list[int]:
    """The square roots modulo 2^255 - 19: none or two (one for zero)."""
    root = pow(value, (FIELD + 3) // 8, FIELD)
    candidates = {root, root * pow(2, (FIELD - 1) // 4, FIELD) % FIELD}
    return sorted({r for c in candidates for r in (c, -c % FIELD) if r * r % FIELD == value % FIELD})


def test_no_point_of_low_order_is_missing_from_the_list() -> None:
    """The orders that divide 8 on the curve and its twist: u is 0, 1 or -1, or the double of u is 1 or -1.

    With s = u + 1/u, doubling (RFC 7748's curve, A = 486662) gives 1 if s^2 - 4 = 4s + 4A, and -1 if
    s^2 - 4 = -4s - 4A.
    """
    found = {0, 1, FIELD - 1}
    half = pow(2, -1, FIELD)
    for sign in (1, -1):
        for root in roots(4 + 4 + sign * 4 * 486662):  # s = 2 sign + root
            s = (2 * sign + root) % FIELD
            found |= {(s + r) * half % FIELD for r in roots(s * s - 4)}
    assert {point.to_bytes(32, "little") for point in found} == LOW_ORDER_POINTS
