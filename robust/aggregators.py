"""The rules. Each docstring gives the formula, the paper, and what it needs of n rows and f bad ones.

x_1..x_n are the rows. Sums are added up in double precision and rounded once, so rows that are all the same
come back exactly, and the order of rows changes a result by that rounding at most (and where a docstring
says how ties are broken). `kappa` is the constant of (f, kappa)-robustness (Allouah et al. 2023a):
for every set S of n - f rows, |result - mean_S|^2 <= kappa / |S| * sum_{i in S} |x_i - mean_S|^2. Constants
not published are derived in docs/robust.md.

Allouah et al. 2023a is "Fixing by Mixing" (AISTATS), 2023b "On the Privacy-Robustness-Utility Trilemma"
(ICML). Zeno and Zeno++, which need the server's own data, are in `zeno.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robust import geometry, subsets
from robust.geometry import Square
from robust.rows import Indices, Outcome, Rows, Vector, Weights, as_vector, must_be_among
from robust.rule import aggregator

FAR = 1e6  # typical distances from most rows: from there on, only the direction of a row matters


def _minority(n: int) -> int:
    return (n - 1) // 2


def _median_kappa(n: int, f: int) -> float:
    return 4 * (1 + f / (n - 2 * f)) ** 2


def _trimmed_kappa(n: int, f: int) -> float:
    return 6 * f / (n - 2 * f) * (1 + f / (n - 2 * f))


def _krum_kappa(n: int, f: int) -> float:
    return 6 * (n - f) / (n - 2 * f - 1)


def _meamed_kappa(n: int, f: int) -> float:
    return 4 * (math.sqrt(f / (n - f)) + 2 * f / (n - 2 * f)) ** 2


def _diameter_kappa(n: int, f: int) -> float:
    return 8 * f**2 / (n - f)


def _caf_kappa(n: int, f: int) -> float:
    root = math.sqrt((n - f) / (n - 2 * f))
    always = f / (n - 2 * f) * (1 + math.sqrt(2) + 2 * root) ** 2
    return min(always, 2 * f / (n - 3 * f) * (1 + root) ** 2) if n > 3 * f else always


def _smea_kappa(n: int, f: int) -> float:
    return 4 * f / (n - 2 * f)


def _either_f_or_fraction(n: int, *, f: int | None = None, fraction: float | None = None) -> None:
    if (f is None) == (fraction is None):
        raise ValueError("trimmed_mean takes either f or fraction")
    if fraction is not None:
        rows_in_fraction(n, fraction)


def _iterates(n: int, *, smoothing: float = 1.0, tolerance: float = 1.0, steps: int = 1) -> None:
    if smoothing <= 0 or tolerance <= 0:
        raise ValueError(
            f"smoothing and tolerance must be above 0, got smoothing={smoothing}, tolerance={tolerance}"
        )
    _at_least_one_step(steps)


def _selects_m(n: int, *, f: int, m: int | None = None) -> None:
    if m is not None and not 1 <= m <= n - f:
        raise ValueError(f"multi_krum needs 1 <= m <= n - f: got m={m}, n={n}, f={f}")


def _trusts_a_row(n: int, *, f: int, trusted: int) -> None:
    must_be_among(n, trusted)


def _clips(n: int, *, centre: object = None, radius: float | None = None, steps: int = 1) -> None:
    must_not_be_negative(radius)
    _at_least_one_step(steps)


def _bounds(n: int, *, bound: float | None = None) -> None:
    must_not_be_negative(bound)


def must_not_be_negative(limit: float | None) -> None:
    """Refuse a radius or bound below 0; None stands for one that is chosen by the rows."""
    if limit is not None and limit < 0:
        raise ValueError(f"a radius or bound cannot be negative, got {limit}")


def _at_least_one_step(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"at least one step is needed, got steps={steps}")


@aggregator(paper="McMahan et al. 2017", needs="f = 0", withstands=lambda n: 0)
def mean(rows: Rows) -> Outcome:
    """(1/n) sum_i x_i.

    McMahan et al. 2017, federated averaging with equal weights. Withstands nothing: one row moves it
    anywhere.
    """
    return rows.weigh(np.full(len(rows), 1 / len(rows)))


@aggregator(paper="Yin et al. 2018, Def. 1", needs="n > 2f", withstands=_minority, kappa=_median_kappa)
def median(rows: Rows, *, middle: Literal["mean", "lower"] = "mean") -> Outcome:
    """The median of every coordinate: x_((n+1)/2), where x_(1) <= ... <= x_(n) are its values in order.

    Yin et al. 2018, Def. 1. For even n, (x_(n/2) + x_(n/2+1)) / 2, or the lower of the two, which is what
    `torch.median` returns and what the SHARE paper ran. Every coordinate lies between the extremes of the
    honest rows while they are the majority.
    """
    n = len(rows)
    return Outcome(rows.middle_mean((n - 1) // 2, n // 2 + 1 if middle == "mean" else (n + 1) // 2))


@aggregator(
    paper="Yin et al. 2018, Def. 2",
    needs="n > 2f",
    withstands=_minority,
    kappa=_trimmed_kappa,
    refuse=_either_f_or_fraction,
)
def trimmed_mean(rows: Rows, *, f: int | None = None, fraction: float | None = None) -> Outcome:
    """The mean of every coordinate without its f smallest and f largest values.

    sum_{f < i <= n-f} x_(i) / (n - 2f), where x_(1) <= ... <= x_(n) are the values of a coordinate in order.
    Yin et al. 2018, Def. 2. Give the count f, or the fraction to cut on either side, below 1/2; it is
    rounded down to rows (the SHARE paper ran fraction 0.4). The values kept are added up; nothing is
    subtracted from a sum that holds the extremes.
    """
    if f is None:
        assert fraction is not None
        f = max(rows_in_fraction(rows.given, fraction) - rows.ignored, 0)
    return Outcome(rows.middle_mean(f, len(rows) - f))


def rows_in_fraction(n: int, fraction: float) -> int:
    """How many rows a fraction per side is: rounded down, but not for want of the last binary digit.

    A fraction below 1/2 is never as much as half of the rows, so something is always left.
    """
    if not 0 <= fraction < 0.5:
        raise ValueError(f"the fraction per side must be at least 0 and below 1/2, got {fraction}")
    return min(math.floor(round(fraction * n, 9)), _minority(n))


@aggregator(paper="Xie et al. 2018", needs="n > 2f", withstands=_minority, kappa=_meamed_kappa)
def meamed(rows: Rows, *, f: int) -> Outcome:
    """Mean around the median: of every coordinate, the mean of the n - f values nearest its median.

    sum_{i in N} x_i / (n - f), where N are the n - f rows of least |x_i - median| in that coordinate.
    Xie, Koyejo and Gupta 2018, "Generalized Byzantine-tolerant SGD". Of two values equally far from the
    median on either side, the lower one is taken.
    """
    return Outcome(rows.mean_around_median(len(rows) - f))


@aggregator(
    paper="Pillutla et al. 2019", needs="n > 2f", withstands=_minority, kappa=_median_kappa, refuse=_iterates
)
def geometric_median(
    rows: Rows, *, smoothing: float = 1e-6, tolerance: float = 1e-6, steps: int = 10_000
) -> Outcome:
    """RFA: argmin_z sum_i |x_i - z|, by smoothed Weiszfeld.

    Pillutla, Kakade and Harchaoui 2019, Algorithm 2, run until the objective is certainly within
    `tolerance` of its least value, relative to it, with `smoothing` relative to a typical distance (see
    `geometry.geometric_median_weights`). If `steps` run out first, the last z is returned, and `detail` says
    that it has not converged.
    """
    squared = rows.squared_distances()
    typical = geometry.typical_distances(squared)
    reach = FAR * float(np.median(typical))
    far = typical > reach
    if not reach or not far.any():
        weights, converged = geometry.geometric_median_weights(squared, smoothing, tolerance, steps)
        return replace(rows.weigh(weights), converged=converged)
    near = int(np.argmin(typical))
    weights, converged = geometry.geometric_median_weights(
        _brought_near(rows, squared, far, near, reach), smoothing, tolerance, steps
    )
    shares = np.where(far, reach / np.sqrt(np.where(far, squared[near], 1)), 1)
    spread = shares * weights  # a row at `shares` of the way from `near` is partly that row
    spread[near] += weights.sum() - spread.sum()
    return replace(rows.weigh(spread), converged=converged)


def _brought_near(rows: Rows, squared: Square, far: NDArray[np.bool_], near: int, reach: float) -> Square:
    """Distances as if far rows were at most `reach` from row `near`, in the same direction.

    A far row pulls the median with the force of one row, wherever it is along its direction. At 1e30 its
    rounding errors would drown all the other distances; from nearer it pulls the same and drowns nothing.
    """
    anchor = rows.row(near).astype(np.float64)
    lengths = np.sqrt(squared[near])
    shares = np.where(far, reach / np.where(far, lengths, 1), 1)
    sizes = lengths * shares
    result = squared.copy()
    for i in np.flatnonzero(far):
        direction = ((rows.row(int(i)) - anchor) / lengths[i]).astype(np.float32)
        along = rows.products(direction)
        along = (along - along[near]) * shares
        result[i] = result[:, i] = np.maximum(sizes**2 + reach**2 - 2 * reach * along, 0)
        result[i, i] = 0
    return result


@aggregator(
    paper="Blanchard et al. 2017", needs="n > 2f + 2", withstands=lambda n: (n - 3) // 2, kappa=_krum_kappa
)
def krum(rows: Rows, *, f: int) -> Outcome:
    """The row whose n - f - 2 nearest others are nearest: least sum of squared distances to them.

    x_k with k = argmin_i s(i), s(i) = sum_{j in N_i} |x_i - x_j|^2, where N_i are the n - f - 2 rows other
    than i that are nearest to it. Blanchard et al. 2017, Sec. 4. Of rows with the same score, the first.
    """
    return rows.pick(int(np.argmin(geometry.krum_scores(rows.squared_distances(), f))))


@aggregator(
    paper="Blanchard et al. 2017",
    needs="n > 2f + 2",
    withstands=lambda n: (n - 3) // 2,
    kappa=_krum_kappa,
    refuse=_selects_m,
)
def multi_krum(rows: Rows, *, f: int, m: int | None = None) -> Outcome:
    """The mean of the m rows with the least Krum scores; m = n - f unless given.

    sum_{i in M} x_i / m, where M are the m rows of least s(i) (see `krum`). Blanchard et al. 2017. Of rows
    with the same score, the first ones.
    """
    most = len(rows) - f
    scores = geometry.krum_scores(rows.squared_distances(), f)
    return rows.average(np.sort(_least(scores, most if m is None else min(m, most))))


@aggregator(paper="El Mhamdi et al. 2018", needs="n >= 4f + 3", withstands=lambda n: (n - 3) // 4)
def bulyan(rows: Rows, *, f: int) -> Outcome:
    """Choose n - 2f rows by Krum, one at a time; then, of every coordinate, the mean of the n - 4f values
    among them that are nearest their median.

    sum_{i in N} x_i / (n - 4f), where N are the n - 4f rows of least |x_i - median| in a coordinate, both
    among the rows chosen. El Mhamdi, Guerraoui and Rouault 2018: Krum runs again after each row that it
    removes.
    """
    n = len(rows)
    chosen = geometry.krum_again_and_again(rows.squared_distances(), f, n - 2 * f)
    return Outcome(rows.subset(chosen).mean_around_median(n - 4 * f), accepted=chosen)


@aggregator(
    paper="El Mhamdi et al. 2020",
    needs="n > 2f, f <= 16",
    withstands=subsets.largest_f_for_diameter,
    kappa=_diameter_kappa,
)
def mda(rows: Rows, *, f: int) -> Outcome:
    """Minimum diameter averaging: the mean of the n - f rows whose largest distance is least.

    sum_{i in T} x_i / (n - f), T = argmin_{|T| = n-f} max_{i, j in T} |x_i - x_j|.
    El Mhamdi et al. 2020, "Genuinely distributed Byzantine machine learning"; |result - mean_S| is at most
    2f / (n - f) times the diameter of S (Farhadkhani et al. 2022). Exact, so refused where the search may
    take too long: for f > 16.
    """
    return rows.average(subsets.least_diameter(rows.squared_distances(), f))


@aggregator(
    paper="Farhadkhani et al. 2023",
    needs="n > 2f",
    withstands=_minority,
    kappa=_diameter_kappa,
    refuse=_trusts_a_row,
)
def monna(rows: Rows, *, f: int, trusted: int) -> Outcome:
    """The mean of the n - f rows nearest to a row that is trusted to be honest, that row with them.

    sum_{i in N} x_i / (n - f), where N are the n - f rows of least |x_i - x_trusted|.
    Farhadkhani et al. 2023, "Robust collaborative learning with linear gradient overhead". `trusted` is
    the number of that row among those given; of rows equally far from it, the first ones.
    """
    centre = rows.row(rows.position(trusted))
    return rows.average(np.sort(_least(rows.squared_distances_to(centre), len(rows) - f)))


@aggregator(paper="Allouah et al. 2025", needs="n > 2f", withstands=_minority, kappa=_caf_kappa)
def caf(rows: Rows, *, f: int) -> Outcome:
    """Covariance-bound agnostic filter: the weighted mean whose worst direction has the least variance.

    sum_i c_i x_i / sum_i c_i for the c of least largest eigenvalue among those visited: from c_i = 1,
    c_i <- c_i (1 - t_i / max_j t_j) while sum_i c_i > n - 2f, where t_i = <x_i - mean_c, v>^2 along the
    eigenvector v of that eigenvalue of the covariance under c.
    Allouah, Guerraoui and Stephan 2025, Algorithm 2; see `geometry.caf_weights`. The worst direction is
    exact, not one step of a random power iteration, so the result is the same every time.
    """
    return rows.weigh(geometry.caf_weights(rows.squared_distances(), f))


@aggregator(
    paper="Allouah et al. 2023b",
    needs="n > 2f, C(n, f) <= 2^17, C(n, f) (n - f)^3 <= 2^33",
    withstands=subsets.largest_f_for_eigenvalue,
    kappa=_smea_kappa,
)
def smea(rows: Rows, *, f: int) -> Outcome:
    """Smallest maximum eigenvalue averaging: the mean of the n - f rows whose covariance has the least
    largest eigenvalue.

    sum_{i in T} x_i / (n - f), T = argmin_{|T| = n-f} max_{|v| = 1} sum_{i in T} <x_i - mean_T, v>^2.
    Allouah et al. 2023b. Exact, so refused where there are too many subsets to try, or too large ones.
    """
    return rows.average(subsets.least_eigenvalue(rows.squared_distances(), f))


@aggregator(paper="Karimireddy et al. 2021", needs="10f <= n", withstands=lambda n: n // 10, refuse=_clips)
def centered_clipping(
    rows: Rows, *, centre: Vector | None = None, radius: float | None = None, steps: int = 3
) -> Outcome:
    """v <- v + (1/n) sum_i (x_i - v) min(1, radius / |x_i - v|), starting from v = centre, `steps` times.

    Karimireddy, He and Jaggi 2021, who start from the last result: keep it and pass it in, as
    nothing is remembered here. Without a centre, start from the median of every coordinate; without a
    radius, take the median distance of the rows from the centre.
    """
    n = len(rows)
    if centre is None:
        v = rows.middle_mean((n - 1) // 2, n // 2 + 1)
    else:
        v = as_vector(centre, rows.width, "centre")
    for _ in range(steps):
        distances = np.sqrt(rows.squared_distances_to(v))
        radius = float(np.median(distances)) if radius is None else radius
        factors = shrink(distances, radius)
        moved = rows.combined(factors / n)
        left = 1 - float(factors.mean())  # exactly 0 when no row was too far: then v is their mean
        v = moved if left == 0 else moved + np.float32(left) * v
    return Outcome(v)


@aggregator(paper="Sun et al. 2019", needs="f = 0", withstands=lambda n: 0, refuse=_bounds)
def norm_bounded_mean(rows: Rows, *, bound: float | None = None) -> Outcome:
    """(1/n) sum_i x_i min(1, bound / |x_i|): no row moves the mean by more than bound / n.

    Sun et al. 2019, "Can you really backdoor federated learning?" Without a bound, the median of
    the norms, which a minority cannot raise above the honest ones. That limits the harm, and withstands
    nothing: f rows of -x among n - f of x give (1 - 2f/n) x, however much the honest rows agree.
    """
    norms = np.sqrt(rows.squared_norms())
    return rows.weigh(shrink(norms, float(np.median(norms)) if bound is None else bound) / len(rows))


def shrink(lengths: Weights, limit: float) -> Weights:
    """Factors that bring lengths down to a limit, and leave shorter ones exactly as they are."""
    return np.where(lengths > limit, limit / np.where(lengths > limit, lengths, 1), 1.0)


def _least(scores: Weights, count: int) -> Indices:
    """Positions of the least scores; of equal ones, the first."""
    return np.argsort(scores, kind="stable")[:count]
