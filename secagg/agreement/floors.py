"""What one operator accepts of an agreement, whoever wrote it: a short list, held once against the agreement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

from secagg.agreement.agreement import Agreement
from secagg.agreement.cost import known_before_seed, over_budget, worst_round
from secagg.agreement.terms import SURVIVORS, Terms
from secagg.errors import AgreementRefused, UsageError
from secagg.exposure.audit import MEMORIES, Memory
from secagg.privacy.budget import Budget, Charge

_COUNTS: Final = ("anonymity", "size", "rounds")


@dataclass(frozen=True, kw_only=True)
class Floors:
    """The least that an operator accepts. What is below a floor is refused before anything is signed.

    - `anonymity`, `size`, `leverage`: least T, least members of a group, most leverage that the policy may allow.
    - `rounds`: the most rounds.
    - `clip`, `bound`: the range of every clip of floats and of every bound of integers. A clip or bound that is too
      small for an operator's data loses them; the errors and warnings about that stay with the operator.
    - `memory`: "training" asks for limits over all rounds, also those of predecessors; "round" is content with each
      round alone.
    - `survivors`, `sparse`, `report`: whether groups may shrink with dropouts, whether the server may be trusted to
      follow the protocol, and whether sums may be opened whatever they expose.
    - `budget`: the most that all rounds may cost, as an epsilon at a delta; the agreement then needs noise. Give the
      same budget to the client, which also counts what other trainings on the same data have cost.
    - `roll_call`: whether the server may say who is present, and sum only those.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=6, size=3, length=1, clip=1.0, rounds=50)
    >>> Floors().check(agreement.terms)
    >>> Floors(size=10).check(agreement.terms)
    Traceback (most recent call last):
    secagg.errors.AgreementRefused: agreement refused: groups have 3 members, my floor is 10 (size)
    """

    anonymity: int = 3
    size: int = 3
    leverage: float = 0.5
    rounds: int = 100_000
    clip: tuple[float, float] = (2.0**-10, 2.0**20)
    bound: tuple[int, int] = (1, 2**31 - 1)
    memory: Memory = "training"
    survivors: bool = False
    sparse: bool = False
    report: bool = False
    roll_call: bool = False
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if isinstance(self.budget, Mapping) and set(self.budget) == {"epsilon", "delta"}:  # as in a file
            object.__setattr__(self, "budget", Budget(**self.budget))
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise UsageError(f"floors: budget: expected an epsilon and a delta, got {self.budget!r}")
        for name in _COUNTS:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UsageError(f"floors: {name}: expected a whole number of at least 1, got {value!r}")
        for name in ("survivors", "sparse", "report", "roll_call"):
            if type(getattr(self, name)) is not bool:
                raise UsageError(f"floors: {name}: expected true or false, got {getattr(self, name)!r}")
        if not isinstance(self.memory, str) or self.memory not in MEMORIES:
            raise UsageError(f"floors: memory: expected 'training' or 'round', got {self.memory!r}")
        if type(self.leverage) not in (int, float) or not 0 < self.leverage <= 1:
            raise UsageError(f"floors: leverage: expected a number above 0 and at most 1, got {self.leverage!r}")
        for name in ("clip", "bound"):
            ends = getattr(self, name)
            pair = isinstance(ends, tuple | list) and len(ends) == 2
            if not pair or not all(type(end) in (int, float) and isfinite(end) for end in ends):
                raise UsageError(f"floors: {name}: expected a pair of numbers, got {ends!r}")
            object.__setattr__(self, name, tuple(ends))

    def check(self, what: Terms | Agreement) -> None:
        """AgreementRefused, with the floor's name, for the first floor that these terms cross."""
        for floor, why in self.crossed(what):
            raise AgreementRefused(f"agreement refused: {why} ({floor})", floor=floor)

    def crossed(self, what: Terms | Agreement) -> Iterator[tuple[str, str]]:
        """Every floor that these terms cross, with the reason. What several groupings cost depends on the seed."""
        terms = what if isinstance(what, Terms) else what.terms
        too_much = self._too_much(what, terms)
        policy, size = terms.policy, terms.schedule.size
        rounds = terms.round_count
        several = rounds > 1 or bool(terms.predecessors)  # audit: own-floor-memory-successor
        weak = policy.memory == "round" and self.memory == "training" and several
        found = (
            # audit: own-floor-report
            ("report", not self.report and not policy.enforced, "it opens every sum, whatever it exposes"),
            # audit: own-floor-anonymity
            ("anonymity", policy.anonymity < self.anonymity, f"T = {policy.anonymity}, my floor is {self.anonymity}"),
            # audit: own-floor-size
            ("size", size < self.size, f"groups have {size} members, my floor is {self.size}"),
            # audit: own-floor-leverage
            (
                "leverage",
                policy.max_leverage > self.leverage,
                f"it allows leverage {policy.max_leverage:g}, my most is {self.leverage:g}",
            ),
            # audit: own-floor-rounds
            ("rounds", rounds > self.rounds, f"it has {rounds} rounds, my most is {self.rounds}"),
            # audit: own-floor-memory
            ("memory", weak, "it promises each round alone, and I ask for all rounds together"),
            # audit: own-floor-survivors
            (
                "survivors",
                not self.survivors and terms.groups == SURVIVORS,
                "its groups shrink with dropouts, and I accept whole groups only",
            ),
            # audit: own-floor-roll-call
            (
                "roll_call",
                not self.roll_call and terms.roll_call,
                "the server says who is present, so it can choose whom a member is summed with",
            ),
            # audit: own-floor-sparse
            ("sparse", not self.sparse and bool(terms.degree), "sparse mode protects only from a semi-honest server"),
            ("budget", bool(too_much), too_much),  # audit: own-floor-budget
            *self._numbers(terms),
        )
        return ((floor, why) for floor, crossed, why in found if crossed)

    def _too_much(self, what: Terms | Agreement, terms: Terms) -> str:
        """Why the rounds do not fit the budget, if they do not."""
        if self.budget is None:
            return ""
        if terms.noise is None:
            return f"it has no noise, and I have a budget of epsilon {self.budget.epsilon:g}"
        each = known_before_seed(terms) if isinstance(what, Terms) else worst_round(what)
        return over_budget(terms, each.assumed, self.budget, Charge()) if each else ""

    def _numbers(self, terms: Terms) -> Iterator[tuple[str, bool, str]]:
        for segment in terms.segments:
            name = f"segment {segment.name!r}: " if segment.name else ""
            floor, (low, high) = ("clip", self.clip) if segment.bound is None else ("bound", self.bound)
            number = segment.clip if segment.bound is None else segment.bound
            outside = number is None or not low <= number <= high  # audit: own-floor-range
            yield floor, outside, f"{name}{floor} {number} is outside my range {low:g} to {high:g}"
