"""The hub's HTTPS listener: who may connect, how fast, and the three requests of a site.

    GET  /v1/next?after=TAG   the message that this site should answer; held until there is one (204: ask again)
    POST /v1/messages         an answer; 204: taken, 422: it does not count, and why
    POST /v1/refusals         the site will not answer the message with this tag, and why

The certificate of a connection says which member it is. A connection whose certificate is not a member's is closed
before the HTTP parser sees any of its bytes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Protocol

from aiohttp import web

from secagg.agreement.terms import Terms
from secagg.net.desk import Desk
from secagg.net.door import Door
from secagg.net.events import LOGGER, Events
from secagg.net.limits import Bucket, most_to_hub
from secagg.net.metrics import Metrics
from secagg.net.settings import Settings
from secagg.net.trouble import printable
from secagg.types import ClientId

AGREEMENT: Final = "Secagg-Agreement"
TAG: Final = "Secagg-Tag"
BINARY: Final = "application/octet-stream"
MOST_REFUSAL: Final = 2000
_PARSER: Final = logging.getLogger("secagg.net.parser")  # what aiohttp says about malformed requests
_PARSER.setLevel(logging.CRITICAL)


class Rounds(Protocol):
    """What takes the members' messages: a driver of whole groups or of survivors."""

    def receive(self, member: ClientId, message: bytes) -> str | None:
        """Take one message; why it does not count, or None."""
        ...

    def refused(self, member: ClientId, reason: str) -> None:
        """A member says that it will not answer."""
        ...


class Guard(asyncio.Protocol):
    """Stands before the HTTP parser of one connection: it passes bytes on only if a member sent them."""

    def __init__(self, door: Listener, inner: asyncio.Protocol) -> None:
        self._door, self._inner = door, inner
        self.member: ClientId | None = None
        self.transport: asyncio.Transport | None = None
        self.requests = 0  # that are being answered
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        member = self._door.admit(self, transport)
        if member is None:
            transport.abort()  # audit: stranger-closed-before-parsing
            return
        self.member, self.transport = member, transport
        self.idle_since = asyncio.get_running_loop().time()
        self._inner.connection_made(transport)

    def abort(self) -> None:
        """Close the connection at once. If TLS was closed twice, asyncio fails here in Python 3.11.2, not in 3.11.7."""
        if self.transport is not None:
            with suppress(AttributeError):
                self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.member is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self.member is not None else None

    def connection_lost(self, error: Exception | None) -> None:
        if self.member is not None:
            self._door.left(self)
            self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class Listener:
    """Accepts the members of an agreement and answers their requests."""

    def __init__(
        self, terms: Terms, fingerprint: bytes, desk: Desk, rounds: Rounds, settings: Settings, metrics: Metrics,
        events: Events,
    ) -> None:  # fmt: skip
        assert terms.transport is not None
        self._terms, self._transport, self._fingerprint = terms, terms.transport, fingerprint.hex()
        self._desk, self._rounds, self._settings = desk, rounds, settings
        self._metrics, self._events = metrics, events
        self._most = most_to_hub(terms)
        self._guards: dict[int, Guard] = {}  # by the id of the transport
        self._buckets = {member: Bucket(settings.limits.requests) for member in terms.ids}
        self._reading: Counter[ClientId] = Counter()
        self._refused: dict[ClientId, str] = {}  # the last message that each member refused, by its tag
        self._door: Door | None = None
        self._each = settings.limits.connections
        self._sweeper: asyncio.Task[None] | None = None
        app = web.Application(middlewares=[self._middleware], client_max_size=0)  # `_body` checks the length
        app.router.add_get("/v1/next", self._next)
        app.router.add_post("/v1/messages", self._message)
        app.router.add_post("/v1/refusals", self._refusal)
        self._log = Bucket(1.0)  # lines about strangers: they must not fill the disk
        self._runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=60.0, auto_decompress=False, shutdown_timeout=1.0, logger=_PARSER
        )

    async def start(self, host: str, port: int, context: ssl.SSLContext) -> int:
        """Listen; the port, for port 0."""
        await self._runner.setup()
        inner = self._runner.server
        assert inner is not None
        self._door = Door(lambda: Guard(self, inner()), self._turned_away)
        self._each = max(2, min(self._each, self._door.most_members // len(self._terms.members)))
        bound = await self._door.open(host, port, context)
        self._sweeper = asyncio.create_task(self._sweep())
        return bound

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._door is not None:
            self._door.close()
        self._desk.close()
        await self._runner.cleanup()
        for guard in tuple(self._guards.values()):
            guard.abort()

    # --- connections ---------------------------------------------------------------------------------

    def admit(self, guard: Guard, transport: asyncio.Transport) -> ClientId | None:
        """The member on a new connection, or None if it must be closed."""
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        member = self._transport.member_with(self._terms.ids, certificate) if certificate else None
        if member is None:  # audit: connection-of-a-member
            self._turned_away("certificate", transport.get_extra_info("peername"))
            return None
        open_now = sum(one.member == member for one in self._guards.values())
        if open_now >= self._each:  # audit: connections-limited
            self._turned_away("connections", member)
            return None
        self._guards[id(transport)] = guard
        return member

    def left(self, guard: Guard) -> None:
        self._guards.pop(id(guard.transport), None)

    def _turned_away(self, reason: str, who: object) -> None:
        self._metrics.add("secagg_refused_total", reason=reason)
        if self._log.take():
            self._events.tell("turned away", reason=reason, who=who)

    async def _sweep(self) -> None:
        """Close connections on which no request begins: half-open ones, and headers that do not end."""
        patience = self._settings.limits.patience
        pause, clock = min(5.0, patience / 2), asyncio.get_running_loop().time
        while True:
            before = clock()
            await asyncio.sleep(pause)
            now = clock()
            if now - before > 1.5 * pause:  # the hub itself is late: what members sent may be unread
                for guard in self._guards.values():
                    guard.idle_since = now
            for guard in tuple(self._guards.values()):
                if not guard.requests and now - guard.idle_since > patience and guard.transport is not None:
                    guard.abort()  # audit: idle-connections-closed

    # --- requests ------------------------------------------------------------------------------------

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        guard = self._guards.get(id(request.transport))
        if guard is None or guard.member is None:
            raise web.HTTPForbidden
        guard.requests += 1
        try:
            return await self._limited(request, guard.member, handler)
        finally:
            guard.requests -= 1
            guard.idle_since = asyncio.get_running_loop().time()

    async def _limited(
        self, request: web.Request, member: ClientId, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not self._buckets[member].take():  # audit: requests-limited
            return self._refuse(429, "requests", "too many requests", {"Retry-After": "1"})
        if request.headers.get(AGREEMENT) != self._fingerprint:  # audit: request-of-this-agreement
            why = f"the hub serves the agreement {self._fingerprint[:16]}...; compare the fingerprints"
            return self._refuse(409, "agreement", why)
        try:
            return await handler(request)
        except web.HTTPException as known:
            return self._refuse(known.status, "request", known.reason)
        except ConnectionError:  # it went away in the middle of its request
            return self._refuse(400, "connection", "the connection was lost")
        except Exception:
            LOGGER.exception("error in the hub", extra={"values": {"member": member}})
            return self._refuse(500, "error", "the hub made a mistake; its log says which")

    def _refuse(self, status: int, reason: str, text: str, headers: dict[str, str] | None = None) -> web.Response:
        self._metrics.add("secagg_refused_total", reason=reason)
        response = web.Response(status=status, text=text, headers=headers)
        if status != 410:
            response.force_close()
        return response

    def _who(self, request: web.Request) -> ClientId:
        """The member on the connection of a request."""
        guard = self._guards.get(id(request.transport))
        if guard is None or guard.member is None:
            raise web.HTTPForbidden
        return guard.member

    async def _next(self, request: web.Request) -> web.StreamResponse:
        found = await self._desk.wait(self._who(request), request.query.get("after", ""), self._settings.poll)
        if found is None:
            return web.Response(status=204)
        tag, message = found
        self._metrics.add("secagg_bytes_total", len(message), direction="out")
        return web.Response(body=message, headers={TAG: tag}, content_type=BINARY)

    async def _message(self, request: web.Request) -> web.StreamResponse:
        member = self._who(request)
        message = await self._body(request, member, self._most)
        if not self._desk.is_current(member, request.headers.get(TAG, "")):  # audit: answers-to-the-current-message
            return self._refuse(410, "late", "this answers a message that is over; ask for the next one")
        why = await asyncio.to_thread(self._rounds.receive, member, message)
        self._desk.arrived.set()
        return web.Response(status=204) if why is None else web.Response(status=422, text=why[:1000])

    async def _refusal(self, request: web.Request) -> web.StreamResponse:
        member = self._who(request)
        text = printable(await self._body(request, member, MOST_REFUSAL), MOST_REFUSAL)
        tag = request.headers.get(TAG, "")
        if not self._desk.is_current(member, tag):
            return self._refuse(410, "late", "this refuses a message that is over; ask for the next one")
        if self._refused.get(member) != tag:  # audit: refusals-counted-once
            self._refused[member] = tag
            self._rounds.refused(member, text)
            self._desk.arrived.set()
        return web.Response(status=204)

    async def _body(self, request: web.Request, member: ClientId, most: int) -> bytes:
        """The body, if its length is given and allowed and it comes fast enough."""
        length = request.content_length
        if length is None or "Transfer-Encoding" in request.headers or "Content-Encoding" in request.headers:
            raise web.HTTPLengthRequired
        if length > most:  # audit: bodies-limited
            raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=length)
        if self._reading[member] >= 2:  # audit: bodies-at-once-limited
            raise web.HTTPTooManyRequests
        self._reading[member] += 1
        try:
            # audit: slow-bodies-refused
            async with asyncio.timeout(self._settings.limits.patience + length / self._settings.limits.slowest):
                body = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        finally:
            self._reading[member] -= 1
        self._metrics.add("secagg_bytes_total", len(body), direction="in")
        return body


async def start_ops(host: str, port: int, metrics: Metrics, health: Callable[[], dict[str, Any]]) -> web.AppRunner:
    """The operator's listener, in plain HTTP: /healthz and /metrics. Bind it to an address of your own."""

    async def healthz(_: web.Request) -> web.StreamResponse:
        return web.json_response(health())

    async def prometheus(_: web.Request) -> web.StreamResponse:
        metrics.set("secagg_present", health()["present"])
        return web.Response(text=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    routes: Iterable[tuple[str, Any]] = (("/healthz", healthz), ("/metrics", prometheus))
    for path, handler in routes:
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host or None, port).start()
    return runner
