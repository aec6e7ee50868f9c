"""Rules that judge rows by the server's own validation data. They withstand any number of bad rows.

Each row is accepted or rejected independently of the others. The result is the mean of the accepted rows, or
zero if there are none. The data stays with the caller: Zeno takes a loss function, Zeno++ a gradient.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from robust.geometry import clipping_factors
from robust.kernels import Doubles, Indices, Vector
from robust.parameters import must_not_be_negative
from robust.rows import Outcome, Rows, RowsError, as_array, as_vector
from robust.rule import aggregator

Loss = Callable[[Vector], float]


@aggregator(paper="Xie et al. 2019", needs="a validation loss", withstands=lambda n: n - 1)
def zeno(rows: Rows, *, loss: Loss, losses: Doubles | None = None, rho: float = 1e-4, epsilon: float = 0.0) -> Outcome:
    """The mean of the rows g with f(x) - f(x + g) - rho |g|^2 + epsilon >= 0.

    `loss(g)` must be f(x + g): the validation loss of the model x after adding g, on the same samples for every g. The
    score is that of Xie, Koyejo and Gupta 2019 for updates that are added. Xie et al. keep a fixed number of the best
    rows; this rule keeps every row above the threshold, as the SHARE paper's experiments did (under the name Zeno++;
    rho = 1e-4, epsilon = 0.2 to 5). A row whose loss is NaN is rejected. Withstands any number of bad rows that the
    loss tells apart. A caller that has computed the loss of every row passes the values as `losses`; `loss` is
    then called for f(x) only. `aggregate` refuses them after pre-aggregation, which makes other rows.

    >>> import robust
    >>> robust.zeno([[1], [2], [-900]], loss=lambda g: float((g[0] - 2) ** 2))
    array([1.5], dtype=float32)
    """
    penalties = rho * rows.squared_norms()  # comes first: it detects bad rows before `loss` is called
    before = _number(loss(np.zeros(rows.width, dtype=np.float32)))
    if not math.isfinite(before):
        raise RowsError(f"the loss before any update must be finite, got {before}: check the model")
    if losses is None:
        after = np.array([_number(loss(rows.row(i))) for i in range(len(rows))], dtype=np.float64)
    else:
        after = _one_per_row(losses, rows.given)[rows.labels]
    with np.errstate(invalid="ignore"):
        accepted = before - after - penalties + epsilon >= 0
    return _mean_of_accepted(rows, np.flatnonzero(accepted))


@aggregator(
    name="zeno++",
    paper="Xie et al. 2020",
    needs="a validation gradient",
    withstands=lambda n: n - 1,
    refuse=lambda n, longest=None, **_: must_not_be_negative(longest),
)
def zeno_plus_plus(
    rows: Rows,
    *,
    gradient: Vector,
    eta: float = 1.0,
    rho: float = 1e-4,
    epsilon: float = 0.0,
    longest: float | None = None,
) -> Outcome:
    """The mean of the rows g with -eta <gradient, g> - rho |g|^2 >= -eta epsilon.

    `gradient` is the gradient of the validation loss at the model to which the rows are added, and eta is the
    server's learning rate. Xie, Koyejo and Gupta 2020, and Algorithm 2 of the SHARE paper. The algorithm adds
    up the accepted rows; this rule averages them, because rows are cluster means and not parts of one sum.

    Withstands any number of bad rows that the gradient tells apart by their direction. Against length it has only rho:
    with epsilon = 0, a row along -gradient is accepted up to a length of eta |gradient| / rho. Xie et al. therefore
    give every row the length of the gradient. `longest` bounds the length in the same measure: accepted rows longer
    than `longest` times eta |gradient| are shortened to it. (Rows of several local steps are longer than one gradient.)

    >>> import robust
    >>> robust.zeno_plus_plus([[1], [2], [-900]], gradient=[-1])
    array([1.5], dtype=float32)
    >>> robust.zeno_plus_plus([[1], [2], [9000]], gradient=[-1], longest=3.0)
    array([2.], dtype=float32)
    """
    direction = as_vector(gradient, rows.width, "gradient")
    squares = rows.squared_norms()
    accepted = np.flatnonzero(-eta * rows.products(direction) - rho * squares >= -eta * epsilon)
    if longest is None or not len(accepted):
        return _mean_of_accepted(rows, accepted)
    limit = longest * eta * float(np.linalg.norm(direction.astype(np.float64)))
    weights = np.zeros(len(rows))
    weights[accepted] = clipping_factors(np.sqrt(squares[accepted]), limit) / len(accepted)
    return replace(rows.weigh(weights), accepted=accepted)


@aggregator(paper="Cao et al. 2021", needs="the server's own update", withstands=lambda n: n - 1)
def fltrust(rows: Rows, *, server: Vector) -> Outcome:
    """FLTrust: rows with the server's length, weighted by how far they point in the server's direction.

    sum_i t_i (|g| / |x_i|) x_i / sum_i t_i, where t_i = max(0, cos(x_i, g)) and g is the server's own update.
    Cao, Fang, Liu and Gong 2021 (NDSS): the server trains on a small set of its own as a client does, and passes the
    update as `server`. Withstands any number of bad rows that point away from it; one that points along g counts with
    the length of g at most. The result is zero if no row has a positive t_i.

    >>> import robust
    >>> robust.fltrust([[2, 0], [0, 5], [-900, 0]], server=[1, 0])
    array([1., 0.], dtype=float32)
    """
    own = as_vector(server, rows.width, "server")
    length = math.sqrt(float(np.dot(own.astype(np.float64), own)))
    lengths = np.sqrt(rows.squared_norms())
    along = rows.products(own)
    trusted = np.flatnonzero((along > 0) & (lengths > 0))
    weights = np.zeros(len(rows))
    weights[trusted] = along[trusted] / lengths[trusted]  # times the length of g, which cancels
    if len(trusted):
        weights[trusted] *= (length / lengths[trusted]) / weights.sum()
    return replace(rows.weigh(weights), accepted=trusted)


def _one_per_row(losses: object, rows: int) -> Doubles:
    """The losses of the caller, as doubles."""
    array = as_array(losses, "losses")
    if array.shape != (rows,):
        got = str(len(array)) if array.ndim == 1 else f"shape {array.shape}"
        raise ValueError(f"losses must have one value per row: got {got} for {rows} rows")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"losses must be real numbers; got {array.dtype}")
    return array.astype(np.float64)


def _number(found: object) -> float:
    """What a loss returned, as a number. A tensor may be part of a graph for gradients, which is left alone."""
    value = found.detach() if hasattr(found, "detach") else found
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(found, "shape", None)
        got = type(found).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
        raise ValueError(f"loss must return one number for an update, got {got}") from None


def _mean_of_accepted(rows: Rows, accepted: Indices) -> Outcome:
    if len(accepted):
        return rows.average(accepted)
    return Outcome(np.zeros(rows.width, dtype=np.float32), np.zeros(len(rows)), accepted)
