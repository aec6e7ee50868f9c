"""`secagg demo`: one real run with a report of its cost, and a check that its sum is exact."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace, _SubParsersAction
from dataclasses import dataclass
from hashlib import shake_256
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.agreement.plan import MOST_CLIENTS
from secagg.arguments import whole
from secagg.compilation import announce_compilation
from secagg.crypto import prg
from secagg.errors import UsageError
from secagg.kernels.threads import cores
from secagg.protocol.result import Result, Stage
from secagg.simulation import Cost, clear, make_agreement, run

DROP_STAGES = {stage.name.lower(): stage for stage in list(Stage)[:5]}


def add_parser(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Add `demo` to the commands of `secagg`."""
    parser = commands.add_parser("demo", help="run one secure sum and show what it costs")
    add = parser.add_argument
    add("--clients", type=int, default=10, metavar="N", help="number of clients (10)")
    add("--length", type=int, default=100_000, metavar="D", help="numbers per client (100000)")
    add("--drop", type=int, default=0, metavar="K", help="number of clients that drop out (0)")
    add("--drop-at", choices=DROP_STAGES, default="inputs", help="stage at which they stop (inputs)")
    add("--threshold", type=int, metavar="T", help="clients that must stay (default: safe for N)")
    add("--seed", type=int, default=0, help="fixes the vectors and the dropouts, but not the keys (0)")
    add("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(command=run_demo)


def run_demo(options: Namespace) -> int:
    """Run the demo and print its report."""
    finished = demonstrate(options)
    print(as_json(finished) if options.json else as_text(finished))
    return 0 if finished.exact else 1


@dataclass(frozen=True, slots=True)
class Demo:
    """A finished demo: the result, its cost, and whether the sum is exact."""

    result: Result
    cost: Cost
    seconds: float
    exact: bool
    error: float  # the largest distance from the sum in double precision


def demonstrate(options: Namespace) -> Demo:
    """Run it. Vectors and dropouts come from `--seed`, keys and masks from the operating system."""
    n, length = whole("--clients", options.clients, 2, MOST_CLIENTS), options.length
    if not 0 <= options.drop <= n:
        raise UsageError(f"--drop {options.drop} must be from 0 to the number of clients, {n}")
    agreement, identities = make_agreement(
        members=n, size=n, length=length, clip=1.0, groups="survivors", threshold=options.threshold
    )
    order = sorted(identities, key=lambda v: shake_256(b"drop %d %d" % (options.seed, v)).digest(8))
    drop = dict.fromkeys(order[: options.drop], DROP_STAGES[options.drop_at])
    vectors = {v: _vector(options.seed, v, length) for v in identities}
    cost, live = Cost(), sys.stderr.isatty() and not options.json

    def show(text: str) -> None:
        if live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def on_stage(stage: Stage) -> None:
        show(f"stage {stage.value}: {stage.name.lower()} ...")

    with announce_compilation(lambda name: print(f"compiling {name} (only once on this machine)", file=sys.stderr)):
        prg.backend()
        start = time.perf_counter()
        result = run(agreement, vectors, identities, drop=drop, processes=cores(), cost=cost, on_stage=on_stage)
        seconds = time.perf_counter() - start
    show("")
    expected = clear(agreement, vectors, drop=drop)
    exact = set(result.groups) == set(expected.groups) and all(
        np.array_equal(opened.total, expected.groups[row].total) for row, opened in result.groups.items()
    )
    truth = sum((vectors[v] for v in result.survivors), np.zeros(length))
    return Demo(result, cost, seconds, exact, float(np.max(np.abs(result.sum() - truth))))


def _vector(seed: int, client: int, length: int) -> npt.NDArray[np.float32]:
    """Numbers in [-1, 1), the same for the same seed everywhere."""
    key = shake_256(b"vector %d %d" % (seed, client)).digest(prg.MASK_KEY_BYTES)
    return (prg.mask(key, length).view(np.int32) * 2.0**-31).astype(np.float32)


def stages(demo: Demo) -> list[dict[str, Any]]:
    """One entry per stage: seconds and bytes of one client, seconds of the server, and the dropouts."""
    n, cost = len(demo.result.plan.roster), demo.cost
    return [
        {
            "stage": stage.name.lower(),
            "client_seconds": cost.client_seconds.get(stage, 0.0) / n,
            "server_seconds": cost.server_seconds.get(stage, 0.0),
            "bytes_up_per_client": cost.bytes_up.get(stage, 0) // n,
            "bytes_down_per_client": cost.bytes_down.get(stage, 0) // n,
            "dropped": [v for v, out in demo.result.dropouts.items() if out.stage is stage],
        }
        for stage in list(Stage)[:5]
    ]


def as_json(demo: Demo) -> str:
    plan = demo.result.plan
    return json.dumps(
        {
            "clients": len(plan.roster),
            "length": plan.length,
            "threshold": plan.t,
            "colluders": plan.assumed_colluders,
            "backend": prg.backend(),
            "seconds": demo.seconds,
            "stages": stages(demo),
            "survivors": list(demo.result.survivors),
            "exact": demo.exact,
            "largest_rounding_error": demo.error,
        },
        indent=2,
    )


def as_text(demo: Demo) -> str:
    plan, survivors = demo.result.plan, demo.result.survivors
    lines = [
        f"{len(plan.roster)} clients, {plan.length:,} numbers each, masks by {prg.backend()}",
        f"threshold {plan.t}; safe if at most {plan.assumed_colluders} of them collude with the server",
        "",
        f"{'stage':<14}{'one client':>12}{'server':>12}{'sent':>12}{'received':>12}  dropped",
    ]
    for row in stages(demo):
        dropped = ", ".join(map(str, row["dropped"])) or "-"
        lines.append(
            f"{row['stage']:<14}{row['client_seconds'] * 1e3:>9.1f} ms{row['server_seconds'] * 1e3:>9.1f} ms"
            f"{_bytes(row['bytes_up_per_client']):>12}{_bytes(row['bytes_down_per_client']):>12}  {dropped}"
        )
    lines += [
        "",
        f"The server learned the sum of {len(survivors)} vectors. The sum is {'exact' if demo.exact else 'WRONG'} "
        f"(fixed-point rounding: at most {demo.error:.1e}). Everything took {demo.seconds:.2f} s.",
    ]
    return "\n".join(lines)


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
