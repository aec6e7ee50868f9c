"""From zCDP to (epsilon, delta): Canonne, Kamath and Steinke 2020, Proposition 12.

A mechanism that is rho-zCDP has Renyi divergence at most alpha * rho for every order alpha > 1. Each order gives an
epsilon that is valid for a given delta, and the least of them is taken: over given orders, or over all by a search. A
search that misses the best order gives a larger epsilon, never a wrong one.
"""

import math
from collections.abc import Callable, Iterable
from typing import Final

from secagg.arguments import real
from secagg.errors import UsageError

_LEAST_ORDER: Final = 1.01  # below it the formula loses digits, and gains nothing
_STEPS: Final = 200  # of the search; it is at the limits of a float by then
_GOLDEN: Final = (math.sqrt(5) - 1) / 2


def epsilon(rho: float, delta: float, orders: Iterable[float] | None = None) -> float:
    """The least epsilon for which rho-zCDP gives (epsilon, delta)-DP, over these orders or over all.

    >>> round(epsilon(0.5, 1e-5), 4)
    4.7284
    """
    rho, delta = _positive("rho", rho, zero=True), _probability(delta)
    if _close(rho, delta):
        return 0.0
    if orders is None:
        order = _lowest(lambda shifted: _at(1 + math.exp(shifted), rho, delta), math.log(0.01), math.log(2.0**60))
        return max(0.0, _at(1 + math.exp(order), rho, delta))
    usable = [order for order in map(float, orders) if order > _LEAST_ORDER]
    if not usable:
        raise UsageError(f"orders: expected at least one above {_LEAST_ORDER}")
    if any(_close(order * rho, delta) for order in usable):
        return 0.0
    return max(0.0, min(_at(order, rho, delta) for order in usable))


def _at(order: float, rho: float, delta: float) -> float:
    return order * rho + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def _close(divergence: float, delta: float) -> bool:
    """Whether delta alone covers the difference: total variation is at most sqrt(1 - exp(-KL)) (Bretagnolle-Huber)."""
    return delta**2 + math.expm1(-divergence) > 0


def rho_within(epsilon_limit: float, delta: float) -> float:
    """The largest rho for which rho-zCDP gives (epsilon, delta)-DP, rounded down.

    >>> rho = rho_within(4.7285, 1e-5)
    >>> epsilon(rho, 1e-5) <= 4.7285, round(rho, 3)
    (True, 0.5)
    """
    limit, delta = _positive("epsilon", epsilon_limit), _probability(delta)
    low, high = 0.0, 1.0
    while epsilon(high, delta) <= limit:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if epsilon(middle, delta) <= limit else (low, middle)
    return low


def _lowest(value: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that falls and then rises is least: golden section (Kiefer 1953)."""
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_a, at_b = value(a), value(b)
    for _ in range(_STEPS):
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - _GOLDEN * (high - low)
            at_a = value(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + _GOLDEN * (high - low)
            at_b = value(b)
    return a if at_a <= at_b else b


def _positive(name: str, value: object, *, zero: bool = False) -> float:
    number = real(name, value)
    if number < 0 or (number == 0 and not zero):
        raise UsageError(f"{name}: expected a number {'of at least' if zero else 'above'} 0, got {number:g}")
    return number


def _probability(delta: object) -> float:
    number = real("delta", delta)
    if not 0 < number < 1:
        raise UsageError(f"delta: expected a number between 0 and 1, got {number:g}")
    return number
