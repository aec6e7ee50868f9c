"""One journal, several agreements on the same data, with survivors: sums of two agreements can be subtracted."""

from dataclasses import replace

import numpy as np
import pytest

from secagg import Agreement, AgreementRefused, Identity, MemoryJournal, Policy, Schedule
from secagg.simulation import agree_on, make_agreement
from secagg.simulation.run import run
from tests.secagg.drbg import Drbg


def two(memory: str = "training", **changes: object) -> tuple[Agreement, Agreement, dict[int, Identity]]:
    """An agreement of eight, and another on the same data without two of them: the difference is two updates."""
    policy = Policy(anonymity=3, memory=memory)  # type: ignore[arg-type]
    first, identities = make_agreement(
        members=8, size=8, atom=4, schedule="atoms", length=2, bound=99, groups="survivors", policy=policy
    )
    terms = replace(
        first.terms,
        name="second",
        members=first.terms.members[:4],
        schedule=Schedule(name="atoms", size=4, atom=4),
        **changes,
    )
    return first, agree_on(terms, identities, Drbg(b"second")), identities


def answer(agreement: Agreement, identities: dict[int, Identity], journal: MemoryJournal) -> None:
    inputs = {v: np.array([v, 1]) for v in agreement.terms.ids}
    run(agreement, inputs, {v: identities[v] for v in inputs}, journal=journal)


def test_an_agreement_that_does_not_name_an_earlier_one_is_refused() -> None:
    first, second, identities = two()
    journal = MemoryJournal()
    answer(first, identities, journal)
    answer(first, identities, journal := MemoryJournal())  # the same agreement again, elsewhere
    with pytest.raises(AgreementRefused, match="does not name it"):
        answer(second, identities, journal)


def test_an_agreement_that_promises_each_round_alone_goes_on_and_is_recorded() -> None:
    first, second, identities = two(memory="round")
    journal = MemoryJournal()
    answer(first, identities, journal)
    answer(second, identities, journal)
    strict, _, _ = two()
    with pytest.raises(AgreementRefused, match="does not name it"):
        answer(agree_on(replace(strict.terms, members=first.terms.members), identities), identities, journal)
