"""The folder of a node whose app has an agreement and no experiment: its keys, the signed agreement, its journal.

    NODE/identity.key, NODE/state.key   as `share flower identity` makes them
    NODE/agreement.toml                 the agreement that all members signed
    NODE/floors.toml                    the operator's own limits, if there are any
    NODE/journal/                       the exclusive slot of every round
    NODE/whole/                         the client between two messages, sealed, and its last answer

The journal is the same for all agreements of the node, because their sums can be subtracted from each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fl.errors import ConfigError
from fl.flower.apps.vectors import check_terms
from fl.flower.node import FLOORS, STATE_KEY, budget_of, identity_of, open_sealed, read_key, seal
from fl.flower.training import AGREEMENT
from secagg import Budget, FileJournal, Identity, SecAggError
from secagg.agreement import WHOLE, Agreement, MemberFolder, read_agreement

_STATE = b"fl/flower/apps/state/v2:"


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
    """One member of an app's agreement, on its own machine. `fl.flower.whole_client.opened` gives its client."""

    place: Path
    client: int
    identity: Identity
    agreement: Agreement
    signatures: Mapping[int, bytes] = field(repr=False)
    journal: FileJournal
    budget: Budget | None  # what all answers of this node may cost, for an agreement with noise

    @classmethod
    def open(cls, folder: Path | str) -> AppNode:
        """The node of this folder; ConfigError if it is not ready to take part."""
        place = Path(folder)
        identity = identity_of(place)
        agreement, signatures = signed_agreement(place / AGREEMENT)
        try:
            kept = MemberFolder(place)
            client = kept.member_of(agreement.terms)
            kept.earlier(agreement.terms)
        except SecAggError as error:
            raise ConfigError(str(error)) from None
        journal, budget = FileJournal(place / "journal"), budget_of(place / FLOORS)
        read_key(place / STATE_KEY)
        return cls(place, client, identity, agreement, signatures, journal, budget)

    def seal(self, round: int, content: bytes) -> bytes:
        """Encrypt what is kept between messages, for this node and agreement."""
        return seal(self.place, self._address(round), content)

    def unseal(self, round: int, sealed: bytes) -> bytes | None:
        """The content; None if this node did not seal it for this agreement."""
        return open_sealed(self.place, self._address(round), sealed)

    def _address(self, round: int) -> bytes:
        return _STATE + self.agreement.fingerprint + round.to_bytes(8, "little")
