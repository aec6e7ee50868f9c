"""What a hub sends to a member before there is an agreement: an address, the hash of a certificate, and a token."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from secagg import labels
from secagg.agreement.transport import Transport
from secagg.errors import UsageError

TOKEN_BYTES: Final = 16
_SHAPE: Final = re.compile(r"(https://[^/#\s]+)/?#([A-Za-z0-9_-]{43})\.([A-Za-z0-9_-]{22})")


@dataclass(frozen=True, slots=True)
class Invitation:
    """Send it to one member in a private way: whoever has it first takes the member's place until people compare.

    >>> invitation = Invitation("https://hub.example:8443", bytes(32), bytes(16))
    >>> Invitation.parse(str(invitation)) == invitation
    True
    """

    address: str
    pin: bytes  # SHA-256 of the hub's certificate (DER)
    token: bytes = field(repr=False)

    @classmethod
    def to(cls, address: str, certificate: bytes, token: bytes) -> Invitation:
        return cls(address, sha256(certificate).digest(), token)

    @classmethod
    def parse(cls, text: str) -> Invitation:
        found = _SHAPE.fullmatch(text.strip())
        try:
            pin, token = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in found.groups()[1:])  # type: ignore[union-attr]
            made = cls(found[1], pin, token)  # type: ignore[index]
        except (AttributeError, ValueError):
            made = None
        if made is None or str(made) != text.strip():
            raise UsageError("invitation: expected what the hub printed, https://HOST:PORT/#...; copy all of it")
        return made

    def __str__(self) -> str:
        pin, token = (base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (self.pin, self.token))
        return f"{self.address}/#{pin}.{token}"

    def matches(self, transport: Transport) -> bool:
        """Whether an agreement's hub is the one that sent this invitation."""
        return self.address in transport.hubs and sha256(transport.hub).digest() == self.pin


def enrolment_statement(token: bytes, certificate: bytes) -> bytes:
    """What a member signs with its identity when it enrols."""
    return labels.SIGN_ENROLMENT + sha256(token).digest() + sha256(certificate).digest()
