"""Check this implementation against test vectors: `python -m tests.vectors [DIR] [--json]`."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from tests.vectors import check


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all vectors hold, 1 if some do not, 2 if there is nothing to check."""
    parser = ArgumentParser(prog="python -m tests.vectors", description=__doc__)
    here = Path(__file__).parent
    parser.add_argument("folder", nargs="?", type=Path, default=here, metavar="DIR", help="where vectors are")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    options = parser.parse_args(arguments)
    return check.run(options.folder, json=options.json)


if __name__ == "__main__":
    sys.exit(main())
