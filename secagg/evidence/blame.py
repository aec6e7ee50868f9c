"""Proofs against clients of a run with survivors: a wrong stage-4 message, and shares that do not fit together.

A proof needs nobody's word: what convicts a client is what it signed itself, held against what dealers signed. It must
hold against a hub that chooses what to show: no signature covers U1 or the order of a dealer's leaves, so neither is
used.
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
from secagg.evidence.runs import (
    DealingRecord,
    KeysRecord,
    RunRecord,
    ShownDealing,
    WrongDealing,
    WrongUnmasking,
    most_proofs,
)
from secagg.types import ClientId, GroupId

ENTRY: Final = SHARE_BYTES + HASH_BYTES
Secret = tuple[ClientId, int]  # owner, and 0 for its mask key or r + 1 for its seed of grouping r


@dataclass(frozen=True, eq=False)
class Court:
    """One run as a judge sees it: the plan and the record."""

    plan: Plan
    record: RunRecord

    @cached_property
    def adverts(self) -> Mapping[ClientId, KeysRecord]:
        return {one.sender: one for one in self.record.adverts}

    @cached_property
    def dealings(self) -> Mapping[ClientId, DealingRecord]:
        return {one.sender: one for one in self.record.dealings}

    @cached_property
    def shown(self) -> Mapping[ClientId, ShownDealing]:
        """The dealings that the record shows for its proofs, if they have the hash that their dealer signed."""
        return {
            one.dealer: one
            for one in self.record.shown
            if one.dealer in self.dealings
            and statements.dealing_hash(one) == self.dealings[one.dealer].hash  # audit: evidence-shown-dealings-signed
            and len(one.commitments) == len(self.plan.groupings)  # audit: evidence-run-commitments
        }

    @cached_property
    def summed(self) -> frozenset[ClientId]:
        """U3: those whose vectors are summed."""
        return frozenset(self.plan.summed([one.sender for one in self.record.inputs]))

    @cached_property
    def groups(self) -> tuple[GroupId, ...]:
        """The groups that the survivors signed to open."""
        return self.record.groups(self.plan)

    @cached_property
    def _chosen(self) -> frozenset[GroupId]:
        return frozenset(self.groups)

    def opened_groupings(self, client: ClientId) -> tuple[int, ...]:
        return tuple(r for r, g in self.plan.groups_of[client] if (r, g) in self._chosen)

    def dealt(self, dealer: ClientId, hashes: bytes) -> frozenset[tuple[int, bytes]] | None:
        """The hashes that a dealer signed, each with its secret; None if its shown root is not that of these hashes."""
        secrets = len(self.plan.groupings) + 1
        # audit: evidence-proof-of-a-dealer evidence-whole-leaves
        if dealer not in self.shown or len(hashes) % (secrets * HASH_BYTES):
            return None
        # audit: evidence-hashes-under-root
        if statements.root(hashes, secrets * HASH_BYTES) != self.shown[dealer].root:
            return None
        parts = (hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES))
        return frozenset((number % secrets, part) for number, part in enumerate(parts))


def convicted(court: Court) -> tuple[dict[ClientId, str], list[str]]:
    """Whom the record convicts and why, and what it says against others without a proof."""
    blamed, problems = dict[ClientId, str](), list(_limits(court))
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


def doubted(court: Court) -> dict[ClientId, int]:
    """Dealers that more peers dispute than may cheat, and how many do.

    At least one of these peers is honest, and got no good share. But nobody signs the boxes that the hub relays, so the
    hub may have spoiled them: a dispute is no proof against the dealer.
    """
    plan = court.plan
    counts = Counter(dealer for one in court.record.inputs for dealer in set(one.disputes))
    may_cheat = max(plan.assumed_colluders, plan.holders - plan.t)
    return {
        dealer: count
        for dealer, count in sorted(counts.items())
        if count > may_cheat  # audit: evidence-doubt-needs-accusers
    }


def _wrong_unmasking(court: Court, given: WrongUnmasking) -> str:
    """What is wrong with what a client gave and signed in stage 4; nothing if nothing is."""
    sender = given.sender
    signed = {one.sender: one.content for one in court.record.unmaskings}
    if signed.get(sender) != statements.content(given):  # audit: evidence-unmasking-signed
        return ""
    groupings = court.opened_groupings(sender) if sender in court.summed else ()
    if len(given.own) != len(groupings) * SECRET_BYTES:  # audit: evidence-blame-own-seeds
        return "it signed the wrong number of its own seeds"
    owners = {*given.seed_owners, *given.key_owners}
    if not owners <= court.dealings.keys():  # audit: evidence-blame-no-dealing
        return "it signed shares of a client that dealt none"
    # audit: evidence-blame-kind-of-seeds evidence-blame-kind-of-keys
    if not set(given.seed_owners) <= court.summed or court.summed.intersection(given.key_owners):
        return "it signed shares of the wrong kind"
    secrets = [(owner, r + 1) for owner in given.seed_owners for r in court.opened_groupings(owner)]
    # audit: evidence-blame-number-of-seeds evidence-blame-number-of-keys
    if len(given.seeds) != len(secrets) * ENTRY or len(given.keys) != len(given.key_owners) * ENTRY:
        return "it signed the wrong number of shares"
    committed = court.shown[sender].commitments if sender in court.shown else ()
    for place, r in enumerate(groupings):
        seed = given.own[place * SECRET_BYTES : (place + 1) * SECRET_BYTES]
        # audit: evidence-blame-own-commitment
        if committed and statements.commitment(court.plan, sender, r, seed) != committed[r]:
            return "it signed a seed of its own that it did not commit to"
    secrets += [(owner, 0) for owner in given.key_owners]
    return _wrong_share(court, given, secrets)


def _wrong_share(court: Court, given: WrongUnmasking, secrets: list[Secret]) -> str:
    """Whether a share is none that its dealer signed. A dealer's hash binds the holder, so any of its leaves counts."""
    sender, entries = given.sender, given.seeds + given.keys
    strangers = [owner for owner in dict(secrets) if sender not in court.plan.peers(owner)]
    if strangers:  # audit: evidence-blame-no-peer
        return f"it signed a share of client {strangers[0]}, who dealt it none"
    for shown in given.dealt:
        hashes = court.dealt(shown.dealer, shown.hashes)
        for number, (owner, secret) in enumerate(secrets):
            entry = entries[number * ENTRY : (number + 1) * ENTRY]
            # audit: evidence-share-of-this-dealer evidence-share-hashes-shown
            if hashes is None or owner != shown.dealer:
                continue
            if not _is_dealt(court.plan, owner, sender, secret, entry, hashes):  # audit: evidence-blame-wrong-share
                return f"it signed a wrong share of client {owner}"
    return ""


def _is_dealt(
    plan: Plan, dealer: ClientId, holder: ClientId, secret: int, entry: bytes, hashes: frozenset[tuple[int, bytes]]
) -> bool:
    found = statements.share_hash(plan, dealer, holder, secret, entry)
    return (secret, found) in hashes and _in_field(entry)  # audit: evidence-share-signed evidence-share-in-field


def _in_field(entry: bytes) -> bool:
    return int.from_bytes(entry[:SHARE_BYTES], "little") < PRIME


def _wrong_dealing(court: Court, dealt: WrongDealing) -> str:
    """Whether t shares that a dealer signed do not give the secret that it committed to."""
    plan, dealer, secret = court.plan, dealt.dealer, dealt.secret
    holders, hashes = [shown.holder for shown in dealt.shares], court.dealt(dealer, dealt.hashes)
    # audit: evidence-dealing-t-shares evidence-dealing-different-holders
    if len(holders) != plan.t or holders != sorted(set(holders)):
        return ""
    # audit: evidence-dealing-under-root evidence-dealing-to-peers
    if hashes is None or not set(holders) <= set(plan.peers(dealer)):
        return ""
    for shown in dealt.shares:
        # audit: evidence-dealing-own-shares
        if not _is_dealt(plan, dealer, shown.holder, secret, shown.share + shown.nonce, hashes):
            return ""
    value = _combined({plan.index[shown.holder]: shown.share for shown in dealt.shares})
    # audit: evidence-dealing-secret evidence-dealing-secret-size
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
    return statements.commitment(court.plan, dealer, secret - 1, value) == court.shown[dealer].commitments[secret - 1]
