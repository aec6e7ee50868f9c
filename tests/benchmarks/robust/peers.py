"""Peers to compare with: torch and ByzFL where they are installed, and how long a slow call would take."""

import importlib
import importlib.util
import math
import sys
import types
from collections.abc import Callable
from typing import Any

from tests.benchmarks.robust.plain import Call

# Estimated seconds of calls that grow fast, from runs at sizes where they are short.
SECONDS: dict[tuple[str, str], Callable[[int, int, int], float]] = {
    ("numpy", "mda"): lambda n, f, width: math.comb(n, f) * 3e-5,
    ("numpy", "smea"): lambda n, f, width: math.comb(n, f) * (1e-4 + 5e-10 * n**3),
    ("numpy", "caf"): lambda n, f, width: 1e-11 * n**3 * width,
    ("ByzFL", "mda"): lambda n, f, width: math.comb(n, f) * 1e-4,
    ("ByzFL", "smea"): lambda n, f, width: math.comb(n, f) * 7e-9 * n * width,
    ("ByzFL", "caf"): lambda n, f, width: 2e-9 * n**2 * width,
    ("ByzFL", "nnm"): lambda n, f, width: 1.3e-8 * n * (n - f) * width,  # and 4 n (n - f) width bytes
}


def seconds(peer: str, rule: str, n: int, f: int, width: int) -> float:
    estimate = SECONDS.get((peer, rule))
    return estimate(n, f, width) if estimate else 0.0


def in_torch(rule: str, n: int, f: int, torch: Any) -> Call | None:
    """What torch itself offers; the matrix is shared, not copied."""
    if torch is None:
        return None
    calls: dict[str, Call] = {
        "mean": lambda x: x.mean(dim=0),
        "median": lambda x: torch.median(x, dim=0).values,
        "trimmed_mean": lambda x: torch.sort(x, dim=0).values[f : n - f].mean(dim=0),
    }
    return calls.get(rule)


def in_byzfl(rule: str, n: int, f: int, width: int, byzfl: Any) -> Call | None:
    """ByzFL's version, created for each call, because some keep state. Its geometric median takes 3 steps."""
    if byzfl is None:
        return None
    makers: dict[str, Callable[[], Call]] = {
        "mean": byzfl.Average,
        "median": byzfl.Median,
        "trimmed_mean": lambda: byzfl.TrMean(f),
        "meamed": lambda: byzfl.Meamed(f),
        "geometric_median": byzfl.GeometricMedian,
        "krum": lambda: byzfl.Krum(f),
        "multi_krum": lambda: byzfl.MultiKrum(f),
        "mda": lambda: byzfl.MDA(f),
        "monna": lambda: byzfl.MoNNA(f, 0),
        "caf": lambda: byzfl.CAF(f),
        "smea": lambda: byzfl.SMEA(f),
        "centered_clipping": lambda: byzfl.CenteredClipping(L=3, tau=math.sqrt(width)),
        "clipping": lambda: byzfl.Clipping(math.sqrt(width) / 2),
        "arc": lambda: byzfl.ARC(f),
        "nnm": lambda: byzfl.NNM(f),
        "bucketing": lambda: byzfl.Bucketing(2),
    }
    if rule not in makers:
        return None
    make = makers[rule]
    return lambda x: make()(x)


def load_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def load_byzfl() -> Any:
    """Only ByzFL's aggregators: its top level also imports a training framework and torchvision."""
    found = importlib.util.find_spec("byzfl")
    if found is None or found.submodule_search_locations is None:
        return None
    package = types.ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["byzfl"] = package
    try:
        return importlib.import_module("byzfl.aggregators")
    except ImportError:
        return None
