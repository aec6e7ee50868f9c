"""`secagg bench`: what the primitives and whole runs cost on this machine, beside others' figures."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import asdict


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--full", action="store_true", help="also 500 and 1000 clients: minutes each")
    parser.add_argument(
        "--clients", type=_numbers, default=(20, 100), metavar="N,...", help="clients of a run (20,100)"
    )
    parser.add_argument(
        "--length", type=int, default=100_000, metavar="D", help="numbers per vector (100000)"
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a list of numbers") from None


def main(options: Namespace) -> int:
    from secagg import bench_runs

    sizes = (*options.clients, *((500, 1000) if options.full else ()))
    runs = [
        bench_runs.measure_run(clients, length=options.length, percent=percent)
        for clients in sorted(set(sizes))
        for percent in bench_runs.DROPOUTS
    ]
    if options.json:
        print(json.dumps({"runs": [asdict(run) for run in runs]}, indent=2))
        return 0
    for run in runs:
        print(
            f"{run.clients:>6}{run.dropped:>6}{run.one_client_ms:>10.1f}{run.server_ms:>10.1f}",
            file=sys.stdout,
        )
    return 0
