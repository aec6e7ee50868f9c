"""What openings cost, and a limit that is never exceeded.

A charge has two whole numbers, so that a ledger adds up exactly: `rho`, the cost in zCDP, and `eta`, what the grid adds
(`secagg.privacy.smoothing`). Charges add. With total rho and eta, all openings together are
(epsilon(rho, delta exp(-eta)) + 2 eta, delta)-DP.

Charges that are chosen as one goes need a limit that was fixed before the first (a Renyi filter: Feldman and Zrnic
2021). A `Budget` gives eta a thousandth of its epsilon and turns the rest into the rho that it buys. Neither total may
exceed its limit.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

from secagg.arguments import real, whole
from secagg.errors import UsageError
from secagg.privacy.conversion import epsilon, rho_within

RHO_UNIT: Final = 2.0**-40
ETA_UNIT: Final = 2.0**-60
MOST_UNITS: Final = 2**63 - 1
_SHARE: Final = 1000  # eta may use this part of epsilon


@dataclass(frozen=True, slots=True)
class Charge:
    """The cost of openings, in units of 2^-40 (rho) and 2^-60 (eta).

    >>> one = Charge.of(Fraction(1, 2), 0.0)
    >>> round((one + one).epsilon(1e-5), 4)
    7.0772
    """

    rho: int = 0
    eta: int = 0

    def __post_init__(self) -> None:
        for name in ("rho", "eta"):
            whole(name, getattr(self, name), 0, MOST_UNITS)

    @classmethod
    def of(cls, rho: Fraction, eta: float) -> "Charge":
        """A cost rounded up to whole units."""
        if not math.isfinite(eta):
            raise UsageError("eta: expected a finite number; the noise is too small for the grid")
        # audit: charge-rounded-up
        units = math.ceil(rho / Fraction(RHO_UNIT)), math.ceil(Fraction(eta) / Fraction(ETA_UNIT))
        return cls(*(min(unit, MOST_UNITS) for unit in units))

    def __add__(self, other: "Charge") -> "Charge":
        return Charge(min(self.rho + other.rho, MOST_UNITS), min(self.eta + other.eta, MOST_UNITS))

    def times(self, count: int) -> "Charge":
        return Charge(min(self.rho * count, MOST_UNITS), min(self.eta * count, MOST_UNITS))

    def epsilon(self, delta: float) -> float:
        """The epsilon of all these openings together; infinite if delta is used up by eta."""
        eta = self.eta * ETA_UNIT
        if eta > 100:
            return math.inf
        return epsilon(self.rho * RHO_UNIT, delta * math.exp(-eta)) + 2 * eta


@dataclass(frozen=True)
class Budget:
    """The most that all openings of one data holder may cost together: (epsilon, delta).

    >>> budget = Budget(epsilon=8, delta=1e-5)
    >>> budget.allows(Charge.of(Fraction(1), 0.0)), budget.allows(Charge.of(Fraction(2), 0.0))
    (True, False)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name, least, most in (("epsilon", 0.0, 1e6), ("delta", 0.0, 0.5)):
            value = real(f"budget: {name}", getattr(self, name))
            if not least < value <= most:
                raise UsageError(f"budget: {name}: expected a number above {least:g} and at most {most:g}, got {value}")
            object.__setattr__(self, name, value)
        _ = self.limit

    @cached_property
    def limit(self) -> Charge:
        """The totals that must not be exceeded, rounded down."""
        eta = self.epsilon / _SHARE
        if eta > 1:
            eta = 1.0
        rho = rho_within(self.epsilon - 2 * eta, self.delta * math.exp(-eta))
        return Charge(min(int(rho / RHO_UNIT), MOST_UNITS), int(eta / ETA_UNIT))

    def allows(self, total: Charge) -> bool:
        """Whether this much may be spent in all."""
        return total.rho <= self.limit.rho and total.eta <= self.limit.eta  # audit: budget-never-exceeded
