"""Slow versions of every rule, in double precision, from the definitions; and the paper's formulas."""

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def mean(x: Array) -> Array:
    return x.sum(axis=0) / len(x)


def median(x: Array, middle: str = "mean") -> Array:
    ordered = np.sort(x, axis=0)
    low, high = ordered[(len(x) - 1) // 2], ordered[len(x) // 2]
    return low if middle == "lower" else (low + high) / 2


def trimmed_mean(x: Array, f: int) -> Array:
    return mean(np.sort(x, axis=0)[f : len(x) - f])


def meamed(x: Array, f: int) -> Array:
    return around_median(x, len(x) - f)


def around_median(x: Array, keep: int) -> Array:
    result = []
    for column, middle in zip(x.T, median(x), strict=True):
        nearest = sorted(column, key=lambda value: (abs(value - middle), value))
        result.append(sum(nearest[:keep]) / keep)
    return np.array(result)


def distances(x: Array) -> Array:
    return np.array([[((a - b) ** 2).sum() for b in x] for a in x])


def krum_order(x: Array, f: int, spread: bool = False) -> list[int]:
    """Rows from the best score to the worst; of equal ones, the first (or, if asked, the least spread)."""
    n = len(x)
    squared = distances(x)
    scores = []
    for i in range(n):
        others = sorted(squared[i][j] for j in range(n) if j != i)
        scores.append(sum(others[: max(n - f - 2, 1)]))
    return sorted(range(n), key=lambda i: (scores[i], squared[i].sum() if spread else 0, i))


def krum(x: Array, f: int) -> Array:
    return x[krum_order(x, f)[0]]


def multi_krum(x: Array, f: int, m: int | None = None) -> Array:
    return mean(x[krum_order(x, f)[: len(x) - f if m is None else m]])


def bulyan(x: Array, f: int) -> Array:
    left = list(range(len(x)))
    chosen = []
    for _ in range(len(x) - 2 * f):
        best = left[krum_order(x[left], f, spread=True)[0]]
        chosen.append(best)
        left.remove(best)
    return around_median(x[chosen], len(x) - 4 * f)


def objective(x: Array, z: Array) -> float:
    return float(np.linalg.norm(x - z, axis=1).sum())


def geometric_median(x: Array) -> Array:
    """Weiszfeld on the points themselves until nothing moves or for very long, then compared with every row."""
    z = median(x)
    for _ in range(20_000):
        weights = 1 / np.maximum(np.linalg.norm(x - z, axis=1), 1e-12)
        before, z = z, weights @ x / weights.sum()
        if np.array_equal(before, z):
            break
    return min([z, *x], key=lambda point: objective(x, point))


def mda(x: Array, f: int) -> Array:
    squared = distances(x)

    def cost(subset: tuple[int, ...]) -> tuple[float, float]:
        part = squared[np.ix_(subset, subset)]
        return part.max(), part.sum()

    return mean(x[list(min(combinations(range(len(x)), len(x) - f), key=cost))])


def monna(x: Array, f: int, trusted: int) -> Array:
    squared = distances(x)[trusted]
    return mean(x[sorted(range(len(x)), key=lambda i: (squared[i], i))[: len(x) - f]])


def covariance(x: Array, weights: Array) -> Array:
    centred = x - weights @ x
    return (centred * weights[:, None]).T @ centred


def caf(x: Array, f: int) -> Array:
    n = len(x)
    counts = np.ones(n)
    best, result = math.inf, mean(x)
    almost = 1 - 1e-9  # what is closer than this is equal
    while counts.sum() * almost > n - 2 * f:
        weights = counts / counts.sum()
        values, vectors = np.linalg.eigh(covariance(x, weights))
        if values[-1] < best * almost:
            best, result = values[-1], weights @ x
        projections = (((x - weights @ x) @ vectors[:, values >= values[-1] * almost]) ** 2).sum(axis=1)
        largest = projections[counts > 0].max()
        if largest <= 0:
            break
        counts = np.where(projections < largest * almost, counts * (1 - projections / largest), 0)
    return result


def smea(x: Array, f: int) -> Array:
    size = len(x) - f
    uniform = np.full(size, 1 / size)

    def worst(subset: tuple[int, ...]) -> float:
        return float(np.linalg.eigvalsh(covariance(x[list(subset)], uniform))[-1])

    return mean(x[list(min(combinations(range(len(x)), size), key=worst))])


def centered_clipping(x: Array, centre: Array | None = None, radius: float | None = None, steps: int = 3) -> Array:
    v = median(x) if centre is None else np.asarray(centre, dtype=np.float64)
    if radius is None:
        radius = float(np.median(np.linalg.norm(x - v, axis=1)))
    for _ in range(steps):
        moves = []
        for row in x:
            length = np.linalg.norm(row - v)
            moves.append((row - v) * (radius / length if length > radius else 1.0))
        v = v + mean(np.array(moves))
    return v


def norm_bounded_mean(x: Array, bound: float | None = None) -> Array:
    norms = np.linalg.norm(x, axis=1)
    return mean(clipping(x, float(np.median(norms)) if bound is None else bound))


def zeno(x: Array, loss: Callable[[Any], float], rho: float = 1e-4, epsilon: float = 0.0) -> Array:
    start = loss(np.zeros_like(x[0]))
    kept = [g for g in x if start - loss(g) - rho * (g @ g) + epsilon >= 0]
    return mean(np.array(kept)) if kept else np.zeros_like(x[0])


def zeno_plus_plus(
    x: Array, gradient: Array, eta: float = 1.0, rho: float = 1e-4, epsilon: float = 0.0, longest: float = math.inf
) -> Array:
    kept = [g for g in x if -eta * (gradient @ g) - rho * (g @ g) >= -eta * epsilon]
    limit = longest * eta * np.linalg.norm(gradient)
    kept = [g * min(1.0, limit / max(np.linalg.norm(g), 1e-300)) for g in kept]
    return mean(np.array(kept)) if kept else np.zeros_like(x[0])


def fltrust(x: Array, server: Array) -> Array:
    length = np.linalg.norm(server)
    total, weight = np.zeros_like(x[0]), 0.0
    for row in x:
        own = np.linalg.norm(row)
        trust = max(0.0, float(row @ server) / (own * length)) if own else 0.0
        if trust:
            total, weight = total + trust * row * (length / own), weight + trust
    return total / weight if weight else total


def dnc(x: Array, f: int, rng: object = None) -> Array:
    """On all coordinates every round marks the same rows."""
    values, vectors = np.linalg.eigh(covariance(x, np.full(len(x), 1 / len(x))))
    far = (((x - mean(x)) @ vectors[:, values >= values[-1] * (1 - 1e-9)]) ** 2).sum(axis=1)
    left, same = list(range(len(x))), 1e-9 * far.max()
    last = sorted(far, reverse=True)[f - 1] if f else math.inf
    clear = [i for i in left if far[i] > last + same]
    level = [i for i in left if abs(far[i] - last) <= same]
    marked = clear + level[: f - len(clear)]
    return mean(x[[i for i in left if i not in marked]])


def clipping(x: Array, radius: float) -> Array:
    norms = np.linalg.norm(x, axis=1)
    return np.array([row * (radius / norm if norm > radius else 1.0) for row, norm in zip(x, norms, strict=True)])


def arc(x: Array, f: int) -> Array:
    n = len(x)
    norms = sorted(np.linalg.norm(x, axis=1))
    return clipping(x, norms[n - math.floor(2 * f * (n - f) / n) - 1])


def nnm(x: Array, f: int) -> Array:
    squared = distances(x)
    n = len(x)
    return np.array([mean(x[sorted(range(n), key=lambda j: (squared[i][j], j))[: n - f]]) for i in range(n)])


def paper_bad_clients(q_0: int, cluster_size: int) -> Fraction:
    """Lemma 2 of the SHARE paper as stated: q = q_0 / m."""
    return Fraction(q_0, cluster_size)


def paper_signal_lost(n_clients: int, bad: int, cluster_size: int, rounds: int = 1) -> Fraction:
    """Appendix E of the SHARE paper as stated: (1 - C(n - q, n/m - 1) / C(n, n/m - 1))^R."""
    drawn = n_clients // cluster_size - 1
    return (1 - Fraction(math.comb(n_clients - bad, drawn), math.comb(n_clients, drawn))) ** rounds


_FUNCTIONS: list[Callable[..., Array]] = [
    mean, median, trimmed_mean, meamed, geometric_median, krum, multi_krum, bulyan, mda, monna, caf, smea,
    centered_clipping, norm_bounded_mean, dnc, zeno, fltrust,
]  # fmt: skip
RULES = {function.__name__: function for function in _FUNCTIONS} | {"zeno++": zeno_plus_plus}
