"""What one operator accepts of an agreement, whoever wrote it: a short list, held once against the agreement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Final

from secagg.agreement.terms import SURVIVORS, Terms
from secagg.errors import AgreementRefused, UsageError
from secagg.exposure.audit import MEMORIES, Memory

_COUNTS: Final = ("anonymity", "size", "rounds")


@dataclass(frozen=True, kw_only=True)
class Floors:
    """The least that an operator accepts. What is below a floor is refused before anything is signed.

    - `anonymity`, `size`, `leverage`: least T, least members of a group, most leverage that the policy may allow.
    - `rounds`: the most rounds.
    - `clip`, `bound`: the range of every clip of floats and of every bound of integers. A clip or bound that is too
      small for an operator's data loses them; the errors and warnings about that stay with the operator.
    - `memory`: "training" asks for limits over all rounds; "round" is content with each round alone.
    - `survivors`, `sparse`, `report`: whether groups may shrink with dropouts, whether the server may be trusted to
      follow the protocol, and whether sums may be opened whatever they expose.

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

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UsageError(f"floors: {name}: expected a whole number of at least 1, got {value!r}")
        for name in ("survivors", "sparse", "report"):
            if type(getattr(self, name)) is not bool:
                raise UsageError(f"floors: {name}: expected true or false, got {getattr(self, name)!r}")
        if self.memory not in MEMORIES:
            raise UsageError(f"floors: memory: expected 'training' or 'round', got {self.memory!r}")
        if type(self.leverage) not in (int, float) or not 0 < self.leverage <= 1:
            raise UsageError(f"floors: leverage: expected a number above 0 and at most 1, got {self.leverage!r}")
        for name in ("clip", "bound"):
            ends = getattr(self, name)
            pair = isinstance(ends, tuple | list) and len(ends) == 2
            if not pair or not all(type(end) in (int, float) and isfinite(end) for end in ends):
                raise UsageError(f"floors: {name}: expected a pair of numbers, got {ends!r}")
            object.__setattr__(self, name, tuple(ends))

    def check(self, terms: Terms) -> None:
        """AgreementRefused, with the floor's name, for the first floor that these terms cross."""
        for floor, why in self.crossed(terms):
            raise AgreementRefused(f"agreement refused: {why} ({floor})", floor=floor)

    def crossed(self, terms: Terms) -> Iterator[tuple[str, str]]:
        """Every floor that these terms cross, with the reason."""
        policy, size = terms.policy, terms.schedule.size
        rounds = terms.last_round - terms.first_round + 1
        weak = policy.memory == "round" and self.memory == "training" and rounds > 1
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
            # audit: own-floor-sparse
            ("sparse", not self.sparse and terms.degree > 0, "sparse mode protects only from a semi-honest server"),
            *self._numbers(terms),
        )
        return ((floor, why) for floor, crossed, why in found if crossed)

    def _numbers(self, terms: Terms) -> Iterator[tuple[str, bool, str]]:
        for segment in terms.segments:
            name = f"segment {segment.name!r}: " if segment.name else ""
            floor, (low, high) = ("clip", self.clip) if segment.bound is None else ("bound", self.bound)
            number = segment.clip if segment.bound is None else segment.bound
            outside = number is None or not low <= number <= high  # audit: own-floor-range
            yield floor, outside, f"{name}{floor} {number} is outside my range {low:g} to {high:g}"
