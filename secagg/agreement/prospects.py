"""Whether a proposal will pass the audit together with its predecessors, before it has a seed.

Groups that are kept are known beforehand. New groups follow from a seed that nobody knows yet, so arbitrary
seeds are tried. Everybody judges the agreement itself when it has its seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256

from secagg.agreement.agreement import Agreement
from secagg.agreement.audit import check_policy
from secagg.agreement.successors import check_earlier, drawn_cells
from secagg.agreement.terms import Terms
from secagg.arguments import each, instance, whole
from secagg.errors import AgreementRefused
from secagg.exposure.schedules import Drawn


@dataclass(frozen=True, slots=True)
class Prospect:
    """How many of some random draws pass, and why the first of the others does not.

    >>> str(Prospect(20, 5, "1 of 12 members would be exposed"))
    '5 of 20 trial draws pass'
    """

    draws: int
    passed: int
    why: str = ""

    def __str__(self) -> str:
        if self.draws == 1:
            return "it passes" if self.passed else "it does not pass"
        return f"{self.passed} of {self.draws} trial draws pass"


@dataclass(frozen=True, slots=True)
class _Trial:
    """An agreement as the audit sees it, with an arbitrary seed."""

    terms: Terms
    seed: bytes
    fingerprint: bytes = b""
    _drawn: dict[int, tuple[Drawn, ...]] = field(default_factory=dict, compare=False)

    def cells(self, round: int) -> tuple[Drawn, ...]:
        if round not in self._drawn:
            self._drawn.clear()
            self._drawn[round] = drawn_cells(self.terms, self.seed, round)
        return self._drawn[round]


def prospect(terms: Terms, earlier: Iterable[Agreement], draws: int = 20) -> Prospect:
    """Judge terms together with their predecessors, for `draws` random draws; for one if the groups are known.

    AgreementRefused if no draw could pass: other members or weights than before, or predecessors that are missing.

    >>> from secagg.agreement import successor_terms
    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=9, size=3, length=4, clip=1.0)
    >>> str(prospect(successor_terms(agreement, [4], name="without 4"), [agreement]))
    'it passes'
    """
    instance("terms", terms, Terms)
    before, draws = each("earlier", earlier, Agreement), whole("draws", draws, least=1, most=10_000)
    known = terms.keep is not None and terms.schedule.name == "fixed" and not terms.sample
    passed, why = 0, ""
    for number in range(1 if known else draws):
        trial = _Trial(terms, sha256(b"secagg/trial-draw:%d" % number + terms.hash).digest())
        check_earlier(trial, before)
        try:
            check_policy(trial)
            check_policy(trial, before)
            passed += 1
        except AgreementRefused as refused:
            why = why or str(refused)
    return Prospect(1 if known else draws, passed, why)
