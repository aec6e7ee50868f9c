"""The `secagg` command. A mistake prints one line on standard error and exits with 2, never a traceback."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from secagg.errors import SecAggError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 (a check failed) or 2 (it could not be run)."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (SecAggError, OSError) as mistake:
        print(f"secagg: {mistake}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("secagg: interrupted", file=sys.stderr)
        return 130


def _parser() -> ArgumentParser:
    from secagg.cli import demo, exposure

    parser = ArgumentParser(prog="secagg", description="Secure aggregation: sums without seeing the parts.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("demo", help="run one secure sum and show what it costs")
    demo.add_arguments(one)
    one.set_defaults(command=_demo)

    exposure.add_parser(commands)
    return parser


def _demo(options: Namespace) -> int:
    from secagg.cli import demo

    finished = demo.demonstrate(options)
    print(demo.as_json(finished) if options.json else demo.as_text(finished))
    return 0 if finished.exact else 1
