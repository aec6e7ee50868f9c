"""The `secagg statistics` command: what may be asked, what a site would send, and a dry run over several files."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secagg.agreement.draft import read_draft
from secagg.agreement.statistics.describe import described
from secagg.agreement.statistics.kinds import Statistic, Statistics
from secagg.agreement.terms import Terms
from secagg.cli.reading import named
from secagg.errors import UsageError

if TYPE_CHECKING:
    from secagg.statistics import CsvFormat


def add_parser(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Add `statistics` to the commands of `secagg`."""
    parser = commands.add_parser(
        "statistics", help="show what an agreement may ask, what a site would send, or a dry run over CSV files"
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the agreement or a proposal (docs/statistics.md)")
    help_data = "CSV files: one to see what a site would send; with --simulate one for each member, - for a missing one"
    parser.add_argument("data", metavar="CSV", nargs="*", help=help_data)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--show", action="store_true", help="show every number that the site of this file would send")
    one.add_argument("--simulate", action="store_true", help="run the protocol with all members in this process")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV")
    add_format(parser)
    parser.set_defaults(command=run_statistics)


def add_format(parser: ArgumentParser) -> None:
    """The options that say how a CSV file is written."""
    add = parser.add_argument_group("CSV files").add_argument
    add("--delimiter", metavar="C", help="between cells (the one of , ; tab | that fits the first line; tab for a tab)")
    add("--quote", metavar="C", help='around cells that have a delimiter (")')
    add("--decimal", metavar="C", choices=(".", ","), help="decimal point or comma (.)")
    add("--encoding", metavar="NAME", help="of the text (utf-8)")
    help_missing = "a text that stands for a missing value (an empty cell, NA, N/A, NaN, null, None); may be repeated"
    add("--missing", metavar="TEXT", action="append", help=help_missing)


def format_of(options: Namespace) -> CsvFormat:
    """The format that these options give."""
    from secagg.statistics import CsvFormat

    given = {name: getattr(options, name) for name in ("delimiter", "quote", "decimal", "encoding", "missing")}
    if given["delimiter"] == "tab":
        given["delimiter"] = "\t"
    if given["missing"] is not None:
        given["missing"] = tuple(given["missing"])
    return CsvFormat(**{name: value for name, value in given.items() if value is not None})


def run_statistics(options: Namespace) -> int:
    """Print what was asked for."""
    terms = _read(options.file)
    if options.simulate:
        from secagg.simulation.statistics import by_member, simulate_statistics

        data = by_member(terms, [None if path == "-" else path for path in options.data])
        report = simulate_statistics(terms, data, csv=format_of(options))
        print(report.to_csv() if options.csv else _dumped(report.to_json()) if options.json else report.text())
    elif options.data:
        if len(options.data) > 1:
            raise UsageError(f"expected one CSV file, or --simulate with one for each member, got {len(options.data)}")
        _show(terms, options.data[0], options)
    elif options.show or options.csv:
        raise UsageError("expected a CSV file: secagg statistics FILE CSV --show")
    else:
        _describe(terms, options)
    return 0


def _read(path: Path) -> Terms:
    def read(text: str) -> Terms:
        terms = read_draft(text)
        _declared(terms)
        return terms

    return named(path, read)


def _declared(terms: Terms) -> Statistics:
    from secagg.statistics.site import declared

    return declared(terms)


def _describe(terms: Terms, options: Namespace) -> None:
    if options.json:
        print(_dumped({one.name: _plain(one, terms) for one in _declared(terms).asked}))
    else:
        print("\n".join(_described(terms)))


def _described(terms: Terms) -> Iterator[str]:
    statistics, policy = _declared(terms), terms.policy
    yield (
        f"Each site sends {terms.length} whole numbers, of at most {statistics.most_rows} rows, and only sums over all "
        "sites of a group are opened:"
    )
    yield from (f"- {line}" for line in described(statistics))
    if policy.enforced:
        yield f"Sums are opened of at least {max(policy.anonymity, policy.min_survivors)} sites."
    else:
        yield "REPORT ONLY: sums are opened of any number of sites."


def _plain(one: Statistic, terms: Terms) -> dict[str, Any]:
    frame = _declared(terms).frame(terms.schedule.size)
    segments = [entry.segment for entry in one.entries(frame)]
    columns = [column.column for column in one.columns]
    return {
        "kind": one.kind,
        "columns": columns,
        "sends": {segment.name: {"shape": list(segment.shape), "most": segment.bound} for segment in segments},
    }


def _show(terms: Terms, path: str, options: Namespace) -> None:
    from secagg.statistics import preview, site_update
    from secagg.statistics.report import as_csv, lines_of

    made = site_update(terms, path, csv=format_of(options))
    found = preview(terms, made)
    sent = {name: values.tolist() for name, values in made.update.items()}
    if options.csv:
        print(as_csv(found, 1), end="")
    elif options.json:
        own = {name: outcome.to_json() for name, outcome in found.items()}
        print(_dumped({"rows": made.rows, "warnings": list(made.warnings), "own": own, "sends": sent}))
    else:
        print("\n".join(_shown(path, made.rows, made.warnings, list(lines_of(found)), sent if options.show else {})))


def _shown(path: str, rows: int, warnings: tuple[str, ...], own: list[str], sent: dict[str, Any]) -> Iterator[str]:
    yield f"{path}: {rows} rows. This stays on this machine; only sums over all sites are opened."
    yield from (f"warning: {warning}" for warning in warnings)
    yield from own
    if sent:
        yield from ("", "Numbers that would be sent, each under a mask:")
        yield from (f"  {name} = {values}" for name, values in sent.items())


def _dumped(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
