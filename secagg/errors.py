"""Whose fault it was, and what was prevented. Nothing here ever carries a secret."""

from __future__ import annotations


class SecAggError(Exception):
    """Base of everything secagg raises on purpose."""


class UsageError(SecAggError, ValueError):
    """The caller's mistake; nothing was sent."""


class PeerError(SecAggError):
    """A peer (usually the server) broke the protocol; this run is over.

    `culprit` is the client id that the evidence points to, or None when it is the server or unknown.
    """

    def __init__(self, message: str, *, culprit: int | None = None) -> None:
        super().__init__(message)
        self.culprit = culprit


class WireError(PeerError):
    """Bytes that are not exactly one well-formed message."""


class PlanRefused(PeerError):  # noqa: N818 - it reads as the sentence it is
    """The server's plan is below this client's floors; nothing was sent."""


class TooFewSurvivors(PeerError):  # noqa: N818 - it reads as the sentence it is
    """Below the threshold: the sums stay hidden, by design."""


class AlreadyUsed(SecAggError):  # noqa: N818 - as above
    """An exclusive record exists: this step, or another opening of this update, was taken before."""


class NoCacheWarning(UserWarning):
    """numba can write no cache, so every process compiles secagg's loops again: set NUMBA_CACHE_DIR."""
