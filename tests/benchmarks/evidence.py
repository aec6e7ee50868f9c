"""Evidence: its size, and how long `secagg verify` takes.

    python -m tests.benchmarks evidence                   # 1000 clients, 200 rounds of whole groups: the bars
    python -m tests.benchmarks evidence --clients 100 --rounds 10
    python -m tests.benchmarks evidence --keep FILE       # write the evidence there; if it is there, use it
    python -m tests.benchmarks evidence --clients 60 --rounds 20 --size 3 --groupings 10 --groups survivors

Clients sign real messages; their vectors have one value, because evidence has vectors by their hashes at most. Playing
1000 clients and 200 rounds takes a quarter of an hour. `secagg verify` runs as a process of its own, so its time has
everything in it, from the start of Python. The bar of size is for 1000 clients and 200 rounds; of fewer, the size per
client and round, with the agreement, is held against it. The bar of time is for whole groups, on two quiet cores.
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
from typing import Any

from secagg.agreement import Agreement
from secagg.crypto.keys import Identity
from secagg.evidence import assemble
from secagg.evidence.file import read_head
from secagg.exposure.audit import Policy
from secagg.simulation import WholeRun, make_agreement, run
from secagg.types import ClientId

MOST_BYTES, MOST_SECONDS = 100e6, 60.0
BARS = (1000, 200)  # clients and rounds for which the bars are


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=BARS[0])
    parser.add_argument("--rounds", type=int, default=BARS[1])
    parser.add_argument("--groups", choices=["whole", "survivors"], default="whole")
    parser.add_argument("--size", type=int, default=4, help="clients in a group")
    parser.add_argument("--groupings", type=int, default=1, help="groupings in a round")
    parser.add_argument("--keep", type=Path, help="the file of the evidence; made if it is not there")


def agreed(options: Namespace) -> tuple[Agreement, dict[ClientId, Identity]]:
    """With several groupings every sum is opened, as in the paper, whatever it exposes: the largest evidence."""
    more: dict[str, Any] = {}
    if options.groupings > 1:
        more |= {"schedule": "random", "groupings": options.groupings}
        more |= {"policy": Policy(memory="round", mode="report-even-if-exposed")}
    elif options.groups == "survivors":
        more |= {"policy": Policy(memory="round")}
    return make_agreement(
        members=options.clients,
        size=options.size,
        length=1,
        bound=1,
        rounds=options.rounds,
        groups=options.groups,
        **more,
    )


def played(options: Namespace) -> bytes:
    """The evidence of a training with whole groups."""
    training = WholeRun(*agreed(options))
    for t in range(options.rounds):
        training.round(t, {v: [1] for v in range(options.clients)})
    return training.evidence()


def played_with_survivors(options: Namespace) -> bytes:
    """The evidence of a training with survivors."""
    agreement, identities = agreed(options)
    clients, rounds = options.clients, options.rounds
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
            place.write_bytes(play(options))
            print(f"played in {time.perf_counter() - start:.0f} s")
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "secagg", "verify", str(place), "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        data = place.read_bytes()
    size, agreed_on = len(data), len(data) - read_head(data)[2].left
    report = json.loads(done.stdout)
    assert report["holds"], report["problems"][:3]
    work = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{report['members']} clients, {report['rounds']} rounds, {report['kind']}: {report['answers']} answers")
    per_answer = (size - agreed_on) / report["answers"]
    print(f"evidence: {size / 1e6:.1f} MB; {per_answer:.0f} bytes per client and round without the agreement")
    print(f"secagg verify: {seconds:.1f} s ({work:.1f} s of processor time, {after.ru_maxrss / 1024:.0f} MB of memory)")
    clients, rounds = BARS
    scaled = clients * (agreed_on / report["members"] + rounds * per_answer)
    print(f"for {clients} clients and {rounds} rounds: {scaled / 1e6:.1f} MB (bar {MOST_BYTES / 1e6:.0f})")
    if (report["kind"], report["members"], report["rounds"]) == ("whole", *BARS):
        print(f"bar of time: {MOST_SECONDS:.0f} s on two cores")
        return int(scaled > MOST_BYTES or seconds > MOST_SECONDS)
    return int(scaled > MOST_BYTES)
