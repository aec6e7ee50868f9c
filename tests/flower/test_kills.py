"""Whole groups over real processes, which are killed at random moments. `-m long`."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from secagg.cli.main import main as secagg_command
from tests.flower.runs import whole
from tests.flower.test_processes import Running, federation_of, replay, started

ROUNDS = 10
SERVER_KILLED, LINK_KILLED = (3, 6), 8  # in these rounds, counted from 1
SETTINGS = ("stage-seconds=120.0", "training-seconds=240.0", "join-seconds=240.0", "skipped-rounds=20")


def wait_for_rounds(running: Running, count: int, seconds: float = 1800) -> None:
    end = time.monotonic() + seconds
    while len(running.rounds()) < count:
        assert time.monotonic() < end, running.federation.log("run")[-4000:]
        time.sleep(0.05)


def kill_all(running: Running, word: str) -> None:
    found = [number for number, command in started(running.place) if word in command]
    assert found
    for number in found:
        os.kill(number, signal.SIGKILL)


@pytest.mark.long
def test_nodes_server_and_link_killed_at_random_moments_over_ten_rounds(tmp_path: Path) -> None:
    """No wrong sum, no round with two answers of a node, and the model of a replay in the clear."""
    seed = int(os.environ.get("SHARE_SEED", "7"))
    generator, e = random.Random(seed), whole(rounds=ROUNDS)
    database = ("--database", str(tmp_path / "state.db"))
    killed: list[str] = []
    with federation_of(e, tmp_path, link=database) as running:
        for number, folder in enumerate(running.folders):
            running.federation.start_node(number, folder, simulate=True)
        running.begin(SETTINGS)
        for t in range(1, ROUNDS + 1):
            wait_for_rounds(running, t - 1)
            time.sleep(generator.uniform(0, 3))
            node = generator.randrange(8)
            running.federation.kill_node(node)
            killed.append(f"round {t}: node {node}")
            if t in SERVER_KILLED:
                kill_all(running, "flwr-serverapp")
                killed.append(f"round {t}: ServerApp")
                running.begin(SETTINGS)
            if t == LINK_KILLED:
                kill_all(running, "flower-superlink")
                killed.append(f"round {t}: SuperLink")
                running.federation.start_link(*database)
                running.begin(SETTINGS)
            running.federation.start_node(node, running.folders[node], simulate=True)
        wait_for_rounds(running, ROUNDS)
        running.end(1800)
    records = running.rounds()
    print(f"seed {seed}", killed)
    for record in records:
        lost = [cluster["cluster"] for cluster in record["clusters"] if cluster["state"] != "opened"]
        print(record["round"], round(record["seconds"]["total"], 1), record["exchanges"], lost, record["dropouts"])
    assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
    replay(e, records, running.out)
    assert secagg_command(["verify", str(running.out / "evidence-1")]) == 0
    for folder in running.folders:
        journal = ["--journal", str(folder / "journal")]
        assert secagg_command(["verify", str(running.out / "evidence-1"), *journal]) == 0
    assert sum(not record["skipped"] for record in records) >= ROUNDS // 2
