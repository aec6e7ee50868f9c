"""Statistics over many sites, of which only sums are opened: counts, means, tables, quantiles, least squares.

An agreement declares them in its section `statistics` (docs/statistics.md). Each site computes its update from a CSV
file or from arrays with `site_update`. `evaluate` makes the declared statistics from the opened sums. What is not
declared has no place in the vector, so a hub cannot ask for it.
"""

from secagg.agreement.statistics.columns import Bins, Categories, Numbers, Present
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
from secagg.agreement.statistics.noise import statistics_noise
from secagg.statistics.csvfile import CsvFormat
from secagg.statistics.evaluate import evaluate, preview
from secagg.statistics.outcomes import (
    Coefficient,
    Counted,
    Counts,
    CrossCounts,
    Fit,
    Moments,
    Outcome,
    Quantile,
    QuantileList,
    Value,
)
from secagg.statistics.report import Report
from secagg.statistics.site import SiteUpdate, site_update

__all__ = ["Bins", "Categories", "Contingency", "Count", "Histogram", "LeastSquares", "Mean", "Numbers", "Present"]
__all__ += ["Quantiles", "Statistic", "Statistics", "Sum", "Variance"]
__all__ += ["CsvFormat", "Report", "SiteUpdate", "evaluate", "preview", "site_update", "statistics_noise"]
__all__ += ["Coefficient", "Counted", "Counts", "CrossCounts", "Fit", "Moments", "Outcome", "Quantile", "QuantileList"]
__all__ += ["Value"]
