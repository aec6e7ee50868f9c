"""The steps of one member towards an agreement, each with its record in the member's folder first."""

from __future__ import annotations

import time
from collections.abc import Sequence

from secagg.agreement.agreement import Agreement
from secagg.agreement.folder import MemberFolder
from secagg.agreement.origin import Approval, Commitment, Reveal, approve, commit, reveal
from secagg.agreement.proposal import Proposal, Signature
from secagg.errors import UsageError

Step = Commitment | Reveal | Approval | Signature


def commit_step(proposal: Proposal, folder: MemberFolder) -> Step:
    """Commit to the terms and to a contribution to the seed; or approve terms that name a pulse."""
    terms = proposal.terms
    member = folder.member_of(terms)
    if terms.beacon is None:
        return commit(terms, member, folder.identity, folder.contribution(terms))
    if time.time() * 1000 >= terms.beacon.time:  # audit: pulse-in-the-future
        raise UsageError(
            f"seed.time: expected a pulse that does not exist yet, got {terms.beacon.when}; name a later one, so that "
            "nobody could fit the terms to it"
        )
    folder.record_seed_seen(terms)
    return approve(terms, member, folder.identity)


def reveal_step(proposal: Proposal, folder: MemberFolder) -> Step:
    """Reveal the contribution, once all have committed."""
    terms = proposal.terms
    if terms.beacon is not None:
        raise UsageError("seed.from: these terms name a beacon; there is nothing to reveal")
    member, contribution = folder.member_of(terms), folder.stored_contribution(terms)
    made = reveal(terms, member, folder.identity, contribution, proposal.in_order("commitments"))
    folder.record_seed_seen(terms)
    return made


def sign_step(proposal: Proposal, folder: MemberFolder, earlier: Sequence[Agreement]) -> Step:
    """Sign the agreement, once it has its seed."""
    agreement = proposal.agreement
    earlier = earlier or folder.earlier(proposal.terms)
    agreement.check(earlier)  # audit: successor-checked-before-signing
    member = folder.member_of(proposal.terms)
    folder.keep_agreements((*earlier, agreement))
    folder.record_signed(proposal.terms, agreement.fingerprint)
    return Signature(member, agreement.sign(member, folder.identity))


def grouped(digits: str) -> str:
    """A fingerprint in groups of 4 characters, as people read it to each other."""
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))
