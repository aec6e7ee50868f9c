"""Cells: how many clients are in one run with recovery of dropouts, and how many colluders each must withstand.

A run's cost grows with the square of its clients, so many members are divided into cells, one run each. The members
bound the colluders among all of them; a cell is a random subset, so its share of colluders varies. `colluders_in_cell`
finds the least k that no cell exceeds, except with probability 2^-40 in all draws of the training together.
`Schedule.draw_cells` says who is in which cell.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from math import comb
from typing import Final

from secagg.arguments import instance, whole
from secagg.errors import UsageError
from secagg.exposure.schedules import Schedule

FAILURE_BITS: Final = 40  # some cell has more colluders than its threshold withstands: probability below 2^-40
MAX_LEFT_OUT_PERCENT: Final = 10  # a cell or group of another size leaves out fewer clients


def even_sizes(n: int, most: int) -> tuple[int, ...]:
    """The sizes of as few cells as possible for n clients, at most `most` in each, as equal as possible.

    >>> even_sizes(10, 4)
    (4, 3, 3)
    """
    n, most = whole("n", n, 1), whole("most", most, 1)
    count = -(-n // most)
    return tuple(n // count + (k < n % count) for k in range(count))


def cell_sizes(n: int, most: int, schedule: Schedule) -> tuple[int, ...]:
    """The sizes of cells of at most `most` clients (0: one cell), in whole groups. Clients who do not fit are left out.

    >>> cell_sizes(1000, 100, Schedule(name="fixed", size=10))
    (100, 100, 100, 100, 100, 100, 100, 100, 100, 100)
    """
    n, most, m = whole("n", n, 1), whole("most", most, 0), instance("schedule", schedule, Schedule).size
    if not most or n <= most:
        return (schedule.groups(n) * m,)
    if most < m:
        raise UsageError(f"a cell of {most} clients has no room for a group of {m}; raise cell to at least {m}")
    if schedule.name != "transversal":
        sizes = tuple(m * groups for groups in even_sizes(n // m, most // m))
        schedule.check(sizes[-1])  # the smallest
        return sizes
    fitting = range(m, most // m + 1)  # at least as many groups as groupings, of which there are m at most
    if not fitting:
        raise UsageError(f"no cell of at most {most} clients fits transversal groups of {m}; raise cell")
    best = max(fitting, key=lambda c: (n // (m * c) * m * c, c))
    cells = n // (m * best)
    if 100 * (n - cells * m * best) > MAX_LEFT_OUT_PERCENT * n:
        raise UsageError(
            f"transversal cells of {m * best} clients leave out {n - cells * m * best} of {n} clients; use "
            f"{(cells + 1) * m * best} clients, another group size or another cell size"
        )
    return (m * best,) * cells


def colluders_in_cell(members: int, colluders: int, cell: int, draws: int) -> int:
    """The least k such that, in `draws` random cells, one has more than k colluders with probability below 2^-40.

    The colluders in one cell are hypergeometric. The bound is the union over all draws, in exact integers: with
    W(x) = C(colluders, x) C(members - colluders, cell - x), k is the least for which
    draws * 2^40 * (W(k+1) + W(k+2) + ...) < C(members, cell). It holds for fewer colluders too: replacing a colluder by
    an honest member never puts more of them in a cell.

    >>> colluders_in_cell(1000, 333, 100, draws=10)
    67
    """
    numbers = {"members": members, "colluders": colluders, "cell": cell, "draws": draws}
    members, colluders, cell, draws = (whole(name, number) for name, number in numbers.items())
    if not (0 <= colluders <= members and 1 <= cell <= members and draws >= 1):
        raise UsageError(f"no cells of {cell} among {members} members with {colluders} colluders in {draws} draws")
    return _least_bound(members, colluders, cell, draws)


@lru_cache(maxsize=256)
def _least_bound(members: int, colluders: int, cell: int, draws: int) -> int:
    honest = members - colluders
    low, high = max(0, cell - honest), min(cell, colluders)
    ways, weight = comb(members, cell), comb(colluders, high) * comb(honest, cell - high)
    beyond = 0
    for x in range(high, low, -1):  # weight = W(x), beyond = W(x+1) + W(x+2) + ...
        if (beyond + weight) * draws << FAILURE_BITS >= ways:  # audit: cell-colluders
            return x
        beyond += weight
        weight = weight * x * (honest - cell + x) // ((colluders - x + 1) * (cell - x + 1))
    return low


def threshold_in_cell(cell: int, k: int) -> int:
    """The least t with 2t > cell + k: any two sets of t clients of the cell then share an honest one.

    >>> threshold_in_cell(100, 67)
    84
    """
    return (whole("cell", cell, 1) + whole("k", k, 0)) // 2 + 1


def check_cells(members: int, colluders: int, sizes: tuple[int, ...], draws: int, threshold: int | None) -> None:
    """UsageError, with what would fit, unless every cell has a threshold for its bound on colluders."""
    for size in sorted(set(sizes)):
        k = colluders_in_cell(members, colluders, size, draws)
        least = threshold_in_cell(size, k)
        if least > size:  # audit: cell-threshold-exists
            raise UsageError(
                f"cells: among {members} members with {colluders} colluders, a cell of {size} may consist of them "
                f"alone (the probability is above 2^-{FAILURE_BITS}), so no threshold protects it; "
                f"{_what_fits(members, colluders, size, draws)}"
            )
        if threshold is not None and not least <= threshold <= size:  # audit: cell-threshold
            raise UsageError(
                f"threshold: {threshold} does not fit cells of {size} clients, in which up to {k} may collude; "
                f"expected {least} to {size} (None chooses {least})"
            )


def _what_fits(members: int, colluders: int, size: int, draws: int) -> str:
    """The least size of a cell, and the most colluders, for which there is a threshold."""
    larger = _first(range(size + 1, members + 1), lambda s: colluders_in_cell(members, colluders, s, draws) < s)
    fewer = bisect_left(range(colluders), True, key=lambda c: colluders_in_cell(members, c, size, draws) >= size) - 1
    offers = [f"use cells of at least {larger} clients"] if larger is not None else []
    return " or ".join([*offers, f"assume at most {fewer} colluders"])


def _first(candidates: range, holds: Callable[[int], bool]) -> int | None:
    """The first candidate for which `holds` is true; `holds` is monotone."""
    at = bisect_left(candidates, True, key=holds)
    return candidates[at] if at < len(candidates) else None
