"""The part of a rule that needs only the distances between rows: an n by n matrix in, weights or rows out.

Every point z that these rules visit is a weighted sum of rows, z = sum_i w_i x_i with sum_i w_i = 1. The
distances D_ij = |x_i - x_j|^2 determine the distances of such points:

    |x_i - z|^2 = (D w)_i - w'Dw / 2,      |z - z'|^2 = -u'Du / 2  with u = w - w'.

So a rule that iterates reads the rows only twice: once for D and once for the result.
"""

import numpy as np
from numpy.typing import NDArray

from robust.kernels import Indices
from robust.rows import Weights

Square = NDArray[np.float64]
TIE = 1e-9  # numbers closer than this, relative to them, are equal but for rounding


def krum_scores(squared: Square, f: int) -> Weights:
    """Sum of squared distances of each row to its n - f - 2 nearest others (Blanchard et al. 2017, Sec. 4).

    At least one neighbour counts, even in Bulyan's last selections, where few rows remain.
    """
    n = len(squared)
    others = squared + np.diag(np.full(n, np.inf))
    nearest = np.sort(others, axis=1)[:, : max(n - f - 2, min(1, n - 1))]
    scores: Weights = nearest.sum(axis=1)
    return scores


def repeated_krum(squared: Square, f: int, count: int) -> Indices:
    """Bulyan's selection: take the Krum row, remove it, and run Krum on the rest, `count` times.

    El Mhamdi et al. 2018. In the last selections a score counts one neighbour only, so two rows that are
    nearest to each other tie. The row with the least sum of distances to all remaining rows then wins.
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
    """Median distance of each row to all rows. It is small for the majority, whatever the other rows hold."""
    typical: Weights = np.median(np.sqrt(squared), axis=1)
    return typical


def geometric_median_weights(squared: Square, smoothing: float, tolerance: float, steps: int) -> tuple[Weights, bool]:
    """Weights of the geometric median, and whether `steps` were enough to be within `tolerance`.

    Smoothed Weiszfeld iteration (Pillutla et al. 2019, Algorithm 2). It minimises g(z) = sum_i h(|x_i - z|),
    where h(r) = r for r >= nu and a parabola that meets it smoothly below nu. nu is `smoothing` times a
    typical distance between rows, so that scaling the rows scales the result.

    The iteration stops when the objective is provably within `tolerance` of the optimum, relative to it: g is
    convex, so g(z) - g* <= |grad g(z)| |z - z*|, and |z - z*| <= 2 g(z) / n. Rows far from most others start
    with a small weight, so the iteration starts near the majority and not at the mean.
    """
    n = len(squared)
    typical = typical_distances(squared)
    same = typical == 0
    if same.any():  # more than half of the rows are equal, and they are the median
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

    Start with c = 1. While sum c > n - 2f, find the direction v of largest variance under weights c. Lower
    each c_i in proportion to its squared projection on v, so that the row of positive weight with the largest
    projection gets weight 0. Of all weights visited, return those whose largest variance is least. The Gram matrix
    replaces the covariance, so v comes from an exact n by n eigenproblem.

    Numbers that differ by less than TIE, relative to them, count as equal, so that rounding decides nothing: of equal
    variances the first weights win, rows with equal projections lose their weight together, and where several
    directions have the largest variance, the squared projections on all of them are added up.
    """
    n = len(squared)
    counts = np.ones(n)
    best, chosen = np.inf, counts / n
    while counts.sum() > (n - 2 * f) * (1 + TIE):
        weights = counts / counts.sum()
        gram = centred_gram(squared, weights)
        root = np.sqrt(weights)
        values, vectors = np.linalg.eigh(root[:, None] * gram * root)
        if values[-1] < best * (1 - TIE):
            best, chosen = values[-1], weights
        widest = vectors[:, values >= values[-1] * (1 - TIE)]
        projections = ((gram @ (root[:, None] * widest)) ** 2).sum(axis=1)
        largest = projections[counts > 0].max()
        if largest <= 0:  # all rows with a positive weight are equal
            break
        counts = np.where(projections < largest * (1 - TIE), counts * (1 - projections / largest), 0)
    return chosen


def stand_out(matrix: Square, count: int) -> Indices:
    """The `count` rows that are furthest from the mean along the direction of largest variance.

    Where several directions have the largest variance, the squared projections on all of them are added up. Scores
    closer than TIE, relative to the largest, are equal, and of equal ones the first rows are taken.
    """
    centred = matrix - matrix.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    scores = (vectors[:, values >= values[-1] * (1 - TIE)] ** 2).sum(axis=1)
    last = np.sort(scores)[len(scores) - count]
    rounding = TIE * scores.max()
    above = np.flatnonzero(scores > last + rounding)
    level = np.flatnonzero(np.abs(scores - last) <= rounding)
    return np.sort(np.concatenate([above, level[: count - len(above)]]))


def clipping_factors(lengths: Weights, limit: float) -> Weights:
    """Factors that reduce lengths above a limit to the limit, and are exactly 1 for the others."""
    return np.where(lengths > limit, limit / np.where(lengths > limit, lengths, 1), 1.0)


def centred_gram(squared: Square, weights: Weights) -> Square:
    """Inner products of the x_i - z, where z is the weighted sum of the rows and the weights add up to 1."""
    to_mean = squared @ weights
    gram: Square = (to_mean[:, None] + to_mean - weights @ to_mean - squared) / 2
    return gram
