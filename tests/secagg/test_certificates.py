"""Certificates: what a new one says, and which ones are pinned, trusted as authorities, or refused."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secagg.crypto import certificates
from secagg.crypto.certificates import CertificatePair, check_authority, check_pinned, dns_names, from_pem, to_pem
from secagg.errors import UsageError

DAY = datetime.timedelta(days=1)


def made(*extensions: Any, issuer: Ed25519PrivateKey | None = None, key: Ed25519PrivateKey | None = None) -> bytes:
    """A certificate with these extensions, self-signed unless there is an issuer."""
    key = key or Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(now - DAY).not_valid_after(now + DAY)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer or key, None).public_bytes(Encoding.DER)


LEAF, AUTHORITY = (x509.BasicConstraints(ca=ca, path_length=None) for ca in (False, True))


def test_a_new_certificate_is_for_clients_and_servers_from_yesterday_for_twenty_years() -> None:
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    pair = CertificatePair.generate()
    after = datetime.datetime.now(datetime.UTC)
    read = x509.load_der_x509_certificate(pair.certificate)
    assert before - DAY <= read.not_valid_before_utc <= after - DAY
    assert read.not_valid_after_utc - read.not_valid_before_utc == DAY + 20 * 365 * DAY
    usage = read.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert set(usage.value) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    assert not usage.critical
    assert check_pinned(pair.certificate) == pair.certificate
    private: Any = load_pem_private_key(pair.key, None)
    assert private.public_key() == read.public_key()
    assert pair.key.decode() not in repr(pair)
    assert pair.certificate != CertificatePair.generate().certificate


def test_only_a_certificate_that_signs_no_others_is_pinned() -> None:
    leaf = made(LEAF)
    assert check_pinned(leaf) == leaf
    for other in (made(AUTHORITY), made()):
        with pytest.raises(UsageError, match="basic constraints CA=FALSE, got one that can sign others"):
            check_pinned(other)
    with pytest.raises(UsageError, match="expected a self-signed one"):
        check_pinned(made(LEAF, issuer=Ed25519PrivateKey.generate()))


def test_only_a_certificate_that_signs_others_is_an_authority() -> None:
    authority = made(AUTHORITY)
    assert check_authority(authority) == authority
    for other in (made(LEAF), made()):
        with pytest.raises(UsageError, match=r"^authority: expected a certificate with basic constraints CA=TRUE$"):
            check_authority(other)


def test_the_names_and_the_key_of_a_certificate() -> None:
    key = Ed25519PrivateKey.generate()
    names = x509.SubjectAlternativeName([x509.DNSName("hub.example"), x509.DNSName("b.example")])
    named = made(LEAF, names, key=key)
    assert dns_names(named) == ("hub.example", "b.example")
    assert dns_names(made(LEAF)) == ()
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert certificates.public_key_of(named) == public


def test_pem_and_der_are_two_forms_of_one_certificate() -> None:
    der = made(LEAF)
    assert from_pem(to_pem(der).encode()) == der
    assert to_pem(der).startswith("-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(UsageError, match=r"^certificate: expected a certificate in PEM$"):
        from_pem(b"nothing")


@pytest.mark.parametrize(
    ("der", "says"),
    [
        (b"", r"^certificate: expected 1 to 8192 bytes of DER, got 0$"),
        (b"x", r"^certificate: expected one X.509 certificate in DER, got other bytes$"),
        (bytes(8192), r"^certificate: expected one X.509 certificate in DER, got other bytes$"),
        (bytes(8193), r"^certificate: expected 1 to 8192 bytes of DER, got 8193$"),
    ],
)
def test_what_is_no_certificate_is_refused(der: bytes, says: str) -> None:
    for call in (check_pinned, check_authority, certificates.public_key_of, to_pem):
        with pytest.raises(UsageError, match=says):
            call(der)


def test_bytes_after_a_certificate_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    der = made(LEAF)
    with pytest.raises(UsageError, match="got other bytes"):
        check_pinned(der + b"\0")

    read = x509.load_der_x509_certificate(der)  # what a parser that ignores the rest would give
    monkeypatch.setattr(x509, "load_der_x509_certificate", lambda _: read)
    with pytest.raises(UsageError, match=r"in DER, got other bytes after it$"):
        check_pinned(der + b"\0")


def test_a_private_key_stays_out_of_what_is_shown() -> None:
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    assert repr(CertificatePair(secret, b"public")) == "CertificatePair(certificate=b'public')"
