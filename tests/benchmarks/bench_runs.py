"""Whole runs, their growth, a SHARE round and Flower: what `secagg bench` measures beside the primitives.

    python tests/benchmarks/bench_runs.py [--full] [--json] [--clients 20,100] [--only runs,round]

Ends with the bars that concern whole runs, and with exit code 1 if one is missed.
"""

from __future__ import annotations

import sys

from secagg import cli

if __name__ == "__main__":
    parts = [] if "--only" in sys.argv else ["--only", "runs,growth,round,flower"]
    sys.exit(cli.main(["bench", *parts, *sys.argv[1:]]))
