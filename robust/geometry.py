"""Rules that need nothing but the distances between rows: small matrices in, weights or row numbers out.

Every point that these rules visit is a weighted sum z = sum_i w_i x_i with sum_i w_i = 1, and for such
points distances follow from D_ij = |x_i - x_j|^2 alone:

    |x_i - z|^2 = (D w)_i - w'Dw / 2,      |z - z'|^2 = -u'Du / 2  with u = w - w'.

So a rule that iterates over all rows reads the matrix twice in all, once for D and once for the result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robust.rows import Indices, Weights

Square = NDArray[np.float64]


def krum_scores(squared: Square, f: int) -> Weights:
    """Sum of squared distances of each row to its n - f - 2 nearest others (Blanchard et al. 2017, Sec. 4).

    At least one neighbour counts, which only matters to Bulyan's last selections.
    """
    n = len(squared)
    others = squared + np.diag(np.full(n, np.inf))
    nearest = np.sort(others, axis=1)[:, : max(n - f - 2, min(1, n - 1))]
    scores: Weights = nearest.sum(axis=1)
    return scores


def krum_again_and_again(squared: Square, f: int, count: int) -> Indices:
    """Bulyan's selection: take the Krum row, remove it, and run Krum on the rest, `count` times.

    El Mhamdi et al. 2018. Towards the end a score counts one neighbour only, and two rows that
    are nearest to each other always tie. Of equal scores, the row with the least sum of distances to all
    that are left wins, so that the order of rows does not decide; then the row that comes first.
    """
    left = np.arange(len(squared))
    chosen = []
    for _ in range(count):
        among = squared[np.ix_(left, left)]
        best = int(np.lexsort((among.sum(axis=1), krum_scores(among, f)))[0])
        chosen.append(left[best])
        left = np.delete(left, best)
    return np.sort(np.array(chosen, dtype=np.int64))


def typical_distances(squared: Square) -> Weights:
    """Median distance of each row to all rows: small for the majority, whatever the others hold."""
    typical: Weights = np.median(np.sqrt(squared), axis=1)
    return typical


def geometric_median_weights(
    squared: Square, smoothing: float, tolerance: float, steps: int
) -> tuple[Weights, bool]:
    """Weights of the geometric median, and whether `steps` were enough to be within `tolerance`.

    Weiszfeld's iteration, smoothed (Pillutla et al. 2019, Algorithm 2).

    Minimises g(z) = sum_i h(|x_i - z|), where h(r) is r, or below nu the parabola that meets it smoothly;
    nu is `smoothing` times a typical distance between rows, so that scaling the rows scales the result.

    Stops when the objective is within `tolerance` of the optimum, relative to it, for certain: g is convex,
    so g(z) - g* <= |grad g(z)| |z - z*|, and |z - z*| <= 2 g(z) / n. Starts near the majority, not at the
    mean: rows far from most others begin with a small weight.
    """
    n = len(squared)
    typical = typical_distances(squared)
    same = typical == 0
    if same.any():  # more than half of the rows are one point, and that point is the median
        return np.asarray(same / np.count_nonzero(same), dtype=np.float64), True
    nu = smoothing * float(np.median(typical))
    weights: Weights = (1 / typical) / (1 / typical).sum()
    for _ in range(steps):
        to_rows = np.sqrt(np.maximum(squared @ weights - weights @ squared @ weights / 2, 0))
        pull = 1 / np.maximum(to_rows, nu)
        following = pull / pull.sum()
        step = following - weights
        gradient = pull.sum() * np.sqrt(max(-(step @ squared @ step) / 2, 0))
        weights = following
        if 2 * gradient <= tolerance * n:
            return weights, True
    return weights, False


def caf_weights(squared: Square, f: int) -> Weights:
    """Weights of the covariance-bound agnostic filter (Allouah, Guerraoui and Stephan 2025, Algorithm 2).

    Start with c = 1; while sum c > n - 2f, find the direction v of largest variance under weights c, and
    lower each c_i by the share of its squared projection on v in the largest such projection (among rows
    that still count). The weights of least variance along their worst direction are the answer. With the
    Gram matrix in place of the covariance, v comes from an exact n by n eigenproblem.
    """
    n = len(squared)
    counts = np.ones(n)
    best, chosen = np.inf, counts / n
    while counts.sum() > n - 2 * f:
        weights = counts / counts.sum()
        gram = centred_gram(squared, weights)
        root = np.sqrt(weights)
        values, vectors = np.linalg.eigh(root[:, None] * gram * root)
        if values[-1] < best:
            best, chosen = values[-1], weights
        projections = (gram @ (root * vectors[:, -1])) ** 2
        largest = projections[counts > 0].max()
        if largest <= 0:  # the rows that still count are all the same
            break
        counts = np.where(counts > 0, counts * np.maximum(1 - projections / largest, 0), 0)
    return chosen


def centred_gram(squared: Square, weights: Weights) -> Square:
    """Inner products of x_i - z, where z is the sum of the rows times weights that add up to 1."""
    to_mean = squared @ weights
    gram: Square = (to_mean[:, None] + to_mean - weights @ to_mean - squared) / 2
    return gram
