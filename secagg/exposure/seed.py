"""The training seed, which all schedules are drawn from, agreed so that nobody can steer it.

**Commit and reveal** among the roster. Every client draws 32 secret bytes and publishes a hash of them. When
all hashes are there, every client publishes its bytes. The seed is a hash of all of them. One honest
contribution makes it uniform. Nobody can adapt a contribution to the others, because all were fixed before
any was known. The hash includes the client's id, so a copy of another client's commitment cannot be opened.

Who sees the last contribution first can prevent the seed by hiding a contribution: the client that reveals last
hides its own, and whoever carries the messages (a server, a relay) can hide anybody's. Then there is no seed: the
error names the clients whose contribution is missing, and the ceremony starts again without them
(`SeedCeremony.without`), with fresh contributions from the others. Each refused seed costs one client of the roster,
but not a colluding one: a relay may hide honest clients. A roster has at least 2 clients, so of n clients at most
n - 2 seeds are refused, and whoever refuses chooses among at most n - 1 seeds (with q colluders and messages that
everybody sees, among at most q + 1). So what happens with probability p for a uniform seed happens with probability
at most (n - 1) p. Nobody chooses a seed freely. Members that compare by voice who revealed find such a relay out.

**A public beacon** that is named in advance (`Beacon`) needs no ceremony. It needs trust in the beacon, and a
pulse that was not yet published when it was named.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from secagg import labels
from secagg.arguments import ids, keyed, raw, settle, whole
from secagg.errors import PeerError, UsageError
from secagg.exposure.schedules import check_roster, hash_parts
from secagg.types import ClientId

CONTRIBUTION_BYTES = 32


class SeedRefused(PeerError):  # noqa: N818 - it reads as the sentence it is
    """The ceremony gave no seed. `clients` are those to leave out of the next attempt."""

    def __init__(self, message: str, clients: Collection[ClientId]) -> None:
        self.clients = frozenset(clients)
        super().__init__(message, culprit=min(self.clients))


class NotCommitted(SeedRefused):
    """A client on the roster sent no commitment, so nobody may reveal yet."""


class NotRevealed(SeedRefused):
    """A client committed but did not reveal its contribution."""


class WronglyRevealed(SeedRefused):
    """A client revealed a contribution that does not match its commitment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedCeremony:
    """One attempt of one roster to agree on the seed of one training. Every client checks every step.

    >>> ceremony = SeedCeremony(training_id=b"example", roster=(1, 2))
    >>> secrets = {1: bytes(32), 2: bytes(range(32))}
    >>> commitments = {c: ceremony.commitment(c, secrets[c]) for c in secrets}
    >>> contributions = {c: ceremony.reveal(c, secrets[c], commitments) for c in secrets}
    >>> ceremony.seed(commitments, contributions).hex()[:8]
    '3dc521a1'
    """

    training_id: bytes
    roster: tuple[ClientId, ...]

    def __post_init__(self) -> None:
        settle(self, raw, "training_id")
        object.__setattr__(self, "roster", check_roster(self.roster))
        if len(self.roster) < 2:
            raise UsageError("a seed ceremony needs at least 2 clients; one alone would choose the seed")

    def commitment(self, client: ClientId, contribution: bytes) -> bytes:
        """What a client publishes first: a hash that hides its contribution and commits to it."""
        (client,) = ids("client", [client], self.roster)
        contribution = raw("contribution", contribution, CONTRIBUTION_BYTES)
        return self._hash(labels.SEED_CONTRIBUTION, client.to_bytes(4, "big"), contribution)

    def reveal(self, client: ClientId, contribution: bytes, commitments: Mapping[ClientId, bytes]) -> bytes:
        """What a client publishes second: its contribution, once it has the commitments of all clients.

        Keep `commitments`: `seed` must be called with the commitments seen *before* revealing.
        """
        mine = self.commitment(client, contribution)
        self.check_committed(commitments)
        if not hmac.compare_digest(commitments[client], mine):
            raise PeerError(f"the commitment relayed for client {client} differs from the one that it sent")
        return contribution

    def seed(self, commitments: Mapping[ClientId, bytes], contributions: Mapping[ClientId, bytes]) -> bytes:
        """The training seed, if every client revealed what it committed to."""
        self.check_committed(commitments)
        contributions = keyed("contributions", contributions, bytes)
        silent = [client for client in self.roster if client not in contributions]
        if silent:
            raise NotRevealed(f"no contribution from {_list(silent)}; try again without them", silent)
        wrong = [
            client
            for client in self.roster
            if len(contributions[client]) != CONTRIBUTION_BYTES
            or not hmac.compare_digest(commitments[client], self.commitment(client, contributions[client]))
        ]
        if wrong:
            problem = f"the contribution of {_list(wrong)} does not match the commitment"
            raise WronglyRevealed(f"{problem}; try again without them", wrong)
        return self._hash(labels.TRAINING_SEED, *(contributions[client] for client in self.roster))

    def without(self, clients: Collection[ClientId]) -> SeedCeremony:
        """The next attempt. Its roster is in every hash, so no commitment of this attempt can be replayed."""
        left_out = frozenset(ids("clients", clients))
        rest = tuple(client for client in self.roster if client not in left_out)
        if len(rest) == len(self.roster):
            raise UsageError("none of these clients is on the roster; name at least one that is")
        return SeedCeremony(training_id=self.training_id, roster=rest)

    def check_committed(self, commitments: Mapping[ClientId, bytes]) -> None:
        """NotCommitted, naming the clients, unless every client has committed."""
        keyed("commitments", commitments, bytes)
        missing = [client for client in self.roster if client not in commitments]
        if missing:
            raise NotCommitted(f"no commitment from {_list(missing)}; do not reveal yet", missing)

    def _hash(self, label: bytes, *parts: bytes) -> bytes:
        return hash_parts(label, self.training_id, _packed(self.roster), *parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beacon:
    """A public source of randomness and one of its pulses, both named before the pulse is published.

    The application fetches the pulse and checks the beacon's signature: secagg does no I/O.

    >>> Beacon(name="example", pulse=7).seed(b"training", bytes(32)).hex()[:8]
    'c6855aaa'
    """

    name: str
    pulse: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"name of a beacon: expected text, got {self.name!r}")
        settle(self, whole, "pulse", least=0)

    def seed(self, training_id: bytes, value: bytes) -> bytes:
        """The training seed from the published value of the pulse."""
        training_id, value = raw("training_id", training_id), raw("value of the pulse", value)
        if len(value) < CONTRIBUTION_BYTES:
            raise UsageError(f"a pulse must have at least {CONTRIBUTION_BYTES} bytes, not {len(value)}")
        return hash_parts(labels.BEACON_SEED, training_id, self.name.encode(), str(self.pulse).encode(), value)


@lru_cache(maxsize=4)
def _packed(roster: tuple[ClientId, ...]) -> bytes:
    return b"".join(client.to_bytes(4, "big") for client in roster)


def _list(clients: Collection[ClientId]) -> str:
    return ("client " if len(clients) == 1 else "clients ") + ", ".join(map(str, sorted(clients)))
