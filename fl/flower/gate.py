"""`share flower gate`: the door of a SuperLink for nodes, and for nothing else.

A SuperLink has one port for nodes, for whoever starts runs, and for its own processes. Whoever reaches it can start a
run, that is run code on every node. So the SuperLink listens on the loopback address of its machine, and the gate
listens for others: with TLS, and it passes on only what nodes send (`/v1/fleet/...`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from fl.errors import ConfigError

NODES: Final = re.compile(r"/v1/fleet/[a-z][a-z-]*")  # what nodes call; no dots, no escapes, nothing after it
HOP: Final = frozenset({"connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
PIECE: Final = 2**16
PATIENCE: Final = aiohttp.ClientTimeout(total=None, connect=10, sock_read=600)


def address_of(text: str, option: str) -> tuple[str, int]:
    """HOST:PORT as two values."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 2**16:
        raise ConfigError(f"{option}: expected HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)


def gate_app(link: str, root: Path | None = None) -> web.Application:
    """The application of the gate, in front of the SuperLink at this address of this machine.

    `root` is the certificate that the SuperLink must have; without it, the SuperLink is one without TLS.
    """
    host, port = address_of(link, "--link")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(f"--link: expected an address of this machine, such as 127.0.0.1:8000, got {link!r}")
    scheme, trusted = ("http", None) if root is None else ("https", _trusting(root))
    base = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def handle(request: web.Request) -> web.StreamResponse:
        path = request.raw_path
        if request.method != "POST" or NODES.fullmatch(path) is None:
            raise web.HTTPForbidden(text="this door is for nodes only\n")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        session = request.app[SESSION]
        try:
            async with session.post(base + path, data=request.content, headers=headers, ssl=trusted or True) as found:
                kept = {name: value for name, value in found.headers.items() if name.lower() not in HOP}
                reply = web.StreamResponse(status=found.status, headers=kept)
                await reply.prepare(request)
                async for piece in found.content.iter_chunked(PIECE):
                    await reply.write(piece)
                await reply.write_eof()
                return reply
        except (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError) as error:
            print(f"share: the SuperLink does not answer: {error}", file=sys.stderr, flush=True)
            raise web.HTTPBadGateway(text="the SuperLink does not answer\n") from None

    async def session(app: web.Application):  # type: ignore[no-untyped-def]
        async with aiohttp.ClientSession(timeout=PATIENCE, auto_decompress=False) as found:
            app[SESSION] = found
            yield

    app = web.Application(client_max_size=0)
    app.router.add_route("*", "/{anything:.*}", handle)
    app.cleanup_ctx.append(session)
    return app


SESSION: Final = web.AppKey("session", aiohttp.ClientSession)


def _trusting(root: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(root))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{root} is not a certificate: {error}") from None


def run_gate(
    link: str, listen: str, certificate: Path, key: Path, root: Path | None, ready: Callable[[int], None]
) -> None:
    """Serve until the process is stopped. `ready` gets the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{certificate} and {key} are not a certificate with its key: {error}") from None
    host, port = address_of(listen, "--listen")

    async def serve() -> None:
        runner = web.AppRunner(gate_app(link, root), access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, ssl_context=context)
            await site.start()
            ready(runner.addresses[0][1])
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    asyncio.run(serve())
