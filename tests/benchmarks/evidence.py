"""Evidence of whole groups: its size, and how long `secagg verify` takes.

    python -m tests.benchmarks evidence                   # 1000 clients, 200 rounds: the bars
    python -m tests.benchmarks evidence --clients 100 --rounds 10
    python -m tests.benchmarks evidence --keep FILE       # write the evidence there; if it is there, use it
    python -m tests.benchmarks evidence --groups survivors --clients 24 --rounds 100 --groupings 2

Clients sign real messages; their vectors have one value, because evidence has vectors by their hashes at most. Playing
1000 clients and 200 rounds takes a quarter of an hour. `secagg verify` runs as a process of its own, so its time has
everything in it, from the start of Python. The bars are for two quiet cores.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from secagg.evidence import assemble
from secagg.exposure.audit import Policy
from secagg.simulation import WholeRun, make_agreement, run

MOST_BYTES, MOST_SECONDS = 100e6, 60.0
BARS = (1000, 200)  # clients and rounds for which the bars are


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=BARS[0])
    parser.add_argument("--rounds", type=int, default=BARS[1])
    parser.add_argument("--groups", choices=["whole", "survivors"], default="whole")
    parser.add_argument("--groupings", type=int, default=1, help="groupings of survivors")
    parser.add_argument("--keep", type=Path, help="the file of the evidence; made if it is not there")


def played(clients: int, rounds: int, _: int) -> bytes:
    """The evidence of a training with whole groups of four."""
    agreement, identities = make_agreement(members=clients, size=4, length=1, bound=1, rounds=rounds)
    training = WholeRun(agreement, identities)
    for t in range(rounds):
        training.round(t, {v: [1] for v in range(clients)})
    return training.evidence()


def played_with_survivors(clients: int, rounds: int, groupings: int) -> bytes:
    """The evidence of a training with survivors in groups of four. What they reveal does not change its size."""
    agreement, identities = make_agreement(
        members=clients,
        size=4,
        length=1,
        bound=1,
        rounds=rounds,
        groups="survivors",
        schedule="random",
        groupings=groupings,
        policy=Policy(memory="round", anonymity=2, max_leverage=1.0, min_survivors=2),
    )
    inputs = {v: [1] for v in range(clients)}
    records = [run(agreement, inputs, identities, round=t).record for t in range(rounds)]
    return assemble(agreement, {v: agreement.sign(v, identities[v]) for v in range(clients)}, records)


def main(options: Namespace) -> int:
    """1 if a bar is missed."""
    with tempfile.TemporaryDirectory() as folder:
        place = options.keep or Path(folder) / "evidence"
        if not place.exists():
            start = time.perf_counter()
            play = played if options.groups == "whole" else played_with_survivors
            place.write_bytes(play(options.clients, options.rounds, options.groupings))
            print(f"played in {time.perf_counter() - start:.0f} s")
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "secagg", "verify", str(place), "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        size = place.stat().st_size
    report = json.loads(done.stdout)
    assert report["holds"], report["problems"][:3]
    work = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{report['members']} clients, {report['rounds']} rounds, {report['kind']}: {report['answers']} answers")
    print(f"evidence: {size / 1e6:.1f} MB, {size / report['answers']:.0f} bytes per client and round")
    print(f"secagg verify: {seconds:.1f} s ({work:.1f} s of processor time, {after.ru_maxrss / 1024:.0f} MB of memory)")
    if (report["kind"], report["members"], report["rounds"]) != ("whole", *BARS):
        return 0
    print(f"bars: {MOST_BYTES / 1e6:.0f} MB, {MOST_SECONDS:.0f} s on two cores")
    return int(size > MOST_BYTES or seconds > MOST_SECONDS)
