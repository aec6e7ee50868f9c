"""Exact search for the best n - f of n rows, and the largest f for which the search is feasible.

Both searches grow exponentially with f. The limits below keep them within seconds on one core. They depend on
n and f alone, so a Byzantine client cannot make a search slow by what it sends. A rule that searches
withstands no more bad rows than this, so no plan relies on a search that would be refused.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, islice

import numpy as np

from robust.geometry import Square
from robust.kernels import Indices

LARGEST_F = 16  # of the search for the least diameter, which may branch 2^f times
MOST_SUBSETS = 1 << 17  # eigenproblems in the search for the least eigenvalue
MOST_WORK = 1 << 33  # number of eigenproblems times the cube of their size
BATCH = 1 << 20  # numbers in the matrices of one batch


def largest_f_for_diameter(n: int) -> int:
    """The largest number of rows, a minority of n, that the search for the least diameter may leave out."""
    return min((n - 1) // 2, LARGEST_F)


@lru_cache(maxsize=1024)
def largest_f_for_eigenvalue(n: int) -> int:
    """The largest number of rows, a minority of n, that the search for the least eigenvalue may leave out."""

    def feasible(f: int) -> bool:
        count = math.comb(n, f)
        return count <= MOST_SUBSETS and count * (n - f) ** 3 <= MOST_WORK

    f = 0  # the mean of all rows is always feasible
    while f < (n - 1) // 2 and feasible(f + 1):
        f += 1
    return f


def least_diameter(squared: Square, f: int) -> Indices:
    """The n - f rows whose largest distance is least; of several such sets, the least sum of distances.

    Call a pair of rows long if its distance exceeds delta. Leaving out f rows so that no long pair remains is
    a vertex cover of the long pairs. Bisection finds the least delta that allows a cover by f rows. Branching
    on a row with the most long pairs finds all such covers: either this row is left out, or all its partners.
    That takes at most 2^f branches, not C(n, f). A cover of fewer than f rows is completed by the last rows.
    """
    n = len(squared)
    values = np.unique(squared)
    low, high = 0, len(values) - 1  # the least feasible diameter is values[low..high]
    while low < high:
        middle = (low + high) // 2
        if next(_covers(_long_pairs(squared, values[middle]), f), None) is None:
            low = middle + 1
        else:
            high = middle
    best, chosen = np.inf, np.arange(n - f)
    for cover in _covers(_long_pairs(squared, values[low]), f):
        left = [i for i in range(n) if not cover >> i & 1][: n - f]
        spread = float(squared[np.ix_(left, left)].sum())
        if spread < best or (spread == best and left < chosen.tolist()):
            best, chosen = spread, np.array(left)
    return chosen


def _long_pairs(squared: Square, diameter: float) -> list[int]:
    """For each row, the set of rows that are further from it than the diameter, as bits."""
    return [int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little") for row in squared > diameter]


def _covers(partners: list[int], budget: int) -> Iterator[int]:
    """Sets of at most `budget` rows, as bits, that touch every long pair; all minimal ones are among them."""
    uncovered = [row.bit_count() for row in partners]
    most = max(range(len(partners)), key=uncovered.__getitem__)
    if not uncovered[most]:
        yield 0
        return
    if sum(uncovered) > 2 * budget * uncovered[most]:  # `budget` rows cannot touch all pairs
        return
    for out in (1 << most, partners[most]):
        if out.bit_count() <= budget:
            rest = [0 if out >> i & 1 else row & ~out for i, row in enumerate(partners)]
            for cover in _covers(rest, budget - out.bit_count()):
                yield cover | out


def least_eigenvalue(squared: Square, f: int) -> Indices:
    """The n - f rows whose covariance has the least largest eigenvalue (Allouah et al. 2023b).

    The largest eigenvalue of the covariance is that of the centred Gram matrix, divided by n - f. Of equal
    values, the first subset wins.
    """
    n = len(squared)
    size = n - f
    centre = np.eye(size) - 1 / size
    best, chosen = np.inf, np.arange(size)
    subsets = combinations(range(n), size)
    while batch := list(islice(subsets, max(BATCH // size**2, 1))):
        members = np.array(batch)
        parts = squared[members[:, :, None], members[:, None, :]]
        largest = np.linalg.eigvalsh(centre @ parts @ centre / -2)[:, -1]
        least = int(np.argmin(largest))
        if largest[least] < best:
            best, chosen = float(largest[least]), members[least]
    return chosen
