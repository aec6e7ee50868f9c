"""Fractions as floats, and bounds that are rounded up."""

from __future__ import annotations

import math
from fractions import Fraction

from secagg.statistics.outcomes import Value


def value_of(exact: Fraction | float, error: Fraction) -> Value:
    """The float next to an exact number, and a bound on its distance from what this number estimates."""
    value = float(exact)
    return Value(value, above(error + abs(Fraction(value) - Fraction(exact))))


def above(bound: Fraction) -> float:
    """A float that is at least this number."""
    return math.nextafter(float(bound), math.inf) if bound else 0.0


def root_above(square: Fraction) -> Fraction:
    """At least the root of a number."""
    return Fraction(math.nextafter(math.sqrt(math.nextafter(float(square), math.inf)), math.inf)) if square else square
