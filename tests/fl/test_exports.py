"""Exports: numbers of records in real event files of TensorBoard and in a real store of MLflow."""

import errno
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fl.cli import main
from fl.config.read import to_toml
from fl.config.schema import to_tables
from fl.errors import ConfigError, RecordError
from fl.exports import replay, scalars, to_mlflow, to_tensorboard
from fl.reporting.records import Folder, recorded
from fl.sweeps.sweep import forecast, sweep
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


def write_toml(path: Path, **changes: Any) -> str:
    path.write_text(to_toml(tiny(**changes)))
    return str(path)


def test_the_command_line_exports_to_tensorboard_and_a_resumed_run_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    boards, run_ = tmp_path / "boards", tmp_path / "run"
    file = write_toml(tmp_path / "mine.toml", name="my run/1")
    assert main(["train", file, "--out", str(run_), "--tensorboard", str(boards)]) == 0
    assert main(["train", "--resume", str(run_), "--set", "rounds=3"]) == 0
    assert [entry.name for entry in boards.iterdir()] == ["my run-1"]
    steps = sorted(step for name, step in events(boards / "my run-1") if name == "accuracy")
    assert steps == [1, 2, 3]
    for content in ('{"format": 3, "rou', "{}"):
        (run_ / "checkpoint.json").write_text(content)
        assert main(["train", "--resume", str(run_), "--set", "rounds=4"]) == 2
        assert f"{run_ / 'checkpoint.json'} " in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")  # of MLflow, about its own stores
def test_the_command_line_logs_to_a_real_store_of_mlflow_and_a_resumed_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    file = write_toml(tmp_path / "mine.toml", name="mine", export={"mlflow": uri})
    assert main(["train", file, "--out", str(tmp_path / "run")]) == 0
    assert main(["train", "--resume", str(tmp_path / "run"), "--set", "rounds=3"]) == 0
    client = mlflow.MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("share").experiment_id])
    assert (found.info.run_name, found.info.status) == ("mine", "FINISHED")
    assert found.data.params["aggregation.rule"] == "median"
    assert not [name for name in found.data.params if name.startswith("export")]
    assert str(tmp_path) not in str({**found.data.params, **found.data.tags})
    logged = client.get_metric_history(found.info.run_id, "accuracy")
    rounds = recorded(tmp_path / "run").rounds
    assert [(entry.step, entry.value) for entry in logged] == [(r["round"], r["accuracy"]) for r in rounds]


@pytest.mark.filterwarnings("ignore")  # of MLflow, about its own stores
def test_a_run_of_mlflow_ends_with_its_training_also_if_that_stops_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    client = mlflow.MlflowClient(tracking_uri=uri)
    said: list[str] = []

    def stop(record: Any, x: Any) -> str:
        said.append(client.search_runs([client.get_experiment_by_name("share").experiment_id])[0].info.status)
        return "enough"

    trained = run(tiny(rounds=9, export={"mlflow": uri}), callbacks=[stop])
    assert (len(trained.history), said) == (1, ["RUNNING"])
    (found,) = client.search_runs([client.get_experiment_by_name("share").experiment_id])
    assert found.info.status == "FINISHED"


def test_a_server_of_mlflow_that_fails_later_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")

    def fails(*_: Any, **__: Any) -> None:
        raise mlflow.exceptions.MlflowException("no route to host")

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", fails)
    with pytest.warns(RuntimeWarning, match="round 1 was not logged: no route to host") as told:
        trained = run(tiny(rounds=2, export={"mlflow": (tmp_path / "store").as_uri()}))
    assert len(trained.history) == 2
    assert len([one for one in told if "not logged" in str(one.message)]) == 1


def test_every_run_of_a_sweep_is_exported_and_a_dry_run_is_not(tmp_path: Path) -> None:
    tables = {"rounds": 1, "model": "linear", "clients": 12, "secure": False, "data": {"examples": 240}}
    what = {"experiment": {**tables, "export": {"tensorboard": str(tmp_path / "b")}}, "grid": {"seed": [0, 1]}}
    forecast(what, out=tmp_path / "sweep", jobs=1)
    assert not (tmp_path / "b").exists()
    sweep(what, out=tmp_path / "sweep", jobs=1)
    assert sorted(entry.name for entry in (tmp_path / "b").iterdir()) == ["seed 0", "seed 1"]


def test_an_export_whose_package_is_missing_is_refused_before_training_and_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl.exports.find_spec", lambda name: None)
    for key in ("tensorboard", "mlflow"):
        e = tiny(export={key: "somewhere"})
        with pytest.raises(ConfigError, match=rf"export\.{key}: .*share-secagg\[export\]"):
            run(e)
        with pytest.raises(ConfigError, match=rf"export\.{key}: "):
            sweep({"experiment": to_tables(e), "grid": {"seed": [0, 1]}}, out=tmp_path / "sweep")
        with Folder.create(tmp_path / key, e):
            pass
        assert recorded(tmp_path / key).experiment == e  # of somebody else, who had the package
    assert not (tmp_path / "sweep").exists()


def test_an_address_with_a_password_is_refused() -> None:
    """Records, reports, MLflow itself and, over Flower, training.toml would show it."""
    for address in ("https://me:secret@example.org", "postgresql://me:secret@db/mlflow", "http://:x@[::1]:5000"):
        with pytest.raises(ConfigError, match="has a password"):
            tiny(export={"mlflow": address})
    for address in ("https://example.org:5000", "https://me@example.org:5000", "http://[", "sqlite:///a.db", "runs"):
        assert tiny(export={"mlflow": address}).export.mlflow == address


def test_where_rounds_are_exported_to_changes_no_result() -> None:
    assert tiny(export={"tensorboard": "somewhere"}).fingerprint == tiny().fingerprint


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


def test_a_folder_of_tensorboard_that_cannot_be_written_is_refused_before_the_first_round(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for place in ("/proc/zz", str(file / "under")):
        with pytest.raises(ConfigError, match=r"export\.tensorboard: expected a folder to write in, and .*cannot"):
            run(tiny(export={"tensorboard": place}))


def test_a_full_disk_under_tensorboard_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.tensorboard import SummaryWriter

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SummaryWriter, "flush", full)
    with pytest.warns(RuntimeWarning, match=r"export\.tensorboard: round 1 was not written.*No space left") as told:
        trained = run(tiny(rounds=3, export={"tensorboard": str(tmp_path)}))
    assert len(trained.history) == 3
    assert len([warning for warning in told if "export.tensorboard" in str(warning.message)]) == 1
