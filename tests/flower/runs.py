"""A small federation for tests: eight nodes, digits, a linear model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl.config.checks import experiment
from fl.config.schema import Experiment
from fl.flower.deadlines import Deadlines
from fl.flower.federation import agree_here
from fl.flower.network import Network
from fl.flower.server import connect, serve
from fl.flower.task import model_length
from fl.flower.training import Training
from fl.reporting.records import read_tensors
from fl.training.loop import prepare, run
from secagg.evidence import verify
from tests.flower.grid import RUN_ID, InProcessGrid

NODES = 8
FAST = Deadlines(join=2.0, stage=1.0, training=1.0)


def small(**more: Any) -> Experiment:
    """Two clusters of four clients; two of the eight may drop out."""
    tables: dict[str, Any] = {
        "name": "small",
        "rounds": 2,
        "clients": NODES,
        "model": "linear",
        "data": {"name": "digits", "examples": 320, "test_examples": 200},
        "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
        "clusters": {"size": 4, "schedule": "random", "groups": "survivors"},
        "privacy": {"memory": "round"},
        "aggregation": {"rule": "mean"},
    }
    for name, value in more.items():
        tables[name] = {**tables.get(name, {}), **value} if isinstance(value, dict) else value
    return experiment(tables)


def whole(**more: Any) -> Experiment:
    """Whole groups: the same two clusters of four clients in all rounds."""
    tables: dict[str, Any] = {
        "clusters": {"schedule": "fixed", "groups": "whole"},
        "privacy": {"memory": "training"},
        "name": "whole",
    }
    for name, value in more.items():
        tables[name] = {**tables.get(name, {}), **value} if isinstance(value, dict) else value
    return small(**tables)


def agreed(e: Experiment, place: Path, *, simulate: bool = True) -> tuple[Training, list[Path]]:
    sizes = [int(size) for size in prepare(e).sizes]
    return agree_here(e, sizes, place, length=model_length(e), simulate=simulate)


def network_of(grid: InProcessGrid, training: Training) -> Network:
    return connect(grid, training, RUN_ID)  # type: ignore[arg-type]


def trained(grid: InProcessGrid, training: Training, out: Path, deadlines: Deadlines = FAST) -> Network:
    """Run the whole training over the grid and record it in `out`."""
    network = network_of(grid, training)
    serve(network, deadlines, out)
    report = verify((out / "evidence-1").read_bytes(), threads=1)
    assert report.holds, report.problems
    return network


def actions(grid: InProcessGrid, client: int) -> Sequence[str]:
    return [action for number, action in grid.log if number == client]


def assert_same_model(folder: Path, e: Experiment) -> None:
    """The model that was trained over Flower equals the one of a simulation, bit for bit."""
    here = {name: part.numpy().tobytes() for name, part in run(e).model.state_dict().items()}
    there = {name: part.tobytes() for name, part in read_tensors(folder / "model.safetensors").items()}
    assert there == here
