"""A training that cannot go on as it began says so, and a start that failed blocks nothing."""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fl
from fl.cli import main
from fl.config.read import to_toml
from fl.errors import ConfigError, RecordError
from fl.reporting import records
from fl.reporting.records import Folder, recorded
from fl.training.loop import run
from tests.fl.runs import tiny


def examples(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [(random.standard_normal((6, 2)).astype("float32"), random.integers(0, 2, 6)) for _ in range(12)]


def train(place: Path, model: Any = None, seed: int = 0, **more: Any) -> fl.Trained:
    torch.manual_seed(1)
    clients = examples(seed)
    settings = {"rounds": 2, "secure": False, "machine": {"workers": 0}, **more}
    return fl.train(model or nn.Linear(2, 2), clients, clients[0], out=place, **settings)


def test_train_resumes_only_the_same_settings_data_and_model(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", rounds=4).x
    train(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"local\.lr changed"):
        train(tmp_path / "run", resume=True, rounds=4, local={"lr": 0.5})
    with pytest.raises(RecordError, match="data"):
        train(tmp_path / "run", resume=True, rounds=4, seed=1)
    other = nn.Linear(2, 2)
    with pytest.raises(RecordError, match="model"):
        train(tmp_path / "run", other, resume=True, rounds=4)
    with pytest.raises(ConfigError, match="model changed"):
        train(tmp_path / "run", nn.Sequential(nn.Linear(2, 2)), resume=True, rounds=4)
    assert recorded(tmp_path / "run").summary["rounds"] == 2  # nothing was changed by the refusals
    assert train(tmp_path / "run", resume=True, rounds=4).x.tobytes() == whole.tobytes()


def test_a_resumed_run_has_as_many_rounds_as_were_planned_if_rounds_is_left_out(tmp_path: Path) -> None:
    def resumed(**more: Any) -> int:
        torch.manual_seed(1)
        settings = {"out": tmp_path / "run", "secure": False, "machine": {"workers": 0}, **more}
        return int(fl.train(nn.Linear(2, 2), examples(), examples()[0], resume=True, **settings).summary["rounds"])

    def stopped(record: Any, _: object) -> str:
        return "enough" if record["round"] == 2 else ""

    train(tmp_path / "run", rounds=23, callbacks=[stopped])
    assert recorded(tmp_path / "run").summary["rounds"] == 2
    assert resumed() == 23
    assert resumed() == 23  # all are done; 20, the default, would be fewer
    assert resumed(rounds=24) == 24
    with pytest.raises(RecordError, match="there is no run in"):
        resumed(out=tmp_path / "none")


@pytest.mark.parametrize("refused", ["data", "checkpoint"])
def test_a_refused_resume_leaves_the_settings_as_they_were(tmp_path: Path, refused: str) -> None:
    train(tmp_path / "run")
    before = (tmp_path / "run" / "config.toml").read_bytes()
    if refused == "checkpoint":
        (tmp_path / "run" / "rounds.jsonl").write_bytes(b"")
    with pytest.raises(RecordError):
        train(tmp_path / "run", resume=True, rounds=7, seed=int(refused == "data"))
    assert (tmp_path / "run" / "config.toml").read_bytes() == before


def test_the_fingerprint_of_data_sees_every_part() -> None:
    data = fl.Federated(*_parts())
    prints = {data.fingerprint()}
    for change in ("inputs", "labels", "clients", "test", "validation", "classes"):
        prints.add(fl.Federated(*_parts(change)).fingerprint())
    assert len(prints) == 7
    assert fl.Federated(*_parts()).fingerprint() == data.fingerprint()


def _parts(change: str = "") -> tuple[Any, ...]:
    def part(shift: float = 0.0, label: int = 0) -> fl.Examples:
        return fl.Examples(torch.ones(4, 2) + shift, torch.tensor([0, 1, 0, label]))

    rows = [np.array([0, 1]), np.array([2, 3])]
    return (
        part(change == "inputs", int(change == "labels")),
        tuple(rows[::-1] if change == "clients" else rows),
        part(2.0 * (change == "test")),
        3 if change == "classes" else 2,
        part() if change == "validation" else None,
    )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda lines: None, "shorter"),
        (lambda lines: lines[:1], "shorter"),
        (lambda lines: [lines[1], lines[0]], "does not have the 2 rounds"),
        (lambda lines: [lines[0].replace(b"\n", b" ") + lines[1]], "not JSON"),
    ],
    ids=["missing", "cut", "swapped", "joined"],
)
def test_records_that_do_not_fit_the_checkpoint_are_an_error(tmp_path: Path, damage: Any, words: str) -> None:
    train(tmp_path / "run")
    file = tmp_path / "run" / "rounds.jsonl"
    lines = damage(file.read_bytes().splitlines(keepends=True))
    file.unlink() if lines is None else file.write_bytes(b"".join(lines))
    before = file.read_bytes() if file.exists() else None
    with pytest.raises(RecordError, match=words):
        train(tmp_path / "run", resume=True, rounds=4)
    assert (file.read_bytes() if file.exists() else None) == before


def test_records_without_their_checkpoint_are_not_replayed(tmp_path: Path) -> None:
    train(tmp_path / "run")
    (tmp_path / "run" / "checkpoint.json").unlink()
    with pytest.raises(RecordError, match=r"delete rounds\.jsonl"):
        train(tmp_path / "run", resume=True)
    (tmp_path / "run" / "rounds.jsonl").unlink()
    assert train(tmp_path / "run", resume=True).summary["rounds"] == 2


def test_a_start_that_fails_does_not_block_the_next_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARE_DATA", str(tmp_path / "none"))
    file = tmp_path / "mine.toml"
    file.write_text(to_toml(tiny(name="mine")))
    assert main(["train", str(file), "--set", "data.name=cifar10"]) == 2
    assert main(["train", str(file)]) == 0
    assert main(["train", str(file)]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_functions_beside_the_file_are_found_and_found_again_by_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "net_beside.py").write_text(
        "import math\nfrom torch import nn\n"
        "def net(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))\n"
    )
    file = tmp_path / "mine" / "mine.toml"
    text = to_toml(tiny(name="mine")).replace('model = "linear"', 'model = "net_beside:net"')
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "mine/mine.toml", "--out", "run", "--workers", "1"]  # a worker finds it too
    assert main(arguments) == 0, capsys.readouterr().err
    sys.modules.pop("net_beside")
    sys.path[:] = [entry for entry in sys.path if "mine" not in entry]
    assert main(["train", "--resume", "run", "--set", "rounds=3"]) == 0
    file.write_text(text.replace("net_beside:net", "net_nowhere:net"))
    assert main([*arguments[:3], "other"]) == 2
    assert "beside the configuration file" in capsys.readouterr().err
    assert main(["train", "--resume", "run", "--set", "rounds=4"]) == 0


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(tmp_path / "whole").x
    real, written = os.fsync, []

    def full(handle: int) -> None:
        written.append(handle)
        if len(written) == 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match=r"No space left.*free some space"):
        train(tmp_path / "run")
    monkeypatch.setattr(os, "fsync", real)
    assert train(tmp_path / "run", resume=True).x.tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ((np.zeros((0, 2)), np.zeros(0, dtype=int)), "data of client 11: there are no examples"),
        (DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))), r"torch\.cat"),
        (torch.utils.data.Subset(TensorDataset(torch.zeros(4, 2)), [0]), r"read it once: .*DataLoader\("),
        (np.zeros((4, 2)), "expected a pair"),
        (None, "expected a pair"),
    ],
    ids=["empty", "loader", "dataset", "array", "none"],
)
def test_data_in_another_form_is_one_clear_error(part: Any, words: str) -> None:
    clients: list[Any] = examples()
    with pytest.raises(ConfigError, match=words):
        fl.train("linear", [*clients[:11], part], clients[0], rounds=1)


def test_tensor_data_sets_and_numbers_of_numpy_are_welcome() -> None:
    clients = [TensorDataset(torch.as_tensor(x), torch.as_tensor(y)) for x, y in examples()]
    trained = fl.train(
        "linear", clients, clients[0], rounds=np.int64(1), clusters={"size": np.int32(4)}, secure=np.bool_(False)
    )
    assert (trained.summary["rounds"], trained.experiment.clusters.size) == (1, 4)
    with pytest.raises(ConfigError, match="rounds: expected a whole number"):
        fl.train("linear", clients, clients[0], rounds=np.float64(1.5))


def test_settings_of_another_run_are_named(tmp_path: Path) -> None:
    e = tiny()
    with Folder.create(tmp_path / "run", e) as folder:
        run(e, folder=folder)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert len(info["data_fingerprint"]) == len(info["model_fingerprint"]) == 64
    with pytest.raises(ConfigError, match=r"seed, attack\.start changed"):
        Folder.resume(tmp_path / "run", ["seed=3", "attack.start=2", "machine.workers=1"])
    assert records.recorded(tmp_path / "run").experiment == e
