"""Growth of the cost with vector length, groupings, dropouts and clients, as fitted exponents.

A cost that grows like x to the power e is a line of slope e on logarithmic axes. The formulas are those of Bonawitz et
al. 2017, section 7 (client: n^2 + d n computed, n + d sent; server: n^2 d computed), times the number of groupings,
with masks inside groups only (SHARE, Appendix C.2). They bound the slope from above; constant costs make it smaller.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from secagg.protocol.result import Stage
from tests.benchmarks.secagg.report import Bar, Table
from tests.benchmarks.secagg.runs import Run
from tests.benchmarks.secagg.work import Size

NOISE = 0.15  # of a slope: neighbours on the machine, and vectors that outgrow a cache

Cost = Callable[[Run], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Runs that differ in one thing."""

    what: str  # what grows
    sizes: tuple[Size, ...]
    measure: Callable[[Size], float]  # how much of it there is
    limits: tuple[tuple[str, Cost, str, float], ...]  # cost, its formula, and the slope of the formula


def _client(one: Run) -> float:
    return sum(one.client_seconds) / one.size.clients


def _masking(one: Run) -> float:
    return one.client_seconds[Stage.INPUTS] / one.size.clients


def _sent(one: Run) -> float:
    return sum(one.bytes_up) / one.size.clients


def _server(one: Run) -> float:
    return sum(one.server_seconds)


def _summing(one: Run) -> float:
    return one.server_seconds[Stage.INPUTS] + one.server_seconds[Stage.UNMASKING]


def _unmasking(one: Run) -> float:
    return one.server_seconds[Stage.UNMASKING]


def extra_series(scale: int = 1) -> tuple[Series, ...]:
    """Runs made for the fit alone, of the stages that touch vectors. `scale` shortens them, for tests."""
    return (
        Series(
            what="numbers, d",
            sizes=tuple(Size(clients=12, length=4**k * 500_000 // scale, dropped=3) for k in range(3)),
            measure=lambda size: size.length,
            limits=(
                ("client, masking", _masking, "n^2 + d n", 1),
                ("bytes", _sent, "n + d", 1),
                ("server, sums", _summing, "n^2 d", 1),
            ),
        ),
        Series(
            what="groupings, R",
            sizes=tuple(Size(clients=24, length=1_000_000 // scale, group=4, groupings=2**k) for k in range(4)),
            measure=lambda size: size.groupings,
            limits=(
                ("client, masking", _masking, "R (n^2 + d m)", 1),
                ("bytes", _sent, "R (n + d)", 1),
                ("server, sums", _summing, "R (n^2 + d n)", 1),
            ),
        ),
        Series(
            what="dropouts, k",
            sizes=tuple(Size(clients=60, length=400_000 // scale, dropped=k) for k in (2, 4, 8, 16)),
            measure=lambda size: size.dropped,
            limits=(("server, unmasking", _unmasking, "d (n - k)(k + 1)", 1),),
        ),
    )


def client_series(sizes: Sequence[Size]) -> Series:
    """From the runs of the table: the same share of dropouts, more clients."""
    return Series(
        what=f"clients, n ({sizes[0].percent}% dropped)",
        sizes=tuple(sizes),
        measure=lambda size: size.clients,
        limits=(
            ("client", _client, "n^2 + d n", 2),
            ("bytes", _sent, "n + d", 1),
            ("server", _server, "n^2 d" if sizes[0].dropped else "n^2 + d n", 2),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """How one cost grows with one thing."""

    what: str
    values: tuple[float, ...]
    cost: str
    formula: str
    most: float
    fitted: float


def fit(series: Series, runs: Sequence[Run]) -> list[Slope]:
    """The slopes of a series, by least squares on logarithmic axes."""
    values = tuple(float(series.measure(one.size)) for one in runs)
    return [
        Slope(
            what=series.what,
            values=values,
            cost=name,
            formula=formula,
            most=most,
            fitted=slope(values, [cost(one) for one in runs]),
        )
        for name, cost, formula, most in series.limits
    ]


def slope(values: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent e of the best fit cost = c * value^e."""
    return float(np.polyfit(np.log(values), np.log(costs), 1)[0])


def growth_table(slopes: Sequence[Slope]) -> Table:
    return Table(
        name="growth",
        title="Growth: the fitted exponent, and the one that the formula allows",
        header=("what grows", "over", "cost", "formula", "allowed", "fitted"),
        rows=tuple(
            (
                one.what,
                f"{one.values[0]:,.0f} to {one.values[-1]:,.0f}",
                one.cost,
                one.formula,
                f"{one.most:.0f}",
                f"{one.fitted:.2f}",
            )
            for one in slopes
        ),
    )


def bars(slopes: Sequence[Slope]) -> list[Bar]:
    return [
        Bar(name=f"growth of {one.cost} with {one.what}", value=one.fitted, bound=one.most + NOISE, at_most=True)
        for one in slopes
    ]
