"""A certificate authority for this machine, made with `cryptography`."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificates(place: Path) -> Path:
    """Write ca.crt, server.pem and server.key, valid for 127.0.0.1 and localhost for a day."""
    place.mkdir(parents=True)
    now = datetime.datetime.now(datetime.UTC)
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])

    def builder(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = (
        builder(issuer, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.KeyUsage(True, False, False, False, False, True, True, False, False), critical=True)
        .sign(authority, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = (
        builder(subject, server)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority, hashes.SHA256())
    )
    (place / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (place / "server.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    (place / "server.key").write_bytes(
        server.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return place
