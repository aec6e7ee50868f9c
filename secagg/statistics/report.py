"""The results of one round: as tables on a screen, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from secagg.statistics.outcomes import (
    SUPPRESSED,
    Counted,
    Counts,
    CrossCounts,
    Fit,
    Moments,
    Outcome,
    QuantileList,
)

COLUMNS = ("statistic", "kind", "quantity", "row", "column", "value", "error", "noise", "sites")


NOISE = (
    "Every site added noise to its numbers. The noise of a result is its standard deviation, if all sites did: in "
    "about 19 of 20 cases the result without noise is within twice as much. Quantiles lie between their bounds at "
    "least as often."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The statistics of one round, which sites are in them, and which are missing.

    >>> from secagg.statistics.outcomes import Counted
    >>> counted = Counted(name="patients", kind="count", columns=(), rows=7, missing=None)
    >>> report = Report(name="study", round=0, sites={0: "north", 2: "west"}, missing={1: "south"},
    ...                 outcomes={"patients": counted})
    >>> print(report.text())
    study, round 0: 2 of 3 sites (north, west); missing: south
    <BLANKLINE>
    patients (count)
      rows  7
    """

    name: str
    round: int | None
    sites: Mapping[int, str]
    missing: Mapping[int, str]
    outcomes: Mapping[str, Outcome]

    def __getitem__(self, name: str) -> Any:
        """The outcome of one statistic, by the name of its declaration."""
        return self.outcomes[name]

    def text(self) -> str:
        """Tables for people."""
        return "\n".join([self._heading(), *lines_of(self.outcomes)])

    def _heading(self) -> str:
        count = len(self.sites) + len(self.missing)
        absent = f"; missing: {', '.join(self.missing.values())}" if self.missing else ""
        where = "" if self.round is None else f", round {self.round}"
        return f"{self.name}{where}: {len(self.sites)} of {count} sites ({', '.join(self.sites.values())}){absent}"

    def to_json(self) -> dict[str, Any]:
        """The same in plain types."""
        return {
            "name": self.name,
            "round": self.round,
            "sites": [{"id": site, "name": name} for site, name in self.sites.items()],
            "missing": [{"id": site, "name": name} for site, name in self.missing.items()],
            "statistics": {name: outcome.to_json() for name, outcome in self.outcomes.items()},
        }

    def to_csv(self) -> str:
        """One line for each number. A number that is not shown or does not exist is an empty cell."""
        return as_csv(self.outcomes, len(self.sites))


def as_csv(outcomes: Mapping[str, Outcome], sites: int) -> str:
    """Outcomes as CSV, with the number of sites in each line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, outcome in outcomes.items():
        for quantity, row, column, value, error, noise in outcome.rows_of_csv():
            labels = (_harmless(name), outcome.kind, quantity, _harmless(row), _harmless(column))
            writer.writerow((*labels, value, error, noise, sites))
    return out.getvalue()


def _harmless(text: str) -> str:
    """A text that spreadsheets do not take for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def lines_of(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """Outcomes as tables for people, one after the other."""
    for name, outcome in outcomes.items():
        yield from ("", f"{name} ({outcome.kind}{_of(outcome)})")
        yield from (f"  {line}" for line in _lines(outcome))
    if any(_noisy(outcome) for outcome in outcomes.values()):
        yield from ("", NOISE)
    if any(getattr(outcome, "suppress", 0) for outcome in outcomes.values()):
        yield from ("", SUPPRESSED)


def _noisy(outcome: Outcome) -> bool:
    coefficients = outcome.coefficients if isinstance(outcome, Fit) else ()
    return getattr(outcome, "noise", None) is not None or any(one.noise is not None for one in coefficients)


def _of(outcome: Outcome) -> str:
    if isinstance(outcome, Fit):
        *features, target = outcome.columns
        return f" of {target} on {', '.join(features)}"
    return f" of {' by '.join(outcome.columns)}" if outcome.columns else ""


def _lines(outcome: Outcome) -> Iterator[str]:
    if isinstance(outcome, Counted):
        missing = [] if outcome.missing is None else [["missing", str(outcome.missing)]]
        yield from aligned([["rows", str(outcome.rows)], *missing])
    elif isinstance(outcome, Moments):
        noises = _noises(found.noise for found in outcome.values.values())
        yield from aligned(
            [
                [what, _number(found.value), _error(found.value, found.error), *noise]
                for (what, found), noise in zip(outcome.values.items(), noises, strict=True)
            ]
        )
        yield _counts(outcome)
        yield f"values rounded to multiples of {outcome.resolution:.3g}: {outcome.rounded} of {outcome.used}"
    elif isinstance(outcome, Counts):
        counts = zip(outcome.labels, outcome.counts, strict=True)
        yield from aligned([[label, _count(count, outcome.suppress)] for label, count in counts])
    elif isinstance(outcome, CrossCounts):
        rows = [
            [label, *(_count(count, outcome.suppress) for count in row)]
            for label, row in zip(outcome.labels[0], outcome.counts, strict=True)
        ]
        yield from aligned([["", *outcome.labels[1]], *rows])
    elif isinstance(outcome, QuantileList):
        numbers = [(one.probability, one.estimate, one.low, one.high) for one in outcome.quantiles]
        yield from aligned([["probability", "estimate", "from", "to"], *(list(map(_number, row)) for row in numbers)])
        yield f"{outcome.used} values, {outcome.missing} missing"
    elif isinstance(outcome, Fit):
        yield from _fit(outcome)
    if getattr(outcome, "noise", None) is not None:
        yield f"noise in each count: {getattr(outcome, 'noise'):.3g}"  # noqa: B009 - a fit has none


def _fit(outcome: Fit) -> Iterator[str]:
    if outcome.problem:
        yield f"no coefficients: {outcome.problem}"
    else:
        rows = [
            [one.column, _number(one.value), _number(one.standard_error), _error(one.value, one.error), *noise]
            for one, noise in zip(outcome.coefficients, _noises(one.noise for one in outcome.coefficients), strict=True)
        ]
        head = ["", "coefficient", "standard error", "rounding"]
        yield from aligned([[*head, "noise"] if len(rows[0]) > len(head) else head, *rows])
        yield (
            f"R squared {_number(outcome.r_squared)}, residual standard deviation {_number(outcome.residual_sd)}, "
            f"{outcome.degrees_of_freedom} degrees of freedom"
        )
    yield _counts(outcome)


def _noises(noises: Iterable[float | None]) -> list[list[str]]:
    """A cell for the noise of each number, or none for all if none is known."""
    each = list(noises)
    known = any(noise is not None for noise in each)
    return [["noise -" if noise is None else f"noise {noise:.3g}"] if known else [] for noise in each]


def _counts(outcome: Moments | Fit) -> str:
    what = "rows" if isinstance(outcome, Fit) else "values"
    return f"{outcome.used} {what} used, {outcome.missing} with a missing value, {outcome.clipped} clipped"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.10g}"


def _error(value: float | None, error: float | None) -> str:
    """What rounding may have changed; nothing to speak of if it is far below the last digit that `_number` shows."""
    if value is None or error is None:
        return "-"
    return "exact" if error <= 1e-11 * abs(value) else f"± {error:.1e}"


def _count(count: int | None, suppress: int) -> str:
    return f"<{suppress}" if count is None else str(count)


def aligned(rows: list[list[str]]) -> Iterator[str]:
    """Rows of cells in columns: the first to the left, the others to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
