"""From the opened sums to the declared statistics. The arithmetic is exact, in whole numbers and fractions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from secagg.agreement.statistics.columns import Bins, decimal
from secagg.agreement.statistics.kinds import (
    COUNTS,
    Contingency,
    Count,
    Frame,
    Histogram,
    LeastSquares,
    Mean,
    Quantiles,
    Statistic,
    Sum,
    Variance,
)
from secagg.agreement.statistics.limbs import Int64
from secagg.agreement.terms import Terms
from secagg.errors import TooFewSurvivors, UsageError
from secagg.protocol.result import GroupSum
from secagg.statistics.least_squares import fit
from secagg.statistics.noisy import fit_with_noise, with_noise
from secagg.statistics.outcomes import (
    Counted,
    Counts,
    CrossCounts,
    Moments,
    Outcome,
    Quantile,
    QuantileList,
    Value,
)
from secagg.statistics.report import Report
from secagg.statistics.rounding import root_above, value_of
from secagg.statistics.site import SiteUpdate, declared


def evaluate(terms: Terms, groups: Iterable[GroupSum], *, round: int | None = None) -> Report:
    """The declared statistics from the opened group sums of one grouping: `result.groups.values()`.

    Sums of several groups are added up; each site is in one of them. TooFewSurvivors if there are fewer sites than the
    agreement asks for.

    >>> from secagg.simulation import make_agreement, run_whole
    >>> from secagg.statistics import Count, Mean, Numbers, Statistics, site_update
    >>> age = Mean(name="age", of=Numbers("age", 0, 120, step=1))
    >>> asked = Statistics(most_rows=100, asked=(Count(name="patients"), age))
    >>> agreement, identities = make_agreement(members=3, size=3, statistics=asked)
    >>> ages = ([34, 51, None], [70], [65, 20])
    >>> updates = {site: site_update(agreement.terms, {"age": ages[site]}).update for site in range(3)}
    >>> result = run_whole(agreement, 0, updates, identities)
    >>> report = evaluate(agreement.terms, result.groups.values(), round=0)
    >>> report["patients"].rows, report["age"]["mean"].value, report["age"].missing
    (6, 48.0, 1)
    """
    statistics = declared(terms)
    groups = list(groups)
    sites = sorted(site for group in groups for site in group.members)
    if len(set(sites)) < len(sites):
        raise UsageError("groups: a site is in two of them; give the groups of one grouping")
    if len(sites) < max(statistics.least_sites, 1):  # audit: statistics-result-least-sites
        raise TooFewSurvivors(
            f"{len(sites)} sites took part; this agreement gives results from {max(statistics.least_sites, 1)} on"
        )
    sums: dict[str, Int64] = {}
    for group in groups:
        for name, values in terms.encoding.decode(group.total).items():
            sums[name] = sums[name] + values if name in sums else values
    return Report(
        name=terms.name,
        round=round,
        sites={site: _name(terms, site) for site in sites},
        missing={site: _name(terms, site) for site in terms.ids if site not in set(sites)},
        outcomes=_outcomes(terms, sums, math.sqrt(len(sites))),
    )


def preview(terms: Terms, made: SiteUpdate) -> dict[str, Outcome]:
    """What a site's own numbers come to: for its operator, before anything is sent, and for nobody else.

    >>> from secagg.simulation import make_agreement
    >>> from secagg.statistics import Count, Statistics, site_update
    >>> agreement, _ = make_agreement(members=3, size=3, statistics=Statistics(most_rows=9, asked=(Count(name="n"),)))
    >>> preview(agreement.terms, site_update(agreement.terms, {"age": [1, 2]}))["n"].rows
    2
    """
    return _outcomes(terms, made.update, own=True)


def _outcomes(terms: Terms, sums: Mapping[str, Int64], spread: float = 0.0, *, own: bool = False) -> dict[str, Outcome]:
    """The outcomes of these sums; with noise, its standard deviation in a sum is `spread` times that of a site."""
    statistics = declared(terms)
    frame = statistics.frame(terms.schedule.size)
    noise = () if terms.noise is None or own else terms.noise.segments
    sigmas = {segment.name: spread * of.sigma for segment, of in zip(terms.segments, noise, strict=bool(noise))}
    found = {}
    for one in statistics.asked:
        entries = one.entries(frame)
        numbers = [entry.join(sums[entry.name]) for entry in entries]
        if own and isinstance(one, Histogram | Contingency):
            one = replace(one, suppress=0)
        found[one.name] = _outcome(one, frame, numbers, [sigmas[entry.name] for entry in entries] if noise else [])
    return found


def _name(terms: Terms, site: int) -> str:
    return next(member.name for member in terms.members if member.id == site) or f"site {site}"


def _outcome(one: Statistic, frame: Frame, numbers: Sequence[list[int]], sds: Sequence[float]) -> Outcome:
    """`sds` has the standard deviation of the noise in the numbers of each entry; it is empty without noise."""
    common: Any = {"name": one.name, "kind": one.kind, "columns": tuple(column.column for column in one.columns)}
    if isinstance(one, LeastSquares):
        return _fit(one, frame, numbers, sds, common)
    common["noise"] = sds[0] if sds else None
    if isinstance(one, Sum | Mean | Variance):
        return _of_numbers(one, frame, numbers, sds, common)
    counts = numbers[0]
    if isinstance(one, Count):
        return Counted(**common, rows=counts[0], missing=counts[1] if one.of else None)
    if isinstance(one, Histogram):
        shown = tuple(_shown(count, one.suppress) for count in counts)
        return Counts(**common, labels=one.of.labels, counts=shown, suppress=one.suppress)
    if isinstance(one, Contingency):
        rows = np.array(counts, np.int64).reshape(len(one.rows.labels), len(one.by.labels)).tolist()
        table = tuple(tuple(_shown(count, one.suppress) for count in row) for row in rows)
        return CrossCounts(**common, labels=(one.rows.labels, one.by.labels), counts=table, suppress=one.suppress)
    assert isinstance(one, Quantiles)
    *cells, missing = counts
    found = tuple(_quantile(one.of, cells, p, sds[0] if sds else 0.0) for p in one.probabilities)
    return QuantileList(**common, used=sum(cells), missing=missing, quantiles=found)


def _fit(
    one: LeastSquares, frame: Frame, numbers: Sequence[list[int]], sds: Sequence[float], common: dict[str, Any]
) -> Outcome:
    found, inverse = fit(one, frame, numbers, common | dict(zip(COUNTS, numbers[0], strict=True)))
    return fit_with_noise(found, inverse, one, frame, numbers, sds) if sds else found


def _of_numbers(
    one: Sum | Mean | Variance,
    frame: Frame,
    numbers: Sequence[list[int]],
    sds: Sequence[float],
    common: dict[str, Any],
) -> Outcome:
    values = _moments(one, frame, numbers)
    if sds:
        values = with_noise(values, lambda other: _moments(one, frame, other), numbers, sds)
    counts: dict[str, Any] = dict(zip(COUNTS, numbers[0], strict=True))
    return Moments(**common, **counts, resolution=float(one.grid(frame).step), values=values)


def _shown(count: int, suppress: int) -> int | None:
    return None if 0 < count < suppress else count


def _moments(one: Sum | Mean | Variance, frame: Frame, numbers: Sequence[list[int]]) -> dict[str, Value]:
    """Of the codes exactly; a rounded value errs by half a step, every value by what its float may err."""
    grid = one.grid(frame)
    used, _, _, rounded = (max(count, 0) for count in numbers[0])  # noise can make them negative
    (total,) = numbers[1]
    error = rounded * grid.half + used * grid.slack
    if isinstance(one, Sum):
        return {"sum": value_of(used * grid.low + total * grid.step, error)}
    if used == 0:
        names = ("mean", "variance", "sd") if isinstance(one, Variance) else ("mean",)
        return dict.fromkeys(names, Value(None, None))
    mean = {"mean": value_of(grid.value(Fraction(total, used)), error / used)}
    if not isinstance(one, Variance):
        return mean
    if used == 1:
        return {**mean, "variance": Value(None, None), "sd": Value(None, None)}
    (squares,) = numbers[2]
    variance = Fraction(used * squares - total**2, used * (used - 1)) * grid.step**2
    sd = math.sqrt(max(variance, Fraction(0)))
    # The standard deviation of a sum of two vectors is at most the sum of theirs: of the codes, and of the errors.
    moved = root_above((rounded * grid.half**2 + used * grid.slack**2) / (used - 1))
    inexact = Fraction(sd) / 2**50  # of the root
    return {
        **mean,
        "variance": value_of(variance, 2 * (Fraction(sd) + inexact) * moved + moved**2),
        "sd": value_of(sd, moved + inexact),
    }


def _quantile(bins: Bins, counts: Sequence[int], probability: float, noise: float) -> Quantile:
    """`counts` has the values below the edges, in each bin, and above; `noise` is its standard deviation in each."""
    counts = [max(count, 0) for count in counts]
    total = sum(counts)
    if total == 0:
        return Quantile(probability, None, None, None)
    rank = math.ceil(decimal(probability) * total)  # the value with this rank, from 1 on
    upto = np.cumsum(counts).tolist()
    margin = 2 * noise * math.sqrt(len(counts))  # of any sum of counts
    first, place, last = (_place(upto, rank + by) for by in (-margin, 0, margin))
    ends = [None, *bins.edges, None]
    low, high = ends[first], ends[last + 1]
    if ends[place] is None or ends[place + 1] is None:
        return Quantile(probability, low, high, None)
    within = (rank - 0.5 - (upto[place] - counts[place])) / counts[place]
    left, right = bins.edges[place - 1], bins.edges[place]
    return Quantile(probability, low, high, left + within * (right - left))


def _place(upto: Sequence[int], rank: float) -> int:
    """The cell with the value of this rank, if `upto` counts the values up to each; ranks outside are of the ends."""
    return next((place for place, reached in enumerate(upto) if reached >= max(rank, 1)), len(upto) - 1)
