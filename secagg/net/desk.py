"""The hub's mailboxes: for each member the one message that it should answer now, and notes that it only reads.

A message has a tag, and so has a note. Notes come first, each until the site asks for what is after it. A site asks for
what comes after the tag that it has dealt with; a site that starts again knows no tag and gets the message again, and
so does every site after the hub was restarted. Both ends answer duplicates.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from secagg.types import ClientId

MOST_NOTES: Final = 16  # that wait for one member; the oldest give way
PRESENT: Final = 3.0  # seconds after the last question of a site during which it still counts as connected


@dataclass(slots=True)
class Box:
    """One member's mailbox."""

    message: bytes = field(default=b"", repr=False)
    number: int = 0  # of the message
    last: int = 0  # the highest number so far, of messages and notes
    notes: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=MOST_NOTES), repr=False)
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
            box.last += 1
            box.message, box.number = message, box.last
            box.changed.set()

    def tell(self, member: ClientId, note: bytes) -> None:
        """Leave a note that the member reads before its next message."""
        box = self._boxes[member]
        box.last += 1
        box.notes.append((box.last, note))
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
        return bool(box.message) and tag == self._tag(box.number)

    def told(self, members: Iterable[ClientId]) -> bool:
        """Whether each of these members was handed its last message, after its notes."""
        boxes = [self._boxes[member] for member in members]
        return all(not box.notes and box.given == box.number for box in boxes)

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
                while not self._closed and (found := self._first(box, after)) is None:
                    box.changed.clear()
                    await box.changed.wait()
            return None if self._closed else found
        except TimeoutError:
            return None
        finally:
            box.asking -= 1
            box.seen = time.monotonic()

    def _first(self, box: Box, after: str) -> tuple[str, bytes] | None:
        """The first note that the member has not read, or else its message if it comes after this tag."""
        if box.notes and self._tag(box.notes[0][0]) == after:
            box.notes.popleft()
        if box.notes:
            number, note = box.notes[0]
            return self._tag(number), note
        if not box.message or self._tag(box.number) == after:
            return None
        box.given = box.number
        return self._tag(box.number), box.message

    def _tag(self, number: int) -> str:
        return f"{self._epoch}.{number}"
