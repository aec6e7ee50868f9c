"""A seed from a public beacon: the pulse is named in the terms, and all members sign the terms before it exists."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import index
from typing import Annotated

from secagg.codec import U64, Fixed, Struct
from secagg.crypto.keys import HASH_BYTES
from secagg.crypto.pulse import Pulse
from secagg.errors import PeerError, UsageError
from secagg.exposure.seed import Beacon


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPulse:
    """A pulse of the NIST Randomness Beacon 2.0 that does not exist yet: its chain, its minute, the beacon's key.

    `time` is in milliseconds since 1970, UTC. `key` is the SHA-256 of the beacon's public key (DER).

    >>> NamedPulse(chain=2, time=1788203040000, key=bytes(32)).when
    '2026-08-31 19:04 UTC'
    """

    chain: Annotated[int, U64]
    time: Annotated[int, U64]
    key: Annotated[bytes, Fixed(HASH_BYTES)]

    def __post_init__(self) -> None:
        for name in ("chain", "time"):
            try:
                object.__setattr__(self, name, index(getattr(self, name)))
            except TypeError:
                raise UsageError(f"{name}: expected a whole number, got {getattr(self, name)!r}") from None
        if not 0 <= self.chain < 2**64:
            raise UsageError(f"chain: expected the number of a chain of the beacon, got {self.chain}")
        if not 0 <= self.time < 253402300800000 or self.time % 60000:
            raise UsageError(f"time: expected a whole minute before the year 10000, in milliseconds, got {self.time}")
        if not isinstance(self.key, bytes) or len(self.key) != HASH_BYTES:
            raise UsageError("key: expected the SHA-256 of the beacon's public key, 32 bytes")

    @property
    def when(self) -> str:
        """The minute, for people."""
        return f"{datetime.fromtimestamp(self.time / 1000, UTC):%Y-%m-%d %H:%M} UTC"

    def seed(self, training_id: bytes, pulse: Pulse) -> bytes:
        """The seed from this pulse; PeerError if it is another pulse or not signed by the pinned key."""
        if hashlib.sha256(pulse.key).digest() != self.key:  # audit: pulse-key-pinned
            raise PeerError("pulse: signed with another key than the terms name")
        if (pulse.chain, pulse.time) != (self.chain, self.time):  # audit: pulse-named-beforehand
            raise PeerError(
                f"pulse: expected chain {self.chain} at {self.when}, got chain {pulse.chain} at "
                f"{pulse.time} milliseconds since 1970"
            )
        pulse.verify()
        return Beacon(name=f"NIST 2.0, chain {self.chain}", pulse=self.time).seed(training_id, pulse.output)


NAMED_PULSE = Struct.of(NamedPulse)
