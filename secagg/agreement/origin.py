"""Where the seed of an agreement comes from, in a form that everybody can check again at any time.

A ceremony is recorded whole: a signed commitment of every member to a secret contribution and to the terms, then the
contributions. `secagg.exposure.seed` says why nobody can choose the seed. A commitment signs the hash of the terms, so
the terms cannot change after the first commitment.

With a beacon, the terms name a pulse that does not exist yet, and every member signs the terms before it is published.
An honest member signs only while its own clock says so (`secagg agree --commit`). So nobody could fit the terms to the
pulse, as long as the beacon does not tell anybody its pulses beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from secagg import codec, labels
from secagg.agreement.plan import MOST_CLIENTS
from secagg.agreement.terms import Terms
from secagg.arguments import MOST_ID, each, ids, instance, raw, settle, whole
from secagg.codec import U8, U32, Blob, Fixed, Many, Reader, Struct
from secagg.crypto.keys import HASH_BYTES, SIGNATURE_BYTES, Identity, digest, verify
from secagg.crypto.pulse import MOST_KEY, MOST_MESSAGE, MOST_SIGNATURE, Pulse
from secagg.errors import PeerError, UsageError, WireError
from secagg.exposure.seed import CONTRIBUTION_BYTES, SeedCeremony
from secagg.types import ClientId, u32


@dataclass(frozen=True, slots=True)
class Commitment:
    """One member's commitment to its contribution and to the terms.

    >>> from secagg.simulation import make_agreement
    >>> agreement, identities = make_agreement(members=3, size=3, length=4, clip=1.0)
    >>> commit(agreement.terms, 2, identities[2], bytes(32)).member
    2
    """

    member: Annotated[ClientId, U32]
    commitment: Annotated[bytes, Fixed(HASH_BYTES)]
    signature: Annotated[bytes, Fixed(SIGNATURE_BYTES)]

    def __post_init__(self) -> None:
        settle(self, whole, "member", least=0, most=MOST_ID)
        settle(self, raw, "commitment", size=HASH_BYTES)
        settle(self, raw, "signature", size=SIGNATURE_BYTES)


@dataclass(frozen=True, slots=True)
class Reveal:
    """One member's contribution, signed together with all commitments that it saw.

    >>> Reveal(2, bytes(32), bytes(64)).member
    2
    """

    member: Annotated[ClientId, U32]
    contribution: Annotated[bytes, Fixed(CONTRIBUTION_BYTES)]
    signature: Annotated[bytes, Fixed(SIGNATURE_BYTES)]

    def __post_init__(self) -> None:
        settle(self, whole, "member", least=0, most=MOST_ID)
        settle(self, raw, "contribution", size=CONTRIBUTION_BYTES)
        settle(self, raw, "signature", size=SIGNATURE_BYTES)


@dataclass(frozen=True, slots=True)
class Approval:
    """One member's signature on terms that name a pulse, given before the pulse exists.

    >>> Approval(2, bytes(64)).member
    2
    """

    member: Annotated[ClientId, U32]
    signature: Annotated[bytes, Fixed(SIGNATURE_BYTES)]

    def __post_init__(self) -> None:
        settle(self, whole, "member", least=0, most=MOST_ID)
        settle(self, raw, "signature", size=SIGNATURE_BYTES)


COMMITMENT: Final = Struct.of(Commitment)
REVEAL: Final = Struct.of(Reveal)
APPROVAL: Final = Struct.of(Approval)
PULSE: Final = Struct(
    Pulse, (("message", Blob(MOST_MESSAGE)), ("signature", Blob(MOST_SIGNATURE)), ("key", Blob(MOST_KEY)))
)


@dataclass(frozen=True, slots=True)
class Ceremony:
    """The whole transcript of a seed ceremony, one commitment and one reveal per member, in the order of ids.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=3, size=3, length=4, clip=1.0)
    >>> agreement.origin.seed(agreement.terms) == agreement.seed
    True
    """

    commitments: Annotated[tuple[Commitment, ...], Many(COMMITMENT, MOST_CLIENTS)]
    reveals: Annotated[tuple[Reveal, ...], Many(REVEAL, MOST_CLIENTS)]

    def __post_init__(self) -> None:
        settle(self, each, "commitments", kind=Commitment)
        settle(self, each, "reveals", kind=Reveal)

    def seed(self, terms: Terms) -> bytes:
        """The seed, after a check of every commitment, contribution and signature."""
        instance("terms", terms, Terms)
        if terms.beacon is not None:  # audit: origin-as-named
            raise PeerError(f"the terms name a beacon's pulse ({terms.beacon.when}), got a ceremony")
        check_commitments(terms, self.commitments)
        shown = commitments_hash(terms, self.commitments)
        for reveal in self.reveals:
            check_reveal(terms, shown, reveal)
        _check_order(self.reveals, "contributions")
        return _ceremony(terms).seed(
            {c.member: c.commitment for c in self.commitments}, {r.member: r.contribution for r in self.reveals}
        )


@dataclass(frozen=True, slots=True)
class BeaconPulse:
    """A pulse that the terms name, and every member's signature on these terms, in the order of ids.

    >>> from secagg.crypto.pulse import Pulse
    >>> from secagg.simulation import make_agreement
    >>> terms = make_agreement(members=3, size=3, length=4, clip=1.0)[0].terms
    >>> BeaconPulse((), Pulse(b"", b"", b"")).seed(terms)
    Traceback (most recent call last):
    secagg.errors.PeerError: the terms name no beacon: their seed comes from a ceremony
    """

    approvals: Annotated[tuple[Approval, ...], Many(APPROVAL, MOST_CLIENTS)]
    pulse: Annotated[Pulse, PULSE]

    def __post_init__(self) -> None:
        settle(self, each, "approvals", kind=Approval)
        settle(self, instance, "pulse", kind=Pulse)

    def seed(self, terms: Terms) -> bytes:
        """The seed, after a check of the pulse and of every member's signature on the terms."""
        if terms.beacon is None:
            raise PeerError("the terms name no beacon: their seed comes from a ceremony")
        check_approvals(terms, self.approvals)
        return terms.beacon.seed(terms.hash, self.pulse)


Origin = Ceremony | BeaconPulse
_KINDS: Final[tuple[Struct, ...]] = (Struct.of(Ceremony), Struct.of(BeaconPulse))


def origin_to_bytes(origin: Origin) -> bytes:
    kind = int(isinstance(origin, BeaconPulse))
    return codec.to_bytes(U8, kind) + codec.to_bytes(_KINDS[kind], origin)


def read_origin(reader: Reader) -> Origin:
    """The origin that these bytes encode; nothing of it is checked yet."""
    kind = U8.get(reader)
    if kind >= len(_KINDS):
        raise WireError(f"unknown origin of a seed ({kind})")
    origin: Origin = _KINDS[kind].get(reader)
    return origin


def approve(terms: Terms, member: ClientId, identity: Identity) -> Approval:
    """A member's only step with a beacon. The caller makes sure that the pulse is still in the future.

    >>> from dataclasses import replace
    >>> from secagg.agreement import NamedPulse
    >>> from secagg.simulation import make_agreement
    >>> agreement, identities = make_agreement(members=3, size=3, length=4, clip=1.0)
    >>> terms = replace(agreement.terms, beacon=NamedPulse(chain=2, time=1788203040000, key=bytes(32)))
    >>> approve(terms, 2, identities[2]).member
    2
    """
    if instance("terms", terms, Terms).beacon is None:
        raise UsageError("these terms name no beacon: commit to a contribution instead")
    _check_identity(terms, member, identity)
    return Approval(member, identity.sign(_approval_statement(terms, member)))


def check_approvals(terms: Terms, approvals: Iterable[Approval]) -> None:
    """PeerError, naming the member, unless every member signed the terms."""
    found = tuple(approvals)
    _check_order(found, "approvals")
    for approval in found:
        check_approval(terms, approval)
    missing = sorted(set(terms.ids).difference(approval.member for approval in found))
    if missing:  # audit: all-approved
        raise PeerError(f"member {missing[0]} has not signed the terms that name the pulse", culprit=missing[0])


def check_approval(terms: Terms, approval: Approval) -> None:
    statement = _approval_statement(terms, approval.member)
    # audit: approval-signed
    verify(_identity(terms, approval.member), approval.signature, statement, signer=approval.member)


def commit(terms: Terms, member: ClientId, identity: Identity, contribution: bytes) -> Commitment:
    """A member's first step. It keeps `contribution`, 32 fresh random bytes, to itself until all have committed.

    >>> from secagg.simulation import make_agreement
    >>> agreement, identities = make_agreement(members=3, size=3, length=4, clip=1.0)
    >>> len(commit(agreement.terms, 0, identities[0], bytes(32)).commitment)
    32
    """
    if instance("terms", terms, Terms).beacon is not None:
        raise UsageError("these terms name a beacon: there is nothing to commit to, approve them instead")
    _check_identity(terms, member, identity)
    commitment = _ceremony(terms).commitment(member, contribution)
    return Commitment(member, commitment, identity.sign(_commitment_statement(terms, member, commitment)))


def reveal(
    terms: Terms, member: ClientId, identity: Identity, contribution: bytes, commitments: Iterable[Commitment]
) -> Reveal:
    """A member's second step, once it has the commitments of all members.

    >>> from secagg.simulation import make_agreement
    >>> agreement, identities = make_agreement(members=3, size=3, length=4, clip=1.0)
    >>> terms, secrets = agreement.terms, {v: bytes([v]) * 32 for v in identities}
    >>> commitments = [commit(terms, v, identities[v], secrets[v]) for v in terms.ids]
    >>> reveal(terms, 1, identities[1], secrets[1], commitments).contribution == secrets[1]
    True
    """
    _check_identity(instance("terms", terms, Terms), member, identity)
    all_commitments = each("commitments", commitments, Commitment)
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
    # Before any signature: a reveal binds all commitments, and an honest member must not look like a forger.
    _ceremony(terms).check_committed({c.member: c.commitment for c in found})  # audit: missing-commitment-named
    for commitment in found:
        check_commitment(terms, commitment)


def check_commitment(terms: Terms, commitment: Commitment) -> None:
    statement = _commitment_statement(terms, commitment.member, commitment.commitment)
    # audit: commitment-signed
    verify(_identity(terms, commitment.member), commitment.signature, statement, signer=commitment.member)


def check_reveal(terms: Terms, shown: bytes, reveal: Reveal) -> None:
    """PeerError unless the member signed this contribution together with the commitments whose hash is `shown`."""
    statement = _reveal_statement(terms, shown, reveal.member, reveal.contribution)
    # audit: reveal-signed
    verify(_identity(terms, reveal.member), reveal.signature, statement, signer=reveal.member)


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


def _check_identity(terms: Terms, member: ClientId, identity: Identity) -> None:
    (member,) = ids("member", [member], terms.identities)
    if terms.identities[member] != instance("identity", identity, Identity).public:
        raise UsageError(f"member {member} of these terms has another identity key")


def _check_order(steps: tuple[Commitment | Reveal | Approval, ...], what: str) -> None:
    ids = [step.member for step in steps]
    if ids != sorted(set(ids)):  # audit: origin-in-order
        raise PeerError(f"the {what} are not in the order of member ids, or one is there twice")


def _approval_statement(terms: Terms, member: ClientId) -> bytes:
    return labels.SIGN_TERMS + terms.hash + u32(member)


def _commitment_statement(terms: Terms, member: ClientId, commitment: bytes) -> bytes:
    return labels.SIGN_COMMITMENT + terms.hash + u32(member) + commitment  # audit: commitment-binds-terms


def _reveal_statement(terms: Terms, shown: bytes, member: ClientId, contribution: bytes) -> bytes:
    return labels.SIGN_REVEAL + terms.hash + shown + u32(member) + contribution  # audit: reveal-binds-commitments
