"""Reference for the audit on small cases: exact rational arithmetic and exhaustive search."""

from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from itertools import combinations

Row = tuple[int, ...]


def echelon(rows: Sequence[Sequence[int | Fraction]], width: int) -> tuple[list[list[Fraction]], list[int]]:
    """Reduced row echelon form and its pivot columns."""
    left = [[Fraction(value) for value in row] for row in rows]
    done: list[list[Fraction]] = []
    pivots: list[int] = []
    for column in range(width):
        at = next((i for i, row in enumerate(left) if row[column]), None)
        if at is None:
            continue
        row = left.pop(at)
        row = [value / row[column] for value in row]
        left, done = ([_minus(other, row, column) for other in part] for part in (left, done))
        done.append(row)
        pivots.append(column)
    return done, pivots


def _minus(other: list[Fraction], row: list[Fraction], column: int) -> list[Fraction]:
    factor = other[column]
    return [a - factor * b for a, b in zip(other, row, strict=True)] if factor else other


def matrix(rows: Collection[Collection[int]], columns: Sequence[int]) -> list[list[int]]:
    return [[int(column in row) for column in columns] for row in rows]


def rank(rows: Collection[Collection[int]], columns: Sequence[int]) -> int:
    return len(echelon(matrix(rows, columns), len(columns))[0])


def exposed(rows: Collection[Collection[int]], columns: Sequence[int]) -> set[int]:
    """The columns whose unit vector is a combination of rows."""
    done, pivots = echelon(matrix(rows, columns), len(columns))
    return {
        columns[pivot]
        for row, pivot in zip(done, pivots, strict=True)
        if all(value == 0 for at, value in enumerate(row) if at != pivot)
    }


def lightest(rows: Collection[Collection[int]], columns: Sequence[int], most: int | None = None) -> int:
    """The fewest columns in a nonzero combination of rows, by trying all sets of columns.

    A nonzero combination that is zero outside a set of columns exists if and only if the rank of the rows drops
    when the columns of the set are removed. Returns most + 1 if no combination has at most `most` columns
    (by default, the number of columns).
    """
    full = rank(rows, columns)
    limit = len(columns) if most is None else most
    for size in range(1, limit + 1):
        for inside in combinations(columns, size):
            if rank(rows, [column for column in columns if column not in inside]) < full:
                return size
    return limit + 1


def fewest(rows: Collection[Collection[int]], columns: Sequence[int], most: int) -> int:
    """The same as `lightest`, but faster: it searches for linearly dependent coordinates of the null space."""
    done, pivots = echelon(matrix(rows, columns), len(columns))
    free = [at for at in range(len(columns)) if at not in pivots]
    null = {at: [Fraction(int(at == f)) for f in free] for at in free}
    null |= {pivot: [-row[f] for f in free] for pivot, row in zip(pivots, done, strict=True)}
    for size in range(1, min(most, len(columns)) + 1):
        for inside in combinations(range(len(columns)), size):
            if len(echelon([null[at] for at in inside], len(free))[0]) < size:
                return size
    return most + 1


def leverage(rows: Sequence[Collection[int]], columns: Sequence[int], weights: Sequence[Fraction]) -> list[Fraction]:
    """The diagonal of the projector on the row space of A·diag(w), by Gram-Schmidt without square roots."""
    basis: list[list[Fraction]] = []
    for row in matrix(rows, columns):
        vector = [value * weight for value, weight in zip(row, weights, strict=True)]
        for other in basis:
            inner = sum((a * b for a, b in zip(vector, other, strict=True)), Fraction(0))
            norm = sum((b * b for b in other), Fraction(0))
            vector = [a - inner / norm * b for a, b in zip(vector, other, strict=True)]
        if any(vector):
            basis.append(vector)
    return [
        sum((v[i] ** 2 / sum((x * x for x in v), Fraction(0)) for v in basis), Fraction(0)) for i in range(len(columns))
    ]


def partitions(items: Sequence[int], size: int) -> Iterator[tuple[Row, ...]]:
    """All partitions into groups of exactly `size`, which must divide the number of items."""
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for others in combinations(rest, size - 1):
        left = [item for item in rest if item not in others]
        for tail in partitions(left, size):
            yield ((first, *others), *tail)


def set_partitions(items: Sequence[int]) -> Iterator[tuple[Row, ...]]:
    """All partitions into groups of any sizes."""
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for count in range(len(rest) + 1):
        for others in combinations(rest, count):
            left = [item for item in rest if item not in others]
            for tail in set_partitions(left):
                yield ((first, *others), *tail)


def subsets(items: Sequence[int], most: int | None = None) -> Iterator[tuple[int, ...]]:
    for size in range(len(items) + 1 if most is None else most + 1):
        yield from combinations(items, size)
