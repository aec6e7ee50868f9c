"""What a round over Flower costs on this machine: seconds in our handlers, bytes, and the whole round.

    python -m tests.benchmarks flower [--nodes 8] [--rounds 3] [--model MODULE:FUNCTION]

A SuperLink and the SuperNodes run as separate processes, on loopback. A handler's time begins after Flower
and the handler's imports are loaded. The rest of a round is Flower's own latency and the start of one process
per message. Times are wall-clock times, while all nodes share this machine's cores, and computing times. The
exit code is 1 if a stage takes a second or more of wall-clock time.
"""

import json
import os
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAGES = ("shares", "inputs", "consistency", "unmasking")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="tests.flower.wide:hundred_thousand")


def main(options: Namespace) -> int:
    """Run and print; 1 if a stage is too slow."""
    os.environ["PYTHONPATH"] = str(ROOT)  # where the nodes find the model
    from fl.config.checks import experiment
    from fl.flower.federation import run_here
    from fl.reporting.progress import LineProgress

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
        run_here(e, out, show=LineProgress())
        records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
        info = json.loads((out / "run.json").read_text())
    print(f"{options.nodes} nodes, {info['parameters']:,} parameters, mean of {len(records)} rounds\n")
    print("| stage | handler, s | of it computing, s | kB up per node | kB down per node |")
    print("|---|--:|--:|--:|--:|")
    slowest = 0.0
    for stage in STAGES:
        asked = options.nodes * len(records)
        costs = [record["cryptography"] for record in records]
        computing = sum(entry["client_seconds"][stage] for entry in costs) / asked
        seconds = sum(entry["client_clock"][stage] for entry in costs) / asked
        up = sum(entry["bytes_up"][stage] for entry in costs) / asked / 1e3
        down = sum(entry["bytes_down"][stage] for entry in costs) / asked / 1e3
        slowest = max(slowest, seconds)
        print(f"| {stage} | {seconds:.3f} | {computing:.3f} | {up:.1f} | {down:.1f} |")
    whole = [record["seconds"]["total"] for record in records]
    print(f"\nseconds per round: {', '.join(f'{seconds:.1f}' for seconds in whole)}")
    print(f"exchanges per round: {', '.join(str(record['exchanges']) for record in records)}")
    return 0 if slowest < 1 else 1
