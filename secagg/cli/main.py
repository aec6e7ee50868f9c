"""The `secagg` command. An error prints one line on standard error and exits with 2, never a traceback."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import NoReturn

import secagg
from secagg.cli import agree, demo, exposure, identity, service, statistics, verify
from secagg.errors import SecAggError


class Parser(ArgumentParser):
    """A parser whose errors are one line too."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"secagg: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. The exit code is 0, 1 (a check failed), 2 (an error) or 130 (interrupted)."""
    parser: ArgumentParser = Parser(prog="secagg", description="Secure aggregation: sums without seeing the parts.")
    parser.add_argument("--version", action="version", version=f"secagg {secagg.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo.add_parser(commands)
    exposure.add_parser(commands)
    identity.add_parser(commands)
    agree.add_parser(commands)
    verify.add_parser(commands)
    statistics.add_parser(commands)
    service.add_parsers(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.command(options))
    except (SecAggError, OSError) as error:
        print(f"secagg: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("secagg: interrupted", file=sys.stderr)
        return 130
