"""Steps before a rule: rows in, rows out, for the rule to work on.

Rows with NaN or infinity do not come out again: `detail` says which they were, and `aggregate` keeps count
of them for the rule.
"""

from __future__ import annotations

import numpy as np

from robust.aggregators import must_not_be_negative, shrink
from robust.rows import Rows
from robust.rule import Mixed, pre_aggregator


def _clips(n: int, *, radius: float) -> None:
    must_not_be_negative(radius)


def _fills_buckets(n: int, *, size: int, rng: np.random.Generator) -> None:
    if size < 1:
        raise ValueError(f"a bucket holds at least one row, got size={size}")


@pre_aggregator(paper="Sun et al. 2019", needs="nothing of n and f", refuse=_clips)
def clipping(rows: Rows, *, radius: float) -> Mixed:
    """y_i = x_i min(1, radius / |x_i|): rows longer than the radius are brought down to it.

    Sun et al. 2019, "Can you really backdoor federated learning?", who clip before they average.
    """
    return Mixed(rows.scaled(shrink(np.sqrt(rows.squared_norms()), radius)))


@pre_aggregator(paper="Allouah et al. 2025b", needs="n > f")
def arc(rows: Rows, *, f: int) -> Mixed:
    """Adaptive robust clipping: the k = floor(2 (f/n) (n - f)) longest rows are cut to the next longest.

    y_i = x_i min(1, r / |x_i|), where r is the (k+1)th largest of the norms.
    Allouah et al. 2025b, "Adaptive gradient clipping for robust federated learning". The radius
    is the norm of rank n - k, so at least n - k rows are left as they are.
    """
    n = len(rows)
    norms = np.sqrt(rows.squared_norms())
    cut = 2 * f * (n - f) // n
    return Mixed(rows.scaled(shrink(norms, float(np.sort(norms)[n - cut - 1]))))


@pre_aggregator(paper="Allouah et al. 2023a", needs="n > f")
def nnm(rows: Rows, *, f: int) -> Mixed:
    """Nearest-neighbour mixing: every row becomes the mean of the n - f rows nearest to it, itself with them.

    y_i = sum_{j in N_i} x_j / (n - f), where N_i are the n - f rows of least |x_j - x_i|.
    Allouah et al. 2023a, "Fixing by mixing". A rule that is (f, kappa)-robust becomes
    (f, 8f / (n - f) (kappa + 1))-robust on rows so mixed. Of rows equally near, the first ones.
    """
    n = len(rows)
    nearest = np.argsort(rows.squared_distances(), axis=1, kind="stable")[:, : n - f]
    weights = np.zeros((n, n))
    np.put_along_axis(weights, nearest, 1 / (n - f), axis=1)
    return Mixed(rows.mixed(weights))


@pre_aggregator(paper="Karimireddy et al. 2022", needs="nothing of n and f", refuse=_fills_buckets)
def bucketing(rows: Rows, *, size: int, rng: np.random.Generator) -> Mixed:
    """Shuffle the rows, and replace every `size` of them by their mean; the last bucket may be smaller.

    y_b = sum_{i in B_b} x_i / |B_b| for the buckets B_1, B_2, ... of a random partition.
    Karimireddy, He and Jaggi 2022, Algorithm 1. f bad rows spoil f of the ceil(n / size) buckets at most.
    """
    rows.squared_norms()  # rows that are not finite are found before a draw is spent on them
    order = rng.permutation(len(rows))
    members = tuple(order[i : i + size] for i in range(0, len(rows), size))
    weights = np.zeros((len(members), len(rows)))
    for bucket, inside in enumerate(members):
        weights[bucket, inside] = 1 / len(inside)
    return Mixed(rows.mixed(weights), members)
