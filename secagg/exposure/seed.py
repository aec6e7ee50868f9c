"""The training seed: where every schedule comes from, agreed so that nobody can steer it.

**Commit and reveal** among the roster. Everyone draws 32 secret bytes and publishes a hash of them; when all
hashes are there, everyone publishes the bytes; the seed is a hash of all of them. One honest contribution
makes it uniform, and nobody can fit a contribution to the others', since all were fixed before any was known.
The hash names its owner, so a copy of somebody else's commitment cannot be opened.

What is left to whoever reveals last is to see the seed first and to withhold. Then there is no seed: the
withholders are named, and the ceremony starts again without them (`SeedCeremony.without`), with fresh
contributions from the others. So q clients who work together get to refuse q seeds at most, each at the price
of a member, and never to choose one. What they could win is small: the audit decides on the schedule that was
drawn, whoever drew it.

**A public beacon** named beforehand (`Beacon`) needs no ceremony, but trust in the beacon, and that the pulse
named was not yet published when it was named.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from secagg import labels
from secagg.errors import PeerError, UsageError
from secagg.exposure.schedules import ClientId, check_roster

CONTRIBUTION_BYTES = 32


class SeedRefused(PeerError):  # noqa: N818 - it reads as the sentence it is
    """No seed came of it. `clients` are those to leave out before trying again."""

    def __init__(self, message: str, clients: Collection[ClientId]) -> None:
        self.clients = frozenset(clients)
        super().__init__(message, culprit=min(self.clients))


class NotCommitted(SeedRefused):
    """Someone on the roster sent no commitment, so nothing may be revealed yet."""


class NotRevealed(SeedRefused):
    """Someone committed and did not reveal; perhaps because the seed did not suit."""


class WronglyRevealed(SeedRefused):
    """Someone revealed something else than it had committed to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedCeremony:
    """One attempt of one roster to agree on the seed of one training. Every client checks every step."""

    training_id: bytes
    roster: tuple[ClientId, ...]

    def __post_init__(self) -> None:
        check_roster(self.roster)
        if len(self.roster) < 2:
            raise UsageError("a seed that one client draws alone is that client's choice")

    def commitment(self, client: ClientId, contribution: bytes) -> bytes:
        """What a client publishes first: a hash that hides its contribution and fixes it."""
        self._check_member(client)
        if len(contribution) != CONTRIBUTION_BYTES:
            raise UsageError(f"a contribution has {CONTRIBUTION_BYTES} bytes, not {len(contribution)}")
        return self._hash(labels.SEED_CONTRIBUTION, client.to_bytes(4, "big"), contribution)

    def reveal(self, client: ClientId, contribution: bytes, commitments: Mapping[ClientId, bytes]) -> bytes:
        """What a client publishes second: its contribution, once it holds everybody's commitment.

        It keeps `commitments`: `seed` must be checked against the commitments seen *before* revealing.
        """
        self._check_committed(commitments)
        if not hmac.compare_digest(commitments[client], self.commitment(client, contribution)):
            raise PeerError("the commitment that was relayed for this client is not its own")
        return contribution

    def seed(self, commitments: Mapping[ClientId, bytes], contributions: Mapping[ClientId, bytes]) -> bytes:
        """The training seed, if everyone revealed what it had committed to."""
        self._check_committed(commitments)
        silent = [client for client in self.roster if client not in contributions]
        if silent:
            raise NotRevealed(f"no contribution from {_list(silent)}; try again without", silent)
        wrong = [
            client
            for client in self.roster
            if len(contributions[client]) != CONTRIBUTION_BYTES
            or not hmac.compare_digest(commitments[client], self.commitment(client, contributions[client]))
        ]
        if wrong:
            raise WronglyRevealed(f"{_list(wrong)} revealed something else; try again without", wrong)
        return self._hash(labels.TRAINING_SEED, *(contributions[client] for client in self.roster))

    def without(self, clients: Collection[ClientId]) -> SeedCeremony:
        """The next attempt. Its commitments differ from this one's, so none of them can be replayed."""
        rest = tuple(client for client in self.roster if client not in frozenset(clients))
        if len(rest) == len(self.roster):
            raise UsageError(
                "none of these clients is on the roster; the same attempt would only be repeated"
            )
        return SeedCeremony(training_id=self.training_id, roster=rest)

    def _check_member(self, client: ClientId) -> None:
        if client not in self.roster:
            raise UsageError(f"client {client} is not on the roster")

    def _check_committed(self, commitments: Mapping[ClientId, bytes]) -> None:
        missing = [client for client in self.roster if client not in commitments]
        if missing:
            raise NotCommitted(f"no commitment from {_list(missing)}; nothing may be revealed", missing)

    def _hash(self, label: bytes, *parts: bytes) -> bytes:
        roster = b"".join(client.to_bytes(4, "big") for client in self.roster)
        whole = (label, self.training_id, roster, *parts)
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in whole)).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beacon:
    """A public source of randomness and the pulse to wait for, both named before it is published.

    Fetching the pulse and checking the beacon's signature is the application's part: secagg does no I/O.
    """

    name: str
    pulse: int

    def __post_init__(self) -> None:
        if not self.name or self.pulse < 0:
            raise UsageError("name the beacon and the number of its pulse")

    def seed(self, training_id: bytes, value: bytes) -> bytes:
        """The training seed from the published value of the pulse."""
        if len(value) < CONTRIBUTION_BYTES:
            raise UsageError(
                f"{len(value)} bytes are too few for a beacon; the least is {CONTRIBUTION_BYTES}"
            )
        parts = (labels.BEACON_SEED, training_id, self.name.encode(), str(self.pulse).encode(), value)
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def _list(clients: Collection[ClientId]) -> str:
    return ("client " if len(clients) == 1 else "clients ") + ", ".join(map(str, sorted(clients)))
