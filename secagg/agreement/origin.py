"""Where the seed of an agreement comes from, in a form that everybody can check again at any time.

A ceremony is recorded whole: a signed commitment of every member to a secret contribution and to the terms, then the
contributions. `secagg.exposure.seed` says why nobody can choose the seed. A commitment signs the hash of the terms, so
the terms cannot change after the first commitment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from secagg import codec, labels
from secagg.agreement.plan import MOST_CLIENTS
from secagg.codec import U32, Fixed, Many, Struct
from secagg.crypto.keys import HASH_BYTES, SIGNATURE_BYTES, Identity, digest, verify
from secagg.errors import PeerError, UsageError
from secagg.exposure.seed import CONTRIBUTION_BYTES, SeedCeremony
from secagg.types import ClientId, u32

if TYPE_CHECKING:
    from secagg.agreement.terms import Terms


@dataclass(frozen=True, slots=True)
class Commitment:
    """One member's commitment to its contribution and to the terms."""

    member: Annotated[ClientId, U32]
    commitment: Annotated[bytes, Fixed(HASH_BYTES)]
    signature: Annotated[bytes, Fixed(SIGNATURE_BYTES)]


@dataclass(frozen=True, slots=True)
class Reveal:
    """One member's contribution, signed together with all commitments that it saw."""

    member: Annotated[ClientId, U32]
    contribution: Annotated[bytes, Fixed(CONTRIBUTION_BYTES)]
    signature: Annotated[bytes, Fixed(SIGNATURE_BYTES)]


COMMITMENT: Final = Struct.of(Commitment)
REVEAL: Final = Struct.of(Reveal)


@dataclass(frozen=True, slots=True)
class Ceremony:
    """The whole transcript of a seed ceremony, one commitment and one reveal per member, in the order of ids."""

    commitments: Annotated[tuple[Commitment, ...], Many(COMMITMENT, MOST_CLIENTS)]
    reveals: Annotated[tuple[Reveal, ...], Many(REVEAL, MOST_CLIENTS)]

    def seed(self, terms: Terms) -> bytes:
        """The seed, after a check of every commitment, contribution and signature."""
        check_commitments(terms, self.commitments)
        shown = commitments_hash(terms, self.commitments)
        for reveal in self.reveals:
            statement = _reveal_statement(terms, shown, reveal.member, reveal.contribution)
            # audit: reveal-signed
            verify(_identity(terms, reveal.member), reveal.signature, statement, signer=reveal.member)
        _check_order(self.reveals, "contributions")
        return _ceremony(terms).seed(
            {c.member: c.commitment for c in self.commitments}, {r.member: r.contribution for r in self.reveals}
        )

    def to_bytes(self) -> bytes:
        return codec.to_bytes(CEREMONY, self)


CEREMONY: Final = Struct.of(Ceremony)
Origin = Ceremony


def commit(terms: Terms, member: ClientId, identity: Identity, contribution: bytes) -> Commitment:
    """A member's first step. It keeps `contribution`, 32 fresh random bytes, to itself until all have committed."""
    if terms.identities.get(member) != identity.public:
        raise UsageError(f"member {member} of these terms has another identity key")
    commitment = _ceremony(terms).commitment(member, contribution)
    return Commitment(member, commitment, identity.sign(_commitment_statement(terms, member, commitment)))


def reveal(
    terms: Terms, member: ClientId, identity: Identity, contribution: bytes, commitments: Iterable[Commitment]
) -> Reveal:
    """A member's second step, once it has the commitments of all members."""
    all_commitments = tuple(commitments)
    check_commitments(terms, all_commitments)
    _ceremony(terms).reveal(member, contribution, {c.member: c.commitment for c in all_commitments})
    return sign_reveal(terms, member, identity, contribution, commitments_hash(terms, all_commitments))


def sign_reveal(terms: Terms, member: ClientId, identity: Identity, contribution: bytes, shown: bytes) -> Reveal:
    """A contribution, signed with the hash of commitments that were checked before."""
    return Reveal(member, contribution, identity.sign(_reveal_statement(terms, shown, member, contribution)))


def check_commitments(terms: Terms, commitments: Iterable[Commitment]) -> None:
    """PeerError, naming the member, unless there is one signed commitment of each member."""
    found = tuple(commitments)
    _check_order(found, "commitments")
    for commitment in found:
        statement = _commitment_statement(terms, commitment.member, commitment.commitment)
        # audit: commitment-signed
        verify(_identity(terms, commitment.member), commitment.signature, statement, signer=commitment.member)


def commitments_hash(terms: Terms, commitments: Iterable[Commitment]) -> bytes:
    """The hash of all commitments; each member signs it with its contribution, so all saw the same ones."""
    return digest(labels.COMMITMENTS, terms.hash, codec.to_bytes(Many(COMMITMENT, MOST_CLIENTS), tuple(commitments)))


def _ceremony(terms: Terms) -> SeedCeremony:
    return SeedCeremony(training_id=terms.hash, roster=terms.ids)


def _identity(terms: Terms, member: ClientId) -> bytes:
    identity = terms.identities.get(member)
    if identity is None:
        raise PeerError(f"the seed's origin names client {member}, who is not a member")
    return identity


def _check_order(steps: tuple[Commitment, ...] | tuple[Reveal, ...], what: str) -> None:
    ids = [step.member for step in steps]
    if ids != sorted(set(ids)):
        raise PeerError(f"the {what} are not in the order of member ids, or one is there twice")


def _commitment_statement(terms: Terms, member: ClientId, commitment: bytes) -> bytes:
    return labels.SIGN_COMMITMENT + terms.hash + u32(member) + commitment  # audit: commitment-binds-terms


def _reveal_statement(terms: Terms, shown: bytes, member: ClientId, contribution: bytes) -> bytes:
    return labels.SIGN_REVEAL + terms.hash + shown + u32(member) + contribution  # audit: reveal-binds-commitments
