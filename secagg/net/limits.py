"""How large messages can be, from the agreement, and how many requests a member may make."""

from __future__ import annotations

import time

from secagg.agreement.terms import WHOLE, Terms


def most_to_hub(terms: Terms) -> int:
    """No message of an honest site is larger than this many bytes."""
    n, groupings = len(terms.members), terms.schedule.groupings
    vectors = 4 * groupings * terms.length + 128 * groupings + 8192
    if terms.groups == WHOLE:
        return vectors
    return max(vectors + 4 * n, 512 * max(terms.cells) * (groupings + 1) + 65536)


def most_to_site(terms: Terms, data: int) -> int:
    """No message of an honest hub is larger than this many bytes, if its data for a round is not larger than `data`."""
    groupings = terms.schedule.groupings
    if terms.groups == WHOLE:
        return data + 512 * len(terms.members) + 65536
    n = max(terms.cells)
    return data + 512 * n * (groupings + 1) + 4 * n * n + 65536


class Bucket:
    """A member's allowance of requests: `rate` per second, and a burst of four seconds' worth.

    >>> bucket = Bucket(rate=0.25)
    >>> bucket.take(), bucket.take()
    (True, False)
    """

    __slots__ = ("_last", "_left", "_most", "_rate")

    def __init__(self, rate: float) -> None:
        self._rate, self._most = rate, max(1.0, 4 * rate)
        self._left, self._last = self._most, time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._last) * self._rate)
        self._last = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
