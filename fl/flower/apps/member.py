"""The folder of a node whose app has an agreement and no experiment: its keys, the signed agreement, its journal.

    NODE/identity.key, NODE/state.key   as `share flower identity` makes them
    NODE/agreement.toml                 the agreement that all members signed
    NODE/journal/                       the answers that this node has given, one per round

The journal is the same for all agreements of the node, because their sums can be subtracted from each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fl.errors import ConfigError
from fl.flower.apps.vectors import check_terms
from fl.flower.node import STATE_KEY, identity_of, open_sealed, read_key, seal
from fl.flower.training import AGREEMENT
from secagg import Identity, SecAggError
from secagg.agreement import WHOLE, Agreement, MemberFolder, read_agreement
from secagg.whole import Client, FileStore

_STATE = b"fl/flower/apps/state/v1:"


def signed_agreement(path: Path) -> tuple[Agreement, Mapping[int, bytes]]:
    """The agreement in a file, with the signatures of all its members; ConfigError if it is not ready."""
    try:
        proposal = read_agreement(path.read_text("utf-8"))
        agreement = proposal.agreement
        signatures = {member: part.signature for member, part in proposal.signatures.items()}
        agreement.check_signatures(signatures)  # audit: app-agreement-signed
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}; `share flower propose` writes one, `secagg agree` signs it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except SecAggError as error:
        raise ConfigError(f"{path}: {error}; `secagg agree {path} --check` lists what is missing") from None
    if agreement.terms.groups != WHOLE:
        raise ConfigError(f"{path}: an app needs groups = 'whole', got {agreement.terms.groups!r}")
    check_terms(agreement.terms)
    return agreement, signatures


@dataclass(frozen=True, slots=True)
class AppNode:
    """One member of an app's agreement, on its own machine."""

    client: int
    identity: Identity
    agreement: Agreement
    store: FileStore
    _signatures: Mapping[int, bytes] = field(repr=False)
    _earlier: tuple[Agreement, ...] = field(repr=False)
    _state_key: bytes = field(repr=False)

    @classmethod
    def open(cls, folder: Path | str) -> AppNode:
        """The node of this folder; ConfigError if it is not ready to take part."""
        place = Path(folder)
        identity = identity_of(place)
        agreement, signatures = signed_agreement(place / AGREEMENT)
        try:
            kept = MemberFolder(place)
            client, earlier = kept.member_of(agreement.terms), kept.earlier(agreement.terms)
        except SecAggError as error:
            raise ConfigError(str(error)) from None
        key = read_key(place / STATE_KEY)
        return cls(client, identity, agreement, FileStore(place / "journal"), signatures, earlier, key)

    def member(self, sealed: bytes | None) -> Client:
        """The client as it was after the last message, or a new one."""
        given = (self.agreement, self._signatures, self.client, self.identity)
        saved = None if sealed is None else open_sealed(self._state_key, self._address, sealed)
        if saved is None:
            return Client(*given, earlier=self._earlier)
        return Client.restore(saved, *given, earlier=self._earlier)

    def saved(self, client: Client) -> bytes:
        """The client between two messages, encrypted for this node and agreement."""
        return seal(self._state_key, self._address, client.save())

    @property
    def _address(self) -> bytes:
        return _STATE + self.agreement.fingerprint
