"""Matrices to try rules on, and the parameters that each rule needs for them.

Add a new rule to `NEEDS`: the tests that all rules share then cover it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from robust import AGGREGATORS

Matrix = NDArray[np.float32]


def _f(n: int, f: int) -> dict[str, Any]:
    return {"f": f}


def _nothing(n: int, f: int) -> dict[str, Any]:
    return {}


def _to_three(g: NDArray[Any]) -> float:
    """A validation loss that is least for updates near 3."""
    return float(((np.asarray(g, dtype=np.float64) - 3) ** 2).mean())


NEEDS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "mean": _nothing,
    "median": _nothing,
    "trimmed_mean": _f,
    "meamed": _f,
    "geometric_median": _nothing,
    "krum": _f,
    "multi_krum": _f,
    "bulyan": _f,
    "mda": _f,
    "monna": lambda n, f: {"f": f, "trusted": 0},
    "caf": _f,
    "smea": _f,
    "centered_clipping": _nothing,
    "norm_bounded_mean": _nothing,
    "dnc": lambda n, f: {"f": f, "rng": np.random.default_rng(0)},
    "zeno": lambda n, f: {"loss": _to_three},
    "zeno++": lambda n, f: {"gradient": None},  # the width is not known here: see `parameters`
    "fltrust": lambda n, f: {"server": None},
}

# Rules that depend on more than the set of rows, so that they do not follow its shifts, scale or order.
BY_VALIDATION = {"zeno", "zeno++", "fltrust"}
BY_ORDER = {"monna"}
BY_NORM = {"norm_bounded_mean"}  # the origin matters
ALIKE = {"dnc"}  # withstands bad rows that are about alike, and no others
COORDINATE_WISE = {"median", "trimmed_mean", "meamed"}
BUILT_IN = tuple(NEEDS)


def parameters(rule: str, n: int, f: int, width: int) -> dict[str, Any]:
    """Parameters for n rows of which f may be bad."""
    if rule == "zeno++":
        return {"gradient": np.full(width, -1.0, dtype=np.float32)}
    if rule == "fltrust":
        return {"server": np.full(width, 0.5, dtype=np.float32)}
    return NEEDS[rule](n, f)


def apply(rule: str, x: NDArray[Any], f: int) -> NDArray[np.float32]:
    """The rule's vector for these rows."""
    return AGGREGATORS[rule](x, **parameters(rule, len(x), f, x.shape[1]))


def largest_f(rule: str, n: int) -> int:
    """The largest f to test a rule with: what it withstands, while an exact search is quick."""
    quick = {"mda": 12, "smea": 3}.get(rule, n)
    return max(min(AGGREGATORS[rule].withstands(n), quick, (n - 1) // 2), 0)


@st.composite
def normal(draw: st.DrawFn, *, least: int = 3, most: int = 12, widest: int = 70, offset: float = 0.0) -> Matrix:
    """Rows of normal values, in general position: no ties, no equal distances."""
    n, width = draw(st.integers(least, most)), draw(st.integers(2, widest))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1e-6, 1.0, 1e4]))
    return (rng.standard_normal((n, width)) * scale + offset * scale).astype(np.float32)


@st.composite
def whole(draw: st.DrawFn, *, least: int = 3, most: int = 9, widest: int = 40) -> Matrix:
    """Rows of small whole numbers, full of ties, on which distances and scores are exact."""
    n, width = draw(st.integers(least, most)), draw(st.integers(1, widest))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.integers(-3, 4, (n, width)).astype(np.float32)


def close(found: NDArray[Any], expected: NDArray[Any], scale: float, digits: float = 2e-6) -> bool:
    """Equal but for the rounding to float32 (of values about as large as `scale`)."""
    return bool(np.allclose(found, expected, rtol=digits, atol=digits * scale))
