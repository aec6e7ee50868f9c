"""The hub's mailboxes: for each member the one message that it should answer now.

A message has a tag. A site asks for what comes after the tag that it has dealt with; a site that starts again knows no
tag and gets the message again, and so does every site after the hub was restarted. Both ends answer duplicates.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from secagg.types import ClientId

PRESENT: Final = 3.0  # seconds after the last question of a site during which it still counts as connected


@dataclass(slots=True)
class Box:
    """One member's mailbox."""

    message: bytes = field(default=b"", repr=False)
    number: int = 0
    asking: int = 0  # questions that are being held
    seen: float = float("-inf")
    given: int = -1  # the number of the message that was handed out last
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Desk:
    """All mailboxes of a hub."""

    def __init__(self, members: Iterable[ClientId]) -> None:
        self._epoch = secrets.token_hex(8)
        self._boxes = {member: Box() for member in members}
        self.arrived = asyncio.Event()  # set when a member appears
        self._closed = False

    def put(self, member: ClientId, message: bytes) -> None:
        box = self._boxes[member]
        if box.message != message:
            box.message, box.number = message, box.number + 1
            box.changed.set()

    def clear(self, members: Iterable[ClientId] | None = None) -> None:
        for member in self._boxes if members is None else members:
            self._boxes[member].message = b""

    def present(self) -> set[ClientId]:
        """The members that ask now, or have just asked."""
        since = time.monotonic() - PRESENT
        return {member for member, box in self._boxes.items() if box.asking or box.seen >= since}

    def close(self) -> None:
        """Answer all questions that are being held: the hub stops."""
        self._closed = True
        for box in self._boxes.values():
            box.changed.set()

    def is_current(self, member: ClientId, tag: str) -> bool:
        """Whether this is the tag of the message that the member should answer now."""
        box = self._boxes[member]
        return bool(box.message) and tag == self._tag(box)

    def told(self, members: Iterable[ClientId]) -> bool:
        """Whether each of these members was handed its last message."""
        return all(self._boxes[member].given == self._boxes[member].number for member in members)

    def last_seen(self, member: ClientId) -> float | None:
        """Seconds since a member's last question; None if there was none since the hub started."""
        box = self._boxes[member]
        return None if box.seen == float("-inf") else 0.0 if box.asking else time.monotonic() - box.seen

    async def wait(self, member: ClientId, after: str, seconds: float) -> tuple[str, bytes] | None:
        """The member's message and its tag, as soon as there is one after this tag; None after so many seconds."""
        box = self._boxes[member]
        box.asking += 1
        self.arrived.set()
        try:
            async with asyncio.timeout(seconds):
                while not self._closed and (not box.message or self._tag(box) == after):
                    box.changed.clear()
                    await box.changed.wait()
            if self._closed:
                return None
            box.given = box.number
            return self._tag(box), box.message
        except TimeoutError:
            return None
        finally:
            box.asking -= 1
            box.seen = time.monotonic()

    def _tag(self, box: Box) -> str:
        return f"{self._epoch}.{box.number}"
