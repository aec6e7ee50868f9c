"""What a round over Flower costs on this machine, beside plain FedAvg and beside four exchanges.

    python -m tests.benchmarks flower [--nodes 8] [--rounds 5] [--before] [--model NAME]

A SuperLink and the SuperNodes run as separate processes, on loopback. In one federation, first Flower's own FedAvg
trains, then SHARE with whole groups: the same app, data, model, local training and warm executor. `--before` also runs
survivors (four exchanges a round) as Flower starts nodes itself, which takes minutes. The first round of each finds the
nodes and loads libraries; it is shown and not counted. "Handler" is the time in the node's handler: reading the
agreement, training, masking, storing. "Flower" is the rest of the exchange: its transport, its waiting, its processes.

The exit code is 1 if a round of SHARE takes more than 1.3 times a round of FedAvg, or with `--before` less than 10
times faster than four exchanges.
"""

import json
import os
import statistics
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MOST_TIMES_PLAIN = 1.3
LEAST_TIMES_BEFORE = 10.0


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="small-cnn")
    parser.add_argument("--before", action="store_true", help="also four exchanges, with Flower's own executor")


def main(options: Namespace) -> int:
    """Run and print; 1 if a bar is missed."""
    os.environ["PYTHONPATH"] = str(ROOT)  # where the nodes find the app
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as place:
        plain, share, records = _side_by_side(Path(place), options)
        print(f"{options.nodes} nodes, {options.model}, load average {load[0]:.1f} to {os.getloadavg()[0]:.1f}\n")
        print("| way | seconds of each round | median after the first |\n|---|---|--:|")
        _show("FedAvg of Flower", plain)
        _show("SHARE, whole groups", share)
        _explain(records[1:], options.nodes)
        ratio = _usual(share) / _usual(plain)
        print(f"\nSHARE / FedAvg: {ratio:.2f} (at most {MOST_TIMES_PLAIN})", flush=True)
        missed = ratio > MOST_TIMES_PLAIN
        if options.before:
            before = _four_exchanges(Path(place), options)
            print("\n| way | seconds of each round | median after the first |\n|---|---|--:|")
            _show("survivors, as Flower starts nodes", before)
            faster = _usual(before) / _usual(share)
            print(f"\nfour exchanges / SHARE: {faster:.1f} (at least {LEAST_TIMES_BEFORE:.0f})")
            missed |= faster < LEAST_TIMES_BEFORE
    return int(missed)


def _show(way: str, seconds: list[float]) -> None:
    print(f"| {way} | {', '.join(f'{one:.1f}' for one in seconds)} | {_usual(seconds):.2f} |")


def _usual(seconds: list[float]) -> float:
    return statistics.median(seconds[1:])


def _explain(records: list[dict[str, Any]], nodes: int) -> None:
    """Where the time of a round of SHARE goes."""
    total, secure = (statistics.median(r["seconds"][name] for r in records) for name in ("total", "secure"))
    costs = [record["cryptography"] for record in records]
    handler, computing = (
        statistics.median(cost[name]["inputs"] / nodes for cost in costs) for name in ("client_clock", "client_seconds")
    )
    up, down = (statistics.median(cost[name]["inputs"] / nodes / 1e3 for cost in costs) for name in _BYTES)
    print("\n| a round of SHARE | seconds |\n|---|--:|")
    print(f"| handler on a node | {handler:.2f} (of it computing: {computing:.2f}) |")
    print(f"| Flower | {secure - handler:.2f} |")
    print(f"| server: rule, test, record | {total - secure:.2f} |")
    print(f"\nper node and round: {up:.0f} kB up, {down:.0f} kB down; exchanges: {[r['exchanges'] for r in records]}")


_BYTES = ("bytes_up", "bytes_down")


def _experiment(options: Namespace, **more: Any) -> Any:
    from fl.config.checks import experiment

    return experiment(
        name="bench-flower",
        clients=options.nodes,
        model=options.model,
        data={"name": "digits"},
        local={"epochs": 1, "batch_size": 16, "lr": 0.03},
        aggregation={"rule": "mean"},
        **{"rounds": options.rounds, "clusters": {"size": options.nodes // 2}, **more},
    )


def _side_by_side(place: Path, options: Namespace) -> tuple[list[float], list[float], list[dict[str, Any]]]:
    """Seconds per round of FedAvg and of SHARE in one federation, and the records of SHARE."""
    from fl.flower.federation import Federation, agree_here, write_app
    from fl.flower.task import model_length
    from fl.training.loop import prepare

    e, nodes = _experiment(options), place / "nodes"
    sizes = [int(size) for size in prepare(e).sizes]
    _, folders = agree_here(e, sizes, nodes, length=model_length(e), simulate=True)
    parts = {"server": "tests.flower.plain:server", "client": "tests.flower.plain:client"}
    app = write_app(nodes / "app", **parts, more='way = "share"\n')
    with Federation(nodes, expected=len(folders)) as federation:
        federation.start_link()
        for number, folder in enumerate(folders):
            federation.start_node(number, folder, simulate=True)
        for way in ("plain", "share"):
            files = {"training": nodes / "training.toml", "out": place / way}
            settings = [f"{name}={json.dumps(str(path))}" for name, path in files.items()]
            process = federation.run(app, [*settings, f'way="{way}"'])
            process.wait()
            if not (place / way / "summary.json").exists():
                raise OSError(f"{way} did not end:\n{federation.log('run')[-3000:]}")
    plain = json.loads((place / "plain" / "summary.json").read_text())["seconds"]
    records = _records(place / "share")
    return plain, [record["seconds"]["total"] for record in records], records


def _four_exchanges(place: Path, options: Namespace) -> list[float]:
    from fl.flower.federation import run_here
    from fl.reporting.progress import LineProgress

    clusters = {"size": options.nodes // 2, "schedule": "random", "groups": "survivors"}
    e = _experiment(options, rounds=3, clusters=clusters, privacy={"memory": "round"})
    patient = ("join-seconds=1200.0", "stage-seconds=900.0", "training-seconds=900.0")  # a busy machine needs it
    run_here(e, place / "before", settings=patient, show=LineProgress(), slow=True)
    records = _records(place / "before")
    if any(record["skipped"] or record["dropouts"] for record in records):
        raise OSError("a round of four exchanges was not complete; measure on a machine that is less busy")
    return [record["seconds"]["total"] for record in records]


def _records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
