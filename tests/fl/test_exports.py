"""Exports: numbers of records in real event files of TensorBoard, and in a stand-in for MLflow."""

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fl.errors import RecordError
from fl.exports import replay, scalars, to_mlflow, to_tensorboard
from fl.reporting.records import Folder
from fl.training.loop import run
from tests.fl.runs import tiny


def events(folder: Path) -> dict[tuple[str, int], float]:
    """What TensorBoard reads from a folder."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found = {}
    for file in folder.iterdir():
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                found[value.tag, event.step] = value.tensor.float_val[0]
    return found


def test_tensorboard_reads_every_number_of_every_round(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what TensorBoard itself imports
        trained = run(tiny(rounds=2), callbacks=[to_tensorboard(tmp_path)])
        found = events(tmp_path)
    expected = {(name.replace(" ", "_"), r["round"]): v for r in trained.history for name, v in scalars(r).items()}
    assert found.keys() == expected.keys()
    assert all(found[key] == pytest.approx(value, rel=1e-6) for key, value in expected.items())
    assert {"accuracy", "loss", "seconds/total", "exposure/exposed_clients"} <= {name for name, _ in found}


def test_mlflow_gets_the_rounds_live_and_again_from_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[dict[str, float], int]] = []
    tags: dict[str, str] = {}
    fake = SimpleNamespace(
        log_metrics=lambda metrics, step: logged.append((metrics, step)), set_tags=lambda given: tags.update(given)
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    with Folder.create(tmp_path / "run", tiny(rounds=2)) as folder:
        run(folder.experiment, folder=folder, callbacks=[to_mlflow(study="one")])
    live, logged[:] = list(logged), []
    assert tags == {"study": "one"}
    assert [step for _, step in live] == [1, 2]
    assert replay(tmp_path / "run", to_mlflow()) == 2
    assert logged == live
    with pytest.raises(RecordError):
        replay(tmp_path / "nothing", to_mlflow())


def test_only_numbers_of_a_record_are_exported() -> None:
    """No member of a cluster and no id of a client is among them; what was not measured is left out."""
    secret: dict[str, Any] = {
        "round": 1,
        "accuracy": None,
        "loss": 1.5,
        "metrics": {},
        "clusters": [{"members": [7, 8, 9]}],
        "dropouts": [{"client": 7}],
        "blamed": {"7": "why"},
        "exposure": {"exposed": [7], "anonymity": None, "leverage": 0.25},
        "epsilon": {"local": 3.0, "delta": 1e-6},
        "seconds": {"total": 1.0},
    }
    assert scalars(secret) == {
        "loss": 1.5,
        "seconds/total": 1.0,
        "epsilon/local": 3.0,
        "exposure/leverage": 0.25,
        "exposure/exposed clients": 1.0,
        "dropouts": 1.0,
    }
