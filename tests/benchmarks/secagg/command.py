"""Cost of primitives and whole runs on this machine, beside published figures.

python -m tests.benchmarks                    masks, sharing, small runs, a SHARE round: minutes
python -m tests.benchmarks --full --json      500 and 1000 clients too: most of an hour on two cores
python -m tests.benchmarks --only round       one SHARE round at the paper's size
python -m tests.benchmarks --full --markdown docs/performance.md      measure, and rewrite its tables
"""

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Final

PARTS: Final = ("primitives", "runs", "growth", "round", "flower")
FULL: Final = (500, 1000)


def add_arguments(parser: ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the figures as JSON")
    form.add_argument(
        "--markdown",
        nargs="?",
        const=Path("-"),
        type=Path,
        metavar="FILE",
        help="print the tables as Markdown, or write them into FILE",
    )
    parser.add_argument("--full", action="store_true", help="also 500 and 1000 clients: minutes each")
    parser.add_argument(
        "--clients", type=_numbers, default=(20, 100), metavar="N,...", help="clients of a run (20,100)"
    )
    parser.add_argument("--length", type=int, default=100_000, metavar="D", help="numbers per vector (100000)")
    parser.add_argument(
        "--only", type=_parts, default=PARTS, metavar="PART,...", help=f"parts to measure: {', '.join(PARTS)}"
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a list of numbers") from None


def _parts(text: str) -> tuple[str, ...]:
    chosen = text.split(",")
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        raise ArgumentTypeError(f"unknown part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in chosen)


def main(options: Namespace) -> int:
    """Measure the chosen parts; 1 if a bound is missed."""
    from tests.benchmarks.secagg import parts
    from tests.benchmarks.secagg.report import bar_table, rewrite

    clients = sorted({*options.clients, *(FULL if options.full else ())})
    found = parts.measure(options.only, clients, options.length, sys.stderr)
    if found.bars:
        found.tables.append(bar_table(found.bars))
    if options.json:
        bars = [asdict(bar) | {"met": bar.met} for bar in found.bars]
        print(json.dumps(found.figures | {"bars": bars}, indent=2))
    elif options.markdown is None:
        print("\n\n".join(table.as_text() for table in found.tables))
    elif options.markdown == Path("-"):
        print("\n\n".join(table.as_markdown() for table in found.tables))
    else:
        rewrite(options.markdown, found.tables)
    return 0 if all(bar.met for bar in found.bars) else 1
