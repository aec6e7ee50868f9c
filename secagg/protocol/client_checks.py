"""What a client demands of each message from the server. A check that fails ends the run for this client."""

from collections.abc import Mapping, Sequence

from secagg.agreement.cost import check_budget
from secagg.agreement.plan import Plan
from secagg.arguments import function, instance
from secagg.crypto.keys import Identity, verify
from secagg.errors import PeerError, TooFewSurvivors, UsageError
from secagg.privacy.budget import Budget
from secagg.protocol import transcript
from secagg.protocol.cache import Agreed, Cache
from secagg.protocol.dealing import check_advert
from secagg.protocol.journal import Journal, check_journal
from secagg.protocol.messages import Bundle, Dealer, KeyAdvert, Signatures, Survivors
from secagg.types import ClientId, Entropy


def check_adverts(
    plan: Plan, me: ClientId, my_keys: tuple[bytes, bytes], adverts: Sequence[KeyAdvert]
) -> Mapping[ClientId, KeyAdvert]:
    """U1: at least t peers, each key signed by its owner, and this client's own keys unchanged."""
    ids = [advert.sender for advert in adverts]
    peers = frozenset(plan.peers(me))
    # audit: key-list-order key-list-peers-only
    if sorted(set(ids)) != ids or not {me} <= set(ids) <= peers:
        raise PeerError("the key list must name me and only my peers, once each, in order")
    if len(ids) < plan.t:  # audit: key-list-threshold
        raise TooFewSurvivors(f"{len(ids)} clients sent keys, the threshold is {plan.t}")
    for advert in adverts:
        if advert.sender == me:
            if (advert.channel, advert.mask) != my_keys:  # audit: own-keys-unchanged
                raise PeerError("the key list has keys under my id that I did not send")
            continue
        check_advert(plan, advert)  # audit: client-checks-adverts
    return {advert.sender: advert for advert in adverts}


def check_dealers(
    plan: Plan, mine: Dealer, adverts: Mapping[ClientId, KeyAdvert], message: Bundle
) -> Mapping[ClientId, KeyAdvert]:
    """U2: at least t clients of U1, and this client's own dealing (`mine`) unchanged."""
    ids = [dealer.id for dealer in message.dealers]
    if sorted(set(ids)) != ids or not {mine.id} <= set(ids) <= set(adverts):  # audit: u2-inside-u1
        raise PeerError("U2 must be inside U1 and name me, once each, in order")
    if len(ids) < plan.t:  # audit: dealers-threshold
        raise TooFewSurvivors(f"{len(ids)} clients shared keys, the threshold is {plan.t}")
    expected = len(plan.groupings)
    for dealer in message.dealers:
        if len(dealer.commitments) != expected:  # audit: one-commitment-per-grouping
            raise PeerError(f"dealer {dealer.id}: expected {expected} commitments, got {len(dealer.commitments)}")
    if mine not in message.dealers:  # audit: own-dealing-unchanged
        raise PeerError("U2 lists a dealing under my id that I did not send")
    return {v: adverts[v] for v in ids}


def check_survivors(
    plan: Plan, me: ClientId, dealers: Sequence[Dealer], view: bytes, sparse_risk: float, message: Survivors
) -> tuple[ClientId, ...]:
    """Who sent masked vectors: at least t clients of U2 that all signed the same view of U2, and their vectors.

    They sign and hold shares, whether or not their atom is whole; `Plan.summed` says whose vectors are summed.
    In sparse mode views differ from neighbourhood to neighbourhood, so U3 is only held against the roster (this client
    checks its own entry), and the graph of those left must still be connected, up to the risk that it accepts.
    """
    ids = tuple(member.id for member in message.members)
    known = {dealer.id for dealer in dealers}
    if list(ids) != sorted(set(ids)) or me not in ids:  # audit: u3-order
        raise PeerError("the survivors must name me, and every client once, in order")
    if not set(ids) <= (set(plan.ids) if plan.semi_honest_only else known):  # audit: u3-inside-u2
        raise PeerError("the survivors must be inside U2")
    if len(set(ids) & known) < plan.t:  # audit: survivors-threshold
        raise TooFewSurvivors(f"{len(set(ids) & known)} clients survive, the threshold is {plan.t}")
    # audit: sparse-dropouts-limited
    if plan.semi_honest_only and plan.sparse_risk(len(plan.ids) - len(ids)) > sparse_risk:
        raise PeerError("too many dropouts: the sparse graph may be disconnected")
    for member in message.members:
        if plan.semi_honest_only and member.id != me:  # audit: sparse-own-input
            continue  # it has a view of its own
        statement = transcript.view_statement(plan.hash, member.id, view, member.disputes, member.vectors_hash)
        # audit: u3-signed-my-view
        verify(plan.identities[member.id], member.signature, statement, signer=member.id)
    return ids


def check_endorsements(
    plan: Plan, me: ClientId, survivors: Sequence[ClientId], statement: bytes, message: Signatures
) -> None:
    """At least t of this client's peers in U3 signed exactly what it signed."""
    may_sign = frozenset(survivors) & frozenset(plan.peers(me))
    signers = [endorsement.id for endorsement in message.endorsements]
    if signers != sorted(set(signers)):  # audit: endorser-counts-once
        raise PeerError("each signer counts once, in order")
    valid = 0
    for endorsement in message.endorsements:
        if endorsement.id not in may_sign:  # audit: endorsers-in-u3
            raise PeerError(f"client {endorsement.id} may not sign for this opening")
        # audit: endorsements-verified
        verify(plan.identities[endorsement.id], endorsement.signature, statement, signer=endorsement.id)
        valid += 1
        if valid == plan.t:  # audit: t-endorsements
            return
    raise TooFewSurvivors(f"{valid} clients signed the opening, the threshold is {plan.t}")


def check_application(
    identity: Identity,
    agreement: Agreed,
    journal: Journal,
    entropy: Entropy,
    cache: Cache | None,
    budget: Budget | None = None,
) -> None:
    """UsageError for an argument of the application that a client could only fail with later."""
    instance("identity", identity, Identity)
    if not all(hasattr(agreement, name) for name in ("fingerprint", "terms", "cell_of", "plan")):
        raise UsageError(f"agreement: expected an Agreement, got {type(agreement).__name__}")
    check_journal(journal)
    function("entropy", entropy)
    if cache is not None and not (hasattr(cache, "plan") and hasattr(cache, "verdict")):
        raise UsageError(f"cache: expected a Cache with plan and verdict, got {type(cache).__name__}")
    if budget is not None:
        check_budget(agreement.terms, budget)
