"""What noise does to results: the standard deviation that it adds to each of them, to first order.

Every opened number has its own noise. A result is a smooth function of them; its noise is, to first order, the linear
function that its derivatives give. Derivatives are differences over a quarter of a standard deviation, except for least
squares, where they are written down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from secagg.agreement.statistics.columns import Floats
from secagg.agreement.statistics.kinds import Frame, LeastSquares
from secagg.statistics.outcomes import Coefficient, Fit, Value

Numbers = Sequence[list[int]]


def with_noise(
    values: Mapping[str, Value], again: Callable[[Numbers], Mapping[str, Value]], numbers: Numbers, sds: Sequence[float]
) -> dict[str, Value]:
    """Values with their noise: `again` computes them from other numbers, `sds` has the noise of each entry."""
    found = dict.fromkeys(values, 0.0)
    for entry, sd in enumerate(sds):
        for place in range(len(numbers[entry])):
            shift = max(1, round(sd / 4))
            up, down = (again(_moved(numbers, entry, place, by)) for by in (shift, -shift))
            for name in values:
                a, b = up[name].value, down[name].value
                slope = math.nan if a is None or b is None else (a - b) / (2 * shift)
                found[name] = math.hypot(found[name], slope * sd)
    return {name: replace(value, noise=_finite(found[name])) for name, value in values.items()}


def _finite(sd: float) -> float | None:
    return sd if math.isfinite(sd) else None


def _moved(numbers: Numbers, entry: int, place: int, by: int) -> Numbers:
    moved = [list(one) for one in numbers]
    moved[entry][place] += by
    return moved


def fit_with_noise(
    fit: Fit,
    inverse: Sequence[Sequence[Fraction]],
    one: LeastSquares,
    frame: Frame,
    numbers: Numbers,
    sds: Sequence[float],
) -> Fit:
    """A fit with the noise of its coefficients, from the inverse W of its equations.

    In units of the ranges, the equations are G x = g with entries C_ij = sum of (l_i + t_i k_i)(l_j + t_j k_j), where l
    is minus the mean with an intercept, and the lower bound without. To first order, dx = W dC c with c = (-x, 1).
    """
    if not fit.coefficients:
        return fit
    grids, used = one.grids(frame), fit.used
    count, means = len(grids) - 1, np.array(numbers[1], float) / used
    t = np.array([1 / grid.steps for grid in grids])
    low = np.array([float(grid.low / grid.numbers.range) for grid in grids])
    centre = -means * t if one.intercept else low
    ranges = np.array([float(grid.numbers.range) for grid in grids])
    x = np.array([found.value for found in fit.coefficients[one.intercept :]]) * ranges[:count] / ranges[count]
    c = np.append(-x, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # then there is no noise to show
        effects = _effects(np.array(inverse, float), c, centre, t, used, means, low, sds)
        noise = np.hypot.reduce(effects, axis=1) * ranges[count]
    scale = [1.0, *ranges[:count]] if one.intercept else list(ranges[:count])
    sd = noise if one.intercept else noise[1:]
    coefficients: list[Coefficient] = [
        replace(found, noise=_finite(float(value / unit)))
        for found, value, unit in zip(fit.coefficients, sd, scale, strict=True)
    ]
    return replace(fit, coefficients=tuple(coefficients))


def _effects(
    W: Floats, c: Floats, centre: Floats, t: Floats, used: int, means: Floats, low: Floats, sds: Sequence[float]
) -> Floats:
    """What each independent noise, times its standard deviation, does to the intercept and to each coefficient."""
    size, count = len(c), len(c) - 1
    whole = low + t * means  # the means, in units of the ranges
    columns = []

    def effect(right: Floats, of_means: float, sd: float) -> None:
        dx = W @ right[:count]
        columns.append(sd * np.append(of_means - whole[:count] @ dx, dx))

    balance = float(c @ centre)
    effect(centre * balance, -float(c @ (t * means)) / used, sds[0])  # the number of rows
    for a in range(size):
        right = c[a] * t[a] * centre
        right[a] += t[a] * balance
        effect(right, c[a] * t[a] / used, sds[1])
    for a in range(size):
        for b in range(a, size):
            right = np.zeros(size)
            right[a] += t[a] * t[b] * c[b]
            if a != b:
                right[b] += t[a] * t[b] * c[a]
            effect(right, 0.0, sds[2])
    return np.array(columns).T
