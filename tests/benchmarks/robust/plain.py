"""Every rule in plain numpy, as one would write it without care for speed."""

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

import robust

Matrix = NDArray[np.float32]
Call = Callable[[Matrix], Any]


def parameters(rule: str, n: int, f: int, width: int) -> dict[str, Any]:
    """Parameters of a rule or pre-aggregation step for this benchmark."""
    special: dict[str, dict[str, Any]] = {
        "monna": {"f": f, "trusted": 0},
        "zeno": {"loss": lambda g: float(g[0])},  # the caller supplies the loss; this measures the rest
        "zeno++": {"gradient": np.full(width, -1e-3, dtype=np.float32)},
        "fltrust": {"server": np.full(width, 1e-3, dtype=np.float32)},
        "dnc": {"f": f, "rng": np.random.default_rng(0)},
        "clipping": {"radius": math.sqrt(width) / 2},
        "bucketing": {"size": 2, "rng": np.random.default_rng(0)},
    }
    if rule in special:
        return special[rule]
    takes = {**robust.AGGREGATORS, **robust.PRE_AGGREGATORS}[rule].parameters
    return {"f": f} if "f" in takes else {}


def distances(x: Matrix) -> NDArray[np.float32]:
    gram = x @ x.T
    norms = gram.diagonal()
    return np.maximum(norms[:, None] + norms - 2 * gram, 0)


def plain_krum(x: Matrix, f: int) -> NDArray[np.int64]:
    return np.argsort(np.sort(distances(x), axis=1)[:, 1 : len(x) - f - 1].sum(axis=1), kind="stable")


def plain_meamed(x: Matrix, keep: int) -> Any:
    off = np.abs(x - np.median(x, axis=0))
    return np.take_along_axis(x, np.argpartition(off, keep - 1, axis=0)[:keep], axis=0).mean(axis=0)


def plain_bulyan(x: Matrix, f: int) -> Any:
    squared, left, chosen = distances(x), list(range(len(x))), []
    for _ in range(len(x) - 2 * f):
        part = np.sort(squared[np.ix_(left, left)], axis=1)
        best = int(np.argmin(part[:, 1 : max(len(left) - f - 1, 2)].sum(axis=1)))
        chosen.append(left.pop(best))
    return plain_meamed(x[chosen], len(x) - 4 * f)


def plain_geometric_median(x: Matrix) -> Any:
    z, before = x.mean(axis=0), np.inf
    while True:
        lengths = np.linalg.norm(x - z, axis=1)
        if lengths.sum() > before * (1 - 1e-6):
            return z
        before = lengths.sum()
        weights = 1 / np.maximum(lengths, 1e-6)
        z = (weights / weights.sum()) @ x


def plain_caf(x: Matrix, f: int) -> Any:
    n, counts, best, result = len(x), np.ones(len(x), dtype=np.float32), np.inf, x.mean(axis=0)
    while counts.sum() > n - 2 * f:
        weights = counts / counts.sum()
        centred = x - weights @ x
        root = np.sqrt(weights)
        gram = centred @ centred.T
        values, vectors = np.linalg.eigh(root[:, None] * gram * root)
        if values[-1] < best:
            best, result = values[-1], weights @ x
        along = (gram @ (root * vectors[:, -1])) ** 2
        counts = np.where(counts > 0, counts * np.maximum(1 - along / along[counts > 0].max(), 0), 0)
    return result


def plain_subsets(x: Matrix, f: int, cost: Callable[[Any], float]) -> Any:
    squared = distances(x)
    best = min(combinations(range(len(x)), len(x) - f), key=lambda s: cost(squared[np.ix_(s, s)]))
    return x[list(best)].mean(axis=0)


def largest_eigenvalue(squared: Any) -> float:
    centre = np.eye(len(squared)) - 1 / len(squared)
    return float(np.linalg.eigvalsh(centre @ squared @ centre / -2)[-1])


def plain_centered_clipping(x: Matrix) -> Any:
    v = np.median(x, axis=0)
    radius = np.median(np.linalg.norm(x - v, axis=1))
    for _ in range(3):
        off = x - v
        v = v + (off * np.minimum(1, radius / np.linalg.norm(off, axis=1))[:, None]).mean(axis=0)
    return v


def plain_clipping(x: Matrix, radius: float) -> Any:
    return x * np.minimum(1, radius / np.linalg.norm(x, axis=1))[:, None]


def plain_arc(x: Matrix, f: int) -> Any:
    n = len(x)
    norms = np.linalg.norm(x, axis=1)
    return x * np.minimum(1, np.sort(norms)[n - 2 * f * (n - f) // n - 1] / norms)[:, None]


def plain_nnm(x: Matrix, f: int) -> Any:
    nearest = np.argsort(distances(x), axis=1)[:, : len(x) - f]
    weights = np.zeros((len(x), len(x)), dtype=np.float32)
    np.put_along_axis(weights, nearest, np.float32(1 / (len(x) - f)), axis=1)
    return weights @ x


def plain_zeno(x: Matrix) -> Any:
    scores = [0 - float(g[0]) - 1e-4 * float(g @ g) for g in x]
    kept = np.array(scores) >= 0
    return x[kept].mean(axis=0) if kept.any() else np.zeros(x.shape[1])


def plain_zeno_plus_plus(x: Matrix, gradient: NDArray[np.float32]) -> Any:
    kept = -(x @ gradient) - 1e-4 * np.einsum("ij,ij->i", x, x) >= 0
    return x[kept].mean(axis=0) if kept.any() else np.zeros(x.shape[1])


def in_numpy(rule: str, n: int, f: int, width: int) -> Call | None:
    """The rule in plain numpy, if this module has it."""
    options = parameters(rule, n, f, width)
    calls: dict[str, Call] = {
        "mean": lambda x: x.mean(axis=0),
        "median": lambda x: np.median(x, axis=0),
        "trimmed_mean": lambda x: np.sort(x, axis=0)[f : n - f].mean(axis=0),
        "meamed": lambda x: plain_meamed(x, n - f),
        "geometric_median": plain_geometric_median,
        "krum": lambda x: x[plain_krum(x, f)[0]],
        "multi_krum": lambda x: x[plain_krum(x, f)[: n - f]].mean(axis=0),
        "bulyan": lambda x: plain_bulyan(x, f),
        "mda": lambda x: plain_subsets(x, f, lambda part: part.max()),
        "monna": lambda x: x[np.argsort(np.linalg.norm(x - x[0], axis=1))[: n - f]].mean(axis=0),
        "caf": lambda x: plain_caf(x, f),
        "smea": lambda x: plain_subsets(x, f, largest_eigenvalue),
        "centered_clipping": plain_centered_clipping,
        "norm_bounded_mean": lambda x: plain_clipping(x, np.median(np.linalg.norm(x, axis=1))).mean(axis=0),
        "zeno": plain_zeno,
        "zeno++": lambda x: plain_zeno_plus_plus(x, options["gradient"]),
        "clipping": lambda x: plain_clipping(x, options["radius"]),
        "arc": lambda x: plain_arc(x, f),
        "nnm": lambda x: plain_nnm(x, f),
        "bucketing": lambda x: (
            np.add.reduceat(x[np.random.default_rng(0).permutation(n)], np.arange(0, n, 2), axis=0) / np.float32(2)
        ),
    }
    return calls.get(rule)
