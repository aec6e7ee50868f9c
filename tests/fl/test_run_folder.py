"""The files of a run, byte by byte, and each refusal of a folder that does not hold what it should."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from fl.config.read import to_toml
from fl.errors import ConfigError, RecordError
from fl.reporting import records
from fl.reporting.records import Checkpoint, Folder, changed_keys, recorded
from tests.fl.runs import tiny

X = np.array([1.5, -2], np.float32)
MEMORY = {"m": np.array([3.0], np.float32)}
NOISY = {"privacy": {"epsilon": 3.0, "norm_clip": 1.0, "clip": 64.0}}
RANDOM = {"clusters": {"size": 4, "schedule": "random"}, "privacy": {"memory": "round"}}


def two_rounds(place: Path, **changes: Any) -> Path:
    """A folder with two recorded rounds, a checkpoint of them, and a line that came later."""
    with Folder.create(place, tiny(**changes)) as folder:
        folder.describe({"versions": {records.PACKAGE: "0.0.9"}})
        folder.append({"round": 1})
        folder.append({"round": 2})
        folder.checkpoint(2, X, MEMORY)
        folder.append({"round": 3})
    return place


def loaded(place: Path) -> Checkpoint | None:
    with Folder.resume(place) as folder:
        return folder.load()


def test_every_file_of_a_run_byte_by_byte(tmp_path: Path) -> None:
    e, place = tiny(), tmp_path / "new" / "run"
    with Folder.create(place, e) as folder:
        folder.describe({"model": "linear", "loss": np.float32("nan")})
        folder.append({"round": 1, "sizes": (1, 2), "who": {3: "a"}})
        folder.append({"round": 2})
        folder.checkpoint(2, X, MEMORY)
        folder.keep_evidence(0, b"what was sent")
        folder.keep_evidence(7, b"later")
        folder.finish({"weight": X}, {"rounds": 2})
    content = save({"x": X, **MEMORY})
    pointer = {
        "format": 1,
        "rounds": 2,
        "file": "checkpoint-000002.safetensors",
        "sha256": hashlib.sha256(content).hexdigest(),
        "records": len(b'{"round":1,"sizes":[1,2],"who":{"3":"a"}}\n{"round":2}\n'),
        "experiment": e.fingerprint.hex(),
    }
    assert {file.name: file.read_bytes() for file in place.iterdir()} == {
        "lock": b"",
        "config.toml": to_toml(e).encode(),
        "run.json": b'{\n "format": 1,\n "model": "linear",\n "loss": null\n}\n',
        "rounds.jsonl": b'{"round":1,"sizes":[1,2],"who":{"3":"a"}}\n{"round":2}\n',
        "checkpoint-000002.safetensors": content,
        "checkpoint.json": json.dumps(pointer, indent=1).encode() + b"\n",
        "evidence-1": b"what was sent",
        "evidence-8": b"later",
        "model.safetensors": save({"weight": X}),
        "summary.json": b'{\n "rounds": 2\n}\n',
    }
    found = recorded(place)
    assert (found.folder, found.experiment, found.name) == (place, e, e.name)
    assert (found.info["model"], found.summary) == ("linear", {"rounds": 2})
    assert found.rounds == [{"round": 1, "sizes": [1, 2], "who": {"3": "a"}}, {"round": 2}]


def test_a_checkpoint_is_what_was_kept_and_later_lines_are_cut_off(tmp_path: Path) -> None:
    place = two_rounds(tmp_path / "run")
    found = loaded(place)
    assert found is not None
    assert (found.rounds, found.x.tolist(), list(found.memory), found.history) == (
        2,
        [1.5, -2],
        ["m"],
        [{"round": 1}, {"round": 2}],
    )
    assert found.memory["m"].tolist() == [3]
    assert "history" not in repr(found)
    assert (place / "rounds.jsonl").read_bytes() == b'{"round":1}\n{"round":2}\n'
    assert loaded(place) is not None  # nothing is left to cut


def test_a_new_checkpoint_replaces_the_old_one(tmp_path: Path) -> None:
    with Folder.create(tmp_path / "run", tiny()) as folder:
        folder.checkpoint(0, X, {})  # before any record
        assert json.loads((folder.path / "checkpoint.json").read_text())["records"] == 0
        assert folder.load() is not None
        folder.append({"round": 1})
        folder.checkpoint(1, 2 * X, {})
        assert [file.name for file in folder.path.glob("checkpoint-*")] == ["checkpoint-000001.safetensors"]
        assert load((folder.path / "checkpoint-000001.safetensors").read_bytes())["x"].tolist() == [3, -4]


def test_an_old_checkpoint_that_is_gone_already_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Folder.create(tmp_path / "run", tiny()) as folder:
        monkeypatch.setattr(Path, "glob", lambda self, pattern: [self / "checkpoint-000000.safetensors"])
        folder.checkpoint(1, X, {})
    assert (tmp_path / "run" / "checkpoint-000001.safetensors").exists()


@pytest.mark.parametrize("name", ["rounds.jsonl", "checkpoint.json", "summary.json"])
def test_a_folder_with_any_result_is_not_used_again(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(RecordError, match=rf"^{tmp_path} holds a run already: continue it with --resume {tmp_path} "):
        Folder.create(tmp_path, tiny())
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_what_a_start_left_that_failed_is_replaced(tmp_path: Path) -> None:
    for name in ("lock", "run.json", "config.toml", "evidence-1", "evidence-1.intoto.json", "other.txt"):
        (tmp_path / name).write_text("old")
    Folder.create(tmp_path, tiny()).close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.toml", "lock", "other.txt"]
    assert (tmp_path / "config.toml").read_text() == to_toml(tiny())
    assert (tmp_path / "other.txt").read_text() == "old"


def test_files_that_are_not_of_a_run_stay_where_a_run_begins(tmp_path: Path) -> None:
    ours, others = {"evidence-1"}, {"evidence-of-2025.pdf", "evidence-1.pdf", "evidence-01"}
    for name in ours | others:
        (tmp_path / name).write_text("old")
    Folder.create(tmp_path, tiny()).close()  # nothing here says that a run began in this folder
    assert {file.name for file in tmp_path.iterdir()} == ours | others | {"config.toml", "lock"}
    Folder.create(tmp_path, tiny()).close()  # now the configuration does
    assert {file.name for file in tmp_path.iterdir()} == others | {"config.toml", "lock"}


@pytest.mark.parametrize("names", [["run.json"], ["config.toml"], ["config.toml", "run.json"]])
def test_a_file_that_a_training_would_replace_is_refused_if_it_is_not_of_one(names: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(RecordError) as refused:
        Folder.create(tmp_path, tiny())
    assert str(refused.value) == f"{tmp_path / names[0]} is not from a training: move it away, or choose another --out"
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == dict.fromkeys(names, "mine")


def test_stale_files_are_removed_by_the_process_that_has_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "error.txt").write_text("old")
    monkeypatch.setattr(records, "PATIENCE", 0.0)
    with records.locked(tmp_path), pytest.raises(RecordError, match="another process"):
        Folder.create(tmp_path, tiny(), stale=("error.txt",))
    assert (tmp_path / "error.txt").exists()
    Folder.create(tmp_path, tiny(), stale=("error.txt", "missing.txt")).close()
    assert not (tmp_path / "error.txt").exists()


def test_a_folder_that_cannot_be_locked_is_an_error_of_the_record(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(RecordError, match=rf"cannot write {tmp_path / 'lock'}: Is a directory"):
        Folder.create(tmp_path, tiny())


def test_a_start_that_fails_releases_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(records, "PATIENCE", 0.0)
    monkeypatch.setattr(records, "write", stop)
    with pytest.raises(KeyboardInterrupt) as kept:  # its frames would keep the lock open
        Folder.create(tmp_path / "run", tiny())
    monkeypatch.undo()
    monkeypatch.setattr(records, "PATIENCE", 0.0)
    Folder.create(tmp_path / "run", tiny()).close()
    assert kept.value is not None


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=f"^cannot write {tmp_path / 'file' / 'run'}: Not a directory$"):
        Folder.create(tmp_path / "file" / "run", tiny())


def test_resuming_writes_the_configuration_only_if_it_changed(tmp_path: Path) -> None:
    place = two_rounds(tmp_path / "run")
    before = (place / "config.toml").stat().st_mtime_ns, (place / "config.toml").stat().st_ino
    with Folder.resume(place) as folder:
        folder.keep_settings()
    assert ((place / "config.toml").stat().st_mtime_ns, (place / "config.toml").stat().st_ino) == before
    with Folder.resume(place, ["rounds=9"]) as folder:
        assert recorded(place).experiment == tiny()  # nothing has been checked yet
        folder.keep_settings()
    assert recorded(place).experiment == tiny(rounds=9)
    with Folder.resume(place, e=tiny(rounds=5)) as folder:
        folder.keep_settings()
        assert folder.experiment == recorded(place).experiment == tiny(rounds=5)


@pytest.mark.parametrize(
    ("changes", "settings", "told"),
    [
        ({}, ["seed=5"], "seed changed: only rounds, secure, stop.*, machine.* and export.* may change"),
        ({}, ["seed=5", "rounds=9"], "seed changed: only rounds, secure, stop.*, machine.* and export.* may change"),
        (
            RANDOM,
            ["rounds=9"],
            "rounds changed: only rounds, secure, stop.*, machine.* and export.* may change; here not rounds, because "
            "every round draws new clusters from the number of rounds that was agreed",
        ),
        (
            NOISY,
            ["rounds=9"],
            "rounds changed: only rounds, secure, stop.*, machine.* and export.* may change; here not rounds, because "
            "the noise was computed for their number (privacy.epsilon)",
        ),
    ],
)
def test_what_may_not_change_is_named_with_the_reason(
    changes: dict[str, Any], settings: list[str], told: str, tmp_path: Path
) -> None:
    Folder.create(tmp_path / "run", tiny(**changes)).close()
    with pytest.raises(ConfigError) as caught:
        Folder.resume(tmp_path / "run", settings)
    assert str(caught.value) == f"--resume continues the same training, but {told}"


def test_keys_that_differ_are_named_without_those_of_the_run_itself() -> None:
    after = tiny(seed=7, name="other", rounds=5, secure=True, local={"lr": 0.5}, machine={"workers": 1})
    assert changed_keys(tiny(), after) == ["seed", "local.lr"]
    assert changed_keys(tiny(), tiny()) == []
    assert list(records._changed({"a": {"b": 1, "c": 2}, "d": 1}, {"a": {"b": 1, "c": 3}, "e": 1})) == ["a.c", "d", "e"]
    assert list(records._changed({"a": {"b": 1}, "f": 1}, {"a": 3, "f": {"g": 1}})) == ["a", "f"]


def test_other_data_or_another_model_is_refused(tmp_path: Path) -> None:
    with Folder.create(tmp_path / "run", tiny()) as folder:
        folder.check_same({"data_fingerprint": "a"})  # before run.json is written there is nothing to compare
        folder.describe({"data_fingerprint": "a", "model_fingerprint": "b"})
        folder.check_same({"data_fingerprint": "a", "model_fingerprint": "b"})
        for wrong in ({"data_fingerprint": "c", "model_fingerprint": "b"}, {"data_fingerprint": "c"}):
            with pytest.raises(RecordError) as caught:
                folder.check_same(wrong)
            assert str(caught.value) == (
                f"{folder.path}: the data fingerprint is not what the run began with; resume with the same data and "
                "model, or train in another folder. Data that are drawn at random need generators with a seed"
            )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2}, "{file} is not a checkpoint of this version"),
        ({"format": 0}, "{file} is not a checkpoint of this version"),
        ({"file": "a/b"}, "{file} is not a checkpoint of this version"),
        ({"rounds": None}, "{file} is not a checkpoint of this version"),
        ({"records": "x"}, "{file} is not a checkpoint of this version"),
        (
            {"sha256": "00"},
            "{place}/checkpoint-000002.safetensors is damaged: checkpoint.json has another SHA-256; put the recorded "
            "file back, or train in another folder",
        ),
        (
            {"file": "gone"},
            "{place}/gone: No such file or directory: put the recorded file back, or train in another folder",
        ),
        (
            {"records": 10**6},
            "{place}/rounds.jsonl is shorter than checkpoint.json says (36 of 1000000 bytes): put the recorded file "
            "back, or train in another folder",
        ),
        (
            {"rounds": 1},
            "{place}/rounds.jsonl does not have the 1 rounds of checkpoint.json: put the recorded file back, or train "
            "in another folder",
        ),
        (
            {"rounds": 3},
            "{place}/rounds.jsonl does not have the 3 rounds of checkpoint.json: put the recorded file back, or train "
            "in another folder",
        ),
        (
            {"experiment": "00"},
            "{file} belongs to another configuration than the config.toml beside it; the run was begun with "
            "share-secagg 0.0.9, and this is {version}: continue it with that version (pip install "
            "share-secagg==0.0.9), or train in another folder",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    place = two_rounds(tmp_path / "run")
    file = place / "checkpoint.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(RecordError) as caught:
        loaded(place)
    here = records.versions()[records.PACKAGE]
    assert str(caught.value) == problem.format(file=file, place=place, version=here)


@pytest.mark.parametrize("missing", ["file", "rounds", "records", "sha256", "experiment", "format"])
def test_a_checkpoint_without_a_key_is_refused(missing: str, tmp_path: Path) -> None:
    place = two_rounds(tmp_path / "run")
    pointer = json.loads((place / "checkpoint.json").read_text())
    del pointer[missing]
    (place / "checkpoint.json").write_text(json.dumps(pointer))
    with pytest.raises(RecordError, match="is not a checkpoint of this version"):
        loaded(place)


@pytest.mark.parametrize("versions", [{}, {"versions": {}}, {"versions": {records.PACKAGE: "here"}}])
def test_a_changed_configuration_of_this_version_is_told_as_such(versions: dict[str, Any], tmp_path: Path) -> None:
    place = two_rounds(tmp_path / "run")
    info = json.dumps(versions).replace("here", records.versions()[records.PACKAGE])
    (place / "run.json").write_text(info)
    if not versions:
        (place / "run.json").unlink()
    pointer = json.loads((place / "checkpoint.json").read_text())
    (place / "checkpoint.json").write_text(json.dumps({**pointer, "experiment": "00"}))
    with pytest.raises(RecordError) as caught:
        loaded(place)
    assert str(caught.value) == (
        f"{place / 'checkpoint.json'} belongs to another configuration than the config.toml beside it: it was changed, "
        "or another version with other keys began the run; put the recorded file back, or train in another folder"
    )


def test_a_configuration_that_cannot_be_read_names_the_version_that_wrote_it(tmp_path: Path) -> None:
    place = two_rounds(tmp_path / "run")
    (place / "config.toml").write_text("speed = 3\n")
    with pytest.raises(RecordError) as caught:
        recorded(place)
    assert str(caught.value).startswith(f"{place / 'config.toml'}: speed: there is no such key")
    assert "; the run was begun with share-secagg 0.0.9, and this is " in str(caught.value)
    (place / "run.json").unlink()
    with pytest.raises(ConfigError, match=r"^speed: there is no such key"):
        recorded(place)
    (place / "config.toml").unlink()
    with pytest.raises(
        RecordError, match=f"^{place} has records of a run, but no config.toml: put the recorded file back$"
    ):
        recorded(place)


def test_records_without_a_checkpoint_are_not_thrown_away(tmp_path: Path) -> None:
    place = two_rounds(tmp_path / "run")
    (place / "checkpoint.json").unlink()
    kept = (place / "rounds.jsonl").read_bytes()
    with pytest.raises(RecordError) as caught:
        loaded(place)
    assert str(caught.value) == (
        f"{place / 'checkpoint.json'} is missing, but {place / 'rounds.jsonl'} has rounds: put it back, or delete "
        "rounds.jsonl to train from the first round"
    )
    assert (place / "rounds.jsonl").read_bytes() == kept
    (place / "rounds.jsonl").write_bytes(b'{"round":1')
    assert loaded(place) is None
    assert (place / "rounds.jsonl").read_bytes() == b""
    (place / "rounds.jsonl").unlink()
    assert loaded(place) is None


def test_lines_that_are_cut_off_are_off_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = two_rounds(tmp_path / "run")
    synced: list[int] = []
    monkeypatch.setattr(records.os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    loaded(place)
    assert synced == [24]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (None, []),
        (b"", []),
        (b'{"round":1', []),
        (b'{"round":1}\n', [{"round": 1}]),
        (b'{"round":1}\n{"round":2}\n{', [{"round": 1}, {"round": 2}]),
    ],
)
def test_an_incomplete_last_line_is_left_out(content: bytes | None, lines: list[Any], tmp_path: Path) -> None:
    Folder.create(tmp_path, tiny()).close()
    if content is not None:
        (tmp_path / "rounds.jsonl").write_bytes(content)
    found = recorded(tmp_path)
    assert (found.rounds, found.info, found.summary) == (lines, {}, {})


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rounds.jsonl", b"{}\nno\n", "has a line that is not JSON: "),
        ("run.json", b"{", "cannot be read: "),
        ("run.json", b"\xff", "cannot be read: "),
        ("summary.json", b"[1]", ": expected a JSON object"),
    ],
)
def test_a_damaged_file_is_named(name: str, content: bytes, problem: str, tmp_path: Path) -> None:
    Folder.create(tmp_path, tiny()).close()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RecordError, match=re.escape(f"{tmp_path / name}") + " ?" + re.escape(problem)):
        recorded(tmp_path)


def finished(place: Path) -> Path:
    with Folder.create(place, tiny(rounds=3)) as folder:
        folder.describe({})
        for number in (1, 2, 3):
            folder.append({"round": number, "accuracy": number / 10})
        folder.checkpoint(3, X, MEMORY)
        folder.finish({"weight": X}, {"rounds": 3, "accuracy": 0.3})
    return place


LINES = [b'{"round":1,"accuracy":0.1}\n', b'{"round":2,"accuracy":0.2}\n', b'{"round":3,"accuracy":0.3}\n']


@pytest.mark.parametrize(
    ("lines", "gone", "problem"),
    [
        (LINES[:2], (), "has 2 of the 3 rounds that checkpoint.json counts"),
        (LINES[:2], ("checkpoint.json",), "has 2 of the 3 rounds that summary.json counts"),
        (LINES[:2], ("summary.json",), "has 2 of the 3 rounds that checkpoint.json counts"),
        (None, (), "has 0 of the 3 rounds that checkpoint.json counts"),
        (None, ("checkpoint.json",), "has 0 of the 3 rounds that summary.json counts"),
        ([LINES[0], LINES[2]], (), "line 2 of .* should be round 2, not 3"),
        ([b'{"round":1}\n', b'{"round":2}\n', b'{"round":3}\n'], (), "has 36 of the 81 bytes that checkpoint.json"),
        ([*LINES[:2], b'{"round":3,"accuracy":0.4}\n'], (), "different accuracies: 0.4 and 0.3"),
        ([b"[]\n"], (), "a line that is not a JSON object"),
    ],
)
def test_files_of_a_run_that_contradict_each_other_are_refused(
    lines: list[bytes] | None, gone: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    place = finished(tmp_path / "run")
    assert recorded(place).summary["rounds"] == 3
    for name in (*gone, *(["rounds.jsonl"] if lines is None else [])):
        (place / name).unlink()
    if lines is not None:
        (place / "rounds.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(RecordError, match=problem) as caught:
        recorded(place)
    if "JSON" not in problem:
        assert str(caught.value).endswith(": put the recorded file back, or train in another folder")


@pytest.mark.parametrize("content", ['{"rounds": "3"}', '{"accuracy": 0.3}'])
def test_a_summary_without_a_number_of_rounds_is_refused(content: str, tmp_path: Path) -> None:
    place = finished(tmp_path / "run")
    (place / "summary.json").write_text(content)
    with pytest.raises(RecordError, match=r"summary\.json has no number of rounds: put the recorded file back"):
        recorded(place)


def test_a_run_that_goes_on_has_no_summary_yet(tmp_path: Path) -> None:
    """Neither after more rounds were added, nor if it began again from the first one."""
    place = finished(tmp_path / "run")
    with Folder.resume(place, ["rounds=5"]) as folder:
        assert recorded(place).summary
        folder.append({"round": 4, "accuracy": 0.1})
        found = recorded(place)
        assert (len(found.rounds), found.summary) == (4, {})
    for name in ("rounds.jsonl", "checkpoint.json"):
        (place / name).unlink()
    with Folder.resume(place) as folder:
        assert folder.load() is None
        folder.describe({})
        assert (recorded(place).rounds, recorded(place).summary) == ([], {})
