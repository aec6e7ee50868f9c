"""A client's own journal against the evidence: it shows what a hub left out, up to the last round of the journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from secagg.agreement.agreement import Agreement
from secagg.crypto.keys import HASH_BYTES
from secagg.errors import UsageError
from secagg.evidence import statements
from secagg.evidence.rounds import CheckedRound
from secagg.types import ClientId

ANSWER: Final = b"answer "
RELEASE: Final = b"release "
BEYOND: Final = 1000  # how many rounds without a record end the search


def against(agreement: Agreement, checked: Sequence[CheckedRound], folder: Path, notes: list[str]) -> Iterator[str]:
    """The differences between the evidence and the records of the clients whose journal this is."""
    last = max((one.round for one in checked), default=agreement.terms.first_round)
    found = _read(agreement, folder, last)
    if not found:
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
    ends = ", ".join(f"client {client} to round {max(records)}" for client, records in sorted(found.items())[:8])
    notes.append(f"nothing is left out up to the last rounds of these journals: {ends}")


def _compare(client: ClientId, round: int, content: bytes, one: CheckedRound | None, notes: list[str]) -> str:
    if one is None:  # audit: journal-round-in-evidence
        return f"round {round}: client {client} has ended it, and the evidence leaves it out"
    if content == RELEASE:
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


def _read(agreement: Agreement, folder: Path, known: int) -> Mapping[ClientId, Mapping[int, bytes]]:
    """The records of members in a folder, by client and round. `known` is the last round of the evidence."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not the folder of a journal")
    names = {path.name for path in folder.iterdir()}
    found: dict[ClientId, dict[int, bytes]] = {}
    for member in agreement.terms.members:
        last = known
        for round in agreement.terms.rounds:
            if round > last + BEYOND:
                break
            name = statements.slot_name(member.identity, agreement.fingerprint, round)
            if name in names:
                content = (folder / name).read_bytes()
                whole = content.startswith(ANSWER) and len(content) == len(ANSWER) + HASH_BYTES
                if not whole and content != RELEASE:
                    raise UsageError(f"{folder / name}: expected the record of an answer or a release; it is damaged")
                found.setdefault(member.id, {})[round] = content
                last = max(last, round)
    return found
