"""What the other end says and what went wrong with it, fit for a terminal: plain words, and nothing unprintable."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import Final

import aiohttp

_PLAIN: Final = {
    errno.ECONNREFUSED: "nobody listens there",
    errno.EHOSTUNREACH: "this machine cannot be reached",
    errno.ENETUNREACH: "this network cannot be reached",
    errno.ECONNRESET: "the other end closed the connection",
    errno.EPIPE: "the other end closed the connection",
}


def in_words(failed: BaseException) -> str:
    """Why a request got no answer.

    >>> in_words(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 8443)"))
    'nobody listens there'
    >>> in_words(TimeoutError())
    'no answer in time'
    """
    if isinstance(failed, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return "this is not the hub of the agreement: its certificate is another one"
    if isinstance(failed, aiohttp.ClientConnectorDNSError | socket.gaierror):
        return "no machine has this name"
    if isinstance(failed, aiohttp.ClientConnectorSSLError | ssl.SSLError):
        return "no TLS connection: the hub turned this end away, or something else listens there"
    if isinstance(failed, TimeoutError):
        return "no answer in time"
    if isinstance(failed, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return "the other end closed the connection"
    inner = failed.os_error if isinstance(failed, aiohttp.ClientConnectorError) else failed
    if isinstance(inner, OSError) and inner.errno:
        return _PLAIN.get(inner.errno) or os.strerror(inner.errno)
    return f"the connection failed ({type(failed).__name__})"


def printable(text: bytes, most: int = 500) -> str:
    r"""The beginning of what the other end says. Control characters could change a terminal.

    >>> printable(b"no\x1b[2J\n")
    'no?[2J?'
    """
    return "".join(c if c.isprintable() else "?" for c in text[:most].decode(errors="replace"))
