"""What a client demands of a message from the server. A bad message is refused; a bad group is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from secagg.agreement.agreement import Agreement
from secagg.agreement.cost import check_budget
from secagg.agreement.terms import WHOLE
from secagg.arguments import function, ids, instance
from secagg.crypto.keys import AgreementKey, Identity, verify
from secagg.errors import PeerError, UsageError
from secagg.kernels.threads import thread_count
from secagg.privacy.budget import Budget
from secagg.types import ClientId, Entropy, Group, GroupId
from secagg.whole import flat, transcript
from secagg.whole.layout import layout
from secagg.whole.messages import Advert, Round


@dataclass(frozen=True, slots=True)
class Accepted:
    """A round whose message passed the first checks: it waits for the update."""

    message: Round
    mine: Advert
    private: AgreementKey = field(repr=False)
    released: frozenset[ClientId]
    present: Group  # after a roll call; otherwise empty


def check_round(agreement: Agreement, me: ClientId, fingerprint: bytes, round: int) -> None:
    """The message belongs to this agreement and to a round of it that this client is drawn for."""
    if fingerprint != agreement.fingerprint:  # audit: message-of-this-agreement
        raise PeerError("the message belongs to another agreement")
    terms = agreement.terms
    if round not in terms.rounds:  # audit: round-in-agreement
        raise PeerError(f"round {round} is not in the agreement: {terms.first_round} to {terms.last_round}")
    if me not in layout(agreement, round).seats:  # audit: seated-clients-only
        raise PeerError(f"I am not drawn for round {round}")


def check_adverts(message: Round, me: ClientId, key: bytes) -> Advert:
    """One advert per client, in order, and my own with the key that I sent."""
    ids = [advert.sender for advert in message.adverts]
    if ids != sorted(set(ids)):  # audit: round-adverts-once
        raise PeerError("the adverts of a round must be in the order of ids, one per client")
    mine = next((advert for advert in message.adverts if advert.sender == me), None)
    if mine is None or (mine.round, mine.key) != (message.round, key):  # audit: own-advert-unchanged
        raise PeerError("the round shows an advert under my id that I did not send")
    return mine


def check_releases(agreement: Agreement, me: ClientId, message: Round) -> frozenset[ClientId]:
    """The members that have signed a release of this round."""
    identities = agreement.terms.identities
    ids = [release.sender for release in message.releases]
    refused = flat.releases_refused(agreement, message.round)
    if ids and refused:  # audit: mate-release-allowed
        raise PeerError(refused)
    if ids != sorted(set(ids)) or me in ids:
        raise PeerError("the releases of a round must be in the order of ids, one per client, and none of mine")
    for release in message.releases:
        # audit: release-of-this-round
        if release.round != message.round or release.sender not in identities:
            raise PeerError(f"client {release.sender}: a release of another round or agreement")
        statement = transcript.release_statement(agreement.fingerprint, release)
        # audit: mate-release-signed
        verify(identities[release.sender], release.signature, statement, signer=release.sender)
    return frozenset(ids)


def check_present(agreement: Agreement, message: Round) -> Group:
    """The members that a roll call found, which are those whose adverts the round shows; () without a roll call."""
    if not agreement.terms.roll_call:
        return ()
    (members,) = layout(agreement, message.round).groups.values()
    present = tuple(advert.sender for advert in message.adverts)
    strangers = set(present).difference(members)
    if strangers:  # audit: present-are-members
        raise PeerError(f"the roll call lists client {min(strangers)}, who is not in the group of this round")
    objection = flat.objection(agreement.terms, present)
    if objection:  # audit: present-keep-policy
        raise PeerError(f"the roll call leaves too few: {objection}")
    return present


def check_groups(
    agreement: Agreement, me: ClientId, accepted: Accepted
) -> tuple[list[tuple[GroupId, Group]], dict[ClientId, bytes], dict[GroupId, str]]:
    """The groups to answer, the secret agreed with each mate, and why other groups are left out.

    A group is answered with all its members or not at all.
    """
    message, places = accepted.message, layout(agreement, accepted.message.round)
    adverts = {advert.sender: advert for advert in message.adverts}
    agreed: dict[ClientId, bytes] = {}
    bad: dict[ClientId, str] = {}
    groups, left_out = [], {}
    for group in places.seats[me]:
        members = flat.summed(agreement, places, group, accepted.released, accepted.present)
        if group not in message.groups:
            left_out[group] = "the server did not list it"
            continue
        for mate in members:
            if mate != me and mate not in agreed and mate not in bad:
                try:
                    agreed[mate] = _agree(agreement, accepted, mate, adverts.get(mate))
                except PeerError as why:
                    bad[mate] = str(why)
        why_not = next((bad[mate] for mate in members if mate in bad), "")
        if why_not:  # audit: whole-group-or-none
            left_out[group] = why_not
        else:
            groups.append((group, members))
    return groups, agreed, left_out


def _agree(agreement: Agreement, accepted: Accepted, mate: ClientId, advert: Advert | None) -> bytes:
    """The secret that is shared with a mate, from its signed advert."""
    if advert is None:
        raise PeerError(f"client {mate}: no advert")
    if advert.round != accepted.message.round:  # audit: advert-of-this-round
        raise PeerError(f"client {mate}: an advert of round {advert.round}, expected {accepted.message.round}")
    statement = transcript.advert_statement(agreement.fingerprint, advert)
    # audit: mate-advert-signed
    verify(agreement.terms.identities[mate], advert.signature, statement, signer=mate)
    return accepted.private.agree(advert.key)


def check_given(
    agreement: Agreement,
    me: ClientId,
    identity: Identity,
    entropy: Entropy,
    threads: int | None,
    budget: Budget | None = None,
) -> None:
    """UsageError for an argument of the application that a client could only fail with later."""
    instance("agreement", agreement, Agreement)
    ids("me", [me])
    instance("identity", identity, Identity)
    function("entropy", entropy)
    thread_count(threads)
    check_budget(agreement.terms, budget)


def check_agreement(
    agreement: Agreement,
    signatures: Mapping[ClientId, bytes],
    me: ClientId,
    identity: Identity,
    earlier: Iterable[Agreement],
) -> None:
    """The agreement has whole groups and all signatures, this client is a member, and earlier agreements fit."""
    if agreement.terms.groups != WHOLE:
        raise UsageError("this agreement has groups = 'survivors': use secagg.protocol.Client")
    if agreement.terms.identities.get(me) != identity.public:  # audit: whole-client-is-member
        raise UsageError(f"client {me} with this identity is not a member of the agreement")
    agreement.check_signatures(signatures)  # audit: whole-client-checks-signatures
    agreement.check(earlier)  # audit: whole-client-checks-earlier
