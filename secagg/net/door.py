"""Accepts connections. Those that have not yet shown who they are are few, and last for a short time.

A stranger can open a connection and send nothing. Each one takes a file descriptor, and a hub without any can neither
accept members nor store its state. So strangers have a limited number of places, in total and per address, and one
that comes when all are taken takes the place of the oldest: a member needs its place for a moment only.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

PATIENCE: Final = 10.0  # seconds for a handshake
_MOST_STRANGERS: Final = 256
_MOST_FILES: Final = 2**16
_BACKLOG: Final = 256


def allowed_files() -> int:
    """Raise the soft limit of open files to the hard one (at most 65536); what is allowed now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # some systems have a lower limit that they do not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


class Door:
    """Listens, and does the handshake of each connection in its place.

    A quarter of the files that the process may open is for strangers, half for members; the rest stays free for
    storing the state. With `until_named`, a connection stays a stranger until `named` is called.
    """

    def __init__(
        self, factory: Callable[[], asyncio.Protocol], turned_away: Callable[[str, object], None], *,
        until_named: bool = False, patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        self._factory, self._turned_away = factory, turned_away
        self._until_named, self._patience = until_named, patience
        files = allowed_files()
        self.most_strangers = max(2, min(_MOST_STRANGERS, files // 4))
        self.most_per_address = max(1, self.most_strangers // 2)
        self.most_members = files // 2
        self._strangers: dict[Any, asyncio.Task[None]] = {}  # by the address and port of the other end, oldest first
        self._named: dict[Any, asyncio.Event] = {}
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []

    async def open(self, host: str, port: int, context: ssl.SSLContext) -> int:
        """Listen; the port, for port 0."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((one[0], one[4]) for one in found):
                self._bind(family, address)
        except OSError:
            self.close()
            raise
        self._accepting = [asyncio.create_task(self._accept(one, context)) for one in self._sockets]
        return int(self._sockets[0].getsockname()[1])

    def _bind(self, family: int, address: Any) -> None:
        try:
            listening = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # a machine without IPv6 may still name its addresses
            if self._sockets or family != socket.AF_INET6:
                raise
            return
        self._sockets.append(listening)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(_BACKLOG)

    def close(self) -> None:
        """Listen no more, and send strangers away."""
        for task in (*self._accepting, *self._strangers.values()):
            task.cancel()
        for listening in self._sockets:
            listening.close()

    def named(self, peer: Any) -> None:
        """The connection with this other end is no longer a stranger's."""
        if peer in self._named:
            self._named[peer].set()

    @property
    def strangers(self) -> int:
        return len(self._strangers)

    async def _accept(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listening)
            except OSError as bad:  # no file descriptor is free, or the other end is gone already
                self._turned_away("accept", str(bad))
                await asyncio.sleep(0.1)
                continue
            self._make_room(peer[0])
            self._named[peer] = asyncio.Event()
            self._strangers[peer] = asyncio.create_task(self._greet(connection, peer, context))
            await asyncio.sleep(0)  # handshakes go on between two connections

    def _make_room(self, address: str) -> None:
        """Close the oldest connections of strangers where there are too many."""
        same = [peer for peer in self._strangers if peer[0] == address]
        if len(same) >= self.most_per_address:  # audit: strangers-limited-per-address
            self._send_away(same[0])
        if len(self._strangers) >= self.most_strangers:  # audit: strangers-limited
            self._send_away(next(iter(self._strangers)))

    def _send_away(self, peer: Any) -> None:
        self._named.pop(peer)
        self._strangers.pop(peer).cancel()
        self._turned_away("handshakes", peer)

    async def _greet(self, connection: socket.socket, peer: Any, context: ssl.SSLContext) -> None:
        """The handshake, and what the connection must say until it has a name. Then this is over, either way."""
        loop, raw, named = asyncio.get_running_loop(), None, self._named[peer]
        try:
            async with asyncio.timeout(self._patience):  # audit: strangers-have-little-time
                raw, _ = await loop.connect_accepted_socket(_Unread, connection)
                waiting = _Waiting()
                transport = await loop.start_tls(
                    raw, waiting, context, server_side=True, ssl_handshake_timeout=PATIENCE, ssl_shutdown_timeout=2.0
                )
                assert transport is not None
                waiting.hand_over(transport, self._factory())
                if self._until_named:
                    await named.wait()
        except (OSError, TimeoutError, asyncio.CancelledError):  # a failed handshake is an OSError too
            # The event loop closes what it watches. A descriptor that is closed under it would be watched for the next
            # connection that gets its number.
            raw.abort() if raw is not None else connection.close()  # audit: closed-by-who-watches
        finally:
            if self._named.get(peer) is named:
                del self._named[peer], self._strangers[peer]


class _Unread(asyncio.Protocol):
    """A connection before its handshake: nothing is read yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()


class _Waiting(asyncio.Protocol):
    """A connection whose handshake is done: what arrives in the moment before it is handed over is kept for it."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._ended = self._lost = False

    def data_received(self, data: bytes) -> None:
        self._kept.append(data)

    def eof_received(self) -> None:
        self._ended = True

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True

    def hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Give the connection to the protocol that it is for, with what was kept."""
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._kept:
            protocol.data_received(data)
        if self._ended:
            protocol.eof_received()
        if self._lost:
            protocol.connection_lost(None)
