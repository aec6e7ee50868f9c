"""TLS 1.3 with certificates on both ends. Strangers fail in the handshake, before any byte of theirs is parsed."""

from __future__ import annotations

import ssl
from pathlib import Path

from secagg.agreement.transport import Transport
from secagg.errors import UsageError


def hub_context(credentials: Path, transport: Transport) -> ssl.SSLContext:
    """What the hub listens with: only members' certificates (or the authority's) are accepted."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, credentials)
    context.verify_mode = ssl.CERT_REQUIRED  # audit: hub-demands-certificate
    context.load_verify_locations(cadata=transport.authority or b"".join(transport.members))
    context.num_tickets = 0  # a resumed session would not show its certificate again
    return context


def site_context(credentials: Path, transport: Transport) -> ssl.SSLContext:
    """What a site dials with: only the hub's own certificate is accepted, or one of the authority for its address."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, credentials)
    context.check_hostname = bool(transport.authority)  # audit: authority-checks-hub-name
    context.verify_mode = ssl.CERT_REQUIRED  # audit: site-knows-hub
    context.load_verify_locations(cadata=transport.authority or transport.hub)
    return context


def open_context(credentials: Path) -> ssl.SSLContext:
    """What the hub listens with while an agreement is made: members have no pinned certificates yet."""
    return _context(ssl.PROTOCOL_TLS_SERVER, credentials)


def _context(protocol: int, credentials: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # audit: tls-1-3
    try:
        context.load_cert_chain(credentials)
    except ssl.SSLError as bad:
        raise UsageError(f"{credentials}: expected a private key and its certificate in PEM: {bad.reason}") from None
    return context
