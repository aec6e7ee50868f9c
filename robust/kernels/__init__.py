"""Compiled loops. They know nothing of rules, of f, or of bad rows.

`order` works on single columns (order statistics; `straight_line` does the same for large matrices with few
rows). `distances` works on whole rows (distances, norms, weighted sums). Both import numba, and a kernel is
loaded or compiled at its first call, so the rest of the package imports them when the first matrix arrives.
"""

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
Vector = NDArray[np.float32]
Doubles = NDArray[np.float64]
Indices = NDArray[np.int64]
