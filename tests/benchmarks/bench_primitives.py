"""Masks, fixed point and sharing, beside OpenSSL, a memory copy, pycryptodome and Flower.

    python tests/benchmarks/bench_primitives.py [--json] [--rounds N]

Ends with the bars that concern primitives, and with exit code 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import sys

from secagg import bench_primitives


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the primitives of secagg on this machine.")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--rounds", type=int, default=9, help="take the best of so many (default 9)")
    options = parser.parse_args()

    def progress(step: str) -> None:
        print(f"\r{step:<50}", end="", file=sys.stderr, flush=True)

    report = bench_primitives.measure(rounds=options.rounds, progress=progress)
    progress("")
    print(file=sys.stderr)
    print(json.dumps(report.as_dict(), indent=2) if options.json else bench_primitives.as_text(report))
    return 0 if all(bar.met for bar in report.bars) else 1


if __name__ == "__main__":
    sys.exit(main())
