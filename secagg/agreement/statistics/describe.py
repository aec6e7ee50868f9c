"""What an agreement may ask, in plain words: for people, before they sign it."""

from __future__ import annotations

from collections.abc import Iterator

from secagg.agreement.statistics.columns import Bins, Cells, Numbers, short
from secagg.agreement.statistics.kinds import (
    Contingency,
    Count,
    Histogram,
    LeastSquares,
    Mean,
    Quantiles,
    Statistic,
    Statistics,
    Sum,
    Variance,
)


def described(statistics: Statistics) -> Iterator[str]:
    """One line for each statistic.

    >>> from secagg.agreement.statistics.kinds import Mean, Numbers
    >>> asked = Statistics(most_rows=100, asked=(Mean(name="age", of=Numbers("age", 0, 120, step=1)),))
    >>> print("\n".join(described(asked)))
    age: mean of 'age' (numbers from 0 to 120, in steps of 1)
    """
    for one in statistics.asked:
        least = f"; from {one.min_sites} sites on" if one.min_sites else ""
        yield f"{one.name}: {_words(one)}{least}"


def _words(one: Statistic) -> str:
    if isinstance(one, Count):
        return f"number of rows with and without a value in {one.of.column!r}" if one.of else "number of rows"
    if isinstance(one, Sum | Mean | Variance):
        return f"{one.kind} of {_column(one.of)}"
    if isinstance(one, Histogram):
        return f"counts of {_column(one.of)}{_suppress(one.suppress)}"
    if isinstance(one, Quantiles):
        return f"quantiles {', '.join(map(short, one.probabilities))} from counts of {_column(one.of)}"
    if isinstance(one, Contingency):
        return f"counts of pairs of {_column(one.rows)} and {_column(one.by)}{_suppress(one.suppress)}"
    assert isinstance(one, LeastSquares)
    features = ", ".join(map(_column, one.features))
    constant = "" if one.intercept else ", without a constant"
    return f"least squares of {_column(one.target)} on {features}{constant}"


def _suppress(least: int) -> str:
    return f"; counts from 1 to {least - 1} are not shown" if least > 1 else ""


def _column(column: Numbers | Cells) -> str:
    name = repr(column.column)
    if isinstance(column, Numbers):
        step = "" if column.step is None else f", in steps of {short(column.step)}"
        return f"{name} (numbers from {short(column.low)} to {short(column.high)}{step})"
    if isinstance(column, Bins):
        return f"{name} ({len(column.edges) - 1} bins from {short(column.edges[0])} to {short(column.edges[-1])})"
    shown = ", ".join(column.categories[:8]) + ", ..." * (len(column.categories) > 8)
    return f"{name} (categories {shown})"
