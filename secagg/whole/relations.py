"""What a round opens: sums that honest members can reach, if enough of them are left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from secagg.agreement.terms import Terms
from secagg.protocol.relations import possible_sums
from secagg.protocol.result import GroupSum
from secagg.types import GroupId


@dataclass(frozen=True, slots=True)
class Opening:
    """What a round opens: the sums, why groups are lost, which sums contradict each other, why the round is skipped."""

    groups: Mapping[GroupId, GroupSum]
    lost: Mapping[GroupId, str]
    inconsistent: tuple[tuple[GroupId, ...], ...]
    skipped: str


def open_sums(terms: Terms, sums: Mapping[GroupId, GroupSum], lost: Mapping[GroupId, str]) -> Opening:
    """One pass over the sums of complete groups: those that honest members can reach are opened, if enough are left."""
    groups, impossible, inconsistent = possible_sums(terms.encoding, sums)
    reasons, skipped = {**lost, **impossible}, ""
    if len(groups) < terms.least_groups:  # audit: least-groups
        skipped = f"{len(groups)} complete groups, the agreement asks for {terms.least_groups}"
        reasons.update(dict.fromkeys(groups, f"the round is skipped: {skipped}"))
        groups, inconsistent = {}, ()
    return Opening(groups, dict(sorted(reasons.items())), inconsistent, skipped)
