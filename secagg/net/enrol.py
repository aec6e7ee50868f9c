"""A member's side while an agreement is made over a hub: requests with the token of its invitation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Final

import aiohttp

from secagg.agreement.folder import MemberFolder
from secagg.errors import PeerError
from secagg.net.collect import SEEN
from secagg.net.invitation import Invitation, enrolment_statement
from secagg.net.trouble import in_words, printable

_MOST: Final = 2**27
_TRIES: Final = 60


class Enrolment:
    """Talks to the hub of an invitation; only a hub with the pinned certificate gets to see anything."""

    def __init__(self, invitation: Invitation, on_trouble: Callable[[str], None] | None = None) -> None:
        self._invitation, self._on_trouble = invitation, on_trouble

    async def __aenter__(self) -> Enrolment:
        pinned = aiohttp.TCPConnector(ssl=aiohttp.Fingerprint(self._invitation.pin))  # audit: invitation-pins-hub
        headers = {"Authorization": f"Bearer {self._invitation.token.hex()}"}
        self._session = aiohttp.ClientSession(
            connector=pinned, headers=headers, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=60)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def enrol(self, folder: MemberFolder, certificate: bytes) -> None:
        """Send this member's identity and certificate."""
        signature = folder.identity.sign(enrolment_statement(self._invitation.token, certificate))
        body = {
            "identity": folder.identity.public.hex(),
            "certificate": certificate.hex(),
            "signature": signature.hex(),
        }
        await self._ask("POST", "/v1/enrolment", json.dumps(body))

    async def proposal(self, seen: str) -> tuple[str, str] | None:
        """The agreement so far with its hash, when it differs from what was seen; None after a while."""
        status, headers, text = await self._ask("GET", "/v1/proposal", None, {SEEN: seen})
        return None if status == 204 else (headers.get(SEEN, ""), text)

    async def send(self, part: str) -> None:
        """Send one step of this member."""
        await self._ask("POST", "/v1/part", part)

    async def _ask(
        self, method: str, path: str, body: str | None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        url = self._invitation.address + path
        for attempt in range(_TRIES):
            try:
                async with self._session.request(
                    method, url, data=body, headers=headers, allow_redirects=False
                ) as response:
                    data = bytearray()
                    async for chunk in response.content.iter_chunked(2**16):
                        data += chunk
                        if len(data) > _MOST:
                            raise PeerError("the hub sends more than any agreement needs")
                    text = data.decode(errors="replace")
                    if response.status in (200, 204):
                        return response.status, dict(response.headers), text
                    if response.status not in (429, 502, 503):
                        raise PeerError(f"the hub refuses: {printable(bytes(data)) or response.status}")
            except aiohttp.ServerFingerprintMismatch:
                raise PeerError(
                    f"{self._invitation.address} is not the hub that sent the invitation: it has another certificate"
                ) from None
            except (aiohttp.ClientError, OSError, TimeoutError) as failed:
                why = f"{self._invitation.address} does not answer: {in_words(failed)}"
                if attempt + 1 == _TRIES:
                    raise PeerError(why) from None
                if attempt == 0 and self._on_trouble is not None:
                    self._on_trouble(why)
            await asyncio.sleep(min(2.0, 0.1 * 2**attempt))
        raise PeerError(f"{self._invitation.address} does not answer")
