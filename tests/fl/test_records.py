"""Files are complete or absent, and a run that was killed continues to the same bits."""

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest

from fl.config.read import to_toml
from fl.errors import ConfigError, RecordError
from fl.reporting import records
from fl.reporting.records import Folder, recorded
from fl.training.loop import run
from secagg.evidence import verify
from tests.fl.runs import tiny

ROOT = Path(__file__).parents[2]


def trained_in(path: Path, **changes: object) -> bytes:
    e = tiny(**changes)
    with Folder.create(path, e) as folder:
        return run(e, folder=folder).x.tobytes()


def resumed(path: Path, *settings: str) -> bytes:
    with Folder.resume(path, settings) as folder:
        return run(folder.experiment, folder=folder).x.tobytes()


def start(path: Path, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "fl", "train", *more, "--out", str(path)] if more else
        [sys.executable, "-m", "fl", "train", "--resume", str(path)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def rounds_in(path: Path) -> int:
    file = path / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for(path: Path, rounds: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 600  # a busy machine imports torch for minutes
    while rounds_in(path) < rounds:
        assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("checkpoint_every", "workers"), [(2, 1), pytest.param(3, 0, marks=pytest.mark.long)])
def test_a_run_that_is_killed_repeatedly_ends_with_the_same_bits(
    tmp_path: Path, checkpoint_every: int, workers: int
) -> None:
    changes = {"rounds": 7, "secure": True, "dropout": {"rate": 0.05, "stage": "any"}, "clusters": {"size": 4}}
    whole = trained_in(tmp_path / "whole", **changes)
    file = tmp_path / "killed.toml"
    file.write_text(to_toml(tiny(**changes, machine={"checkpoint_every": checkpoint_every, "workers": workers})))
    place = tmp_path / "killed"
    process = start(place, str(file))
    for kill_after in (1, 4):
        wait_for(place, kill_after, process)
        time.sleep(0.05 * kill_after)  # in the middle of a round
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        process = start(place)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()
    assert b"continuing after round" in errors
    arrays = records.read_tensors(place / "checkpoint-000007.safetensors")
    assert arrays["x"].tobytes() == whole
    mine, theirs = recorded(place).rounds, recorded(tmp_path / "whole").rounds
    assert [r["round"] for r in mine] == list(range(1, 8))
    for key in ("accuracy", "clusters", "dropouts", "exposure"):
        assert [r[key] for r in mine] == [r[key] for r in theirs]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_ctrl_c_stops_the_run_and_says_how_to_continue_it(tmp_path: Path, number: int) -> None:
    file = tmp_path / "e.toml"
    file.write_text(to_toml(tiny(rounds=400)))
    process = start(tmp_path / "run", str(file))
    wait_for(tmp_path / "run", 3, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    text = errors.decode()
    assert "Traceback" not in text
    assert f"share train --resume {tmp_path / 'run'}" in text
    done = rounds_in(tmp_path / "run")
    assert resumed(tmp_path / "run", f"rounds={done + 2}") == trained_in(tmp_path / "whole", rounds=done + 2)


def test_an_incomplete_line_of_a_killed_process_is_cut_off(tmp_path: Path) -> None:
    whole = trained_in(tmp_path / "whole", rounds=4)
    trained_in(tmp_path / "run", rounds=2)
    with (tmp_path / "run" / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round":3,"accuracy":0.9}\n{"round":4,"acc')
    (tmp_path / "run" / ".checkpoint.json.123").write_text("half")
    assert len(recorded(tmp_path / "run").rounds) == 3  # a report shows the complete lines
    assert resumed(tmp_path / "run", "rounds=4") == whole
    assert [record["round"] for record in recorded(tmp_path / "run").rounds] == [1, 2, 3, 4]


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    whole = trained_in(tmp_path / "whole")
    Folder.create(tmp_path / "run", tiny()).close()
    (tmp_path / "run" / "rounds.jsonl").write_text('{"round":1')
    assert resumed(tmp_path / "run") == whole


def test_as_many_rounds_as_between_two_checkpoints_may_lack_one(tmp_path: Path) -> None:
    experiment = tiny(machine={"checkpoint_every": 2})
    with Folder.create(tmp_path / "run", experiment) as folder:
        for number in (1, 2):
            folder.append({"round": number})
        assert folder.load() is None
        assert not recorded(tmp_path / "run").rounds
        for number in (1, 2, 3):
            folder.append({"round": number})
        with pytest.raises(RecordError, match="is missing"):
            folder.load()


def test_a_record_is_in_the_file_when_the_disk_is_asked_to_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    with Folder.create(tmp_path / "run", tiny()) as folder:
        monkeypatch.setattr(
            records.os, "fsync", lambda number: seen.append(Path(f"/proc/self/fd/{number}").read_bytes())
        )
        folder.append({"round": 1})
    assert seen[-1:] == [b'{"round":1}\n']


def test_a_crash_between_the_two_files_of_a_checkpoint_costs_one_round(tmp_path: Path) -> None:
    trained_in(tmp_path / "run", rounds=2)
    older = (tmp_path / "run" / "checkpoint.json").read_bytes()
    model = (tmp_path / "run" / "checkpoint-000002.safetensors").read_bytes()
    whole = resumed(tmp_path / "run", "rounds=3")
    (tmp_path / "run" / "checkpoint.json").write_bytes(older)  # as if the new one had not been renamed yet
    (tmp_path / "run" / "checkpoint-000002.safetensors").write_bytes(model)
    assert resumed(tmp_path / "run") == whole


def test_resuming_may_change_the_number_of_rounds_but_not_the_experiment(tmp_path: Path) -> None:
    trained_in(tmp_path / "run")
    with pytest.raises(ConfigError, match="same training"):
        Folder.resume(tmp_path / "run", ["local.lr=0.5"])
    Folder.resume(tmp_path / "run", ["rounds=9", "machine.workers=1"]).close()


def test_a_pickle_in_place_of_a_checkpoint_is_refused_and_never_run(tmp_path: Path) -> None:
    trained_in(tmp_path / "run")
    mark = tmp_path / "pwned"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return os.mkdir, (str(mark),)

    evil = pickle.dumps({"x": Evil()})
    (tmp_path / "run" / "checkpoint-000002.safetensors").write_bytes(evil)
    pointer = json.loads((tmp_path / "run" / "checkpoint.json").read_text())
    pointer["sha256"] = hashlib.sha256(evil).hexdigest()
    (tmp_path / "run" / "checkpoint.json").write_text(json.dumps(pointer))
    with Folder.resume(tmp_path / "run") as folder, pytest.raises(RecordError, match="not a safetensors file"):
        folder.load()
    assert not mark.exists()


def test_a_lock_that_is_released_a_moment_later_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Folder.create(tmp_path / "run", tiny())
    monkeypatch.setattr(records, "PATIENCE", 1e9)
    monkeypatch.setattr(records.time, "sleep", lambda seconds: first.close())
    Folder.resume(tmp_path / "run").close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sha256": "0" * 64}, "damaged"),
        ({"file": "../elsewhere.safetensors"}, "not a checkpoint"),
        ({"file": "gone.safetensors"}, "No such file"),
        ({"format": 99}, "version"),
        ({"rounds": "many"}, "not a checkpoint"),
        ({"experiment": "00"}, "another configuration"),
        ({"records": 10**9}, "shorter"),
    ],
)
def test_a_wrong_checkpoint_is_refused(tmp_path: Path, change: dict, words: str) -> None:
    trained_in(tmp_path / "run")
    place = tmp_path / "run" / "checkpoint.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **change}))
    with Folder.resume(tmp_path / "run") as folder, pytest.raises(RecordError, match=words):
        folder.load()


def test_a_run_of_another_version_says_so_and_what_to_do(tmp_path: Path) -> None:
    trained_in(tmp_path / "run")
    pointer, info = (tmp_path / "run" / name for name in ("checkpoint.json", "run.json"))
    pointer.write_text(json.dumps({**json.loads(pointer.read_text()), "experiment": "00"}))
    with Folder.resume(tmp_path / "run") as folder, pytest.raises(RecordError, match="put the recorded file back"):
        folder.load()
    found = json.loads(info.read_text())
    info.write_text(json.dumps({**found, "versions": {**found["versions"], "share-secagg": "0.0.9"}}))
    with (
        Folder.resume(tmp_path / "run") as folder,
        pytest.raises(RecordError, match=r"begun with share-secagg 0\.0\.9"),
    ):
        folder.load()
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("[local]", "[local]\nspeed = 3"))
    with pytest.raises(RecordError, match=r"local\.speed: there is no such key.*pip install share-secagg==0\.0\.9"):
        Folder.resume(tmp_path / "run")


def test_a_run_is_not_overwritten_and_a_folder_has_one_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PATIENCE", 0.1)
    folder = Folder.create(tmp_path / "run", tiny())
    with pytest.raises(RecordError, match="another process"):
        Folder.create(tmp_path / "run", tiny())
    with pytest.raises(RecordError, match="another process"):
        Folder.resume(tmp_path / "run")
    folder.close()
    Folder.resume(tmp_path / "run").close()
    with pytest.raises(RecordError, match="no run in"):
        Folder.resume(tmp_path / "nowhere")
    with pytest.raises(RecordError, match="no run in"):
        recorded(tmp_path / "nowhere")


def test_a_write_that_fails_leaves_the_old_file_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "file"
    records.write(place, b"old")

    def broken(*_: object) -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(RecordError, match="fire"):
        records.write(place, b"new")
    assert place.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [place]


def test_nan_and_infinity_become_null_in_json(tmp_path: Path) -> None:
    records.write_json(
        tmp_path / "x.json", {"loss": float("nan"), "n": np.int64(3), "v": np.array([1.5, np.inf]), "s": {2}}
    )
    assert json.loads((tmp_path / "x.json").read_text()) == {"loss": None, "n": 3, "v": [1.5, None], "s": [2]}


def test_a_run_records_its_configuration_versions_and_attackers(tmp_path: Path) -> None:
    trained_in(tmp_path / "run", byzantine=2, attack={"name": "label-flip"})
    found = recorded(tmp_path / "run")
    assert found.experiment == tiny(byzantine=2, attack={"name": "label-flip"})
    assert len(found.info["byzantine"]) == 2
    assert found.info["versions"]["python"]
    assert found.info["parameters"] == 650
    assert found.summary["rounds"] == 2
    assert found.summary["accuracy"] == found.rounds[-1]["accuracy"]


def test_a_secure_run_leaves_evidence_that_holds(tmp_path: Path) -> None:
    trained_in(tmp_path / "run", secure=True, rounds=3, dropout={"rate": 0.2})
    report = verify((tmp_path / "run" / "evidence-1").read_bytes())
    assert report.holds, report.problems
    assert (report.first_round, report.last_round, report.members) == (0, 2, 12)
    resumed(tmp_path / "run", "rounds=5")
    later = verify((tmp_path / "run" / "evidence-4").read_bytes())
    assert later.holds, later.problems
    assert (later.first_round, later.last_round) == (3, 4)
    assert later.fingerprint == report.fingerprint


def test_a_run_without_secure_aggregation_leaves_none(tmp_path: Path) -> None:
    trained_in(tmp_path / "run")
    assert not list((tmp_path / "run").glob("evidence*"))


def test_a_secure_run_with_survivors_leaves_evidence_too(tmp_path: Path) -> None:
    clusters = {"groups": "survivors", "schedule": "random", "size": 4}
    privacy = {"memory": "round"}
    trained_in(tmp_path / "run", secure=True, rounds=2, clusters=clusters, privacy=privacy, dropout={"rate": 0.1})
    report = verify((tmp_path / "run" / "evidence-1").read_bytes())
    assert report.holds, report.problems
    assert (report.kind, report.rounds, report.members) == ("survivors", 2, 12)


def test_a_package_that_is_not_installed_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "torch":
            raise PackageNotFoundError
        return "1.2"

    monkeypatch.setattr(records, "version", version)
    found = records.versions()
    assert (found["torch"], found["numpy"]) == ("not installed as a package", "1.2")


def test_another_training_is_not_continued_and_what_may_change_is_told(tmp_path: Path) -> None:
    Folder.create(tmp_path / "run", tiny()).close()
    with pytest.raises(ConfigError, match=r"seed changed: only rounds, secure, stop\.\*, machine\.\* and export\.\*"):
        Folder.resume(tmp_path / "run", ["seed=5"])
    Folder.resume(tmp_path / "run", ["rounds=1"]).close()
