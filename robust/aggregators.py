"""The rules. Each docstring has the formula, the paper, and the number of bad rows that the rule withstands.

x_1..x_n are the rows, and at most f of them are bad. Sums are added up in double precision and rounded once. So equal
rows come back exactly, and the order of the rows affects only that rounding and the ties.

`kappa` is the constant of (f, kappa)-robustness (Allouah et al. 2023a): for every set S of n - f rows, |result -
mean_S|^2 <= kappa / |S| * sum_{i in S} |x_i - mean_S|^2. docs/robust.md derives the constants that are not published.

Allouah et al. 2023a is "Fixing by mixing" (AISTATS); Allouah et al. 2023b is "On the privacy-robustness-utility
trilemma" (ICML). Zeno and Zeno++, which need the server's own data, are in `zeno`.
"""

import math
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robust import geometry, subsets
from robust.geometry import Square, clipping_factors
from robust.kernels import Indices, Vector
from robust.parameters import must_not_be_negative
from robust.rows import Outcome, Rows, Weights, as_vector, must_be_among
from robust.rule import aggregator

FAR = 1e6  # typical distances: beyond this, only the direction of a row matters to the geometric median


def _minority(n: int) -> int:
    return (n - 1) // 2


def _median_kappa(n: int, f: int) -> float:
    return 4 * (1 + f / (n - 2 * f)) ** 2


def _krum_kappa(n: int, f: int) -> float:
    return 6 * (n - f) / (n - 2 * f - 1)


def _diameter_kappa(n: int, f: int) -> float:
    return 8 * f**2 / (n - f)


def _caf_kappa(n: int, f: int) -> float:
    root = math.sqrt((n - f) / (n - 2 * f))
    always = f / (n - 2 * f) * (1 + math.sqrt(2) + 2 * root) ** 2
    return min(always, 2 * f / (n - 3 * f) * (1 + root) ** 2) if n > 3 * f else always


def _check_fraction(n: int, *, f: int | None = None, fraction: float | None = None) -> None:
    if (f is None) == (fraction is None):
        raise ValueError("trimmed_mean takes either f or fraction")
    if fraction is not None:
        rows_in_fraction(n, fraction)


def _check_iteration(n: int, *, smoothing: float = 1.0, tolerance: float = 1.0, steps: int = 1) -> None:
    if smoothing <= 0 or tolerance <= 0:
        raise ValueError(f"both must be above 0: got smoothing={smoothing}, tolerance={tolerance}")
    _check_steps(steps)


def _check_m(n: int, *, f: int, m: int | None = None) -> None:
    if m is not None and not 1 <= m <= n - f:
        raise ValueError(f"multi_krum needs 1 <= m <= n - f: got m={m}, n={n}, f={f}")


def _check_clipping(n: int, *, centre: object = None, radius: float | None = None, steps: int = 1) -> None:
    must_not_be_negative(radius)
    _check_steps(steps)


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"at least one step is needed, got steps={steps}")


@aggregator(paper="McMahan et al. 2017", needs="f = 0", withstands=lambda n: 0)
def mean(rows: Rows) -> Outcome:
    """(1/n) sum_i x_i.

    McMahan et al. 2017, federated averaging with equal weights. Withstands no bad row: a single row can move
    the mean anywhere.

    >>> import robust
    >>> robust.mean([[1, 2], [3, 4], [5, 0]])
    array([3., 2.], dtype=float32)
    """
    return rows.weigh(np.full(len(rows), 1 / len(rows)))


@aggregator(paper="Yin et al. 2018, Def. 1", needs="n > 2f", withstands=_minority, kappa=_median_kappa)
def median(rows: Rows, *, middle: Literal["mean", "lower"] = "mean") -> Outcome:
    """The median of every coordinate: x_((n+1)/2), where x_(1) <= ... <= x_(n) are its values in order.

    Yin et al. 2018, Def. 1. For even n the median is (x_(n/2) + x_(n/2+1)) / 2, or x_(n/2) with
    middle="lower", as in `torch.median` and in the SHARE paper's runs. Withstands any minority of bad rows:
    every coordinate stays between the extremes of the honest rows.

    >>> import robust
    >>> robust.median([[1, 2], [3, 4], [900, 0]])
    array([3., 2.], dtype=float32)
    """
    n = len(rows)
    return Outcome(rows.middle_mean((n - 1) // 2, n // 2 + 1 if middle == "mean" else (n + 1) // 2))


@aggregator(
    paper="Yin et al. 2018, Def. 2",
    needs="n > 2f",
    withstands=_minority,
    kappa=lambda n, f: 6 * f / (n - 2 * f) * (1 + f / (n - 2 * f)),
    refuse=_check_fraction,
)
def trimmed_mean(rows: Rows, *, f: int | None = None, fraction: float | None = None) -> Outcome:
    """The mean of every coordinate without its f smallest and f largest values.

    sum_{f < i <= n-f} x_(i) / (n - 2f), where x_(1) <= ... <= x_(n) are the values of a coordinate in order.
    Yin et al. 2018, Def. 2. Withstands f bad rows, a minority. Instead of f, a fraction below 1/2 to cut on
    each side may be given; it is rounded down to rows (the SHARE paper ran fraction 0.4).

    >>> import robust
    >>> robust.trimmed_mean([[1], [2], [3], [4], [900]], f=1)
    array([3.], dtype=float32)
    """
    if f is None:
        assert fraction is not None
        f = max(rows_in_fraction(rows.given, fraction) - rows.ignored, 0)
    return Outcome(rows.middle_mean(f, len(rows) - f))


def rows_in_fraction(n: int, fraction: float) -> int:
    """How many rows a fraction per side is, rounded down.

    The product is first rounded to nine digits: 0.29 * 100 is 29. A fraction below 1/2 leaves at least a row.
    """
    if not 0 <= fraction < 0.5:
        raise ValueError(f"the fraction per side must be at least 0 and below 1/2, got {fraction}")
    return min(math.floor(round(fraction * n, 9)), _minority(n))


@aggregator(
    paper="Xie et al. 2018",
    needs="n > 2f",
    withstands=_minority,
    kappa=lambda n, f: 4 * (math.sqrt(f / (n - f)) + 2 * f / (n - 2 * f)) ** 2,
)
def meamed(rows: Rows, *, f: int) -> Outcome:
    """Mean around the median: for every coordinate, the mean of the n - f values nearest its median.

    sum_{i in N} x_i / (n - f), where N are the n - f rows of least |x_i - median| in that coordinate.
    Xie, Koyejo and Gupta 2018, "Generalized Byzantine-tolerant SGD". Withstands f bad rows, a minority. Of
    two values equally far from the median, the lower one is taken.

    >>> import robust
    >>> robust.meamed([[1], [2], [3], [4], [900]], f=1)
    array([2.5], dtype=float32)
    """
    return Outcome(rows.mean_around_median(len(rows) - f))


@aggregator(
    paper="Pillutla et al. 2019", needs="n > 2f", withstands=_minority, kappa=_median_kappa, refuse=_check_iteration
)
def geometric_median(rows: Rows, *, smoothing: float = 1e-6, tolerance: float = 1e-6, steps: int = 10_000) -> Outcome:
    """RFA: argmin_z sum_i |x_i - z|, by the smoothed Weiszfeld iteration.

    Pillutla, Kakade and Harchaoui 2019, Algorithm 2; `geometry.geometric_median_weights` explains `smoothing`.
    Withstands any minority of bad rows. The iteration runs until the objective is provably within `tolerance` of its
    least value, relative to it. If `steps` run out first, `converged` in the report is False.

    >>> import robust
    >>> robust.geometric_median([[0, 0], [0, 0], [900, 900]])
    array([0., 0.], dtype=float32)
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
        _with_far_rows_closer(rows, squared, far, near, reach), smoothing, tolerance, steps
    )
    shares = np.where(far, reach / np.sqrt(np.where(far, squared[near], 1)), 1)
    split = shares * weights  # a point between row `near` and a far row is a weighted sum of the two
    split[near] += weights.sum() - split.sum()
    return replace(rows.weigh(split), converged=converged)


def _with_far_rows_closer(rows: Rows, squared: Square, far: NDArray[np.bool_], near: int, reach: float) -> Square:
    """Squared distances as if each far row were `reach` away from row `near`, in the same direction.

    The pull of a far row on the median depends on its direction only. At a distance of 1e30 its rounding
    errors would exceed all other distances, so it is moved closer.
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


@aggregator(paper="Blanchard et al. 2017", needs="n > 2f + 2", withstands=lambda n: (n - 3) // 2, kappa=_krum_kappa)
def krum(rows: Rows, *, f: int) -> Outcome:
    """The row that is closest to its n - f - 2 nearest other rows, by the sum of squared distances.

    x_k with k = argmin_i s(i), s(i) = sum_{j in N_i} |x_i - x_j|^2, where N_i are the n - f - 2 rows other
    than i that are nearest to it. Blanchard et al. 2017, Sec. 4. Withstands f bad rows, n > 2f + 2. Of rows
    with the same score, the first one wins.

    >>> import robust
    >>> robust.krum([[1, 1], [2, 2], [3, 3], [2, 1], [900, 900]], f=1)
    array([2., 1.], dtype=float32)
    """
    return rows.pick(int(np.argmin(geometry.krum_scores(rows.squared_distances(), f))))


@aggregator(
    paper="Blanchard et al. 2017",
    needs="n > 2f + 2",
    withstands=lambda n: (n - 3) // 2,
    kappa=_krum_kappa,
    refuse=_check_m,
)
def multi_krum(rows: Rows, *, f: int, m: int | None = None) -> Outcome:
    """The mean of the m rows with the least Krum scores; m is n - f by default.

    sum_{i in M} x_i / m, where M are the m rows of least s(i) (see `krum`). Blanchard et al. 2017. Withstands
    f bad rows, n > 2f + 2. Of rows with the same score, the first ones win.

    >>> import robust
    >>> robust.multi_krum([[1, 1], [2, 2], [3, 3], [2, 1], [900, 900]], f=1)
    array([2.  , 1.75], dtype=float32)
    """
    most = len(rows) - f
    scores = geometry.krum_scores(rows.squared_distances(), f)
    return rows.average(np.sort(_least(scores, most if m is None else min(m, most))))


@aggregator(paper="El Mhamdi et al. 2018", needs="n >= 4f + 3", withstands=lambda n: (n - 3) // 4)
def bulyan(rows: Rows, *, f: int) -> Outcome:
    """Choose n - 2f rows by repeated Krum; then average, for every coordinate, the n - 4f chosen values
    nearest their median.

    sum_{i in N} x_i / (n - 4f), where N are the n - 4f chosen rows of least |x_i - median| in a coordinate,
    and the median is that of the chosen rows. El Mhamdi, Guerraoui and Rouault 2018: Krum runs again after
    each row that it removes. Withstands f bad rows, less than a quarter.

    >>> import robust
    >>> robust.bulyan([[1], [2], [3], [4], [5], [6], [900]], f=1)
    array([4.], dtype=float32)
    """
    n = len(rows)
    chosen = geometry.repeated_krum(rows.squared_distances(), f, n - 2 * f)
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
    El Mhamdi et al. 2020, "Genuinely distributed Byzantine machine learning". Withstands f bad rows, a
    minority of at most 16: |result - mean_S| is at most 2f / (n - f) times the diameter of S (Farhadkhani et
    al. 2022). The search is exact, so a larger f, which could take too long, is refused.

    >>> import robust
    >>> robust.mda([[1], [2], [3], [90], [900]], f=2)
    array([2.], dtype=float32)
    """
    return rows.average(subsets.least_diameter(rows.squared_distances(), f))


@aggregator(
    paper="Farhadkhani et al. 2023",
    needs="n > 2f",
    withstands=_minority,
    kappa=_diameter_kappa,
    refuse=lambda n, f, trusted: must_be_among(n, trusted),
)
def monna(rows: Rows, *, f: int, trusted: int) -> Outcome:
    """The mean of the n - f rows nearest to a row that is trusted to be honest, including that row.

    sum_{i in N} x_i / (n - f), where N are the n - f rows of least |x_i - x_trusted|. Farhadkhani et al. 2023, "Robust
    collaborative learning with linear gradient overhead". `trusted` is the row's number in the input. Withstands f bad
    rows, a minority, if the trusted row is honest. Of rows equally far from it, the first ones win.

    >>> import robust
    >>> robust.monna([[1], [2], [3], [90], [900]], f=2, trusted=0)
    array([2.], dtype=float32)
    """
    centre = rows.row(rows.position(trusted))
    return rows.average(np.sort(_least(rows.squared_distances_to(centre), len(rows) - f)))


@aggregator(paper="Allouah et al. 2025", needs="n > 2f", withstands=_minority, kappa=_caf_kappa)
def caf(rows: Rows, *, f: int) -> Outcome:
    """Covariance-bound agnostic filter: the weighted mean whose largest variance in any direction is least.

    sum_i c_i x_i / sum_i c_i for the c of least largest eigenvalue among those visited: from c_i = 1,
    c_i <- c_i (1 - t_i / max_{j: c_j > 0} t_j) while sum_i c_i > n - 2f, where t_i = <x_i - mean_c, v>^2 along
    the eigenvector v of that eigenvalue of the covariance under c.
    Allouah, Guerraoui and Stephan 2025, Algorithm 2; see `geometry.caf_weights`. Withstands f bad rows, a
    minority. v is exact, not one step of a random power iteration, so the result is deterministic; ties do not
    depend on the order of the rows.

    >>> import robust
    >>> robust.caf([[2], [2], [2], [900]], f=1)
    array([2.], dtype=float32)
    """
    return rows.weigh(geometry.caf_weights(rows.squared_distances(), f))


@aggregator(
    paper="Allouah et al. 2023b",
    needs="n > 2f, C(n, f) <= 2^17, C(n, f) (n - f)^3 <= 2^33",
    withstands=subsets.largest_f_for_eigenvalue,
    kappa=lambda n, f: 4 * f / (n - 2 * f),
)
def smea(rows: Rows, *, f: int) -> Outcome:
    """Smallest maximum eigenvalue averaging: the mean of the n - f rows whose covariance has the least
    largest eigenvalue.

    sum_{i in T} x_i / (n - f), T = argmin_{|T| = n-f} max_{|v| = 1} sum_{i in T} <x_i - mean_T, v>^2.
    Allouah et al. 2023b. Withstands f bad rows, a minority, as far as trying all subsets is feasible. The
    search is exact, so an f with too many or too large subsets is refused.

    >>> import robust
    >>> robust.smea([[1], [2], [3], [90], [900]], f=2)
    array([2.], dtype=float32)
    """
    return rows.average(subsets.least_eigenvalue(rows.squared_distances(), f))


@aggregator(paper="Karimireddy et al. 2021", needs="10f <= n", withstands=lambda n: n // 10, refuse=_check_clipping)
def centered_clipping(
    rows: Rows, *, centre: Vector | None = None, radius: float | None = None, steps: int = 3
) -> Outcome:
    """v <- v + (1/n) sum_i (x_i - v) min(1, radius / |x_i - v|), starting from v = centre, `steps` times.

    Karimireddy, He and Jaggi 2021. They start from the last result; pass it as `centre`. The default centre
    is the median of every coordinate, and the default radius is the median distance of the rows from the
    centre. Withstands a tenth of the rows, if the centre is near the honest ones.

    >>> import robust
    >>> robust.centered_clipping([[10], [10], [-900]], centre=[8], radius=3.0, steps=1)
    array([8.333333], dtype=float32)
    """
    n = len(rows)
    v = rows.middle_mean((n - 1) // 2, n // 2 + 1) if centre is None else as_vector(centre, rows.width, "centre")
    for _ in range(steps):
        distances = np.sqrt(rows.squared_distances_to(v))
        radius = float(np.median(distances)) if radius is None else radius
        factors = clipping_factors(distances, radius)
        moved = rows.combined(factors / n)
        left = 1 - float(factors.mean())  # exactly 0 if no row was clipped: then v is their mean
        v = moved if left == 0 else moved + np.float32(left) * v
    return Outcome(v)


@aggregator(
    paper="Sun et al. 2019",
    needs="f = 0",
    withstands=lambda n: 0,
    refuse=lambda n, bound=None: must_not_be_negative(bound),
)
def norm_bounded_mean(rows: Rows, *, bound: float | None = None) -> Outcome:
    """(1/n) sum_i x_i min(1, bound / |x_i|): no row moves the mean by more than bound / n.

    Sun et al. 2019, "Can you really backdoor federated learning?" The default bound is the median of the
    norms, which a minority cannot raise above the honest norms. The bound limits the damage, but the rule
    withstands no bad row: f rows of -x among n - f of x give (1 - 2f/n) x, even if all honest rows agree.

    >>> import robust
    >>> robust.norm_bounded_mean([[3, 4], [0, 5], [300, 400]])
    array([2.       , 4.3333335], dtype=float32)
    """
    norms = np.sqrt(rows.squared_norms())
    limit = float(np.median(norms)) if bound is None else bound
    return rows.weigh(clipping_factors(norms, limit) / len(rows))


def _check_dnc(n: int, *, f: int, rng: np.random.Generator, rounds: int = 5, sampled: int = 10_000) -> None:
    _check_steps(rounds)
    if sampled < 1:
        raise ValueError(f"at least one coordinate is needed, got sampled={sampled}")


@aggregator(paper="Shejwalkar et al. 2021", needs="n > 2f", withstands=_minority, refuse=_check_dnc)
def dnc(rows: Rows, *, f: int, rng: np.random.Generator, rounds: int = 5, sampled: int = 10_000) -> Outcome:
    """Divide and conquer: the mean of the rows that never stand out along the direction of largest variance.

    The f rows of largest <x_i - mean, v>^2 are marked, v the top right singular vector of the centred rows, on
    `sampled` coordinates that rng draws; after `rounds` such draws, the mean of the rows without a mark.
    Shejwalkar and Houmansadr 2021 (NDSS), Algorithm 2, with niters = `rounds`, b = `sampled` and c = 1. If every row
    has a mark, where the paper has no result, the rows with the fewest marks count. Of rows with the same score, the
    first are marked.

    Withstands f bad rows, a minority, if they are about alike, as those of its authors' attacks are, and differ from
    the honest rows in a sampled coordinate. It does not withstand others: behind a much larger bad row, a smaller one
    looks like an honest row, in the same direction or in another.

    >>> import numpy as np, robust
    >>> robust.dnc([[1, 2], [2, 1], [1, 1], [2, 2], [90, 90]], f=1, rng=np.random.default_rng(0))
    array([1.5, 1.5], dtype=float32)
    """
    rows.squared_norms()  # detects rows that are not finite before the generator is used
    marks = np.zeros(len(rows), dtype=np.int64)
    for _ in range(rounds if f else 0):
        chosen = np.sort(rng.permutation(rows.width)[:sampled])
        marks[geometry.stand_out(rows.columns(chosen).astype(np.float64), f)] += 1
    return rows.average(np.flatnonzero(marks == marks.min()))


def _least(scores: Weights, count: int) -> Indices:
    """Positions of the least scores; of equal scores, the first."""
    return np.argsort(scores, kind="stable")[:count]
