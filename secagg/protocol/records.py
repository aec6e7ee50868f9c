"""The record of a run for the evidence of a training: every signed message; sums, and what was revealed, by hashes.

Nothing that clients reveal in stage 4 stands in it, except in proofs against those that it convicts, and then of so few
that readers and colluders together hold fewer than t shares of anybody else's secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    messages, proofs = messages_of(memory), list[WrongUnmasking]()
    for cheater in sorted(found.wrong):
        if len(proofs) == most_proofs(plan.t, plan.assumed_colluders):  # audit: record-few-shares
            break
        proof = _wrong(memory, found.shares, cheater)
        alone = _with_dealings(memory, replace(messages, wrong=(proof,)))
        if blame.convicted(Court(plan, alone))[0]:  # audit: record-proofs-convict
            proofs.append(proof)
    proved = {proof.sender for proof in proofs}
    record = replace(
        messages,
        sums=tuple(_hash(one.total) for _, one in sorted(result.groups.items())),
        lost=tuple(LostGroup(*group, text(why)) for group, why in sorted({**result.closed, **result.lost}.items())),
        absent=tuple(Absence(v, text(one.reason)) for v, one in sorted(result.dropouts.items())),
        inconsistent=tuple(tuple(sorted(groups)) for groups in result.inconsistent),
        wrong=tuple(proofs),
        dealt=tuple(_dealt(memory, found, v) for v in sorted(found.rebuilt.unfit)),
        unproved=tuple(Absence(v, text(why)) for v, why in sorted(found.wrong.items()) if v not in proved),
    )
    return _with_dealings(memory, record)


def _content(plan_hash: bytes, message: Unmasking) -> bytes:
    return transcript.unmasking_statement(plan_hash, message)[-_STATEMENT_HASH:]


def _wrong(memory: ServerMemory, shares: Shares, sender: ClientId) -> WrongUnmasking:
    """All that a client gave, and the dealer's hashes if one share is not what the dealer signed."""
    given, received = memory.unmaskings[sender], shares.by_holder.get(sender)
    dealt: tuple[DealtHashes, ...] = ()
    if received is not None and not received.good.all():
        bad = np.flatnonzero(~received.good).tolist()
        hidden = partial(_hidden, memory, sender, given.seeds + given.keys, received.wanted.secrets)
        dealer, _ = received.wanted.secrets[next((place for place in bad if not hidden(place)), bad[0])]
        dealt = (DealtHashes(dealer, memory.dealings[dealer].hashes),)
    return WrongUnmasking(sender, given.own, given.seed_owners, given.seeds, given.key_owners, given.keys, dealt)


def _hidden(
    memory: ServerMemory, sender: ClientId, entries: bytes, secrets: Sequence[tuple[ClientId, int]], place: int
) -> bool:
    """Whether a wrong share proves nothing, because its dealer's tree has its hash at another leaf."""
    dealer, secret = secrets[place]
    entry = np.frombuffer(entries[place * ENTRY : (place + 1) * ENTRY], np.uint8).reshape(1, -1)
    found = transcript.share_hashes(memory.plan.hash, np.array([[dealer, sender, secret]], np.uint32), entry)
    leaves = np.frombuffer(memory.dealings[dealer].hashes, np.uint8)
    width = len(memory.plan.groupings) + 1
    return bool((leaves.reshape(-1, width, HASH_BYTES)[:, secret] == found).all(axis=1).any())


def _with_dealings(memory: ServerMemory, record: RunRecord) -> RunRecord:
    """The record with the dealings that its proofs are about."""
    dealings = [memory.dealings[v] for v in sorted(record.about())]
    return replace(record, shown=tuple(ShownDealing(one.sender, one.commitments, one.root) for one in dealings))


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
