"""A client's own journal against the evidence of runs with survivors.

A client records the plan that it accepts for each update, and what it signs to open. Its messages are not chained, so
only these records show that a round was left out, and only of rounds in which this client took part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from secagg import codec, labels
from secagg.agreement.agreement import Agreement
from secagg.agreement.plan import MOST_CLIENTS
from secagg.codec import Ascending, AscendingGroups, Fixed, Struct
from secagg.crypto.keys import HASH_BYTES
from secagg.errors import UsageError, WireError
from secagg.evidence import run_statements as statements
from secagg.evidence.run_check import CheckedRun
from secagg.evidence.search import names_in, search
from secagg.types import ClientId

_OPENING: Final = Struct(
    dict,
    (
        ("plan", Fixed(HASH_BYTES)),
        ("view", Fixed(HASH_BYTES)),
        ("survivors", Ascending(MOST_CLIENTS)),
        ("inputs", Fixed(HASH_BYTES)),
        ("groups", AscendingGroups()),
    ),
)


@dataclass(frozen=True, slots=True)
class Slot:
    """What a client recorded about its update of one round: the plan, and the opening that it signed, if any."""

    plan: bytes
    opening: dict[str, object] | None


def against(agreement: Agreement, checked: Sequence[CheckedRun], folder: Path, notes: list[str]) -> Iterator[str]:
    """The differences between the evidence and the records of the clients whose journal this is."""
    last = max((one.round for one in checked), default=agreement.terms.first_round - 1)
    identities, names = agreement.terms.identities, names_in(folder)
    updates = {
        client: partial(statements.record_name, labels.UPDATE_RECORD, identity, agreement.fingerprint)
        for client, identity in identities.items()
    }
    searched = search(agreement.terms.rounds, [one.round for one in checked], names, updates)
    found = {
        client: {
            t: _slot(folder, names, name, (identities[client], agreement.fingerprint, t)) for t, name in mine.items()
        }
        for client, mine in searched.found.items()
    }
    if not found:  # audit: journal-run-of-a-member
        raise UsageError(f"{folder} has no record of a member of this agreement")
    runs = {(one.round, client): one for one in checked if one.plan for client in one.plan.ids}
    for client, slots in sorted(found.items()):
        for round, slot in sorted(slots.items()):
            yield from _compare(client, round, slot, runs.get((round, client)), last, notes)
        for (round, who), one in sorted(runs.items(), key=lambda item: item[0]):
            signed = {opening.sender for opening in one.record.openings}
            # audit: journal-has-every-opening
            if who == client and client in signed and (round not in slots or slots[round].opening is None):
                yield f"round {round}: the evidence has an opening signed by client {client}, and its journal has none"
    notes.append(searched.describe())


def _compare(
    client: ClientId, round: int, slot: Slot, one: CheckedRun | None, last: int, notes: list[str]
) -> Iterator[str]:
    if one is None or one.plan is None:
        if slot.opening is not None or round <= last:  # audit: journal-run-in-evidence journal-begun-run-in-evidence
            yield f"round {round}: client {client} took part in it, and the evidence leaves it out"
        else:
            notes.append(
                f"round {round}: client {client} has begun it and signed no opening; it is not in the evidence"
            )
        return
    if slot.plan != one.plan.hash:  # audit: journal-plan-matches
        yield f"round {round}: client {client} accepted another plan (another context, say) than the evidence has"
        return
    if slot.opening is None:
        return
    signed = {opening.sender for opening in one.record.openings}
    survivors = tuple(masked.sender for masked in one.record.inputs)
    recorded = tuple(slot.opening[name] for name in ("plan", "view", "survivors", "inputs"))
    # audit: journal-opening-plan-matches journal-view-matches journal-survivors-match journal-inputs-match
    same = recorded == (one.plan.hash, one.views.get(client), survivors, statements.inputs(one.record.inputs))
    groups = slot.opening["groups"]
    assert isinstance(groups, tuple)
    # audit: journal-opening-matches journal-groups-match
    if not same or not set(one.record.groups(one.plan)) <= set(groups):
        yield f"round {round}: client {client} signed another opening than the evidence has"
    elif client not in signed:  # the record says why, or is refused for that
        notes.append(f"round {round}: client {client} signed an opening that did not arrive in time, as the hub says")


def _slot(folder: Path, names: set[str], update: str, of: tuple[bytes, bytes, int]) -> Slot:
    plan = (folder / update).read_bytes()
    if len(plan) != HASH_BYTES:  # audit: journal-update-undamaged
        raise UsageError(f"{folder / update}: expected the hash of a plan; it is damaged")
    opening = statements.record_name(labels.OPENING_RECORD, *of)
    if opening not in names:
        return Slot(plan, None)
    try:
        return Slot(plan, codec.from_bytes(_OPENING, (folder / opening).read_bytes()))
    except WireError:
        # audit: journal-opening-undamaged
        raise UsageError(f"{folder / opening}: expected the record of an opening; it is damaged") from None
