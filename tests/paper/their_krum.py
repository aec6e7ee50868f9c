"""Krum as the authors of the paper ran it, to see what it changes. It is not Krum, and no part of `robust`.

Their distance is the sum over the model's tensors of the norms of differences, not squared. A matrix is filled row by
row: entries before the diagonal are read from earlier rows, which were sorted in place by then, so they are other
distances. This was written from the description in docs/experiments.md, and not from their code.

    share reproduce foe-krum-m3 --set 'aggregation.rule="tests.paper.their_krum:their_krum"'
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import robust
from robust import Outcome, Rows

TENSORS = {  # the lengths of a model's tensors, by their sum
    2_156_490: (2400, 32, 51200, 64, 2_097_152, 512, 5120, 10),  # the paper's network for CIFAR-10
    13_706: (144, 16, 4608, 32, 8192, 64, 640, 10),  # small-cnn on 8x8 digits
}


def distances(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """The sum of the norms of differences, tensor by tensor; a model that is not listed has one tensor."""
    total = np.zeros((len(rows), len(rows)))
    first = 0
    for length in TENSORS.get(rows.shape[1], (rows.shape[1],)):
        part = rows[:, first : first + length].astype(np.float64)
        total += np.stack([np.linalg.norm(part - row, axis=1) for row in part])
        first += length
    return total


def scores(exact: NDArray[np.float64], f: int) -> NDArray[np.float64]:
    """The sums over the n - f - 2 nearest, with entries before the diagonal from rows that are already sorted."""
    count = len(exact)
    kept = np.triu(exact, 1)
    found = np.empty(count)
    for i in range(count):
        kept[i, :i] = kept[:i, i]
        kept[i] = np.sort(kept[i])
        found[i] = kept[i, 1 : count - f - 1].sum()
    return found


@robust.aggregator(
    name="krum_as_the_paper_ran_it",
    paper="Velicheti et al. 2021",
    needs="n > f + 2",
    withstands=lambda n: max(0, n - 3),
)
def their_krum(rows: Rows, *, f: int) -> Outcome:
    """The row with the smallest score above. It is bounded by no proof. Velicheti et al. 2021, as run."""
    return rows.pick(int(np.argmin(scores(distances(rows.array()), f))))
