"""A lattice attack on group sums of bounded integers, which leak more than sums of real numbers.

The sums restrict the inputs to an affine lattice x + {z in Z^n : Az = 0}. If the vectors of the lattice
{z : Az = 0} are long compared with the inputs, the shortest point is the true input. All arithmetic is exact,
which is fast enough for small null spaces.
"""

from collections.abc import Sequence
from fractions import Fraction

Vector = list[int]


def recover(rows: Sequence[Sequence[int]], sums: Sequence[Sequence[int]], n: int) -> list[Vector]:
    """For each list of group sums, a short integer vector x with Ax = sums (LLL and Babai's nearest plane)."""
    echelon, change, rank, pivots = _column_echelon([[int(i in row) for row in rows] for i in range(n)])
    null = reduced(change[rank:])
    orthogonal = _orthogonal(null)
    found = []
    for total in sums:
        left, point = list(total), [0] * n
        for column, pivot in enumerate(pivots):
            times, rest = divmod(left[pivot], echelon[column][pivot])
            assert rest == 0
            left = [a - times * b for a, b in zip(left, echelon[column], strict=True)]
            point = [a + times * b for a, b in zip(point, change[column], strict=True)]
        for vector, direction in zip(reversed(null), reversed(orthogonal), strict=True):
            times = round(_dot(point, direction) / _dot(direction, direction))
            point = [a - times * b for a, b in zip(point, vector, strict=True)]
        found.append(point)
    return found


def _column_echelon(columns: list[Vector]) -> tuple[list[Vector], list[Vector], int, list[int]]:
    """A·U = [H 0] with U unimodular, by Euclidean steps on columns.

    Returns the columns of [H 0] and of U, the rank, and the pivot rows.
    """
    n, height = len(columns), len(columns[0])
    change = [[int(i == j) for j in range(n)] for i in range(n)]
    rank, pivots = 0, []
    for row in range(height):
        while True:
            live = [j for j in range(rank, n) if columns[j][row]]
            if len(live) < 2:
                break
            least = min(live, key=lambda j: (abs(columns[j][row]), sum(map(abs, change[j]))))
            for j in live:
                if j != least:
                    times = round(Fraction(columns[j][row], columns[least][row]))
                    columns[j] = [a - times * b for a, b in zip(columns[j], columns[least], strict=True)]
                    change[j] = [a - times * b for a, b in zip(change[j], change[least], strict=True)]
        if live:
            for part in (columns, change):
                part[rank], part[live[0]] = part[live[0]], part[rank]
            pivots.append(row)
            rank += 1
    return columns, change, rank, pivots


def reduced(basis: list[Vector]) -> list[Vector]:
    """LLL reduction (Lenstra, Lenstra and Lovász 1982) with delta = 0.99: simple and slow."""
    basis, k = [row[:] for row in basis], 1
    while k < len(basis):
        orthogonal = _orthogonal(basis[: k + 1])
        for j in range(k - 1, -1, -1):
            times = round(_dot(basis[k], orthogonal[j]) / _dot(orthogonal[j], orthogonal[j]))
            basis[k] = [a - times * b for a, b in zip(basis[k], basis[j], strict=True)]
        before, here = _dot(orthogonal[k - 1], orthogonal[k - 1]), _dot(orthogonal[k], orthogonal[k])
        factor = _dot(basis[k], orthogonal[k - 1]) / before
        if here >= (Fraction(99, 100) - factor**2) * before:
            k += 1
        else:
            basis[k], basis[k - 1] = basis[k - 1], basis[k]
            k = max(k - 1, 1)
    return basis


def _orthogonal(basis: Sequence[Vector]) -> list[list[Fraction]]:
    done: list[list[Fraction]] = []
    for row in basis:
        vector = [Fraction(value) for value in row]
        for other in done:
            factor = _dot(row, other) / _dot(other, other)
            vector = [a - factor * b for a, b in zip(vector, other, strict=True)]
        done.append(vector)
    return done


def _dot(a: Sequence[int | Fraction], b: Sequence[int | Fraction]) -> Fraction:
    return sum((Fraction(x) * y for x, y in zip(a, b, strict=True)), Fraction(0))
