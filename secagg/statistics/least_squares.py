"""Least squares from sums of codes and of their products, in exact arithmetic.

The coefficients are exactly those of the values after rounding to their steps. How far the unrounded values could have
moved them follows from the smallest singular value (Wedin 1973): with A the rounded features, E what rounding moved
them by, e the same of the target b, r = b - A x the residuals and s = sigma_min(A) - |E|,

    |x' - x| <= |E| |r| / s^2 + (|e| + |E| |x|) / s.

Columns that rounding could make collinear get no coefficients: s is then not positive. Sums with noise, or sums of a
site that cheats, can be such as no data has: the matrix then has a negative eigenvalue, or the residuals a negative
square. Both are judged before any root is taken, and there are no coefficients either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from secagg.agreement.statistics.columns import Grid
from secagg.agreement.statistics.kinds import Frame, LeastSquares
from secagg.statistics.outcomes import Coefficient, Fit
from secagg.statistics.rounding import above, root_above

INTERCEPT: Final = "(intercept)"
LARGEST: Final = 2**200  # of an inverse and of a bound, in units of the ranges; so that no float overflows
IMPOSSIBLE: Final = (
    "no data has such sums: the noise is larger than what the data says, or a site has sent numbers that are not sums"
)
Matrix = list[list[Fraction]]


def fit(one: LeastSquares, frame: Frame, numbers: Sequence[list[int]], common: dict[str, Any]) -> tuple[Fit, Matrix]:
    """The fit that a declaration's numbers (counts, sums, products) give, and the inverse that it comes from."""

    def none(problem: str) -> tuple[Fit, Matrix]:
        return Fit(**common, coefficients=(), problem=problem), []

    grids, used, rounded = one.grids(frame), common["used"], max(common["rounded"], 0)  # noise can make it negative
    count, parameters = len(grids) - 1, len(grids) - 1 + one.intercept
    if used < parameters:
        return none(f"{used} complete rows are too few for {parameters} coefficients")
    units = _Units(grids, used, numbers[1], numbers[2], one.intercept)
    inverse, dependent = invert([row[:count] for row in units.gram[:count]])
    if inverse is None:
        return none(IMPOSSIBLE if dependent is None else _collinear(one, dependent))
    target = [row[count] for row in units.gram[:count]]
    scaled = [sum((a * b for a, b in zip(row, target, strict=True)), Fraction(0)) for row in inverse]
    residual = units.gram[count][count] - sum((a * b for a, b in zip(scaled, target, strict=True)), Fraction(0))
    if residual < 0:  # audit: no-fit-with-a-negative-residual
        return none(IMPOSSIBLE)
    moved = _moved(units, inverse, scaled, residual, rounded)
    if moved is None:
        return none(_nearly_collinear(one, max(range(count), key=lambda place: inverse[place][place])))
    freedom = used - parameters
    variance = residual / freedom if freedom else None  # in units of the target's range
    names = [column.column for column in one.features]
    ratios = [units.ranges[count] / units.ranges[place] for place in range(count)]
    found = [
        _coefficient(name, scaled[place] * ratios[place], moved * ratios[place], variance, inverse[place][place], ratio)
        for place, (name, ratio) in enumerate(zip(names, ratios, strict=True))
    ]
    if one.intercept:
        found.insert(0, _intercept(units, scaled, moved, inverse, variance, rounded))
    total = units.gram[count][count]
    done = Fit(
        **common,
        coefficients=tuple(found),
        r_squared=float(1 - residual / total) if total else None,
        residual_sd=None if variance is None else math.sqrt(variance) * float(units.ranges[count]),
        degrees_of_freedom=freedom,
    )
    return done, inverse


class _Units:
    """The sums in units of each column's range, around the mean if there is an intercept, around 0 if there is none."""

    def __init__(
        self, grids: Sequence[Grid], used: int, sums: Sequence[int], products: Sequence[int], intercept: bool
    ) -> None:
        self.grids, self.used = grids, used
        self.ranges = [grid.numbers.range for grid in grids]
        self.means = [
            grid.value(Fraction(total, used)) if used else grid.low for grid, total in zip(grids, sums, strict=True)
        ]
        values, size = iter(products), len(grids)
        self.gram: Matrix = [[Fraction(0)] * size for _ in range(size)]
        for i in range(size):
            for j in range(i, size):
                spread = Fraction(next(values) * used - sums[i] * sums[j], used * grids[i].steps * grids[j].steps)
                if not intercept:
                    spread += used * self.means[i] * self.means[j] / (self.ranges[i] * self.ranges[j])
                self.gram[i][j] = self.gram[j][i] = spread

    def distance(self, place: int, rounded: int) -> Fraction:
        """The square of the most by which rounding moved a column, as a vector."""
        grid = self.grids[place]
        return (rounded * grid.half**2 + self.used * grid.slack**2) / self.ranges[place] ** 2


def _moved(
    units: _Units, inverse: Matrix, scaled: Sequence[Fraction], residual: Fraction, rounded: int
) -> Fraction | None:
    """The most by which rounding moved the vector of coefficients; None if it could have made columns collinear."""
    count = len(scaled)
    E = root_above(sum((units.distance(place, rounded) for place in range(count)), Fraction(0)))
    e = root_above(units.distance(count, rounded))
    trace = sum((inverse[place][place] for place in range(count)), Fraction(0))  # at least 1 / sigma_min^2
    if trace > LARGEST:
        return None
    s = 1 / root_above(trace) - E
    if s <= 0:  # audit: no-coefficients-of-collinear-columns
        return None
    norm = root_above(sum((value**2 for value in scaled), Fraction(0)))
    moved = E * root_above(residual) / s**2 + (e + E * norm) / s
    return moved if moved <= LARGEST else None


def _coefficient(
    name: str, value: Fraction, moved: Fraction, variance: Fraction | None, spread: Fraction, ratio: Fraction
) -> Coefficient:
    near = float(value)
    standard = None if variance is None else math.sqrt(variance * spread) * float(ratio)
    return Coefficient(name, near, above(moved + abs(Fraction(near) - value)), standard)


def _intercept(
    units: _Units, scaled: Sequence[Fraction], moved: Fraction, inverse: Matrix, variance: Fraction | None, rounded: int
) -> Coefficient:
    count, unit = len(scaled), units.ranges[-1]
    means = [units.means[place] / units.ranges[place] for place in range(count)]  # in units of the range
    off = [(rounded * grid.half / units.used + grid.slack) / grid.numbers.range for grid in units.grids]
    value = units.means[count] / unit - sum((a * b for a, b in zip(scaled, means, strict=True)), Fraction(0))
    error = off[count] + sum(
        (abs(a) * o + moved * (abs(m) + o) for a, m, o in zip(scaled, means, off[:count], strict=True)), Fraction(0)
    )
    spread = Fraction(1, units.used) + sum(
        (means[i] * inverse[i][j] * means[j] for i in range(count) for j in range(count)), Fraction(0)
    )
    return _coefficient(INTERCEPT, value * unit, error * unit, variance, spread, unit)


def invert(matrix: Matrix) -> tuple[Matrix, int] | tuple[None, int | None]:
    """The inverse of a symmetric matrix with positive eigenvalues.

    Without one: None and a column that depends on others; None and None if an eigenvalue is negative.

    Elimination without exchanges, by whole numbers without fractions (Bareiss 1968). Pivots are the leading minors. If
    no eigenvalue is negative, a pivot is 0 exactly if its column is a combination of the columns before it. All
    eigenvalues are positive exactly if all pivots are (Sylvester).
    """
    size = len(matrix)
    common = math.lcm(*(value.denominator for row in matrix for value in row))
    work = [[int(value * common) for value in row] for row in matrix]  # column j becomes one of the inverse at step j
    before = 1
    for step in range(size):
        pivot = work[step][step]
        if pivot < 0:  # audit: no-fit-with-a-negative-eigenvalue
            return None, None
        if pivot == 0:
            return None, step
        work[step][step] = before
        for i in range(size):
            if i != step:
                factor, work[i][step] = work[i][step], 0
                work[i] = [(pivot * a - factor * b) // before for a, b in zip(work[i], work[step], strict=True)]
        before = pivot
    return [[Fraction(value * common, before) for value in row] for row in work], size


def _collinear(one: LeastSquares, place: int) -> str:
    name = one.features[place].column
    if place == 0:
        return f"column {name!r} is {'constant' if one.intercept else 'zero'} in the data, so it has no coefficient"
    others = ", ".join(repr(column.column) for column in one.features[:place])
    constant = " and a constant" if one.intercept else ""
    return (
        f"column {name!r} is a combination of {others}{constant} in the data, so the coefficients are not determined; "
        "leave one of them out of the declaration"
    )


def _nearly_collinear(one: LeastSquares, place: int) -> str:
    return (
        f"column {one.features[place].column!r} is so close to a combination of the others"
        f"{' and a constant' if one.intercept else ''} that values rounded to their steps do not determine the "
        "coefficients; leave a column out of the declaration, or declare smaller steps or narrower bounds"
    )
