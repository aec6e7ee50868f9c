"""Byzantine-robust aggregation: rules, pre-aggregation, attacks, and how many bad clients a rule withstands.

    >>> import numpy as np, robust
    >>> updates = np.array([[1.0, 2.0], [1.1, 2.1], [0.9, 1.9], [1.0, 2.2], [1e30, np.nan]])
    >>> robust.median(updates)                      # a rule is a function of a matrix, one row per update
    array([1.  , 2.05], dtype=float32)
    >>> found = robust.aggregate("multi_krum", updates, f=1)     # or a name, with a report
    >>> found.ignored, found.accepted
    ((4,), (0, 1, 2, 3))

The package depends on numpy and numba. It does not import torch, `secagg` or `fl`.
"""

from robust import tolerance  # noqa: I001
from robust.aggregators import (
    bulyan, caf, centered_clipping, dnc, geometric_median, krum, mda, meamed, mean, median, monna,
    multi_krum, norm_bounded_mean, smea, trimmed_mean,
)  # fmt: skip
from robust.attacks import (
    ATTACKS, Attack, AttackInput, a_little_is_enough, attack, fall_of_empires, gaussian, label_flip, mimic,
    min_max, min_sum, non_finite, sign_flip, zero,
)  # fmt: skip
from robust.kernels import Indices, Matrix, Vector
from robust.kernels.jit import on_compile
from robust.kernels.threads import set_threads
from robust.parameters import Parameter, Registry, UnknownNameError, check_parameters
from robust.pre_aggregators import arc, bucketing, clipping, nnm
from robust.rows import Outcome, Rows, RowsError, Weights
from robust.rule import (
    AGGREGATORS, PRE_AGGREGATORS, Aggregate, Aggregator, Mixed, PreAggregator, Prepared, aggregate,
    aggregator, pre_aggregator,
)  # fmt: skip
from robust.zeno import fltrust, zeno, zeno_plus_plus

__all__ = [
    "AGGREGATORS", "ATTACKS", "PRE_AGGREGATORS", "Aggregate", "Aggregator", "Attack", "AttackInput",
    "Indices", "Matrix", "Mixed", "Outcome", "Parameter", "PreAggregator", "Prepared", "Registry", "Rows",
    "RowsError", "UnknownNameError", "Vector", "Weights", "a_little_is_enough", "aggregate", "aggregator",
    "arc", "attack", "bucketing", "bulyan", "caf", "centered_clipping", "check_parameters", "clipping", "dnc",
    "fall_of_empires", "fltrust", "gaussian", "geometric_median", "krum", "label_flip", "mda", "meamed",
    "mean", "median", "mimic", "min_max", "min_sum", "monna", "multi_krum", "nnm", "non_finite",
    "norm_bounded_mean", "on_compile", "pre_aggregator", "set_threads", "sign_flip", "smea", "tolerance",
    "trimmed_mean", "zeno", "zeno_plus_plus", "zero",
]  # fmt: skip
