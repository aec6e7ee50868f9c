"""Evidence of 1000 clients over 200 rounds: its size, and how long `secagg verify` takes.

    python -m tests.benchmarks.evidence [clients] [rounds]

Clients sign real messages; their vectors have one value, because evidence has vectors by their hashes only.
"""

import sys
import time

from secagg.evidence import verify
from secagg.simulation import WholeRun, make_agreement


def main(clients: int = 1000, rounds: int = 200) -> None:
    agreement, identities = make_agreement(members=clients, size=4, length=1, bound=1, rounds=rounds)
    run = WholeRun(agreement, identities)
    start = time.perf_counter()
    for t in range(rounds):
        run.round(t, {v: [1] for v in range(clients)})
    made = time.perf_counter()
    data = run.evidence()
    written = time.perf_counter()
    work = time.process_time()
    report = verify(data)
    done, work = time.perf_counter(), time.process_time() - work
    assert report.holds, report.problems[:3]
    print(f"{clients} clients, {rounds} rounds: played in {made - start:.0f} s, written in {written - made:.1f} s")
    print(f"evidence: {len(data) / 1e6:.1f} MB; {report.answers} answers")
    print(f"verified in {done - written:.1f} s ({work:.1f} s on all cores together)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
