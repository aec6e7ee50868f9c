"""The ledger: each subject is paid once, totals never exceed the budget, whatever processes and crashes do."""

import threading
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Budget, BudgetExceeded, FileJournal, JournalError, MemoryJournal
from secagg.privacy import Charge
from secagg.protocol.journal import Journal
from secagg.protocol.ledger import _name, pay, settle, spent

BUDGET = Budget(1.0, 1e-6)
PART = Charge.of(Fraction(BUDGET.limit.rho, 2**40) / 10, 0.0)  # ten of them fit


def test_a_subject_is_paid_once_and_the_budget_is_never_exceeded() -> None:
    journal = MemoryJournal()
    fitting = BUDGET.limit.rho // PART.rho
    for number in range(fitting):
        pay(journal, b"round %d" % number, PART, BUDGET)
        pay(journal, b"round %d" % number, PART, BUDGET)
    assert spent(journal) == PART.times(fitting)
    with pytest.raises(BudgetExceeded, match=r"the budget is 1 at delta 1e-06 and 0\.9\d* is spent; nothing was sent"):
        pay(journal, b"another", PART, BUDGET)
    assert spent(journal) == PART.times(fitting)
    pay(journal, b"round 0", PART, BUDGET)  # an answer that is made again


def test_a_charge_is_lowered_once_and_never_raised() -> None:
    journal = MemoryJournal()
    pay(journal, b"a", PART, BUDGET)
    settle(journal, b"a", PART, PART + PART)
    settle(journal, b"a", PART, Charge(0, 1))
    settle(journal, b"b", PART, Charge())
    settle(journal, b"a", PART + PART, Charge())
    assert spent(journal) == PART
    settle(journal, b"a", PART, Charge(1, 0))
    settle(journal, b"a", PART, Charge(0, 0))
    assert spent(journal) == Charge(1, 0)
    pay(journal, b"a", PART, BUDGET)
    pay(journal, b"c", PART, BUDGET)
    settle(journal, b"a", PART, Charge(0, 0))
    assert spent(journal) == Charge(1, 0) + PART


class Dying(MemoryJournal):
    """Stops after some calls, as a process that is killed does."""

    left = -1

    def create(self, name: str, content: bytes) -> bytes | None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().create(name, content)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.booleans(), st.integers(-1, 2)), max_size=40))
def test_generated_payments_and_crashes_are_never_cheaper_than_what_was_allowed(
    steps: list[tuple[int, int, bool, int]],
) -> None:
    """Slots 0 to 2 are paid for as the server calls their members; updates 3 to 5 are reserved and settled."""
    journal, limit = Dying(), Budget(0.3, 1e-6)
    size = limit.limit.rho // 20
    reserved, opened = Charge(3 * size), Charge(size)
    cost: dict[int, int] = {}  # of what may have been sent
    for subject, amount, settles, left in steps:
        name = b"%d" % subject
        journal.left = left
        try:
            if subject < 3:
                pay(journal, name, Charge(amount * size), limit)
                cost[subject] = max(cost.get(subject, 0), amount * size)
            elif settles and subject in cost:
                cost[subject] = opened.rho
                settle(journal, name, reserved, opened)
            else:
                pay(journal, name, reserved, limit)
                cost.setdefault(subject, reserved.rho)
        except (KeyboardInterrupt, BudgetExceeded):
            pass
        journal.left = -1
        assert sum(cost.values()) <= spent(journal).rho <= limit.limit.rho


def test_a_payment_counts_for_its_own_amount_only() -> None:
    journal = MemoryJournal()
    for charge in (Charge(1, 1), Charge(3, 1), Charge(3, 2), Charge(1, 1)):
        pay(journal, b"slot", charge, None)
    assert spent(journal) == Charge(7, 4)


def test_processes_that_pay_different_amounts_for_one_slot_pay_both() -> None:
    class Raced(MemoryJournal):
        """Another process pays between the look at the chain and the new entry."""

        raced = False

        def create(self, name: str, content: bytes) -> bytes | None:
            if not self.raced:
                self.raced = True
                pay(self, b"slot", Charge(1), BUDGET)
            return super().create(name, content)

    journal = Raced()
    pay(journal, b"slot", PART, BUDGET)
    assert spent(journal) == PART + Charge(1)


@pytest.mark.parametrize("records", [0, 1])
def test_a_crash_while_a_charge_is_lowered_lowers_it_once_at_most(records: int) -> None:
    journal = Dying()
    pay(journal, b"a", Charge(1000), None)
    journal.left = records
    with pytest.raises(KeyboardInterrupt):
        settle(journal, b"a", Charge(1000), Charge(100))
    journal.left = -1
    pay(journal, b"b", Charge(500), None)  # another training
    settle(journal, b"a", Charge(1000), Charge(100))
    assert spent(journal) == Charge(1500 if records else 600)


def test_processes_that_pay_at_the_same_time_share_the_budget(tmp_path: Path) -> None:
    fitting, paid, refused = BUDGET.limit.rho // PART.rho, list[int](), list[int]()

    def work(who: int) -> None:
        journal = FileJournal(tmp_path)
        for number in range(8):
            try:
                pay(journal, b"%d of %d" % (number, who), PART, BUDGET)
                paid.append(who)
            except BudgetExceeded:
                refused.append(who)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paid) == fitting
    assert len(refused) == 32 - fitting
    assert spent(FileJournal(tmp_path)) == PART.times(fitting)


def test_a_damaged_ledger_stops_everything() -> None:
    journal: Journal = MemoryJournal()
    journal.create(_name(0), b"what?")
    with pytest.raises(JournalError, match="the ledger of this journal is damaged"):
        pay(journal, b"a", PART, BUDGET)
