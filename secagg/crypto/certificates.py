"""X.509 certificates for connections between machines: self-signed ones, which an agreement pins, and an authority's.

A pinned certificate is its own trust anchor. It must not be able to sign other certificates, or whoever holds its key
could let strangers in.
"""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from secagg.arguments import raw
from secagg.errors import UsageError

if TYPE_CHECKING:  # imported where it is used: it takes a tenth of a second, and most programs need no certificate
    from cryptography import x509

MOST_BYTES: Final = 8192  # of one certificate, DER
_YEARS: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class CertificatePair:
    """A new private key with its self-signed certificate. `key` is PEM and secret; `certificate` is DER and public.

    >>> pair = CertificatePair.generate()
    >>> check_pinned(pair.certificate) == pair.certificate
    True
    """

    key: bytes = field(repr=False)  # audit: repr-hides-tls-key
    certificate: bytes

    @classmethod
    def generate(cls) -> CertificatePair:
        """A fresh Ed25519 key and a certificate for clients and servers, valid from yesterday on."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        key = Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"secagg {hashlib.sha256(public).hexdigest()[:32]}")])
        now = datetime.datetime.now(datetime.UTC)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(key, None)
        )
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return cls(secret, certificate.public_bytes(Encoding.DER))


def check_pinned(der: bytes) -> bytes:
    """A self-signed certificate that cannot sign others, as exactly its DER bytes; UsageError for anything else."""
    certificate = _load(der)
    try:
        certificate.verify_directly_issued_by(certificate)
    except Exception:  # as below; also InvalidSignature
        raise UsageError("certificate: expected a self-signed one, or the authority that issued it") from None
    if _is_authority(certificate) is not False:  # audit: pinned-certificate-signs-no-others
        raise UsageError(
            "certificate: expected one with basic constraints CA=FALSE, got one that can sign others; "
            "`secagg identity` makes a right one"
        )
    return der


def check_authority(der: bytes) -> bytes:
    """The certificate of an authority, as exactly its DER bytes; UsageError for anything else."""
    if _is_authority(_load(der)) is not True:
        raise UsageError("authority: expected a certificate with basic constraints CA=TRUE")
    return der


def public_key_of(der: bytes) -> bytes:
    """The public key in a certificate (SubjectPublicKeyInfo, DER)."""
    return _load(der).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def dns_names(der: bytes) -> tuple[str, ...]:
    """The DNS names that a certificate is for."""
    from cryptography import x509

    try:
        extension = _load(der).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return tuple(extension.value.get_values_for_type(x509.DNSName))


def to_pem(der: bytes) -> str:
    """A certificate as PEM text."""
    return _load(der).public_bytes(Encoding.PEM).decode()


def from_pem(text: bytes) -> bytes:
    """The DER bytes of the first certificate in a PEM text; UsageError if there is none."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(text).public_bytes(Encoding.DER)
    except ValueError:
        raise UsageError("certificate: expected a certificate in PEM") from None


def _load(der: bytes) -> x509.Certificate:
    from cryptography import x509

    if not 0 < len(raw("certificate", der)) <= MOST_BYTES:
        raise UsageError(f"certificate: expected 1 to {MOST_BYTES} bytes of DER, got {len(der)}")
    try:
        certificate = x509.load_der_x509_certificate(der)
        _ = certificate.public_key(), certificate.extensions
    except Exception:  # bytes of others: the parser has many errors for them, and not all are ValueErrors
        raise UsageError("certificate: expected one X.509 certificate in DER, got other bytes") from None
    if certificate.public_bytes(Encoding.DER) != der:
        raise UsageError("certificate: expected one X.509 certificate in DER, got other bytes after it")
    return certificate


def _is_authority(certificate: x509.Certificate) -> bool | None:
    from cryptography import x509

    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return None
