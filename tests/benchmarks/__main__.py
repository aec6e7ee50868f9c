"""Measure speed on this machine, as ratios within one run: `python -m tests.benchmarks [--only ...]`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from secagg.errors import SecAggError
from tests.benchmarks.secagg import command


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every bar was met, 1: one was missed, 2: nothing could be measured."""
    parser = ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    command.add_arguments(parser)
    try:
        return command.main(parser.parse_args(arguments))
    except (SecAggError, OSError) as mistake:
        print(f"benchmarks: {mistake}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
