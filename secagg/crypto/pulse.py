"""Pulses of the NIST Randomness Beacon, version 2.0: 512 random bits every minute, signed with RSA and SHA-512.

The format is that of NIST Internal Report 8213 as the beacon at beacon.nist.gov uses it: each field in turn, integers
big-endian, everything else with its length in four bytes. The signature (PKCS #1 v1.5 with SHA-512) covers these bytes;
the output is SHA-512 of these bytes and the signature.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from secagg.errors import PeerError, UsageError

MOST_MESSAGE: Final = 2048
MOST_SIGNATURE: Final = 1024
MOST_KEY: Final = 2048
_VALUE_BYTES: Final = 64
_LISTED: Final = ("previous", "hour", "day", "month", "year")
_TEXT, _VALUE, _U32, _U64 = "text", "value", ">I", ">Q"

# (path in the beacon's JSON, kind), in the order in which they are signed
_FIELDS: Final[tuple[tuple[str, str], ...]] = (
    ("uri", _TEXT),
    ("version", _TEXT),
    ("cipherSuite", _U32),
    ("period", _U32),
    ("certificateId", _VALUE),
    ("chainIndex", _U64),
    ("pulseIndex", _U64),
    ("timeStamp", _TEXT),
    ("localRandomValue", _VALUE),
    ("external.sourceId", _VALUE),
    ("external.statusCode", _U32),
    ("external.value", _VALUE),
    *((f"listValues.{name}", _VALUE) for name in _LISTED),
    ("precommitmentValue", _VALUE),
    ("statusCode", _U32),
)


@dataclass(frozen=True)
class Pulse:
    """One pulse: the bytes that the beacon signed, its signature, and its RSA key (SubjectPublicKeyInfo, DER).

    `Pulse.from_json` reads what https://beacon.nist.gov/beacon/2.0/pulse/time/... sends. Nothing of a pulse is to be
    believed before `verify` has returned.
    """

    message: bytes
    signature: bytes
    key: bytes

    @classmethod
    def from_json(cls, text: str | bytes, certificate: bytes) -> Pulse:
        """The pulse in the beacon's JSON, with the key of its certificate (PEM or DER)."""
        try:
            document = json.loads(text)
        except ValueError as bad:
            raise UsageError(f"pulse: expected the beacon's JSON: {bad}") from None
        fields = document.get("pulse") if isinstance(document, dict) else None
        if not isinstance(fields, dict):
            raise UsageError("pulse: expected the beacon's JSON with an object 'pulse'")
        message = b"".join(_packed(fields, path, kind) for path, kind in _FIELDS)
        return cls(message, _hex(fields.get("signatureValue"), "signatureValue"), key_of(certificate))

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        return _parsed(self.message)

    @property
    def chain(self) -> int:
        return int(self._values["chainIndex"])

    @property
    def time(self) -> int:
        """When the pulse was published: milliseconds since 1970, UTC."""
        return milliseconds(self._values["timeStamp"])

    @property
    def output(self) -> bytes:
        """The 64 random bytes."""
        return hashlib.sha512(self.message + self.signature).digest()

    def verify(self) -> None:
        """PeerError unless the signature is valid under `key` for exactly these fields."""
        if self._values["cipherSuite"] != 0:
            raise PeerError(f"pulse: expected cipher suite 0 (SHA-512, RSA), got {self._values['cipherSuite']}")
        try:
            _rsa(self.key).verify(self.signature, self.message, padding.PKCS1v15(), hashes.SHA512())
        except InvalidSignature:
            raise PeerError("pulse: the beacon's signature is wrong") from None  # audit: pulse-signed


def key_of(certificate: bytes) -> bytes:
    """The public key of an X.509 certificate (PEM or DER) as DER. Its SHA-256 is what an agreement pins."""
    from cryptography import x509  # a tenth of a second, and only whoever names a beacon needs it

    read: Callable[[bytes], x509.Certificate] = x509.load_der_x509_certificate
    if certificate.lstrip().startswith(b"-----BEGIN"):
        read = x509.load_pem_x509_certificate
    try:
        key = read(certificate).public_key()
    except (ValueError, UnsupportedAlgorithm) as bad:
        raise UsageError(f"certificate: expected an X.509 certificate in PEM or DER: {bad}") from None
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def milliseconds(stamp: str) -> int:
    """A time stamp as the beacon writes it ("2026-08-31T19:04:00.000Z"), in milliseconds since 1970."""
    try:
        when = datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        raise PeerError(f"pulse: expected a time such as 2026-08-31T19:04:00.000Z, got {stamp[:40]!r}") from None
    return int(when.timestamp() * 1000)


def _rsa(key: bytes) -> rsa.RSAPublicKey:
    try:
        public = serialization.load_der_public_key(key)
    except (ValueError, UnsupportedAlgorithm):
        raise PeerError("pulse: the beacon's key is not a public key in DER") from None
    if not isinstance(public, rsa.RSAPublicKey) or not 2048 <= public.key_size <= 8192:
        raise PeerError("pulse: expected an RSA key of 2048 to 8192 bits")
    return public


def _hex(value: object, name: str) -> bytes:
    try:
        return bytes.fromhex(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UsageError(f"pulse: {name}: expected hexadecimal digits, got {str(value)[:40]!r}") from None


def _packed(fields: Mapping[str, Any], path: str, kind: str) -> bytes:
    """One field of the JSON as the bytes that are signed."""
    top, _, below = path.partition(".")
    value = fields.get(top)
    if top == "listValues":
        found = [entry for entry in value or () if isinstance(entry, dict)] if isinstance(value, list) else []
        if tuple(entry.get("type") for entry in found) != _LISTED:
            raise UsageError(f"pulse: listValues: expected {', '.join(_LISTED)}, in this order")
        value = found[_LISTED.index(below)].get("value")
    elif below:
        value = value.get(below) if isinstance(value, dict) else None
    if kind in (_U32, _U64):
        try:
            return struct.pack(kind, value)
        except struct.error:
            raise UsageError(f"pulse: {path}: expected a whole number, got {str(value)[:40]!r}") from None
    if kind != _TEXT:
        data = _hex(value, path)
    elif isinstance(value, str):
        data = value.encode()
    else:
        raise UsageError(f"pulse: {path}: expected text, got {str(value)[:40]!r}")
    return struct.pack(">I", len(data)) + data


def _parsed(message: bytes) -> dict[str, Any]:
    """The fields of a signed message; PeerError unless it is exactly one."""
    values, at = {}, 0
    for path, kind in _FIELDS:
        size = 8 if kind == _U64 else 4
        if at + size > len(message):
            raise PeerError(f"pulse: the message ends before {path}")
        (number,) = struct.unpack_from(kind if kind in (_U32, _U64) else ">I", message, at)
        at += size
        if kind in (_U32, _U64):
            values[path] = number
            continue
        data, at = message[at : at + number], at + number
        if at > len(message) or (kind == _VALUE and number != _VALUE_BYTES):
            raise PeerError(f"pulse: {path}: expected {_VALUE_BYTES if kind == _VALUE else number} bytes")
        values[path] = data.decode(errors="replace") if kind == _TEXT else data
    if at != len(message):
        raise PeerError(f"pulse: {len(message) - at} extra bytes after the message")
    return values
