"""The noise of one client: drawn before it is needed, added to one encoded update, then forgotten."""

from __future__ import annotations

import os
from collections.abc import Callable

from secagg.crypto.segments import Segments
from secagg.types import ClientId, Entropy, Ring32

NoiseOf = Callable[[ClientId, int], Entropy]  # where a simulation takes a client's noise in a round from


class NoiseSource:
    """Draws noise for one update at a time. Without noise in the encoding it does nothing."""

    def __init__(self, entropy: Entropy, threads: int | None) -> None:
        self._entropy, self._threads = entropy, threads
        self._drawn: Ring32 | None = None
        self._process = 0  # that drew it

    def prepare(self, encoding: Segments) -> None:
        """Draw the noise of the next update now.

        What was drawn before a fork belongs to the process that drew it: no two processes may use the same noise.
        """
        mine = os.getpid()
        if self._process != mine:  # audit: noise-not-forked
            self._drawn = None
        if encoding.noise and self._drawn is None:
            self._drawn, self._process = encoding.draw_noise(self._entropy, self._threads), mine

    def add_to(self, encoding: Segments, encoded: Ring32) -> None:
        """Add the noise, which is then used up, whatever becomes of the update."""
        self.prepare(encoding)
        drawn, self._drawn = self._drawn, None  # audit: noise-used-once
        if drawn is not None:
            encoded += drawn  # audit: noise-added
