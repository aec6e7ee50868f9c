"""Proofs against clients of a run with survivors: disputes, a wrong stage-4 message, shares that do not fit together.

A proof needs nobody's word: what convicts a client is what it signed itself, held against what dealers signed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from secagg.agreement.plan import Plan
from secagg.crypto.keys import HASH_BYTES, AgreementKey
from secagg.crypto.shamir import PRIME, SECRET_BYTES, SHARE_BYTES
from secagg.evidence import run_statements as statements
from secagg.evidence.runs import Leaf, RunRecord, SignedDealing, SignedKeys, WrongDealing, WrongUnmasking, most_proofs
from secagg.types import ClientId

ENTRY: Final = SHARE_BYTES + HASH_BYTES
Secret = tuple[ClientId, int]  # owner, and 0 for its mask key or r + 1 for its seed of grouping r


@dataclass(frozen=True, eq=False)
class Court:
    """One run as a judge sees it: the plan and the record."""

    plan: Plan
    record: RunRecord

    @cached_property
    def adverts(self) -> Mapping[ClientId, SignedKeys]:
        return {one.sender: one for one in self.record.adverts}

    @cached_property
    def dealings(self) -> Mapping[ClientId, SignedDealing]:
        return {one.sender: one for one in self.record.dealings}

    @cached_property
    def summed(self) -> frozenset[ClientId]:
        """U3: those whose vectors are summed."""
        return frozenset(self.plan.summed([one.sender for one in self.record.inputs]))

    def opened_groupings(self, client: ClientId) -> tuple[int, ...]:
        chosen = frozenset(self.record.groups)
        return tuple(r for r, g in self.plan.groups_of[client] if (r, g) in chosen)

    def holders(self, dealer: ClientId) -> list[ClientId]:
        """Who holds shares of a dealer, in the order of its leaves."""
        return [v for v in self.plan.peers(dealer) if v in self.adverts]

    def is_leaf(self, dealer: ClientId, holder: ClientId, hashes: bytes, path: tuple[bytes, ...]) -> bool:
        """Whether the dealer signed these hashes for this holder."""
        holders = self.holders(dealer)
        if dealer not in self.dealings or holder not in holders:
            return False
        if len(hashes) != (len(self.plan.groupings) + 1) * HASH_BYTES or len(path) != (len(holders) - 1).bit_length():
            return False
        # audit: evidence-leaf-under-root
        return statements.root(hashes, holders.index(holder), path) == self.dealings[dealer].root


def convicted(court: Court) -> tuple[dict[ClientId, str], list[str]]:
    """Whom the record convicts and why, and what it says against others without a proof."""
    blamed, problems = _disputed(court), list(_limits(court))
    for given in court.record.wrong:
        why = _wrong_unmasking(court, given)
        if not why:  # audit: evidence-unmasking-blame-proved
            problems.append(f"it blames client {given.sender} without a proof")
        blamed[given.sender] = why
    for dealt in court.record.dealt:
        why = _wrong_dealing(court, dealt)
        if not why:  # audit: evidence-dealing-blame-proved
            problems.append(f"it blames client {dealt.dealer} without a proof")
        blamed[dealt.dealer] = why
    return {client: why for client, why in blamed.items() if why}, problems


def _limits(court: Court) -> Iterator[str]:
    plan, record = court.plan, court.record
    most = most_proofs(plan.t, plan.assumed_colluders)
    if len(record.wrong) > most:  # audit: evidence-few-shares
        yield f"it shows the shares that {len(record.wrong)} clients gave, and at most {most} are safe to show"
    wrong, dealt = [one.sender for one in record.wrong], [one.dealer for one in record.dealt]
    unproved = [one.client for one in record.unproved]
    if any(found != sorted(set(found)) for found in (wrong, dealt, unproved)):
        yield "its proofs are not in order, or one is there twice"


def _disputed(court: Court) -> dict[ClientId, str]:
    """Dealers that more peers dispute than may cheat: at least one of these peers is honest."""
    plan = court.plan
    counts = Counter(dealer for one in court.record.inputs for dealer in set(one.disputes))
    may_cheat = max(plan.assumed_colluders, plan.holders - plan.t)
    return {
        dealer: f"{count} peers signed that they hold no good share from it"
        for dealer, count in sorted(counts.items())
        if count > may_cheat  # audit: evidence-blame-needs-accusers
    }


def _wrong_unmasking(court: Court, given: WrongUnmasking) -> str:
    """What is wrong with what a client gave and signed in stage 4; nothing if nothing is."""
    sender = given.sender
    signed = {one.sender: one.content for one in court.record.unmaskings}
    if signed.get(sender) != statements.content(given):  # audit: evidence-unmasking-signed
        return ""
    groupings = court.opened_groupings(sender) if sender in court.summed else ()
    if len(given.own) != len(groupings) * SECRET_BYTES:
        return "it signed the wrong number of its own seeds"
    owners = {*given.seed_owners, *given.key_owners}
    if not owners <= court.dealings.keys():
        return "it signed shares of a client that dealt none"
    if not set(given.seed_owners) <= court.summed or court.summed.intersection(given.key_owners):
        return "it signed shares of the wrong kind"
    secrets = [(owner, r + 1) for owner in given.seed_owners for r in court.opened_groupings(owner)]
    if len(given.seeds) != len(secrets) * ENTRY or len(given.keys) != len(given.key_owners) * ENTRY:
        return "it signed the wrong number of shares"
    for place, r in enumerate(groupings):
        seed = given.own[place * SECRET_BYTES : (place + 1) * SECRET_BYTES]
        if statements.commitment(court.plan, sender, r, seed) != court.dealings[sender].commitments[r]:
            return "it signed a seed of its own that it did not commit to"
    secrets += [(owner, 0) for owner in given.key_owners]
    return _wrong_share(court, given, secrets)


def _wrong_share(court: Court, given: WrongUnmasking, secrets: list[Secret]) -> str:
    """Whether a share is not what its dealer signed for this holder."""
    sender, entries = given.sender, given.seeds + given.keys
    strangers = [owner for owner, _ in secrets if sender not in court.holders(owner)]
    if strangers:
        return f"it signed a share of client {strangers[0]}, who dealt it none"
    for leaf in given.leaf:
        if not court.is_leaf(leaf.dealer, sender, leaf.hashes, leaf.path):
            return ""
        for number, (owner, secret) in enumerate(secrets):
            entry = entries[number * ENTRY : (number + 1) * ENTRY]
            if owner == leaf.dealer and not _matches(court.plan, leaf, sender, secret, entry):
                return f"it signed a wrong share of client {owner}"
    return ""


def _matches(plan: Plan, leaf: Leaf, holder: ClientId, secret: int, entry: bytes) -> bool:
    expected = leaf.hashes[secret * HASH_BYTES : (secret + 1) * HASH_BYTES]
    return statements.share_hash(plan, leaf.dealer, holder, secret, entry) == expected and _in_field(entry)


def _in_field(entry: bytes) -> bool:
    return int.from_bytes(entry[:SHARE_BYTES], "little") < PRIME


def _wrong_dealing(court: Court, dealt: WrongDealing) -> str:
    """Whether t shares that a dealer signed do not give the secret that it committed to."""
    plan, dealer, secret = court.plan, dealt.dealer, dealt.secret
    holders = [shown.holder for shown in dealt.shares]
    # audit: evidence-dealing-t-shares
    if len(holders) != plan.t or holders != sorted(set(holders)) or not 0 <= secret <= len(plan.groupings):
        return ""
    for shown in dealt.shares:
        leaf, entry = Leaf(dealer, shown.hashes, shown.path), shown.share + shown.nonce
        if not court.is_leaf(dealer, shown.holder, shown.hashes, shown.path):
            return ""
        if not _matches(plan, leaf, shown.holder, secret, entry):  # audit: evidence-dealing-own-shares
            return ""
    value = _combined({plan.index[shown.holder]: shown.share for shown in dealt.shares})
    if value < 2**256 and _is_secret(court, dealer, secret, value.to_bytes(SECRET_BYTES, "little")):
        return ""
    return f"its own shares do not give its {'mask key' if secret == 0 else f'seed of grouping {secret - 1}'}"


def _combined(shares: Mapping[int, bytes]) -> int:
    """The value at 0 of the polynomial through these points."""
    total = 0
    for i, share in shares.items():
        above = below = 1
        for j in shares:
            if j != i:
                above, below = above * j % PRIME, below * (j - i) % PRIME
        total += int.from_bytes(share, "little") * above * pow(below, -1, PRIME)
    return total % PRIME


def _is_secret(court: Court, dealer: ClientId, secret: int, value: bytes) -> bool:
    if secret == 0:
        return AgreementKey.from_private(value).public == court.adverts[dealer].mask
    return (
        statements.commitment(court.plan, dealer, secret - 1, value) == court.dealings[dealer].commitments[secret - 1]
    )
