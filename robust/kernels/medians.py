"""Selection networks for straight-line code: the shortest that are known, in an order that spares registers.

For medians of few rows a search (`python -m tests.robust.find_networks`) finds networks that need fewer
minima and maxima than Batcher's, pruned: 112 instead of 148 for 20 rows. Other ranks take Batcher's.
"""

from __future__ import annotations

from typing import Final

from robust.kernels import network
from robust.kernels.network import Comparator


def comparators(n: int, low: int, high: int) -> list[Comparator]:
    """Pairs after which wires low..high-1 hold the values of ranks low..high-1, in no particular order."""
    lower, upper, wanted = (n - 1) // 2, n // 2, range(low, high)
    known = [network.pruned(n, low, high)]
    if n in FOUND and low == lower and high in (lower + 1, upper + 1):
        found = [(int(i), int(j)) for i, j in (pair.split("-") for pair in FOUND[n].split())]
        if high == upper:  # the lower of two middle ranks alone
            found.append((lower, upper))
        known.append(found)
    return few_at_a_time(min(known, key=lambda pairs: network.needed(pairs, wanted)), wanted)


def few_at_a_time(pairs: list[Comparator], wanted: range) -> list[Comparator]:
    """The same network in an order that begins with a wire late and is done with it early.

    Of the comparators that could come next, the one that adds fewest to the wires in use.
    """
    uses: dict[int, list[Comparator]] = {}
    for pair in pairs:
        for wire in pair:
            uses.setdefault(wire, []).append(pair)
    begun: set[int] = set()
    order: list[Comparator] = []

    def adds(pair: Comparator) -> tuple[int, int]:
        new = sum(wire not in begun for wire in pair)
        over = sum(len(uses[wire]) == 1 and wire not in wanted for wire in pair)
        return new - over, new

    while len(order) < len(pairs):
        ready = [uses[i][0] for i in sorted(uses) if uses[i] and i == uses[i][0][0]]
        pair = min((pair for pair in ready if uses[pair[1]][0] is pair), key=adds)
        for wire in pair:
            uses[wire].pop(0)
        begun.update(pair)
        order.append(pair)
    return order


# Rows: pairs of wires, the smaller value to the first of each.
FOUND: Final = {
    3: (  # 3 comparators, 4 minima and maxima
        "0-1 0-2 1-2"
    ),
    4: (  # 4 comparators, 6 minima and maxima
        "0-1 2-3 0-2 1-3"
    ),
    5: (  # 7 comparators, 10 minima and maxima
        "0-1 2-3 1-3 1-4 0-1 1-2 2-4"
    ),
    6: (  # 10 comparators, 16 minima and maxima
        "0-1 2-3 4-5 0-3 1-5 0-4 1-4 1-2 3-4 2-5"
    ),
    7: (  # 13 comparators, 20 minima and maxima
        "0-1 2-3 4-5 1-5 1-6 0-4 3-6 3-4 2-5 1-2 2-3 3-4 0-3"
    ),
    8: (  # 16 comparators, 26 minima and maxima
        "0-1 2-3 4-5 6-7 0-2 1-3 4-6 5-7 1-2 5-6 0-4 1-5 2-6 3-7 2-4 3-5"
    ),
    9: (  # 19 comparators, 30 minima and maxima
        "0-1 2-3 4-5 6-7 1-7 0-4 3-5 2-6 4-6 1-3 0-4 5-6 1-4 3-5 3-7 3-8 2-4 3-4 4-8"
    ),
    10: (  # 23 comparators, 38 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 1-3 5-7 0-2 4-6 1-9 2-5 2-6 3-7 6-9 3-8 0-3 1-4 2-3 5-8 3-5 4-6 3-4 5-6"
    ),
    11: (  # 25 comparators, 40 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 2-4 4-7 0-8 6-8 1-9 3-5 0-4 4-10 1-3 5-8 3-7 1-4 9-10 4-6 5-6 3-6 3-9 3-5 "
        "2-5 5-9"
    ),
    12: (  # 29 comparators, 48 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 8-10 5-7 0-2 1-3 4-6 5-6 9-11 3-11 2-10 3-7 1-9 0-8 3-5 2-4 3-8 4-6 "
        "5-10 1-4 6-9 5-6 4-8 4-5 6-8"
    ),
    13: (  # 32 comparators, 52 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 8-10 9-11 4-6 5-7 7-11 5-9 1-3 0-2 2-5 1-9 0-2 1-10 4-8 3-9 5-6 2-8 "
        "3-7 1-5 6-10 5-12 6-8 5-6 8-12 3-8 6-8 3-6"
    ),
    14: (  # 39 comparators, 66 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 12-13 5-7 5-13 1-2 2-7 9-11 8-10 4-6 1-9 1-4 9-12 0-5 12-13 3-6 0-8 "
        "2-5 3-4 2-12 4-10 3-9 8-9 5-11 2-4 5-6 5-13 10-12 6-9 5-8 4-10 6-8 7-8 4-6 7-10"
    ),
    15: (  # 42 comparators, 70 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 12-13 5-11 1-7 1-3 1-8 4-7 8-10 4-12 13-14 5-13 1-5 9-13 2-9 3-10 "
        "10-11 0-6 0-2 4-8 3-12 5-8 10-14 12-13 3-8 8-9 2-5 6-14 6-9 3-5 5-8 6-10 5-6 7-8 10-12 6-7 6-10 "
        "7-10"
    ),
    16: (  # 47 comparators, 80 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15 4-6 10-14 0-2 11-15 0-8 5-7 6-15 1-3 8-11 11-13 11-14 1-2 "
        "5-6 2-6 6-14 0-10 2-12 7-13 5-11 8-12 1-11 6-12 2-10 4-8 3-15 3-9 6-8 8-10 7-9 3-10 6-8 3-7 1-5 "
        "7-11 3-5 5-7 7-12 5-8 7-10"
    ),
    17: (  # 50 comparators, 84 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15 8-14 2-10 1-5 9-15 1-9 1-6 5-11 0-4 7-9 1-2 6-10 2-6 5-15 "
        "3-5 0-6 10-13 5-7 4-14 3-5 2-4 6-12 4-5 13-14 12-13 0-6 7-9 8-12 10-12 4-6 11-15 5-12 11-13 3-10 "
        "6-8 7-11 7-8 5-10 8-10 5-7 8-16 7-8 8-16"
    ),
    18: (  # 57 comparators, 98 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15 16-17 15-17 8-10 5-7 0-3 14-16 9-11 8-14 10-15 4-6 13-15 "
        "3-7 9-16 1-2 0-5 7-16 1-9 6-9 5-11 5-17 12-14 3-5 0-14 11-17 1-8 5-15 2-4 0-8 4-7 2-12 3-10 9-13 "
        "5-14 3-8 11-14 6-9 4-12 11-13 5-9 10-12 5-10 7-11 4-6 6-8 9-12 7-8 9-10 8-10 7-9"
    ),
    19: (  # 61 comparators, 104 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15 16-17 9-11 12-14 4-6 1-3 0-2 1-2 13-15 8-10 9-14 5-7 16-18 "
        "11-15 10-13 11-14 9-13 3-7 5-6 8-12 2-6 17-18 1-5 10-12 6-14 0-4 1-10 2-4 10-17 2-9 3-5 3-4 0-16 "
        "6-9 11-18 8-16 4-16 4-12 9-17 11-12 13-16 3-15 7-11 5-12 3-7 7-18 7-9 6-10 10-13 7-10 9-13 5-9 "
        "5-10 9-10"
    ),
    20: (  # 65 comparators, 112 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15 16-17 18-19 12-14 4-6 1-3 8-10 0-2 13-15 5-7 0-4 9-11 5-6 "
        "1-2 11-15 13-14 1-5 2-6 9-10 10-14 8-12 3-7 5-15 0-10 9-13 1-9 16-18 11-13 17-19 2-4 10-12 4-12 "
        "2-10 7-19 6-13 3-5 5-14 6-18 5-17 4-8 3-11 5-6 11-12 6-9 7-11 6-8 9-12 9-10 5-9 10-18 7-9 3-7 "
        "9-17 7-8 9-10 8-16 10-16 7-9"
    ),
    21: (  # 69 comparators, 118 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15 16-17 18-19 4-6 12-14 5-7 13-15 1-3 9-11 17-19 5-6 8-10 "
        "13-14 9-10 9-13 10-14 0-2 16-18 3-7 1-2 2-6 8-12 0-4 1-5 2-4 10-12 1-9 11-15 11-13 11-12 2-10 "
        "0-8 3-5 4-15 6-13 3-4 5-14 4-12 9-10 3-11 12-18 5-6 5-9 4-8 7-11 3-5 8-17 7-20 17-20 6-10 9-19 "
        "7-8 9-17 6-16 10-17 8-16 8-9 10-16 5-12 10-12 9-10 10-12"
    ),
    22: (  # 78 comparators, 136 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15 16-17 18-19 20-21 17-21 12-14 4-6 5-7 1-3 0-2 9-11 13-15 "
        "0-4 13-14 16-18 8-10 9-10 5-6 16-20 3-7 11-14 1-2 1-5 10-15 9-12 8-13 10-13 1-9 3-5 18-20 7-14 "
        "5-13 2-6 2-4 11-12 4-11 0-8 2-10 7-11 5-9 3-12 8-17 7-20 2-17 12-21 6-15 9-19 4-5 6-12 6-10 3-17 "
        "5-18 12-20 7-9 11-17 9-10 7-8 9-16 11-16 16-19 10-18 12-16 12-13 4-11 3-8 6-8 6-10 10-12 8-11 "
        "11-12 8-10"
    ),
    23: (  # 81 comparators, 140 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15 16-17 18-19 20-21 0-2 1-3 5-7 1-5 3-7 13-15 4-6 16-18 9-11 "
        "12-14 8-10 9-14 0-4 17-21 10-13 2-6 18-22 6-22 3-6 11-15 10-19 3-5 8-12 10-12 2-4 13-14 11-13 "
        "18-20 0-8 8-18 12-21 2-10 10-17 13-22 7-15 16-18 6-21 1-11 5-14 3-4 5-17 1-10 11-19 6-13 10-18 "
        "9-12 5-11 18-20 3-9 7-20 14-16 4-12 6-9 7-9 9-17 12-18 10-14 9-19 6-14 4-12 13-18 11-13 5-14 "
        "9-11 7-12 11-12 11-14 7-9 9-14 9-11"
    ),
    24: (  # 90 comparators, 158 minima and maxima
        "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15 16-17 18-19 20-21 22-23 17-23 0-2 5-7 18-22 4-6 9-11 5-6 "
        "12-14 8-10 16-20 1-3 13-15 0-4 1-2 13-14 11-15 1-5 20-22 8-12 19-21 2-6 21-23 3-7 21-22 9-10 "
        "9-13 10-14 2-4 3-5 10-12 16-18 1-2 11-13 11-12 18-20 9-10 6-23 0-8 13-14 7-15 17-19 2-10 5-6 3-4 "
        "10-21 17-20 10-19 5-13 6-14 6-8 3-11 1-9 5-9 5-20 11-22 4-12 7-21 4-17 8-19 8-17 7-11 6-10 3-18 "
        "2-10 7-16 12-20 8-12 10-17 12-18 9-16 16-18 9-12 12-16 8-12 11-16 13-17 11-13 10-12"
    ),
}
