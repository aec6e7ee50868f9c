"""Compiled loops and nothing else: no rule, no check of f, no opinion on what a bad row is.

`order` answers questions about single columns (order statistics; `straight` those about large matrices with
few rows), `blocks` about whole rows (distances, norms, weighted sums). Importing any of them, or `vectors`,
imports numba, and kernels are loaded or compiled at their first call, so the rest of the package imports
them only when the first matrix arrives. `network`, `medians` and `pieces` are plain Python.
"""
