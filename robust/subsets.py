"""Exact search for the best n - f of n rows, where that is feasible, and a refusal where it is not.

Both searches grow exponentially with f. The limits below keep them to seconds on one core, and depend on
n and f alone: what a Byzantine client sends cannot turn a feasible search into an endless one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, islice

import numpy as np

from robust.geometry import Square
from robust.rows import Indices

LARGEST_F = 16  # for the search for the least diameter, which may branch 2^f times
MOST_SUBSETS = 1 << 17  # eigenproblems in the search for the least eigenvalue
BATCH = 1 << 10


def least_diameter(squared: Square, f: int) -> Indices:
    """The n - f rows whose largest distance is least; of those, the ones with the least sum of distances.

    Leaving out f rows so that no two of the rest are further apart than delta means covering every longer
    pair with f rows: a vertex cover. The least delta that allows it is found by halving, and all covers of
    f rows by branching on a row with most long pairs: either it goes, or all its partners do. That takes
    at most 2^f branches, where trying all subsets would take C(n, f). Rows that are left over when fewer
    than f suffice go from the end.
    """
    n = len(squared)
    if f > LARGEST_F:
        raise ValueError(f"exact MDA may take 2^f steps: n={n}, f={f} is not feasible, f={LARGEST_F} is")
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
    count = math.comb(n, f)
    if count > MOST_SUBSETS:
        raise ValueError(f"exact SMEA tries {count} subsets for n={n}, f={f}: more than {MOST_SUBSETS}")
    size = n - f
    centre = np.eye(size) - 1 / size
    best, chosen = np.inf, np.arange(size)
    subsets = combinations(range(n), size)
    while batch := list(islice(subsets, BATCH)):
        members = np.array(batch)
        parts = squared[members[:, :, None], members[:, None, :]]
        largest = np.linalg.eigvalsh(centre @ parts @ centre / -2)[:, -1]
        least = int(np.argmin(largest))
        if largest[least] < best:
            best, chosen = float(largest[least]), members[least]
    return chosen
