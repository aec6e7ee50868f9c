"""What a data holder has spent: a chain of totals in its journal, each written before what it pays for is sent.

Entry k of the chain holds the total after k + 1 charges. Its name is exclusive, so of two processes that charge at the
same time one finds the other's entry and adds to that. One journal is for one data holder: all trainings on the same
data share it, whatever identities and agreements they have. Each charge of a subject (the slot of an answer, the update
of a round) is written once, so that an answer which is made again after a crash costs nothing more. An answer for other
members has another charge, and that is paid as well: whichever of them gets the slot, it was paid for. So a crash may
cost more, never less. A journal that is restored from a backup forgets what was spent since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from secagg import codec, labels
from secagg.arguments import instance, raw
from secagg.codec import U64, Fixed, Struct
from secagg.crypto.keys import HASH_BYTES, digest
from secagg.errors import BudgetExceeded, JournalError, SecAggError
from secagg.privacy.budget import Budget, Charge
from secagg.protocol.journal import Journal, check_journal, load, record_name, store
from secagg.protocol.rounds import count_records

Units = Annotated[int, U64]


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the chain: the subject, its charge, and the total with it."""

    subject: Annotated[bytes, Fixed(HASH_BYTES)]
    rho: Units
    eta: Units
    total_rho: Units
    total_eta: Units

    @property
    def charge(self) -> Charge:
        return Charge(self.rho, self.eta)

    @property
    def total(self) -> Charge:
        return Charge(self.total_rho, self.total_eta)


_ENTRY: Final = Struct.of(Entry)
_PAID: Final = b"\x00"
_SETTLED: Final = b"\x01"


def spent(journal: Journal) -> Charge:
    """What all charges in this journal come to.

    >>> from secagg.protocol import MemoryJournal
    >>> journal = MemoryJournal()
    >>> pay(journal, b"round 1", Charge(5, 1), None)
    >>> pay(journal, b"round 1", Charge(5, 1), None)
    >>> spent(journal)
    Charge(rho=5, eta=1)
    """
    check_journal(journal)
    last = _last(journal)[1]
    return last.total if last else Charge()


def pay(journal: Journal, subject: bytes, charge: Charge, budget: Budget | None) -> None:
    """Charge a subject: the same charge once, another charge for the same subject on top of it.

    BudgetExceeded if the total would be above the budget; then nothing is written.

    >>> from secagg import Budget, MemoryJournal
    >>> pay(MemoryJournal(), b"round 1", Charge(2**40), Budget(1.0, 1e-6))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    secagg.errors.BudgetExceeded: this answer would bring what was spent to epsilon ...
    """
    check_journal(journal)
    instance("charge", charge, Charge)
    if budget is not None:
        instance("budget", budget, Budget)
    key = _paid_key(raw("subject", subject), charge)
    if load(journal, _subject_name(key)) is not None:  # audit: subject-charged-once
        return
    _append(journal, key, charge, charge, budget)
    _mark(journal, key, charge)


def settle(journal: Journal, subject: bytes, paid: Charge, charge: Charge) -> None:
    """Lower what was paid for a subject to what it has cost, once; a higher charge changes nothing.

    The subject is marked as settled before the total is lowered: a crash between the two keeps what was paid.
    """
    if load(journal, _subject_name(_paid_key(subject, paid))) is None:  # audit: settled-if-paid
        return
    if charge.rho > paid.rho or charge.eta > paid.eta:  # audit: settled-downwards
        return
    key = digest(labels.CHARGE_RECORD, _SETTLED, subject)
    if _mark(journal, key, charge):  # audit: settled-once settled-marked-first
        _append(journal, key, charge, Charge(paid.rho - charge.rho, paid.eta - charge.eta), None, back=True)


def _paid_key(subject: bytes, charge: Charge) -> bytes:
    """The charge is in the name: what was paid for an answer never counts for one that costs more."""
    units = charge.rho.to_bytes(8, "little") + charge.eta.to_bytes(8, "little")
    return digest(labels.CHARGE_RECORD, _PAID, units, subject)  # audit: charge-names-its-amount


def _mark(journal: Journal, key: bytes, charge: Charge) -> bool:
    """Store the record that something was paid or settled; whether it is the first."""
    record = codec.to_bytes(_ENTRY, Entry(key, charge.rho, charge.eta, 0, 0))
    return store(journal, _subject_name(key), record) is None


def _append(
    journal: Journal, key: bytes, charge: Charge, change: Charge, budget: Budget | None, *, back: bool = False
) -> None:
    """Add an entry behind the last one, or do nothing if the last one is this entry already (after a crash)."""
    count, last = _last(journal)
    while last is None or last.subject != key:
        before = last.total if last else Charge()
        total = Charge(before.rho - change.rho, before.eta - change.eta) if back else before + change
        if budget is not None and not budget.allows(total):  # audit: charge-within-budget
            raise BudgetExceeded(
                f"this answer would bring what was spent to epsilon {total.epsilon(budget.delta):.4g}, the budget is "
                f"{budget.epsilon:g} at delta {budget.delta:g} and {before.epsilon(budget.delta):.4g} is spent; "
                "nothing was sent"
            )
        found = store(
            journal,
            _name(count),
            codec.to_bytes(_ENTRY, Entry(key, charge.rho, charge.eta, total.rho, total.eta)),
        )
        if found is None:  # audit: ledger-entry-exclusive
            return
        last, count = _entry(found), count + 1


def _last(journal: Journal) -> tuple[int, Entry | None]:
    """The number of entries, and the last one."""
    count = count_records(journal, _name)
    record = load(journal, _name(count - 1)) if count else None
    return count, None if record is None else _entry(record)


def _entry(record: bytes) -> Entry:
    try:
        found: Entry = codec.from_bytes(_ENTRY, record)
        _ = found.charge, found.total
    except SecAggError as damaged:
        raise JournalError(f"the ledger of this journal is damaged ({damaged}); nothing was sent") from None
    return found


def _name(number: int) -> str:
    return record_name(labels.LEDGER_RECORD, number.to_bytes(8, "little"))


def _subject_name(key: bytes) -> str:
    return record_name(labels.CHARGE_RECORD, key)
