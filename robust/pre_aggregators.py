"""Pre-aggregation: steps that turn the rows into other rows, on which a rule then works.

The result has no rows with NaN or infinity. `detail` reports the rows that were ignored, and `aggregate`
passes their number on to the rule.
"""

import numpy as np

from robust.geometry import clipping_factors
from robust.parameters import must_not_be_negative
from robust.rows import Rows
from robust.rule import Mixed, pre_aggregator


def _check_size(n: int, *, size: int, rng: np.random.Generator) -> None:
    if size < 1:
        raise ValueError(f"a bucket needs at least one row, got size={size}")


@pre_aggregator(
    paper="Sun et al. 2019", needs="nothing of n and f", refuse=lambda n, radius: must_not_be_negative(radius)
)
def clipping(rows: Rows, *, radius: float) -> Mixed:
    """y_i = x_i min(1, radius / |x_i|): rows longer than the radius are shortened to it.

    Sun et al. 2019, "Can you really backdoor federated learning?", who clip before they average.

    >>> import robust
    >>> robust.clipping([[3, 4], [0, 1]], radius=2.5).tolist()
    [[1.5, 2.0], [0.0, 1.0]]
    """
    return Mixed(rows.scaled(clipping_factors(np.sqrt(rows.squared_norms()), radius)))


@pre_aggregator(paper="Allouah et al. 2025b", needs="n > f")
def arc(rows: Rows, *, f: int) -> Mixed:
    """Adaptive robust clipping: shorten the k = floor(2 (f/n) (n - f)) longest rows to the next longest.

    y_i = x_i min(1, r / |x_i|), where r is the (k+1)th largest of the norms. Allouah et al. 2025b, "Adaptive gradient
    clipping for robust federated learning". At least n - k rows stay unchanged.

    >>> import robust
    >>> robust.arc([[1], [2], [3], [900]], f=1).tolist()
    [[1.0], [2.0], [3.0], [3.0]]
    """
    n = len(rows)
    norms = np.sqrt(rows.squared_norms())
    cut = 2 * f * (n - f) // n
    return Mixed(rows.scaled(clipping_factors(norms, float(np.sort(norms)[n - cut - 1]))))


@pre_aggregator(paper="Allouah et al. 2023a", needs="n > f")
def nnm(rows: Rows, *, f: int) -> Mixed:
    """Nearest-neighbour mixing: every row becomes the mean of the n - f rows nearest to it, itself included.

    y_i = sum_{j in N_i} x_j / (n - f), where N_i are the n - f rows of least |x_j - x_i|.
    Allouah et al. 2023a, "Fixing by mixing". A rule that is (f, kappa)-robust becomes
    (f, 8f / (n - f) (kappa + 1))-robust on mixed rows. Of rows equally near, the first ones count.

    >>> import robust
    >>> robust.nnm([[1], [3], [900]], f=1).tolist()
    [[2.0], [2.0], [451.5]]
    """
    n = len(rows)
    nearest = np.argsort(rows.squared_distances(), axis=1, kind="stable")[:, : n - f]
    weights = np.zeros((n, n))
    np.put_along_axis(weights, nearest, 1 / (n - f), axis=1)
    return Mixed(rows.mixed(weights))


@pre_aggregator(paper="Karimireddy et al. 2022", needs="nothing of n and f", refuse=_check_size)
def bucketing(rows: Rows, *, size: int, rng: np.random.Generator) -> Mixed:
    """Shuffle the rows, and replace every `size` of them by their mean; the last bucket may be smaller.

    y_b = sum_{i in B_b} x_i / |B_b| for the buckets B_1, B_2, ... of a random partition, drawn from rng.
    Karimireddy, He and Jaggi 2022, Algorithm 1. f bad rows spoil at most f of the ceil(n / size) buckets.

    >>> import numpy as np, robust
    >>> robust.bucketing([[2], [2], [2], [2]], size=2, rng=np.random.default_rng(0)).tolist()
    [[2.0], [2.0]]
    """
    rows.squared_norms()  # detects rows that are not finite before the generator is used
    order = rng.permutation(len(rows))
    members = tuple(order[i : i + size] for i in range(0, len(rows), size))
    weights = np.zeros((len(members), len(rows)))
    for bucket, chosen in enumerate(members):
        weights[bucket, chosen] = 1 / len(chosen)
    return Mixed(rows.mixed(weights), members)
