"""What the grid adds to the cost: sums of discrete Gaussians are nearly, not exactly, discrete Gaussians.

Given the opened sums A z, the noise lies in a coset of the lattice K = ker A of integer vectors that no sum sees. All
cosets of K have the same Gaussian mass, up to a factor between 1 - e and 1 + e, as soon as sigma sqrt(2 pi) is at least
the smoothing parameter of K for e. If B is the largest norm among rank(K) independent vectors of K, then (Micciancio
and Regev 2007, Lemma 3.3) e = 2 rank / (exp(2 pi^2 sigma^2 / B^2) - 2 rank) suffices. So the law of the sums is, point
by point, within (1 + e) / (1 - e) of the ideal one that is charged: eta is the logarithm of that, for all coordinates.

Colluders' columns are left out of A, so vectors of K must be found that are zero there. One group: differences of two
members, B^2 = 2. Two groupings: groups are nodes of a graph with two sides, clients are edges, vectors of K are cycles
with alternating signs, and so B^2 is at most twice the smaller number of groups, whoever colludes. More groupings: a
basis of the kernel by elimination, then one step of elimination per colluder.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Final

from secagg.privacy.leverage import component
from secagg.types import ClientId, Grouping

MOST_ELIMINATED: Final = 100  # clients in one component of three groupings or more


@dataclass(frozen=True, slots=True)
class Kernel:
    """A lattice K: an upper bound of its rank, and the square of B.

    >>> Kernel(rank=2, square=2).square
    2
    """

    rank: int
    square: int


def kernel(groupings: Sequence[Grouping], client: ClientId, colluders: int) -> Kernel | None:
    """The lattice of what no sum sees around a client, whoever the colluders are; None if it is too large to find.

    >>> kernel([[(0, 1, 2)]], 0, colluders=1)
    Kernel(rank=2, square=2)
    >>> kernel([[(0, 1), (2, 3)], [(0, 2), (1, 3)]], 0, colluders=0)
    Kernel(rank=3, square=4)
    """
    parts = component(groupings, client)
    clients = sorted(set(chain.from_iterable(chain.from_iterable(parts))))
    if len(parts) == 1:
        return Kernel(len(clients) - 1, 2)
    if len(parts) == 2:
        return Kernel(len(clients) - 1, 2 * min(map(len, parts)))  # audit: smoothing-two-groupings
    if len(clients) > MOST_ELIMINATED:
        return None
    basis = _basis([[int(v in group) for v in clients] for part in parts for group in part])
    square = max((sum(x * x for x in vector) for vector in basis), default=0)
    entry = max((abs(x) for vector in basis for x in vector), default=0)
    for _ in range(colluders):  # c_p b_i - c_i b_p, where c is a colluder's coordinate and p a vector with c_p != 0
        square, entry = max(square, 4 * entry**2 * square), max(entry, 2 * entry**2)  # audit: smoothing-colluders
    return Kernel(len(basis), square)


def _basis(rows: list[list[int]]) -> list[list[int]]:
    """Independent integer vectors that span the kernel of these rows, each without a common factor."""
    work, pivots, width = [list(map(Fraction, row)) for row in rows], list[int](), len(rows[0])
    for column in range(width):
        top = len(pivots)
        found = next((r for r in range(top, len(work)) if work[r][column]), None)
        if found is None:
            continue
        work[top], work[found] = work[found], work[top]
        scale = work[top][column]
        work[top] = [x / scale for x in work[top]]
        for r, row in enumerate(work):
            if r != top and (factor := row[column]):
                work[r] = [x - factor * y for x, y in zip(row, work[top], strict=True)]
        pivots.append(column)
    basis = []
    for free in sorted(set(range(width)) - set(pivots)):
        values = [Fraction(0)] * width
        values[free] = Fraction(1)
        for row, pivot in zip(work, pivots, strict=False):
            values[pivot] = -row[free]
        common = math.lcm(*(x.denominator for x in values))
        basis.append([int(x * common) for x in values])
    return basis


def smoothing(lattice: Kernel, sigma: int) -> float:
    """The e of above, rounded up; infinite where the bound says nothing.

    >>> smoothing(Kernel(2, 2), 3) < 1e-30
    True
    """
    if lattice.rank == 0:
        return 0.0
    exponent = 2 * math.pi**2 * sigma**2 / lattice.square * (1 - 1e-12)
    if exponent > 700:
        return 2 * lattice.rank * math.exp(-700)
    least = math.exp(exponent) - 2 * lattice.rank
    return 2 * lattice.rank / least * (1 + 1e-9) if least > 0 else math.inf


def excess(lattice: Kernel, sigma: int, length: int) -> float:
    """eta: what `length` coordinates add, rounded up; infinite if e is not below 1.

    >>> excess(Kernel(5, 2), sigma=4, length=1_000_000) < 1e-50, excess(Kernel(50_000, 2), sigma=1, length=1)
    (True, inf)
    """
    e = smoothing(lattice, sigma)
    if e >= 1:  # audit: smoothing-below-one
        return math.inf
    # 32 bits, rounded up: libraries differ in the last bits of exp and log1p, and charges are compared.
    part, power = math.frexp(length * (math.log1p(e) - math.log1p(-e)) * (1 + 1e-9))
    return math.ldexp(math.ceil(part * 2**32), power - 32)  # audit: excess-same-everywhere
