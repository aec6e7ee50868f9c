"""What a round over Flower costs on this machine: seconds in our handlers by stage, bytes, the whole round.

    python tests/benchmarks/bench_flower.py [--nodes 8] [--rounds 3] [--model MODULE:FUNCTION]

A SuperLink and the SuperNodes run as processes of their own, on loopback. A handler's time begins after
Flower and what the handler imports are loaded; the rest of a round is Flower's own latency and starting
processes, of which every message costs one. It is told by the clock, while all nodes share this machine's
cores, and as computing time. Ends with exit code 1 if a stage takes a second or more by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAGES = ("shares", "inputs", "consistency", "unmasking")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="tests.flower.wide:hundred_thousand")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)  # where the nodes find the model
    sys.path.insert(0, str(ROOT))
    from fl.config.checks import experiment
    from fl.flower.local import run_here

    e = experiment(
        name="bench-flower",
        clients=options.nodes,
        rounds=options.rounds,
        model=options.model,
        data={"name": "digits", "examples": 40 * options.nodes, "test_examples": 100},
        local={"epochs": 1, "batch_size": 16, "lr": 0.01},
        clusters={"size": options.nodes // 2},
        aggregation={"rule": "mean"},
    )
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        run_here(e, out, tell=lambda text: print(text, file=sys.stderr, flush=True))
        records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
        info = json.loads((out / "run.json").read_text())
    print(f"{options.nodes} nodes, {info['parameters']:,} parameters, mean of {len(records)} rounds\n")
    print("| stage | handler, s | of it computing, s | kB up per node | kB down per node |")
    print("|---|--:|--:|--:|--:|")
    slowest = 0.0
    for stage in STAGES:
        asked = options.nodes * len(records)
        told = [record["cryptography"] for record in records]
        computing = sum(entry["client_seconds"][stage] for entry in told) / asked
        seconds = sum(entry["client_clock"][stage] for entry in told) / asked
        up = sum(entry["bytes_up"][stage] for entry in told) / asked / 1e3
        down = sum(entry["bytes_down"][stage] for entry in told) / asked / 1e3
        slowest = max(slowest, seconds)
        print(f"| {stage} | {seconds:.3f} | {computing:.3f} | {up:.1f} | {down:.1f} |")
    whole = [record["seconds"]["total"] for record in records]
    print(f"\nseconds per round: {', '.join(f'{seconds:.1f}' for seconds in whole)}")
    print(f"exchanges per round: {', '.join(str(record['exchanges']) for record in records)}")
    return 0 if slowest < 1 else 1


if __name__ == "__main__":
    sys.exit(main())
