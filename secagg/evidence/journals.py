"""A client's own journal against the evidence: it shows what a hub left out, up to the last round of the journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from secagg.agreement.agreement import Agreement
from secagg.crypto.keys import HASH_BYTES
from secagg.errors import UsageError
from secagg.evidence import statements
from secagg.evidence.rounds import CheckedRound
from secagg.evidence.search import Searched, names_in, search
from secagg.types import ClientId

ANSWER: Final = b"answer "
RELEASE: Final = b"release "


def against(agreement: Agreement, checked: Sequence[CheckedRound], folder: Path, notes: list[str]) -> Iterator[str]:
    """The differences between the evidence and the records of the clients whose journal this is."""
    names = {
        member.id: partial(statements.slot_name, member.identity, agreement.fingerprint)
        for member in agreement.terms.members
    }
    searched = search(agreement.terms.rounds, [one.round for one in checked], names_in(folder), names)
    found = _read(folder, searched)
    if not found:  # audit: journal-of-a-member
        raise UsageError(f"{folder} has no record of a member of this agreement")
    rounds = {one.round: one for one in checked}
    for client, records in sorted(found.items()):
        for round, content in sorted(records.items()):
            problem = _compare(client, round, content, rounds.get(round), notes)
            if problem:
                yield problem
        for one in checked:
            if client in one.chain and one.round not in records:  # audit: journal-has-every-answer
                yield f"round {one.round}: the journal of client {client} has no answer of it, and the evidence has one"
    notes.append(searched.describe())


def _compare(client: ClientId, round: int, content: bytes, one: CheckedRound | None, notes: list[str]) -> str:
    if one is None:  # audit: journal-round-in-evidence
        return f"round {round}: client {client} has ended it, and the evidence leaves it out"
    if content == RELEASE:
        # audit: journal-release-matches
        return f"round {round}: client {client} released it, and the evidence has an answer" * (client in one.chain)
    if client not in one.chain:
        why = one.absent.get(client)
        if why is None:  # audit: journal-answer-explained
            return f"round {round}: client {client} answered it, and the evidence does not say why that is missing"
        notes.append(f"round {round}: client {client} answered it, and the hub says: {why}")
        return ""
    if content != ANSWER + one.chain[client][0]:  # audit: journal-answer-matches
        return f"round {round}: the journal of client {client} has another answer than the evidence"
    return ""


def _read(folder: Path, searched: Searched) -> Mapping[ClientId, Mapping[int, bytes]]:
    """The records of members in a folder, by client and round."""
    found: dict[ClientId, dict[int, bytes]] = {}
    for client, names in searched.found.items():
        for round, name in names.items():
            content = (folder / name).read_bytes()
            whole = content.startswith(ANSWER) and len(content) == len(ANSWER) + HASH_BYTES
            if not whole and content != RELEASE:  # audit: journal-record-undamaged
                raise UsageError(f"{folder / name}: expected the record of an answer or a release; it is damaged")
            found.setdefault(client, {})[round] = content
    return found
