"""Noise for declared statistics: a clip and a sigma for each of their segments, from one multiplier per statistic.

The clip of a segment is the largest norm that the numbers of a site with `most_rows` rows can have, so it changes
nothing. Sigma is the multiplier times the clip. So a segment of a statistic with multiplier z costs as much as any
other with z, whatever its units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from secagg.agreement.noise import Noise
from secagg.agreement.statistics.kinds import (
    COUNTS,
    Contingency,
    Count,
    Histogram,
    Quantiles,
    Statistic,
    Statistics,
)
from secagg.agreement.statistics.limbs import Entry
from secagg.agreement.table import Table, show
from secagg.arguments import real
from secagg.crypto.clipping import SegmentNoise
from secagg.crypto.noise import MOST_SIGMA
from secagg.errors import UsageError


def statistics_noise(
    statistics: Statistics, clients: int, multiplier: float | Mapping[str, float], colluders: int = 0
) -> Noise:
    """The noise of declared statistics in groups of this many clients, from one multiplier for all or one for each.

    >>> from secagg.agreement.statistics.kinds import Count
    >>> asked = Statistics(most_rows=1000, asked=(Count(name="patients"),))
    >>> statistics_noise(asked, 10, 2.5, colluders=1)
    Noise(segments=(SegmentNoise(clip=1001.0, sigma=2503),), colluders=1)
    """
    names = [one.name for one in statistics.asked]
    each = multiplier if isinstance(multiplier, Mapping) else dict.fromkeys(names, multiplier)
    if set(each) != set(names):
        raise UsageError(
            f"noise.multiplier: expected one for each statistic ({', '.join(names)}), got {', '.join(sorted(each))}"
        )
    statistics.check_noise(clients)
    frame = statistics.frame(clients)
    found = []
    for one in statistics.asked:
        factor = real(f"noise.multiplier of {one.name}", each[one.name])
        if not factor > 0:
            raise UsageError(f"noise.multiplier of {one.name}: expected a number above 0, got {factor:g}")
        for entry in one.entries(frame):
            norm = _norm(one, entry, statistics.most_rows)
            sigma = math.ceil(factor * norm)
            if sigma > MOST_SIGMA:
                raise UsageError(f"noise: {entry.name} needs a sigma of {sigma}; use larger steps or fewer rows")
            found.append(SegmentNoise(clip=norm, sigma=sigma))
    return Noise(segments=tuple(found), colluders=colluders)


def _norm(one: Statistic, entry: Entry, rows: int) -> float:
    """A whole number above the largest norm of these numbers. Cells share the rows, as used and missing values do."""
    if not entry.name.endswith(".counts"):
        return math.floor(math.sqrt(math.prod(entry.shape)) * entry.most) + 1.0
    if isinstance(one, Count | Histogram | Quantiles | Contingency):
        return rows + 1.0
    return math.floor(math.sqrt(len(COUNTS) - 1) * rows) + 1.0


def read_noise(values: object, statistics: Statistics, clients: int) -> Noise:
    """The table [noise] with a `multiplier`: a number, or a table with one for each statistic."""
    table = Table(values, "noise", ("multiplier", "colluders"))
    given = table.raw("multiplier")
    kinds = given.values() if isinstance(given, dict) else (given,)
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in kinds):
        raise UsageError(
            f"noise.multiplier: expected a number, or a table with one for each statistic, got {show(given)}"
        )
    return statistics_noise(statistics, clients, given, table.whole("colluders"))
