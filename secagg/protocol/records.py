"""The record of a run for the evidence of a training: every signed message; sums, and what was revealed, by hashes.

Nothing that clients reveal in stage 4 stands in it, except in proofs against those that it convicts, and then of so few
that readers and colluders together hold fewer than t shares of anybody else's secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from secagg.crypto.keys import HASH_BYTES
from secagg.crypto.shamir import SHARE_BYTES
from secagg.evidence import blame
from secagg.evidence.blame import Court
from secagg.evidence.record import Absence, LostGroup, text
from secagg.evidence.runs import (
    DealingRecord,
    DealtHashes,
    EarlySignature,
    KeysRecord,
    RunRecord,
    ShownDealing,
    ShownShare,
    SignedInput,
    SignedOpening,
    SignedUnmasking,
    WrongDealing,
    WrongUnmasking,
    every_group,
    most_proofs,
)
from secagg.protocol import transcript
from secagg.protocol.messages import Unmasking
from secagg.protocol.result import Result
from secagg.protocol.server_state import ServerMemory
from secagg.protocol.unmask import ENTRY, Rebuilt, Shares
from secagg.types import ClientId, Ring32

_STATEMENT_HASH: Final = HASH_BYTES  # what stage 4 signs ends with the hash of its content


@dataclass(frozen=True, eq=False)
class Found:
    """What the last stage found out about clients: the shares that came in, and what could be rebuilt from them."""

    shares: Shares
    rebuilt: Rebuilt
    wrong: Mapping[ClientId, str]  # senders of wrong unmaskings


def messages_of(memory: ServerMemory) -> RunRecord:
    """The signed messages of a run so far."""
    m, plan = memory, memory.plan
    return RunRecord(
        round=plan.round,
        cell=0,
        context=plan.context,
        adverts=tuple(KeysRecord(v, one.channel, one.mask) for v, one in sorted(m.adverts.items())),
        dealings=tuple(DealingRecord(v, transcript.dealing_hash(one)) for v, one in sorted(m.dealings.items())),
        early=tuple(
            EarlySignature(v, m.dealings[v].signature if v in m.dealings else m.adverts[v].signature)
            for v in sorted(m.adverts.keys() - m.survivors.keys())
        ),
        inputs=tuple(
            SignedInput(v, one.disputes, one.vectors_hash, one.signature) for v, one in sorted(m.survivors.items())
        ),
        closed=tuple(sorted(set(every_group(plan)).difference(m.groups))) if m.endorsements else (),
        openings=tuple(SignedOpening(v, one.signature) for v, one in sorted(m.endorsements.items())),
        unmaskings=tuple(
            SignedUnmasking(v, _content(plan.hash, one), one.signature) for v, one in sorted(m.unmaskings.items())
        ),
        absent=tuple(Absence(v, text(one.reason)) for v, one in sorted(m.dropouts.items())),
    )


def failed_record(memory: ServerMemory, why: str) -> RunRecord:
    """The record of a run that ended without a result."""
    lost = tuple(LostGroup(*group, text(why)) for group in every_group(memory.plan))
    return replace(messages_of(memory), lost=lost, failed=text(why))


def run_record(memory: ServerMemory, result: Result, found: Found) -> RunRecord:
    """The record of a run that is over; `memory` still has what clients gave in the last stage."""
    plan = memory.plan
    most = most_proofs(plan.t, plan.assumed_colluders)
    wrong, unfit = sorted(found.wrong), sorted(found.rebuilt.unfit)
    messages = messages_of(memory)
    proofs = tuple(_wrong(memory, found.shares, v) for v in wrong)
    shown = {v: _shown(memory, v) for v in {*wrong, *unfit, *(one.dealer for proof in proofs for one in proof.dealt)}}
    # A wrong share proves nothing if its dealer's tree has its hash at another leaf.
    court = Court(plan, replace(messages, shown=tuple(shown.values()), wrong=proofs))
    convicted, _ = blame.convicted(court)  # audit: record-proofs-convict
    proofs = tuple(proof for proof in proofs if proof.sender in convicted)[:most]  # audit: record-few-shares
    proved = {proof.sender for proof in proofs}
    needed = {*proved, *unfit, *(one.dealer for proof in proofs for one in proof.dealt)}
    return replace(
        messages,
        sums=tuple(_hash(one.total) for _, one in sorted(result.groups.items())),
        lost=tuple(LostGroup(*group, text(why)) for group, why in sorted({**result.closed, **result.lost}.items())),
        absent=tuple(Absence(v, text(one.reason)) for v, one in sorted(result.dropouts.items())),
        inconsistent=tuple(tuple(sorted(groups)) for groups in result.inconsistent),
        shown=tuple(shown[v] for v in sorted(needed)),
        wrong=proofs,
        dealt=tuple(_dealt(memory, found, v) for v in unfit),
        unproved=tuple(Absence(v, text(found.wrong[v])) for v in wrong if v not in proved),
    )


def _content(plan_hash: bytes, message: Unmasking) -> bytes:
    return transcript.unmasking_statement(plan_hash, message)[-_STATEMENT_HASH:]


def _wrong(memory: ServerMemory, shares: Shares, sender: ClientId) -> WrongUnmasking:
    """All that a client gave, and the dealer's hashes if one share is not what the dealer signed."""
    given, received = memory.unmaskings[sender], shares.by_holder.get(sender)
    dealt: tuple[DealtHashes, ...] = ()
    if received is not None and not received.good.all():
        dealer, _ = received.wanted.secrets[int(np.argmin(received.good))]
        dealt = (DealtHashes(dealer, memory.dealings[dealer].hashes),)
    return WrongUnmasking(sender, given.own, given.seed_owners, given.seeds, given.key_owners, given.keys, dealt)


def _shown(memory: ServerMemory, dealer: ClientId) -> ShownDealing:
    return ShownDealing(dealer, memory.dealings[dealer].commitments, memory.dealings[dealer].root)


def _dealt(memory: ServerMemory, found: Found, dealer: ClientId) -> WrongDealing:
    """The shares of a dealer that do not give its secret, with all its hashes."""
    secret, holders = found.rebuilt.unfit[dealer]
    shares = []
    for holder in sorted(holders):
        given = memory.unmaskings[holder]
        place = found.shares.by_holder[holder].wanted.secrets.index((dealer, secret))
        entry = (given.seeds + given.keys)[place * ENTRY : (place + 1) * ENTRY]
        shares.append(ShownShare(holder, entry[:SHARE_BYTES], entry[SHARE_BYTES:]))
    return WrongDealing(dealer, secret, memory.dealings[dealer].hashes, tuple(shares))


def _hash(total: Ring32) -> bytes:
    """SHA-256 of a sum's values as u32, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(total, dtype="<u4").data).digest()
