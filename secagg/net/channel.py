"""A site's connection to the hub: it dials out, asks, and tries again with growing pauses."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

import aiohttp

from secagg.codec import Buffer
from secagg.errors import PeerError
from secagg.net.listener import AGREEMENT, BINARY, TAG
from secagg.net.settings import Settings
from secagg.net.trouble import in_words, printable

_FIRST_PAUSE: Final = 0.1
_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
_MOST_TEXT: Final = 4096


class Channel:
    """Questions and answers to one hub, which may have several addresses."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        fingerprint: bytes,
        context: ssl.SSLContext,
        most: int,
        settings: Settings,
        on_trouble: Callable[[str], None],
    ) -> None:
        self._addresses, self._place = addresses, 0
        self._headers = {AGREEMENT: fingerprint.hex()}
        self._context, self._most, self._settings, self._on_trouble = context, most, settings, on_trouble

    async def __aenter__(self) -> Channel:
        connector = aiohttp.TCPConnector(ssl=self._context, limit=4, keepalive_timeout=50)
        self._session = aiohttp.ClientSession(
            connector=connector, headers=self._headers, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def next(self, after: str) -> tuple[str, bytes] | None:
        """The hub's message after this tag, and its tag; None if there is none yet."""
        seconds = self._settings.poll + 15
        status, headers, body = await self._ask("GET", "/v1/next", seconds, params={"after": after})
        if status == 204:
            return None
        tag = headers.get(TAG, "")
        if status != 200 or not 0 < len(tag) <= 100:
            raise PeerError(f"expected a message of the hub, got status {status}: {printable(body)}")
        return tag, body

    async def send(self, tag: str, parts: list[Buffer]) -> str | None:
        """Send an answer to the message with this tag; why it does not count, or None."""
        body = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        seconds = 30 + len(body) / self._settings.limits.slowest
        status, _, text = await self._ask("POST", "/v1/messages", seconds, body=body, tag=tag)
        return None if status == 204 else printable(text)

    async def refuse(self, tag: str, reason: str) -> None:
        """Tell the hub that the message with this tag is not answered."""
        await self._ask("POST", "/v1/refusals", 30, body=reason.encode()[:1000], tag=tag)

    async def _ask(
        self,
        method: str,
        path: str,
        seconds: float,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        tag: str = "",
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One request, repeated until there is an answer."""
        pause = _FIRST_PAUSE
        while True:
            try:
                status, headers, content = await self._once(method, path, seconds, params, body, tag)
                trouble = f"status {status}"
            except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError) as failed:
                # RuntimeError: a socket that was closed while its handshake was cancelled is still being watched
                status, trouble = 0, in_words(failed)
            if status not in _AGAIN and status:
                if status in (403, 409):
                    raise PeerError(f"the hub refuses this site: {printable(content)}")
                return status, headers, content
            self._on_trouble(f"{self._addresses[self._place]}: {trouble}")
            await asyncio.sleep(pause * (0.5 + secrets.randbelow(1000) / 1000))
            pause = min(2 * pause, self._settings.retry_most)
            self._place = (self._place + 1) % len(self._addresses)

    async def _once(
        self, method: str, path: str, seconds: float, params: Mapping[str, str] | None, body: bytes | None, tag: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=10)
        headers = {TAG: tag, "Content-Type": BINARY} if body is not None else {}
        more: dict[str, Any] = {"params": params, "data": body, "headers": headers, "timeout": timeout}
        url = self._addresses[self._place] + path
        async with self._session.request(method, url, allow_redirects=False, **more) as response:
            most = self._most if response.status == 200 else _MOST_TEXT
            content = bytearray()
            async for chunk in response.content.iter_chunked(2**16):
                content += chunk
                if len(content) > most:  # audit: hub-bodies-limited
                    raise PeerError(f"the hub sends more than {most} bytes, which the agreement does not allow")
            return response.status, response.headers, bytes(content)
