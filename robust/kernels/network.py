"""Selection networks as data: which values to compare and exchange so that chosen ranks fall into place.

A network compares fixed pairs whatever the values are, so one instruction can do it for many columns at
once. Batcher's odd-even merge sort (1968) gives the pairs; those that cannot change the wanted ranks are
left out. As the network is a table and not code, one compiled kernel serves every n and every rank; only
`straight` turns networks into code, shorter ones where `medians` knows them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RUN = 8  # rows sorted in registers while they are loaded

Comparator = tuple[int, int]


class Step(NamedTuple):
    """One entry of the table: exchange (a, b); or, when c >= 0, (a, c), (b, d), then (b, c)."""

    a: int
    b: int
    c: int = -1
    d: int = -1


class Placed(NamedTuple):
    """A comparator of Batcher's network, and the stage it belongs to: merging runs of `stage` wires."""

    stage: int
    pair: Comparator


@lru_cache(maxsize=256)
def selecting(n: int, low: int, high: int) -> NDArray[np.int64]:
    """Steps after which wires low..high-1 hold the values of ranks low..high-1, in no particular order."""
    return _table(_selection(n, low, high), n)


def pruned(n: int, low: int, high: int) -> list[Comparator]:
    """The same from unsorted wires, one pair after the other."""
    return [placed.pair for placed in _selection(n, low, high)]


@lru_cache(maxsize=256)
def sorting(n: int) -> NDArray[np.int64]:
    """Steps after which wire i holds the value of rank i."""
    return _table(batcher(n), n)


def needed(pairs: list[Comparator], wanted: range) -> int:
    """How many minima and maxima have to be computed so that the wanted wires get their values."""
    live, count = set(wanted), 0
    for pair in reversed(pairs):
        if used := live.intersection(pair):
            count += len(used)
            live.update(pair)
    return count


def batcher(n: int) -> list[Placed]:
    """Comparators that sort n wires; those of stages below 2^k sort every aligned run of 2^k wires."""
    found = []
    stage = 1
    while stage < n:
        gap = stage
        while gap >= 1:
            # Any order will do within a layer; this one lets more of it join the layer before (_grouped).
            for start in sorted(range(gap % stage, n - gap, 2 * gap), key=lambda i: i // gap % 4 != 3):
                for i in range(start, min(start + gap, n - gap)):
                    if i // (2 * stage) == (i + gap) // (2 * stage):
                        found.append(Placed(stage, (i, i + gap)))
            gap //= 2
        stage *= 2
    return found


def _selection(n: int, low: int, high: int) -> list[Placed]:
    return _without_dead(_without_shuffles(batcher(n), n, low, high), low, high)


def _without_shuffles(net: list[Placed], n: int, low: int, high: int) -> list[Placed]:
    """Leave out comparators at the end that only order values within one class: below, wanted, above."""
    side = [(wire >= low) + (wire >= high) for wire in range(n)]
    used = [False] * n
    kept = []
    for placed in reversed(net):
        i, j = placed.pair
        if used[i] or used[j] or side[i] != side[j]:
            used[i] = used[j] = True
            kept.append(placed)
    return kept[::-1]


def _without_dead(net: list[Placed], low: int, high: int) -> list[Placed]:
    """Leave out comparators neither of whose outputs is wanted by anything later."""
    live = set(range(low, high))
    kept = []
    for placed in reversed(net):
        if not live.isdisjoint(placed.pair):
            live.update(placed.pair)
            kept.append(placed)
    return kept[::-1]


def _table(net: list[Placed], n: int) -> NDArray[np.int64]:
    """The steps left to do when full runs of RUN wires, and a half run after them, are sorted on loading.

    Sorting them may do comparators that were left out above, which is harmless: those only move values
    about within a class, or on dead wires.
    """
    whole = n - n % RUN
    half = whole + n % RUN // (RUN // 2) * (RUN // 2)
    rest = [
        pair
        for stage, pair in net
        if not (stage < RUN and pair[1] < whole) and not (stage < RUN // 2 and pair[1] < half)
    ]
    table = np.array(_grouped(rest), dtype=np.int64).reshape(-1, 4)
    table.setflags(write=False)  # shared by every caller, through the caches above
    return table


def _grouped(net: list[Comparator]) -> list[Step]:
    """Join three comparators on four wires into one step where order allows: half the loads and stores.

    The pattern is the heart of an odd-even merge: (a, c) and (b, d), then (b, c). The first two may wait
    for the third when nothing in between uses their wires.
    """
    before: list[Comparator] = []  # for each comparator, which ones used its two wires last
    after: list[dict[int, int]] = [{} for _ in net]  # for each comparator, which one uses a wire next
    last: dict[int, int] = {}
    for t, (i, j) in enumerate(net):
        before.append((last.get(i, -1), last.get(j, -1)))
        for wire in (i, j):
            if wire in last:
                after[last[wire]][wire] = t
            last[wire] = t

    joined: dict[int, Step] = {}
    taken: set[int] = set()
    for t, (b, c) in enumerate(net):
        on_b, on_c = before[t]
        if on_b < 0 or on_c < 0 or on_b == on_c or taken & {t, on_b, on_c}:
            continue
        a, d = net[on_c][0], net[on_b][1]
        if net[on_c][1] != c or net[on_b][0] != b:
            continue
        if after[on_c].get(a, len(net)) < t or after[on_b].get(d, len(net)) < t:
            continue
        joined[t] = Step(a, b, c, d)
        taken |= {t, on_b, on_c}
    return [joined.get(t) or Step(*pair) for t, pair in enumerate(net) if t in joined or t not in taken]
