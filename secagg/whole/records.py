"""The record of a round for the evidence of a training: every signed message, vectors and sums by their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from secagg.evidence import charges
from secagg.evidence.record import (
    Absence,
    AnswerRecord,
    LostGroup,
    OpenedSum,
    RoundRecord,
    SignedKey,
    SignedRelease,
    text,
)
from secagg.types import Group, GroupId
from secagg.whole import transcript
from secagg.whole.messages import Advert, Answer, Release
from secagg.whole.result import WholeResult
from secagg.whole.server_state import ServerMemory


def answer_record(answer: Answer, rows: bytes) -> AnswerRecord:
    """An answer without its vectors, whose hashes are `rows`."""
    ahead, vectors = tuple(map(_key, answer.adverts)), transcript.vectors_hash(rows)
    return AnswerRecord(answer.sender, answer.previous, ahead, vectors, answer.signature)


def release_record(release: Release) -> SignedRelease:
    return SignedRelease(release.sender, release.signature)


def round_record(memory: ServerMemory, result: WholeResult, complete: Mapping[GroupId, Group]) -> RoundRecord:
    """What the round leaves behind; `memory` is that of the round before it is forgotten.

    `complete` are the groups that were complete, with the members that are summed.
    """
    round = result.round
    adverts, releases = memory.adverts.get(round, {}), memory.releases.get(round, {})
    return RoundRecord(
        round=round,
        context=result.context,
        present=memory.present,
        adverts=tuple(_key(adverts[v]) for v in sorted(adverts)),
        releases=tuple(release_record(releases[v]) for v in sorted(releases)),
        answers=tuple(memory.kept[v] for v in sorted(memory.kept)),
        second=tuple(memory.second[v] for v in sorted(memory.second)),
        after=tuple(memory.after[v] for v in sorted(memory.after)),
        opened=tuple(OpenedSum(*group, _hash(one.total)) for group, one in sorted(result.groups.items())),
        lost=tuple(LostGroup(*group, text(why)) for group, why in sorted(result.lost.items())),
        absent=tuple(Absence(client, text(why)) for client, why in sorted(result.dropouts.items())),
        inconsistent=tuple(tuple(sorted(groups)) for groups in result.inconsistent),
        skipped=text(result.skipped),
        charge=charges.highest(result.agreement, round, complete),
    )


def _key(advert: Advert) -> SignedKey:
    return SignedKey(advert.sender, advert.round, advert.key, advert.signature)


def _hash(total: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> bytes:
    """SHA-256 of a sum's values as u32, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(total, dtype="<u4").data).digest()
