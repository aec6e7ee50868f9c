"""Rules that judge rows by the server's own validation data: they withstand any number of bad rows.

A row is accepted or rejected by itself, whatever the others are; the result is the mean of the accepted
rows, and zero if there are none. The data stays with the caller: Zeno takes a function that gives the loss,
Zeno++ the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from robust.rows import Indices, Outcome, Rows, Vector, as_vector
from robust.rule import aggregator


def _all_but_one(n: int) -> int:
    return n - 1


@aggregator(paper="Xie et al. 2019", needs="a validation loss", withstands=_all_but_one)
def zeno(rows: Rows, *, loss: Callable[[Vector], float], rho: float = 1e-4, epsilon: float = 0.0) -> Outcome:
    """The mean of the rows g with f(x) - f(x + g) - rho |g|^2 + epsilon >= 0.

    `loss(g)` must be f(x + g), the validation loss of the model x after adding g, on the same samples for
    every g. The score is that of Xie, Koyejo and Gupta 2019 for updates that are added; instead of keeping
    a fixed number of the best, every row above the threshold is kept, as the SHARE paper's experiments did
    (under the name Zeno++; rho = 1e-4, epsilon = 0.2 to 5). A row whose loss is not a number is rejected.
    """
    penalties = (
        rho * rows.squared_norms()
    )  # first: it finds rows that are not finite before any loss is spent
    before = float(loss(np.zeros(rows.width, dtype=np.float32)))
    if not math.isfinite(before):
        raise ValueError(f"the validation loss before any update is {before}: the model itself is broken")
    after = np.array([loss(rows.row(i)) for i in range(len(rows))], dtype=np.float64)
    with np.errstate(invalid="ignore"):
        accepted = before - after - penalties + epsilon >= 0
    return _mean_of_accepted(rows, np.flatnonzero(accepted))


@aggregator(name="zeno++", paper="Xie et al. 2020", needs="a validation gradient", withstands=_all_but_one)
def zeno_plus_plus(
    rows: Rows, *, gradient: Vector, eta: float = 1.0, rho: float = 1e-4, epsilon: float = 0.0
) -> Outcome:
    """The mean of the rows g with -eta <gradient, g> - rho |g|^2 >= -eta epsilon.

    `gradient` is that of the validation loss at the model that the rows are to be added to, and eta the
    server's learning rate. Xie, Koyejo and Gupta 2020, and Algorithm 2 of the SHARE paper, which adds up
    the accepted rows; here they are averaged, because rows are cluster means and not shares of one sum.
    """
    direction = as_vector(gradient, rows.width, "gradient")
    scores = -eta * rows.products(direction) - rho * rows.squared_norms()
    return _mean_of_accepted(rows, np.flatnonzero(scores >= -eta * epsilon))


def _mean_of_accepted(rows: Rows, accepted: Indices) -> Outcome:
    if len(accepted):
        return rows.average(accepted)
    return Outcome(np.zeros(rows.width, dtype=np.float32), np.zeros(len(rows)), accepted)
