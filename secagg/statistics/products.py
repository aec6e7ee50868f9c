"""Exact sums of whole numbers and of their products, on floating-point hardware.

A code of 26 bits is cut into two halves of 13 bits. Products of halves, summed over the rows in memory, are whole
numbers below 2^53, so that a matrix product in float64 is exact.
"""

from __future__ import annotations

import numpy as np

from secagg.agreement.statistics.columns import Codes

_HALF = 13


class Products:
    """The sums of some columns of codes, and of the products of each two of them."""

    def __init__(self, columns: int) -> None:
        self.sums = [0] * columns
        self._high, self._mixed, self._low = np.zeros((3, columns, columns), np.int64)

    def add(self, codes: Codes, *, squares: bool) -> None:
        """Some rows: `codes` has a row for each column. Up to 2^20 codes each, at most 2^26 if they are multiplied."""
        self.sums = [a + b for a, b in zip(self.sums, codes.sum(axis=1).tolist(), strict=True)]
        if not squares:
            return
        high, low = (codes >> _HALF).astype(np.float64), (codes & (2**_HALF - 1)).astype(np.float64)
        self._high += (high @ high.T).astype(np.int64)
        self._mixed += (high @ low.T).astype(np.int64)
        self._low += (low @ low.T).astype(np.int64)

    def products(self) -> list[int]:
        """The sums of products of columns i <= j: (0, 0), (0, 1), ..., (1, 1), ..."""
        parts = zip(self._high.tolist(), self._mixed.tolist(), self._mixed.T.tolist(), self._low.tolist(), strict=True)
        rows = [[(a << 2 * _HALF) + ((b + c) << _HALF) + d for a, b, c, d in zip(*row, strict=True)] for row in parts]
        return [value for place, row in enumerate(rows) for value in row[place:]]
