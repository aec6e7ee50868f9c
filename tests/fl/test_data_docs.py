"""docs/add-data-or-model.md does what it says."""

import re
from pathlib import Path
from typing import Any

import pytest

from fl.data import federate, load
from fl.training.learner import Learner, LocalTraining, Task
from fl.training.models import build, dimension

PAGE = Path(__file__).parents[2] / "docs" / "add-data-or-model.md"


@pytest.fixture
def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def named(blocks: list[str], file: str) -> str:
    (found,) = [block for block in blocks if block.startswith(f"# {file}\n")]
    return found


def test_the_pages_model_and_data_set_can_be_named_and_trained(
    blocks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for file in ("nets.py", "sets.py"):
        (tmp_path / file).write_text(named(blocks, file))
    monkeypatch.syspath_prepend(tmp_path)
    assert dimension(build("nets:wide", (1, 8, 8), 10, seed=0)) == 64 * 100 + 100 + 1010
    data = federate(load("sets:two_moons"), clients=4, seed=0)
    learner = Learner(Task("nets:wide", data, LocalTraining(lr=0.1), seed=0))
    x = learner.initial()
    for round_index in range(3):
        x += learner.train(x, range(4), round_index=round_index).mean(axis=0)
    assert learner.evaluate(x).accuracy > 0.8


def test_the_pages_training_loop_runs(blocks: list[str], capsys: pytest.CaptureFixture[str]):
    scope: dict[str, Any] = {}
    for block in blocks:
        if not block.startswith("# "):
            exec(block, scope)
    assert "accuracy" in capsys.readouterr().out
