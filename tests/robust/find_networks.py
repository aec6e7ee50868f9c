"""Search for short selection networks. It found the table in robust/kernels/network.py.

    python -m tests.robust.find_networks 20 --seconds 120     # prints the shortest for 20 rows

The search starts with Batcher's network, pruned, and changes it at random: it removes, replaces, moves and
crosses comparators. It keeps a change if the network stays right and gets no longer, as Dobbelaere's
SorterHunter does. A network is right if it is right for all zeros and ones (Knuth, TAOCP 3, section 5.3.4,
Theorem Z); only inputs that a first layer of neighbours can produce are tried. The length of a network is the
number of minima and maxima that it computes.
"""

import argparse
import itertools
import time
from typing import Any

import numpy as np
from numba import njit

from robust.kernels import network

WORDS = 8  # of 64 inputs each, at a time


def middle(n: int) -> tuple[int, int]:
    """The ranks low..high-1 whose mean is the median."""
    return (n - 1) // 2, n // 2 + 1


def inputs(n: int) -> tuple[Any, Any, Any]:
    """All zeros and ones after a first layer, as bits; and whether the lower and the upper median is one."""
    pairs = np.array(list(itertools.product((0, 1, 2), repeat=n // 2)), np.uint8)
    bits = np.zeros((len(pairs), n), np.uint8)
    bits[:, 0 : n - n % 2 : 2], bits[:, 1::2] = pairs == 2, pairs >= 1
    if n % 2:
        bits = np.concatenate([bits, bits])
        bits[len(pairs) :, -1] = 1
    bits = bits[np.argsort(np.abs(2 * bits.sum(1, dtype=int) - n), kind="stable")]  # hard ones first
    bits = np.concatenate([bits, np.repeat(bits[:1], -len(bits) % (64 * WORDS), axis=0)])
    low, high = middle(n)
    ones = bits.sum(1, dtype=int)

    def packed(column: Any) -> Any:
        return np.packbits(column.astype(np.uint8), bitorder="little").view(np.uint64).reshape(-1, WORDS)

    blocks = np.stack([packed(bits[:, wire]) for wire in range(n)], axis=1)
    return blocks, packed(ones >= n - low), packed(ones > n - high)


@njit
def is_right(first: Any, second: Any, count: int, middle: Any, given: Any, order: Any) -> bool:
    """Whether the middle wires get the middle values; blocks that showed a fault are tried sooner."""
    blocks, both, either = given
    low, high = middle
    wires = np.empty(blocks.shape[1:], np.uint64)
    for t in range(order.shape[0]):
        block = order[t]
        wires[:] = blocks[block]
        for k in range(count):
            i, j = first[k], second[k]
            for w in range(WORDS):
                x, y = wires[i, w], wires[j, w]
                wires[i, w], wires[j, w] = x & y, x | y
        for w in range(WORDS):
            x, y = wires[low, w], wires[high - 1, w]
            if (x & y) != both[block, w] or (x | y) != either[block, w]:
                order[t], order[t // 2] = order[t // 2], block
                return False
    return True


@njit
def shortened(first: Any, second: Any, count: int, middle: Any, n: int) -> Any:
    """Remove, in place, comparators that nothing needs; return how many remain, and their operations."""
    live = np.zeros(n, np.bool_)
    live[middle[0]] = live[middle[1] - 1] = True
    kept, needed = np.zeros(count, np.bool_), 0
    for k in range(count - 1, -1, -1):
        i, j = first[k], second[k]
        if live[i] or live[j]:
            needed += int(live[i]) + int(live[j])
            kept[k] = live[i] = live[j] = True
    left = 0
    for k in range(count):
        if kept[k]:
            first[left], second[left] = first[k], second[k]
            left += 1
    return left, needed


@njit
def change(first: Any, second: Any, count: int, middle: Any, n: int) -> int:
    """Make one random change in place; return the number of comparators."""
    kind, k, other = np.random.randint(0, 100), np.random.randint(0, count), np.random.randint(0, count)
    a, b = np.random.randint(0, n), np.random.randint(0, n)
    if kind < 25:  # remove one
        first[k : count - 1], second[k : count - 1] = (first[k + 1 : count].copy(), second[k + 1 : count].copy())
        return count - 1
    if kind < 50 and a != b:  # put another in its place
        first[k], second[k] = min(a, b), max(a, b)
    elif kind < 70:  # let one of its wires be another
        b = first[k] if np.random.randint(0, 2) else second[k]
        if a != b:
            first[k], second[k] = min(a, b), max(a, b)
    elif kind < 85:  # let two change places
        first[k], first[other] = first[other], first[k]
        second[k], second[other] = second[other], second[k]
    elif kind < 93:  # cross two
        a, b, c, d = first[k], second[k], first[other], second[other]
        if a != d and c != b:
            first[k], second[k], first[other], second[other] = min(a, d), max(a, d), min(c, b), max(c, b)
    elif a != b and a not in (middle[0], middle[1] - 1) and b not in (middle[0], middle[1] - 1):
        for q in range(k, count):  # exchange two wires from here on
            x, y = first[q], second[q]
            x, y = b if x == a else a if x == b else x, b if y == a else a if y == b else y
            first[q], second[q] = min(x, y), max(x, y)
    return count


@njit
def improve(
    first: Any, second: Any, count: int, needed: int, middle: Any, n: int, given: Any, order: Any, trials: int
) -> Any:
    """Make random trials in place; sometimes accept one that needs slightly more."""
    other_first, other_second = first.copy(), second.copy()
    for _ in range(trials):
        other_first[:], other_second[:], other_count = first, second, count
        for _ in range(np.random.randint(1, 4)):
            if other_count > 1:
                other_count = change(other_first, other_second, other_count, middle, n)
        other_count, other_needed = shortened(other_first, other_second, other_count, middle, n)
        worse = other_needed - needed
        if (worse > 0 and (worse > 1 or np.random.random() > 0.002)) or other_count == 0:
            continue
        if is_right(other_first, other_second, other_count, middle, given, order):
            first[:], second[:] = other_first, other_second
            count, needed = other_count, other_needed
    return count, needed


@njit
def start_with(seed: int) -> None:
    np.random.seed(seed)


def search(n: int, seconds: float, seed: int = 0) -> tuple[int, list[network.Comparator]]:
    """The shortest network that was found for the median of n rows, and its minima and maxima."""
    layer = [(i, i + 1) for i in range(0, n - 1, 2)]  # Batcher's network begins with it; it is not searched
    given, ranks = inputs(n), middle(n)
    pairs = np.array(network.pruned(n, *ranks)[len(layer) :])
    first, second, count = pairs[:, 0].copy(), pairs[:, 1].copy(), len(pairs)
    order = np.arange(len(given[0]))
    start_with(seed)
    count, needed = shortened(first, second, count, ranks, n)
    best = needed, [*zip(first[:count].tolist(), second[:count].tolist(), strict=True)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        count, needed = improve(first, second, count, needed, ranks, n, given, order, 50_000)
        if needed < best[0]:
            best = needed, [*zip(first[:count].tolist(), second[:count].tolist(), strict=True)]
    whole = [*layer, *best[1]]
    ends = [np.array(side, np.int64) for side in zip(*whole, strict=True)]
    count, needed = shortened(*ends, len(whole), ranks, n)
    return needed, [*zip(ends[0][:count].tolist(), ends[1][:count].tolist(), strict=True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Search for short selection networks of medians.")
    parser.add_argument("rows", type=int, nargs="+", help="for how many rows")
    parser.add_argument("--seconds", type=float, default=60, help="for each")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for n in options.rows:
        needed, pairs = search(n, options.seconds, options.seed)
        text = "".join(chr(97 + i) + chr(97 + j) for i, j in pairs)
        print(f"{n}: {len(pairs)} comparators, {needed} minima and maxima: {text}", flush=True)
