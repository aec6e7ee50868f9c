"""Many clients: memory holds one cell's updates and the cluster means, not all updates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTH = 15_680

PROGRAM = """
import gc, json, re, sys
from pathlib import Path
import numpy as np, torch
from fl.config.checks import experiment
from fl.data import Examples, from_clients
from fl.training.loop import run

n, width, secure = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "secure"
torch.manual_seed(0)
rows = torch.randint(0, 255, (2 * n, width // 10), dtype=torch.uint8)
labels = torch.randint(0, 10, (2 * n,))
part = Examples(rows.to(torch.float32) / 255, labels)
clients = [part.take(np.array([2 * i, 2 * i + 1])) for i in range(n)]
data = from_clients(clients, part.take(np.arange(20)), 10)
chosen = experiment(
    clients=n, rounds=1, model="linear", secure=secure, local={"epochs": 1, "batch_size": 2},
    data={"name": "python:data"}, machine={"workers": 0}, aggregation={"rule": "mean"}, privacy={"memory": "round"},
    clusters={"size": 10, "cell": 100, "groups": "survivors", "schedule": "random"},
)
del clients, rows, part
gc.collect()
status = lambda name: int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = status("VmRSS")
found = run(chosen, data=data)
after = status("VmHWM")
record = found.history[0]
print(json.dumps({
    "before": before, "after": after, "seconds": record["seconds"]["total"],
    "opened": record["groupings"][0]["opened"], "exposed": len(record["exposure"]["exposed"]),
}))
"""


def simulated(n: int, secure: bool, width: int = WIDTH) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(n), str(width), "secure" if secure else "clear"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_memory_does_not_grow_with_clients_times_parameters() -> None:
    """1,200 clients of 15,690 parameters have 72 MB of updates, and a tenth of that in cluster means."""
    found = simulated(1200, False)
    assert found["opened"] == 120
    updates = 1200 * (WIDTH + 10) * 4 / 1024
    assert found["after"] - found["before"] < 0.7 * updates


@pytest.mark.long
def test_ten_thousand_clients_with_real_cryptography_take_minutes() -> None:
    found = simulated(10_000, True, width=7_840)
    assert found["opened"] == 1000
    assert found["exposed"] == 0
    assert found["seconds"] < 900
