"""docs/examples/flower-pytorch: an app as Flower's quickstart has it, and the same app with secure sums."""

import difflib
import importlib
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp import strategy

from fl.flower.federation import Federation
from tests.flower.app_grid import RUN_ID, AppGrid, agree, members_of

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "flower-pytorch"
NODES, PARAMETERS = 6, 4538
METRICS = {"train": {"train_loss": 20.0}, "evaluate": {"eval_loss": 20.0, "eval_acc": 1.0}}


@contextmanager
def app_of(which: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """The client app, the server app and the run configuration of one of the two."""
    monkeypatch.syspath_prepend(str(EXAMPLE / which))
    try:
        client = importlib.import_module("pytorch_app.client_app")
        server = importlib.import_module("pytorch_app.server_app")
        config = tomllib.loads((EXAMPLE / which / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        yield client, server, config
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "pytorch_app"]:
            del sys.modules[name]
        monkeypatch.undo()


def results(which: str, folders: list[Path] | None, monkeypatch: pytest.MonkeyPatch, **config: Any) -> strategy.Result:
    found: list[strategy.Result] = []
    torch.set_num_threads(1)  # images of 8 x 8 are done before threads could meet
    start = strategy.Strategy.start
    with app_of(which, monkeypatch) as (client, server, settings):
        settings |= {"num-server-rounds": 1, "local-epochs": 1, **config}
        grid = AppGrid(client.app, folders, NODES)
        for context in grid.contexts.values():
            context.run_config = settings

        def keep(*args: Any, **more: Any) -> strategy.Result:
            found.append(start(*args, **more))
            return found[-1]

        monkeypatch.setattr(strategy.Strategy, "start", keep)
        server.app(grid=grid, context=Context(RUN_ID, 1, {}, RecordDict(), settings))
    return found[0]


def test_at_most_ten_lines_change() -> None:
    changed = []
    for before in sorted((EXAMPLE / "before").rglob("*")):
        after = EXAMPLE / "after" / before.relative_to(EXAMPLE / "before")
        if before.suffix in (".py", ".toml"):
            changed += list(difflib.ndiff(before.read_text().splitlines(), after.read_text().splitlines()))
    assert sum(line.startswith("+ ") for line in changed) == 5
    assert sum(line.startswith("- ") for line in changed) == 2


def test_before_and_after_learn_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = results("before", None, monkeypatch)
    agreement = agree(tmp_path, members_of(tmp_path, NODES), PARAMETERS, **METRICS)
    folders = [tmp_path / f"node-{i}" for i in range(NODES)]
    secure = results("after", folders, monkeypatch, agreement=str(agreement))
    for found, expected in zip(secure.arrays.to_numpy_ndarrays(), plain.arrays.to_numpy_ndarrays(), strict=True):
        assert found == pytest.approx(expected, abs=1e-2)
    for round, metrics in plain.evaluate_metrics_clientapp.items():
        assert dict(secure.evaluate_metrics_clientapp[round]) == pytest.approx(dict(metrics), abs=0.02)


@pytest.mark.long
@pytest.mark.parametrize("which", ["before", "after"])
def test_real_processes(tmp_path: Path, which: str) -> None:
    agreement = agree(tmp_path, members_of(tmp_path, 3), PARAMETERS, **METRICS)
    with Federation(tmp_path) as federation:
        federation.start_link()
        for node in range(3):
            partition = f"partition-id={node} num-partitions=3"
            federation.start_node(node, tmp_path / f"node-{node}", "--node-config", partition)
        settings = [f'agreement="{agreement}"'] if which == "after" else []
        process = federation.run(EXAMPLE / which, settings)
        assert process.wait(900) == 0
        assert "after round 3: accuracy on the nodes" in federation.log("run")
