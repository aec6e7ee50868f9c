"""The neighbour graph of sparse mode, and how many neighbours are enough.

Bell et al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead": each client shares its
secrets and its pairwise masks with k neighbours instead of all. The graph is a Harary graph (section 3): the
clients stand in a circle in a public random order, and each is joined to the k/2 nearest on either side.

This protects from a **semi-honest** server only. `search` finds the smallest k and then t for which

(a) no honest client has t or more colluders among its neighbours. At unmasking, honest neighbours give the
    server one kind of share of a client (of the self-mask seed if it survived, of the mask key if not);
    colluders hold both kinds, so t of them would complete the other kind and reveal the client's vector;
(b) the honest survivors stay connected when colluders and dropouts are removed from the graph, because
    the server learns one sum per connected component;
(c) every client has t or more surviving neighbours, so that its secrets can be rebuilt.

(a) or (b) fails with probability at most `privacy` in total, (c) with at most `correctness`. The order of the
circle is the only randomness: the bounds hold for any at most C colluders and D dropouts that do not depend
on it. docs/sparse.md derives every bound below and compares the result with other implementations.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import shake_256
from itertools import count
from struct import iter_unpack
from typing import Final

from secagg import labels
from secagg.errors import UsageError

ASSUMES: Final = "semi-honest server; colluders and dropouts chosen without regard to the graph's seed"
MOST_CLIENTS: Final = 10**7  # so that _SLACK covers the rounding of lgamma
_SLACK: Final = 1e-6  # added to every logarithm: bounds are too high by at most a millionth
_BLOCK: Final = 8192


# The graph


def neighbours(roster: Sequence[int], degree: int, seed: bytes) -> dict[int, tuple[int, ...]]:
    """The neighbours of every client, ascending: the degree/2 before and after it in `circle`."""
    check_degree(len(roster), degree)
    order = circle(roster, seed)
    half = degree // 2
    around = order[-half:] + order + order[:half]
    graph = {
        client: tuple(sorted(around[i : i + half] + around[i + half + 1 : i + degree + 1]))
        for i, client in enumerate(order)
    }
    return {client: graph[client] for client in sorted(graph)}


def check_degree(n: int, degree: int) -> None:
    """Refuse a degree that no Harary graph on a circle of n clients has."""
    if degree < 2 or degree % 2 or degree >= n:
        raise UsageError(f"degree must be even, at least 2 and below n={n}, got {degree}")


def circle(roster: Sequence[int], seed: bytes) -> list[int]:
    """The roster in the public random order of the seed (Fisher and Yates), whatever its order before."""
    order = sorted(roster)
    if len(set(order)) < len(order):
        raise UsageError("a client is listed twice in the roster")
    words = _words(seed)
    for last in range(len(order) - 1, 0, -1):
        other = _below(last + 1, words)
        order[last], order[other] = order[other], order[last]
    return order


def _words(seed: bytes) -> Iterator[int]:
    """64-bit words, little-endian, of SHAKE-256(label, block number, seed) for blocks 0, 1, ..."""
    for block in count():
        stream = shake_256(labels.NEIGHBOUR_GRAPH + block.to_bytes(8, "little") + seed).digest(_BLOCK)
        yield from (word for (word,) in iter_unpack("<Q", stream))


def _below(bound: int, words: Iterator[int]) -> int:
    """A uniform number below `bound`; words at or above the last multiple of `bound` are skipped."""
    return next(word for word in words if word < 2**64 - 2**64 % bound) % bound


# The smallest degree and threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse:
    """A degree and a threshold, and how likely they are to fail.

    `privacy` and `correctness` are upper bounds on log2 of the failure probabilities; -inf means never.
    """

    clients: int
    colluders: int
    dropouts: int
    degree: int
    threshold: int
    privacy: float
    correctness: float
    assumes: str = field(default=ASSUMES, init=False)


def search(
    n: int, *, colluders: float, dropouts: float, privacy: float = 2**-40, correctness: float = 2**-30
) -> Sparse:
    """The smallest degree, and the smallest threshold for it, within the given failure probabilities.

    `colluders` and `dropouts` are fractions of n. Raises UsageError if no degree below n is enough.
    """
    bad, gone = _counts(n, colluders, dropouts)
    if not (0 < privacy < 1 and 0 < correctness < 1):
        raise UsageError(f"failure probabilities {privacy}, {correctness} must be between 0 and 1")
    private, correct = math.log(privacy), math.log(correctness)

    k = _first(range(2, n, 2), lambda k: _disconnected(n, k, bad + gone) <= private)
    while k is not None:
        cut = _disconnected(n, k, bad + gone)
        t = _least_threshold(n, k, bad, cut, private)
        if _unrebuilt(n, k, t, gone) <= correct:
            return assess(n, degree=k, threshold=t, colluders=colluders, dropouts=dropouts)
        # Every larger degree needs at least the threshold `floor`, because more neighbours include more
        # colluders. So skip the degrees at which even `floor` surviving neighbours are too rare.
        floor = _least_threshold(n, k, bad, -math.inf, private)
        k = _least_degree(range(k + 2, n, 2), n, floor, gone, correct)
    raise UsageError(
        f"no degree below n={n} withstands {bad} colluders and {gone} dropouts at these probabilities; "
        "use the complete graph"
    )


def assess(n: int, *, degree: int, threshold: int, colluders: float, dropouts: float) -> Sparse:
    """How likely a given degree and threshold are to fail: checks a plan that the server wrote."""
    bad, gone = _counts(n, colluders, dropouts)
    check_degree(n, degree)
    if not 2 <= threshold <= degree:
        raise UsageError(f"threshold {threshold} must be between 2 and the degree {degree}")
    exposed = _plus(_outnumbered(n, degree, threshold, bad), _disconnected(n, degree, bad + gone))
    return Sparse(
        clients=n,
        colluders=bad,
        dropouts=gone,
        degree=degree,
        threshold=threshold,
        privacy=min(exposed, 0.0) / math.log(2),
        correctness=min(_unrebuilt(n, degree, threshold, gone), 0.0) / math.log(2),
    )


def _counts(n: int, colluders: float, dropouts: float) -> tuple[int, int]:
    """The fractions as numbers of clients, rounded down; 0.29 * 100 = 28.999... counts as 29."""
    if not 3 <= n <= MOST_CLIENTS:
        raise UsageError(f"n={n} must be between 3 and {MOST_CLIENTS}")
    if not (0 <= colluders < 1 and 0 <= dropouts < 1):
        raise UsageError(f"fractions {colluders}, {dropouts} must be at least 0 and below 1")
    bad, gone = (math.floor(fraction * n + 1e-6) for fraction in (colluders, dropouts))
    if bad + gone > n - 2:
        raise UsageError(f"{bad} colluders and {gone} dropouts of n={n} leave fewer than two honest survivors")
    return bad, gone


def _first(candidates: range, holds: Callable[[int], bool]) -> int | None:
    """The first candidate for which `holds` is true; `holds` is monotone."""
    i = bisect_left(candidates, True, key=holds)
    return candidates[i] if i < len(candidates) else None


def _least_degree(degrees: range, n: int, t: int, gone: int, correct: float) -> int | None:
    """The smallest of the degrees that meets (c) with threshold t."""
    return _first(degrees, lambda k: _unrebuilt(n, k, t, gone) <= correct)


def _least_threshold(n: int, k: int, bad: int, cut: float, private: float) -> int:
    """The smallest t >= 2 that meets (a) and (b), or k + 1, which never meets (c), if there is none.

    t = 1 is never used: a single neighbour could then read a client's secrets.
    """
    t = _first(range(2, k + 1), lambda t: _plus(_outnumbered(n, k, t, bad), cut) <= private)
    return k + 1 if t is None else t


# Natural logarithms of upper bounds on failure probabilities (a bound may exceed 1)


def _outnumbered(n: int, k: int, t: int, bad: int) -> float:
    """(a): some honest client has t or more of the colluders among its k neighbours.

    The union bound is over n rather than n - bad clients, so that it also holds for fewer colluders.
    """
    return math.log(n) + _tail(t, n - 1, bad, k)


def _unrebuilt(n: int, k: int, t: int, gone: int) -> float:
    """(c): some client has fewer than t surviving neighbours, that is, at least k - t + 1 dropouts.

    The union bound is over all n clients. A dropout has one dropout less around it, so it is covered too.
    """
    return math.log(n) + _tail(k - t + 1, n - 1, gone, k)


def _disconnected(n: int, k: int, removed: int) -> float:
    """(b): removing at most `removed` random clients from the circle disconnects the others.

    This happens exactly when two gaps between consecutive survivors reach k/2. With r removed and s = n - r
    left, all compositions of r into s gaps are equally likely, so two given gaps are that long with
    probability C(n-k-1, s-1) / C(n-1, s-1), and the union bound has s(s-1)/2 pairs. It grows with r while
    2(r+1) <= k(n-r) and shrinks after that, so the worst r is `removed` or that peak.
    """
    r = min(removed, (k * n - 2) // (k + 2) + 1)
    if r < k:
        return -math.inf
    s = n - r
    return math.log(s * (s - 1) / 2) + _choose(n - k - 1, s - 1) - _choose(n - 1, s - 1) + _SLACK


def _tail(least: int, n: int, marked: int, drawn: int) -> float:
    """ln P[X >= least]; X is hypergeometric: how many of `drawn` out of n are among the `marked`."""
    high = min(drawn, marked)
    if least > high:
        return -math.inf
    rest = n - marked - drawn
    # Sum outwards from the largest term, relative to it; each term left out is below 2^-60 of it.
    peak = max(least, (drawn + 1) * (marked + 1) // (n + 2))
    total = term = 1.0
    for x in range(peak, high):
        term *= (marked - x) * (drawn - x) / ((x + 1) * (rest + x + 1))
        total += term
        if term < 2**-60:
            break
    term = 1.0
    for x in range(peak, least, -1):
        term *= x * (rest + x) / ((marked - x + 1) * (drawn - x + 1))
        total += term
        if term < 2**-60:
            break
    largest = _choose(marked, peak) + _choose(n - marked, drawn - peak) - _choose(n, drawn)
    return largest + math.log(total) + _SLACK


def _choose(n: int, k: int) -> float:
    """ln of n over k."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _plus(a: float, b: float) -> float:
    """ln(e^a + e^b)."""
    top = max(a, b)
    return top if top == -math.inf else top + math.log1p(math.exp(min(a, b) - top))
