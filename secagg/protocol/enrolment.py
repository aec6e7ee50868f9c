"""Under which agreements a client has answered: one exclusive record for each, numbered from 0, in its journal.

A journal is for one kind of data. Sums of two agreements on the same data can be subtracted, so a promise over all
rounds holds only if the later agreement names the earlier ones, and all of them were judged together.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from secagg import labels
from secagg.agreement.terms import Terms
from secagg.errors import AgreementRefused
from secagg.protocol.cache import Agreed
from secagg.protocol.journal import Journal, load, record_name, store


def record_agreement(
    fingerprint: bytes, terms: Terms, identity: bytes, claim: Callable[[str, bytes], bytes | None], *, all_named: bool
) -> None:
    """Record that a client answers under an agreement. AgreementRefused if it must not; then nothing is recorded.

    `claim` stores a record and returns None, or the record that is already there. With `all_named`, an agreement that
    this one does not name is a reason to refuse.
    """
    for number in count():
        found = claim(record_name(labels.AGREEMENT_RECORD, identity, number.to_bytes(8, "little")), fingerprint)
        if found in (None, fingerprint):
            return
        if all_named and found not in terms.predecessors:  # audit: stored-agreements-named
            raise AgreementRefused(
                f"answers under the agreement {found.hex()[:16]}... are stored here, and the agreement "
                f"{fingerprint.hex()[:16]}... does not name it. If both are about the same data, agree on terms with "
                "it in predecessors, so that they are judged together; if not, use another journal (or store)"
            )


def enrol_survivors(journal: Journal, agreement: Agreed, identity: bytes) -> None:
    """The record of a client with survivors. With memory = "round" nothing is promised over agreements."""

    def claim(name: str, record: bytes) -> bytes | None:
        return load(journal, name) or store(journal, name, record)

    policy = agreement.terms.policy
    over_all = policy.enforced and policy.memory == "training"
    record_agreement(agreement.fingerprint, agreement.terms, identity, claim, all_named=over_all)
