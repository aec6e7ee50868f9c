"""Exact search for the best n - f of n rows, and up to which f it is feasible.

Both searches grow exponentially with f. The limits below keep them to seconds on one core, and depend on
n and f alone: what a Byzantine client sends cannot turn a feasible search into an endless one. A rule that
searches withstands no more bad rows than this, so that no plan counts on a search that will be refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, islice

import numpy as np

from robust.geometry import Square
from robust.rows import Indices

LARGEST_F = 16  # for the search for the least diameter, which may branch 2^f times
MOST_SUBSETS = 1 << 17  # eigenproblems in the search for the least eigenvalue
MOST_WORK = 1 << 33  # number of them times the cube of their size
BATCH = 1 << 20  # numbers in the matrices that are solved at a time


def largest_f_for_diameter(n: int) -> int:
    """How many of n rows, a minority, the search for the least diameter may leave out."""
    return min((n - 1) // 2, LARGEST_F)


@lru_cache(maxsize=1024)
def largest_f_for_eigenvalue(n: int) -> int:
    """How many of n rows, a minority, the search for the least eigenvalue may leave out."""

    def feasible(f: int) -> bool:
        count = math.comb(n, f)
        return count <= MOST_SUBSETS and count * (n - f) ** 3 <= MOST_WORK

    f = min((n - 1) // 2, 0)  # the mean of all is never too much work
    while f < (n - 1) // 2 and feasible(f + 1):
        f += 1
    return f


def least_diameter(squared: Square, f: int) -> Indices:
    """The n - f rows whose largest distance is least; of those, the ones with the least sum of distances.

    Leaving out f rows so that no two of the rest are further apart than delta means covering every longer
    pair with f rows: a vertex cover. The least delta that allows it is found by halving, and all covers of
    f rows by branching on a row with most long pairs: either it goes, or all its partners do. That takes
    at most 2^f branches, where trying all subsets would take C(n, f). Rows that are left over when fewer
    than f suffice go from the end.
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
    """For each row, a bit set of the rows that are further from it than the diameter."""
    return [
        int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little") for row in squared > diameter
    ]


def _covers(partners: list[int], budget: int) -> Iterator[int]:
    """Bit sets of at most `budget` rows that touch every long pair; all the minimal ones are among them."""
    uncovered = [row.bit_count() for row in partners]
    most = max(range(len(partners)), key=uncovered.__getitem__)
    if not uncovered[most]:
        yield 0
        return
    if sum(uncovered) > 2 * budget * uncovered[most]:  # even the busiest rows could not touch all pairs
        return
    for gone in (1 << most, partners[most]):
        if gone.bit_count() <= budget:
            rest = [0 if gone >> i & 1 else row & ~gone for i, row in enumerate(partners)]
            for cover in _covers(rest, budget - gone.bit_count()):
                yield cover | gone


def least_eigenvalue(squared: Square, f: int) -> Indices:
    """The n - f rows whose covariance has the least largest eigenvalue (Allouah et al. 2023b).

    The largest eigenvalue of the covariance is that of the centred Gram matrix, divided by n - f. Of equal
    ones, the subset that comes first wins.
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
