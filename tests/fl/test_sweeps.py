"""Sweeps: the grid of a file, forecasts, and a folder that survives kill -9, failing runs and changed files."""

import csv
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

import fl
import robust
from fl.cli import main
from fl.config.checks import experiment
from fl.config.grid import from_mapping, read_sweep
from fl.config.read import packaged_experiments, write_tables
from fl.errors import ConfigError, OwnError, RecordError, TrainingError, TrainingWarning
from fl.reporting import records
from fl.reporting.begun import ATTRIBUTES
from fl.reporting.full import advised
from fl.reporting.records import Folder
from fl.reporting.results import FINISHED, NO_VALUE, Mean
from fl.reporting.sweep_progress import SweepLines, SweepProgress
from fl.sweeps import folder, pool, worker
from fl.sweeps.estimate import Cost, Estimate, _cost, _samples, estimate, several
from fl.sweeps.kept import check_kept
from fl.sweeps.pool import Job, work
from fl.sweeps.sweep import _told, forecast
from fl.training.loop import run

SMALL: dict[str, Any] = {
    "rounds": 2,
    "clients": 12,
    "model": "linear",
    "secure": False,
    "byzantine": 2,
    "data": {"examples": 240, "test_examples": 100},
    "local": {"epochs": 1, "batch_size": 10, "lr": 0.1},
}
OWN = "def raises(updates, **options):\n    raise KeyError('an attack of mine')\n"
FILE: dict[str, Any] = {
    "name": "small",
    "experiment": SMALL,
    "grid": {"seed": [0, 1], "aggregation": {"rule": ["median", "mean"]}},
    "variants": {
        "attack": {
            "flip": {"attack.name": "sign_flip", "attack.options": {"scale": 20.0}},
            "mine": {"attack.name": "attacks_of_mine:raises"},
        }
    },
}
REGRESSION = """
import torch
from fl.data import DataSet, Examples

def data():
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([1.0, -2.0, 0.5])
    return DataSet("regression", train=Examples(x[:300], y[:300]), test=Examples(x[300:], y[300:]), classes=1)

def rmse(outputs, targets):
    return (outputs.flatten() - targets).square().mean().sqrt()
"""
REGRESSION_FILE: dict[str, Any] = {
    "better": "lower",
    "experiment": {
        **{**SMALL, "byzantine": 1, "data": {"name": "regression_of_mine:data"}},
        "task": {"loss": "squared-error", "metrics": ["regression_of_mine:rmse", "mean-absolute-error"]},
    },
    "grid": {"seed": [0], "aggregation.rule": ["mean"]},
    "variants": {"attack": {"zero": {"attack.name": "zero"}, "flip": FILE["variants"]["attack"]["flip"]}},
}
TABLES = ("runs.csv", "table.csv", "worst.csv", "results.json", "sweep.toml")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A sweep of eight runs, of which four fail: their attack raises."""
    place = tmp_path_factory.mktemp("sweep")
    (place / "attacks_of_mine.py").write_text("import robust\n\n\n@robust.attack\n" + OWN)
    (place / "small.toml").write_text(write_tables(FILE))
    yield place / "small.toml"
    if "raises" in robust.ATTACKS:
        robust.ATTACKS.remove("raises")


@pytest.fixture(scope="module")
def swept(file: Path) -> fl.Swept:
    with pytest.warns(TrainingWarning, match="mine, seed 1 failed"):
        return fl.sweep(file, out=file.parent / "out", jobs=1)


def test_a_sweep_is_what_single_trainings_give(file: Path, swept: fl.Swept) -> None:
    for planned in read_sweep(file).runs():
        if planned.labels["attack"] == "flip" and planned.labels["seed"] == "1":
            alone = run(experiment(planned.tables))
            outcome = next(found for found in swept.results.outcomes if found.id == planned.id)
            assert [value for _, value in outcome.points] == [record["accuracy"] for record in alone.history]


def test_a_run_that_fails_is_told_by_name_and_loses_nothing_else(swept: fl.Swept) -> None:
    assert len(swept.failed) == 4
    assert all("attack=mine" in name and "an attack of mine" in error for name, error in swept.failed.items())
    assert swept.results.finished == 4
    for name in swept.failed:
        assert "attacks_of_mine.py" in (swept.folder / "runs" / name / "error.txt").read_text()
    rows = list(csv.DictReader((swept.folder / "runs.csv").read_text().splitlines()))
    assert sorted(row["status"] for row in rows) == ["failed"] * 4 + ["finished"] * 4


def kill_after(runs: int, of: int, *arguments: str) -> None:
    """Run `share sweep` and kill it, with signal 9, when it tells of so many finished runs."""
    command = [sys.executable, "-m", "fl", "sweep", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(f"[{runs}/{of}]"):
                os.kill(process.pid, signal.SIGKILL)
                break
    assert process.wait() == -signal.SIGKILL


def test_tables_after_kill_9_are_those_of_an_uninterrupted_sweep(file: Path, swept: fl.Swept) -> None:
    """Killed when its first run is finished, with one begun; continued from the copy of the file in the folder.

    The copy says where the modules are, although the first run needs none.
    """
    out = file.parent / "killed"
    kill_after(1, 8, str(file), "--out", str(out), "--jobs", "1")
    assert not (out / "table.csv").exists()
    again = fl.sweep(out / "sweep.toml", out=out, jobs=1, show=_Quiet())
    assert len(again.failed) == 4
    for name in TABLES:
        assert (out / name).read_bytes() == (swept.folder / name).read_bytes(), name


@pytest.mark.long
def test_48_runs_on_digits_killed_three_times_give_identical_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three seeds, four rules, four attacks: the packaged sweep. The first command should take at most 15 minutes on
    two quiet cores; what it took is printed, because a test must not depend on how busy a machine is."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    start = time.monotonic()
    command = [sys.executable, "-m", "fl", "sweep", "digits-attacks", "--out"]
    subprocess.run([*command, str(whole)], check=True, capture_output=True)
    with capsys.disabled():
        print(f"\n48 runs on digits: {(time.monotonic() - start) / 60:.1f} minutes")
    for count in (6, 18, 30):
        kill_after(count, 48, "digits-attacks", "--out", str(killed))
    subprocess.run([*command, str(killed)], check=True, capture_output=True)
    for name in TABLES:
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name


class _Quiet(SweepProgress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)

    warn = note


def plan(changes: dict[str, Any], place: Path) -> list[folder.Checked]:
    return folder.checked(from_mapping({**FILE, **changes}, place=place)).possible


def test_a_changed_sweep_keeps_what_still_belongs_and_refuses_the_rest(file: Path, swept: fl.Swept) -> None:
    more = {"grid": {"seed": [1, 2], "aggregation": {"rule": ["mean", "krum"]}}, "variants": {"attack": {}}}
    more["variants"]["attack"]["flip"] = FILE["variants"]["attack"]["flip"]
    runs = plan(more, file)
    found = folder.states(swept.folder, runs)
    assert found["rule=mean,attack=flip,seed=1"] == FINISHED
    assert list(found.values()).count(folder.NEW) == 3
    assert len(folder.strangers(swept.folder, runs)) == 7
    longer = folder.states(swept.folder, plan({"experiment": {**SMALL, "rounds": 3}}, file))
    assert longer["rule=mean,attack=flip,seed=1"] == folder.BEGUN  # and continues from its second round
    for changes, why in (
        ({"local": {**SMALL["local"], "lr": 0.2}}, "local.lr changed"),
        ({"rounds": 1}, "it has 2 rounds, and the sweep asks for 1"),
        ({"stop": {"accuracy": 0.5}}, "stop changed"),
        ({"machine": {"evaluate_every": 2}}, "machine.evaluate_every changed"),
    ):
        with pytest.raises(RecordError, match=why) as error:
            folder.states(swept.folder, plan({"experiment": {**SMALL, **changes}}, file))
        assert "and 1 more. Nothing was changed: choose another --out" in str(error.value)


def test_what_is_finished_is_not_trained_again(file: Path, swept: fl.Swept, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the failing attack nothing is left to do, so no process starts."""
    changed = file.parent / "changed.toml"
    changed.write_text(write_tables({**FILE, "variants": {"attack": {"flip": FILE["variants"]["attack"]["flip"]}}}))
    assert main(["sweep", str(changed), "--out", str(swept.folder), "--json"]) == 0
    said = capsys.readouterr()
    assert "4 runs finished" in said.err
    assert "also holds 4 folders that are not part of this sweep, such as rule=mean,attack=mine,seed=0" in said.err
    answer = json.loads(said.out)
    assert [entry["attack"] for entry in answer["worst"]] == ["flip", "flip"]
    assert main(["sweep", str(changed), "--out", str(swept.folder), "--dry-run"]) == 0
    assert capsys.readouterr().out == "4 runs, all finished: nothing to train\n"


@pytest.mark.parametrize("what", ["cut", "gone", "config"])
def test_a_run_whose_files_contradict_each_other_is_not_finished(
    what: str, file: Path, swept: fl.Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is trained or written, the run is named, and removing its folder is a way out."""
    out = tmp_path / "out"
    shutil.copytree(swept.folder, out)
    kept, name = (out / "table.csv").read_bytes(), "rule=mean,attack=flip,seed=1"
    records = out / "runs" / name / "rounds.jsonl"
    problem = f"{records} has {1 if what == 'cut' else 0} of the 2 rounds that checkpoint.json counts"
    if what == "cut":
        records.write_bytes(records.read_bytes().splitlines(keepends=True)[0])
    elif what == "gone":
        records.unlink()
    else:
        (records.parent / "config.toml").write_text("speed = 3\n")
        problem = "speed: there is no such key"
    flip = file.parent / "flip.toml"
    flip.write_text(write_tables({**FILE, "variants": {"attack": {"flip": FILE["variants"]["attack"]["flip"]}}}))
    for option in ([], ["--dry-run"]):
        assert main(["sweep", str(flip), "--out", str(out), *option]) != 0
        said = capsys.readouterr()
        assert said.out == ""
        assert problem in said.err
        assert "Nothing was changed: put the recorded files back, or remove the folders of these runs" in said.err
        assert "finished" not in said.err
    assert (out / "table.csv").read_bytes() == kept
    shutil.rmtree(records.parent)
    states = folder.states(out, folder.checked(read_sweep(flip)).possible)
    assert [run for run, state in states.items() if state == folder.NEW] == [name]


def test_a_process_that_dies_takes_only_its_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORKER", "tests.fl.crashing_worker")
    names = ["a", "dies", "fails", "b", "c"]
    heard: list[tuple[str, dict[str, Any]]] = []
    jobs = (Job(name, name, {"name": name}, None) for name in names)
    work(jobs, 2, lambda job, message: heard.append((job.id, message)))
    last = {name: message for name, message in heard if message["do"] in pool.LAST}
    assert {name: message["do"] for name, message in last.items()} == {
        **dict.fromkeys("abc", "finished"),
        **dict.fromkeys(("dies", "fails"), "failed"),
    }
    assert last["dies"]["error"] == "a worker process was ended by SIGKILL while training dies"
    assert len({message["process"] for message in last.values() if "process" in message}) <= 2


def test_no_process_is_left_when_the_parent_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORKER", "tests.fl.crashing_worker")
    begun: list[int] = []

    def hear(job: Job, message: dict[str, Any]) -> None:
        if message["do"] == "finished":
            begun.append(message["process"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work((Job(name, name, {"name": name}, None) for name in "ab"), 1, hear)
    with pytest.raises(ProcessLookupError):
        os.kill(begun[0], 0)


def test_runs_of_the_first_seed_come_first_and_every_id_is_its_own() -> None:
    asked = from_mapping({"grid": {"seed": [0, 1], "local.lr": [0.1, 0.2], "data": {"partition": ["iid", "shards"]}}})
    runs = asked.runs()
    assert [planned.labels["seed"] for planned in runs] == ["0"] * 4 + ["1"] * 4
    assert runs[0].id == "lr=0.1,partition=iid,seed=0"
    assert runs[0].tables["local"] == {"lr": 0.1}
    assert runs[0].name == "lr 0.1, partition iid, seed 0"
    odd = from_mapping({"grid": {"attack.options": [{"a": 1}, {"a": 2}], "model": ["x/y:z", "x-y-z"]}}).runs()
    assert len({planned.id for planned in odd}) == 4
    assert not any(set("/:{} ") & set(planned.id) for planned in odd)
    same = from_mapping({"grid": {"data.name": ["digits"], "attack.name": ["none"], "seed": [0]}})
    assert [axis.name for axis in same.axes] == ["data.name", "attack.name", "seed"]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"grid": {}}, "at least one axis"),
        ({"grid": {"seed": 3}}, r"grid.seed: expected a list of values, got 3"),
        ({"grid": {"seed": [1, 1]}}, "1 is there twice"),
        ({"gird": {"seed": [1]}}, "did you mean grid"),
        ({"rounds": 3, "grid": {"seed": [1]}}, r"belong in its table \[experiment\]"),
        ({"variants": {"attack": {"flip": 3}}}, "expected a table of tables"),
        ({"grid": {"seed": [1]}, "variants": {"a": {"b": {"seed": 1}}}}, "changed by the axes seed and a"),
        ({"grid": {"seed": [1]}, "curve": "fedavg"}, "there is no base"),
        ({"grid": {"seed": [1]}, "base": "digitz"}, "did you mean digits"),
        ({"grid": {"name": ["a"]}}, "name: a sweep names its runs by the values"),
        ({"grid": {"seed": [1]}, "measure": 3}, "measure: expected text"),
        ({"grid": {"seed": [1]}, "better": "less"}, "better: expected lower or higher, got 'less'"),
    ],
)
def test_a_wrong_sweep_file_is_explained(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_mapping(tables)


def test_combinations_that_cannot_run_are_refused_or_left_out() -> None:
    tables = {"experiment": {**SMALL, "byzantine": 0}, "grid": {"clusters.size": [3, 12], "aggregation.rule": ["krum"]}}
    with pytest.raises(ConfigError, match=r"size 12, rule krum: .* set skip_impossible = true"):
        folder.checked(from_mapping(tables))
    runs = folder.checked(from_mapping({**tables, "skip_impossible": True}))
    assert [found.planned.labels["size"] for found in runs.possible] == ["3"]
    assert "clusters.size" in runs.impossible[0].why
    with pytest.raises(ConfigError, match="no combination can run"):
        folder.checked(from_mapping({**tables, "grid": {"clusters.size": [1]}, "skip_impossible": True}))
    with pytest.raises(ConfigError, match=r'no combination can run; the first: size three: .*got "three"$'):
        folder.checked(from_mapping({**tables, "grid": {"clusters.size": ["three"]}}))
    with pytest.raises(ConfigError, match="expected one of accuracy, loss; 'f1' is not measured in the run size 3"):
        folder.checked(from_mapping({**tables, "skip_impossible": True, "measure": "f1"}))


def test_a_function_of_ones_own_that_is_not_there_is_an_error_also_where_combinations_may_be_left_out() -> None:
    """Left out, it would take the results of a finished sweep out of its tables."""
    tables = {"experiment": SMALL, "grid": {"attack.name": ["sign_flip", "math:shout"]}, "skip_impossible": True}
    with pytest.raises(OwnError, match=r"attack math:shout: attack.name: .*module math has no shout$"):
        folder.checked(from_mapping(tables))


def test_a_sweep_is_continued_from_its_copy_but_not_without_its_modules(tmp_path: Path) -> None:
    """In the folder of the copy, where no run is trained again. It also goes where stderr is closed."""
    (code := tmp_path / "code").mkdir()
    text = "import robust\n\n\n@robust.attack\ndef mine_in_a_folder(given):\n    return 0 * given.own\n"
    (code / "mine_in_a_folder.py").write_text(text)
    tables = {
        "experiment": {**SMALL, "byzantine": 1, "rounds": 1},
        "grid": {"attack.name": ["mine_in_a_folder:mine_in_a_folder"]},
    }
    (code / "mine.toml").write_text(write_tables(tables))
    start, out = f"exec {sys.executable} -m fl sweep", tmp_path / "out"

    def done(command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)

    first = done(f"{start} code/mine.toml --out out 2>&-")
    assert first.returncode == 0, first.stdout
    files = {name: (out / name).read_bytes() for name in TABLES}
    again = done(f"{start} out/sweep.toml")
    assert again.returncode == 0, again.stderr
    assert "1 run finished" in again.stderr
    code.rename(tmp_path / "moved")
    for command in (f"{start} out/sweep.toml", f"{start} moved/mine.toml --out out"):
        refused = done(command)
        assert refused.returncode == 2
        assert f"machine.modules name {code}, which is not there: put this folder back" in refused.stderr
    assert {name: (out / name).read_bytes() for name in files} == files


@pytest.mark.parametrize("seeds", [range(3), np.arange(3), (0, 1, 2)])
def test_values_of_an_axis_are_any_list_of_numbers(seeds: Any) -> None:
    (axis,) = from_mapping({"grid": {"seed": seeds}}).axes
    assert [value.changes["seed"] for value in axis.values] == [0, 1, 2]
    assert {type(value.changes["seed"]) for value in axis.values} == {int}


@pytest.mark.parametrize("jobs", ["2", 0, 1.5])
def test_a_number_of_jobs_that_is_none_is_refused(jobs: Any, tmp_path: Path) -> None:
    asked = {"experiment": {**SMALL, "byzantine": 0}, "grid": {"seed": [0]}}
    with pytest.raises(ConfigError, match="jobs: expected a whole number, at least 1, got"):
        fl.sweep(asked, out=tmp_path, jobs=jobs)


def test_a_file_of_the_user_with_the_name_of_the_copy_is_not_replaced(tmp_path: Path) -> None:
    """Beside it may be a folder `runs`, of `share train`."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "sweep.toml").write_text(
        text := "# mine\n" + write_tables({"experiment": {**SMALL, "byzantine": 0}, "grid": {"seed": [0]}})
    )
    assert folder.folder_of(tmp_path / "sweep.toml") is None
    with pytest.raises(ConfigError, match="would be replaced by the sweep's own copy of it: rename it"):
        fl.sweep(tmp_path / "sweep.toml", out=tmp_path, jobs=1, show=_Quiet())
    assert (tmp_path / "sweep.toml").read_text() == text


def too_wide(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(63, outputs))


def test_a_model_of_ones_own_that_cannot_take_the_data_is_not_left_out(tmp_path: Path) -> None:
    asked = {"experiment": {**SMALL, "byzantine": 0, "model": "tests.fl.test_sweeps:too_wide"}, "grid": {"seed": [0]}}
    with pytest.warns(TrainingWarning, match="seed 0 failed: model: it fails on a batch of two examples"):
        done = fl.sweep({**asked, "skip_impossible": True}, out=tmp_path, jobs=1)
    assert list(done.failed) == ["seed=0"]


UNEQUAL: dict[str, Any] = {  # in one partition, a client's weight is too large for a cluster of three
    "experiment": {**SMALL, "byzantine": 0, "rounds": 1, "data": {**SMALL["data"], "alpha": 0.3}},
    "grid": {"data.partition": ["dirichlet", "iid"]},
}


def test_a_run_that_is_refused_when_it_begins_is_left_out(tmp_path: Path) -> None:
    """Its keys are right, so only its data show that it cannot run. A second command gives the same tables."""
    asked, show = {**UNEQUAL, "skip_impossible": True}, _Quiet()
    done = fl.sweep(asked, out=tmp_path, jobs=1, show=show)
    (left_out,) = done.results.impossible
    assert (done.failed, done.results.finished, left_out.labels) == ({}, 1, {"partition": "dirichlet"})
    assert "above 0.5" in left_out.why
    assert f"partition dirichlet cannot run and is left out: {left_out.why}" in show.told
    assert str(done).splitlines()[-1].startswith("- 1 combination cannot run and is left out; the first: partition dir")
    answer = json.loads((tmp_path / "results.json").read_text())
    assert answer["impossible"] == [{"labels": {"partition": "dirichlet"}, "why": left_out.why}]
    assert [entry["run"] for entry in answer["runs"]] == ["partition=iid"]
    assert "1 more combination cannot run" in (tmp_path / "report.html").read_text()
    before, again = {name: (tmp_path / name).read_bytes() for name in ("results.json", "runs.csv")}, _Quiet()
    fl.sweep(asked, out=tmp_path, jobs=1, show=again)
    assert again.told[0] == f"{tmp_path}: 1 run left out, 1 run finished"
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert forecast(asked, out=tmp_path).rounds == 0
    with pytest.raises(ConfigError, match="no combination can run; the first: partition dirichlet: privacy: "):
        fl.sweep({**asked, "grid": {"data.partition": ["dirichlet"]}}, out=tmp_path / "none", jobs=1, show=_Quiet())


def test_a_run_that_is_refused_when_it_begins_fails_and_does_not_bind_its_folder(tmp_path: Path) -> None:
    """Without skip_impossible. With other settings, which a run with rounds would refuse, the same folder serves."""
    with pytest.warns(TrainingWarning, match="partition dirichlet failed: .* set skip_impossible = true"):
        done = fl.sweep(UNEQUAL, out=tmp_path, jobs=1)
    assert done.results.finished == 1
    error = done.failed["partition=dirichlet"]
    assert [entry.get("error") for entry in done.results.to_json()["runs"]] == [error, None]
    assert "above 0.5" in (tmp_path / "runs" / "partition=dirichlet" / "error.txt").read_text()
    alone = {"experiment": UNEQUAL["experiment"], "grid": {"data.partition": ["dirichlet"]}}
    equal = {**UNEQUAL["experiment"], "privacy": {"weight_ratio": 1.41}}
    assert fl.sweep({**alone, "experiment": equal}, out=tmp_path, jobs=1).results.finished == 1


@pytest.fixture(scope="module")
def left_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep whose only run was left out when it began."""
    place = tmp_path_factory.mktemp("left out")
    with pytest.raises(ConfigError, match="no combination can run"):
        fl.sweep(REFUSED, out=place, jobs=1, show=_Quiet())
    return place


REFUSED = {**UNEQUAL, "grid": {"data.partition": ["dirichlet"]}, "skip_impossible": True}


def test_what_was_left_out_is_not_called_finished(left_out: Path) -> None:
    found = forecast(REFUSED, out=left_out, jobs=1)
    assert (found.runs, found.finished, found.left_out) == (0, 0, 1)
    assert str(found) == "nothing to train; 1 combination cannot run and is left out"
    more = Estimate(2, 0, 2, 1, 0, (0.0, 0.0), 0.0, 0.0, left_out=3)
    assert str(more) == "2 runs, all finished: nothing to train; 3 combinations cannot run and are left out"
    begun = Estimate(1, 1, 0, 1, 1, (0.5, 0.5), 1.0, 2.0, {"a": "why"}, left_out=1)
    assert "start in 1 s); 1 combination cannot run and is left out\n1 run could not be measured" in str(begun)


def test_what_was_refused_with_other_settings_is_new(left_out: Path, tmp_path: Path) -> None:
    """It is forecast, and a command that is interrupted before it begins does not take over why it was left out."""
    changed = {**REFUSED, "experiment": {**REFUSED["experiment"], "privacy": {"weight_ratio": 1.41}}}
    found = forecast(changed, out=left_out, jobs=1)
    assert (found.runs, found.rounds, found.finished, found.left_out) == (1, 1, 0, 0)
    asked = from_mapping(changed)
    results = folder.results(asked, left_out, runs := folder.checked(asked))
    assert (list(results.impossible), [each.status for each in results.outcomes]) == ([], [folder.NEW])
    name = runs.possible[0].planned.id
    for broken in (None, "rounds = 'many'"):
        shutil.copytree(left_out, place := tmp_path / str(broken is None))
        (place / "runs" / name / "config.toml").unlink()
        if broken is not None:
            (place / "runs" / name / "config.toml").write_text(broken)
        assert folder.states(place, runs.possible) == {name: folder.NEW}


def test_why_a_run_was_left_out_is_gone_before_its_new_settings_are_written(
    left_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a process that is killed in between leaves no reason that belongs to other settings."""
    place = tmp_path / "run"
    shutil.copytree(left_out / "runs" / "partition=dirichlet", place)
    monkeypatch.setattr(worker, "run", lambda *_, **__: None)
    write, found = records.write, list[bool]()
    monkeypatch.setattr(records, "write", lambda *given: found.append((place / folder.WHY).exists()) or write(*given))
    worker.train(REFUSED["experiment"], place, worker.Silent())
    assert found == [False]


def test_an_error_of_a_run_that_another_process_has_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PATIENCE", 0.0)
    tables = {**SMALL, "byzantine": 0}
    for begun in (False, True):
        place = tmp_path / str(begun)
        with Folder.create(place, experiment(tables)) as held:
            if begun:
                held.append({"round": 1})
            (place / folder.ERROR).write_text("of the other process")
            with pytest.raises(RecordError, match="another process is training"):
                worker.train(tables, place, worker.Silent())
        assert (place / folder.ERROR).exists()


def test_a_sample_that_fails_does_not_end_the_forecast(tmp_path: Path) -> None:
    """The first run is measured first. It fails, and the next one is measured in its place."""
    found = forecast(UNEQUAL, out=tmp_path, jobs=1)
    assert (found.runs, found.rounds, found.measured, list(found.not_measured)) == (2, 1, 1, ["partition dirichlet"])
    first, told, why = str(found).splitlines()
    assert first.startswith("2 runs; 1 round to train")
    assert told == "1 run could not be measured and counts nothing here:"
    assert why.startswith("- privacy: 1 fixed grouping")
    assert why.endswith("(partition dirichlet)")
    alone = {**UNEQUAL, "grid": {"data.partition": ["dirichlet"]}}
    with pytest.raises(TrainingError, match="no run could be measured; the first: partition dirichlet: privacy: "):
        forecast(alone, out=tmp_path, jobs=1)


def test_a_sweep_does_not_mix_with_a_single_run(tmp_path: Path) -> None:
    Folder.create(tmp_path / "run", experiment(rounds=1)).close()
    with pytest.raises(ConfigError, match="holds a single run"):
        fl.sweep({"grid": {"seed": [0, 1]}}, out=tmp_path / "run")


@pytest.mark.parametrize("name", packaged_experiments("experiments/sweeps"))
def test_packaged_sweeps_can_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not folder.checked(read_sweep(name)).impossible
    assert main(["sweep", "--list"]) == 0
    assert name in capsys.readouterr().out


def test_the_packaged_sweep_has_three_seeds_four_rules_and_four_attacks() -> None:
    found = read_sweep("digits-attacks")
    assert [len(axis.values) for axis in found.axes] == [3, 4, 4]
    assert [(axis.is_seed, axis.is_attack) for axis in found.axes] == [(True, False), (False, False), (False, True)]


def test_the_worst_case_is_missing_in_the_sweep_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Multi-Krum cannot withstand two bad clusters of four, and would look best if only the other attack counted."""
    attacks = {"zero": {"attack.name": "zero", "aggregation.f": 0}}
    attacks["flip"] = {**FILE["variants"]["attack"]["flip"], "aggregation.f": 1}
    tables = {"experiment": {**SMALL, "byzantine": 1, "rounds": 1}, "variants": {"attack": attacks}}
    tables |= {"skip_impossible": True, "grid": {"aggregation.rule": ["trimmed_mean", "multi_krum"]}}
    (tmp_path / "left-out.toml").write_text(write_tables(tables))
    assert main(["sweep", str(tmp_path / "left-out.toml"), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[0] == "multi_krum"
    assert lines[2].split()[-1] == "-"
    assert lines[3] == "- no worst case for multi_krum: flip cannot run (skip_impossible)"
    assert "<li>no worst case for multi_krum: flip cannot run" in (tmp_path / "out" / "report.html").read_text()


def test_a_run_whose_last_value_is_not_a_number_is_in_no_mean(file: Path, tmp_path: Path) -> None:
    """A model that diverges in its last round must not count with the round before it."""
    asked = from_mapping({**FILE, "variants": {}, "measure": "loss", "experiment": {**SMALL, "byzantine": 0}})
    runs = folder.checked(asked)
    for run_, losses in zip(runs.possible, ([0.5, None], [0.5, 0.4], [0.5, 0.3], [0.5, 0.2]), strict=True):
        with Folder.create(tmp_path / "runs" / run_.planned.id, run_.experiment) as place:
            for number, loss in enumerate(losses, 1):
                place.append({"round": number, "accuracy": 0.5, "loss": loss, "metrics": {}})
            facts = {"rounds": 2, "stopped": "", "exposed": [], "exposed_over_training": 0, "skipped_rounds": []}
            place.finish({}, facts)
    found = folder.results(asked, tmp_path, runs)
    assert [outcome.status for outcome in found.outcomes] == [NO_VALUE, FINISHED, FINISHED, FINISHED]
    assert found.outcomes[0].final is None
    assert found.cells[0].mean == Mean(0.3, None, None)
    assert found.footnotes == ["rule=median,seed=0 is in no mean: loss is not a number after its last round"]


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a sweep of a regression with data and a metric of its user, trained in the folder `out` beside it."""
    place = tmp_path_factory.mktemp("regression")
    (place / "regression_of_mine.py").write_text(REGRESSION)
    (place / "regression.toml").write_text(write_tables(REGRESSION_FILE))
    fl.sweep(place / "regression.toml", out=place / "out", jobs=1)
    return place / "regression.toml"


def test_a_sweep_of_a_regression_compares_its_own_metric(regression: Path) -> None:
    """Without the key `measure`; the attack that makes the error largest is the worst."""
    out, asked = regression.parent / "out", read_sweep(regression)
    found = folder.results(asked, out, folder.checked(asked))
    values = {cell.labels["attack"]: cell.mean.value for cell in found.cells if cell.mean}
    assert values["flip"] > 2 * values["zero"]
    assert found.worst[0].attack == "flip"
    with (out / "worst.csv").open() as file:
        assert [row["worst_attack"] for row in csv.DictReader(file)] == ["flip"]
    assert "Lower rmse is better: the worst case is the largest" in (out / "report.html").read_text()


def test_runs_of_other_code_or_data_are_not_mixed_with_new_ones(
    regression: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more seed after a function was edited: nothing is trained, and the changed function is named."""
    kept, mine, out = REGRESSION, regression.parent / "regression_of_mine.py", tmp_path / "out"
    shutil.copytree(regression.parent / "out", out)
    monkeypatch.setitem(REGRESSION_FILE["grid"], "seed", [0, 1])
    (regression.parent / "more.toml").write_text(write_tables(REGRESSION_FILE))
    for old, new, what in (
        ("mean().sqrt()", "mean().sqrt() * 2", "the code of task.metrics rmse is not what the run began with"),
        ("1.0, -2.0, 0.5", "1.0, -2.0, 0.6", "the data fingerprint is not what the run began with"),
    ):
        mine.write_text(kept.replace(old, new))
        with pytest.raises(RecordError, match="holds runs of other functions or data: rule=mean,attack=zero") as error:
            fl.sweep(regression.parent / "more.toml", out=out, jobs=1)
        assert f"({what})" in str(error.value)
        assert "choose another --out, or remove the folders of these runs" in str(error.value)
        assert len(list((out / "runs").iterdir())) == 2
    mine.write_text(kept.replace("import torch", "import torch  # a comment"))
    checked = folder.checked(read_sweep(regression.parent / "more.toml")).possible
    said: list[str] = []
    check_kept(out, checked, folder.states(out, checked), 1, said.append)
    mine.write_text("import nothing_of_this_name")
    check_kept(out, checked, folder.states(out, checked), 1, said.append)
    mine.write_text(kept)
    whose = "rule mean, attack zero, seed 0"  # it stands for both: they name the same functions
    assert [text.partition(":")[0] for text in said] == [
        f"{whose} is kept, but whether its functions have changed is not known"
    ]


def test_runs_of_one_group_must_have_recorded_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"experiment": {**SMALL, "byzantine": 0, "task": {"loss": "mine:loss"}}, "grid": {"seed": [0, 1, 2]}}
    runs = folder.checked(from_mapping(asked)).possible
    for found, code in zip(runs, ("1 Python 3.11", "1 Python 3.12", "2 Python 3.11"), strict=True):
        with Folder.create(tmp_path / "runs" / found.planned.id, found.experiment) as place:
            place.describe({"code": {"task.loss": code, ATTRIBUTES: found.planned.id}})  # which may depend on the seed
            place.append({"round": 1})
    compared: list[str] = []
    monkeypatch.setattr("fl.sweeps.kept.work", lambda jobs, at_once, hear: compared.extend(job.id for job in jobs))
    with pytest.raises(RecordError, match=r"seed=2 \(the code is not that of seed=0\)") as refused:
        check_kept(tmp_path, runs, folder.states(tmp_path, runs), 1, pytest.fail)
    assert compared == ["seed=0"]
    assert "seed=1" not in str(refused.value)
    (tmp_path / "runs" / "seed=2" / "run.json").write_text("{}")  # of an earlier version
    check_kept(tmp_path, runs, folder.states(tmp_path, runs), 1, pytest.fail)


def test_a_forecast_multiplies_what_was_measured() -> None:
    asked = from_mapping({"experiment": SMALL, "grid": {"seed": [0, 1], "clusters.size": [3, 4], "local.lr": [1, 2]}})
    runs = folder.checked(from_mapping({**FILE, "variants": {}, "experiment": {**SMALL, "byzantine": 0}})).possible
    assert [found.planned.id for found in _samples(from_mapping(FILE).axes[:2], runs)] == [
        "rule=median,seed=0",
        "rule=mean,seed=0",
    ]
    possible = [folder.Checked(planned, experiment()) for planned in asked.runs()]
    by_id = {found.planned.id: found for found in possible}
    costs = {"size=3,lr=1,seed=0": Cost(1, 2.0), "size=4,lr=1,seed=0": Cost(1, 6.0), "size=3,lr=2,seed=0": Cost(1, 1.0)}
    assert _cost(by_id["size=4,lr=2,seed=1"], by_id, costs) == Cost(1, 3.0)
    assert _cost(by_id["size=3,lr=1,seed=1"], by_id, costs) == Cost(1, 2.0)


@pytest.mark.parametrize("turn", [1, -1], ids=["in order", "reversed"])
def test_a_forecast_does_not_depend_on_which_process_answers_first(turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs cost twelve times as much; the base is the first run of the grid, whoever answers first."""
    grid = {"local.epochs": [12, 1], "local.batch_size": [10, 1]}
    asked = from_mapping({"experiment": {**SMALL, "byzantine": 0}, "grid": grid})
    runs = folder.checked(asked).possible
    costs = {"epochs=12,batch_size=10": 1.0, "epochs=1,batch_size=10": 0.1, "epochs=12,batch_size=1": 10.0}

    def answer(jobs: Iterable[Job], at_once: int, hear: Any) -> None:
        for found in list(jobs)[::turn]:
            hear(found, {"do": "measured", "setup": 0.0, "round": costs[found.id], "spent": 1e9})

    monkeypatch.setattr("fl.sweeps.estimate.work", answer)
    found = estimate(asked.axes, runs, {each.planned.id: 4 for each in runs}, 1)
    assert found.seconds == pytest.approx(4 * (1.0 + 0.1 + 10.0 + 1.0))


def test_a_forecast_counts_the_start_of_processes_and_only_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes: the first answer comes after 7 seconds, of which 2 were spent on measuring."""
    runs = folder.checked(from_mapping({**FILE, "variants": {}, "experiment": {**SMALL, "byzantine": 0}})).possible
    clock = [100.0]
    monkeypatch.setattr("fl.sweeps.estimate.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def answer(jobs: Iterable[Job], at_once: int, hear: Any) -> None:
        for found in jobs:
            clock[0] += 7.0
            hear(found, {"do": "measured", "setup": 1.0, "round": 2.0, "spent": 2.0})

    monkeypatch.setattr("fl.sweeps.estimate.work", answer)
    left = {found.planned.id: 10 for found in runs} | {"finished before": 0}
    found = estimate(from_mapping(FILE).axes[:2], runs, left, 2)
    assert (found.runs, found.finished, found.measured, found.start) == (5, 1, 2, 5.0)
    assert found.seconds == 5.0 + 4 * (1 + 10 * 2) / 2
    assert str(found) == (
        "5 runs, of which 1 is finished; 40 rounds to train, 2 runs at once: about 47 seconds (a round of 2 runs was "
        "measured: 2 s; processes start in 5 s)"
    )


def test_a_process_says_how_long_it_has_measured() -> None:
    found = worker.measure({**SMALL, "byzantine": 0})
    assert found["spent"] >= found["setup"] + found["round"] > 0


def test_a_log_is_never_quiet_for_long_and_its_forecast_begins_with_the_first_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Processes start for 40 seconds; then a round takes 10. A line at the beginning, per minute and per run."""
    clock, stream = [100.0], StringIO()
    monkeypatch.setattr("fl.reporting.sweep_progress.time", SimpleNamespace(monotonic=lambda: clock[0]))
    show = SweepLines(stream)
    show.begin("small", 4, 30, 3)
    clock[0] += 30
    for _ in range(9):
        clock[0] += 10
        show.round("a")
    show.finished("a")
    show.failed("b", "a long error")
    show.dropped(10)
    show.left_out("c", "it cannot")
    assert stream.getvalue().splitlines() == [
        "small: 3 of 4 runs to train, 30 rounds; processes start",
        "[1/4] 3 of 30 rounds; about 4.5 min left",
        "[1/4] 9 of 30 rounds; about 3.5 min left",
        "[2/4] a: finished; about 3.5 min left",
        "[3/4] b: FAILED; the error is told at the end",
        "[4/4] c: cannot run, left out: it cannot",
    ]
    assert show._left() == "; about 1.8 min left"


def test_a_terminal_tells_the_error_of_a_run_once(
    file: Path, swept: fl.Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed run is trained again by the same command, and fails again."""
    out = tmp_path / "out"
    shutil.copytree(swept.folder, out)
    assert main(["sweep", str(file), "--out", str(out), "--jobs", "1"]) == 1
    said = capsys.readouterr().err
    assert said.count("an attack of mine") == said.count("FAILED") == 4


def test_one_of_something_is_not_several(file: Path, swept: fl.Swept) -> None:
    assert several(0, "run") == "0 runs"
    alone = Estimate(1, 1, 0, 1, 1, (0.5, 0.5), 1.0, 2.0)
    assert str(alone).startswith("1 run; 1 round to train, 1 run at once: about 2 seconds (a round of 1 run was")
    runs = folder.checked(read_sweep(file))
    first = replace(runs, impossible=[folder.Impossible(runs.possible[0].planned, "it cannot")])
    told = list(_told(file.parent / "none", first, {"a": FINISHED, "b": folder.NEW, "c": folder.NEW}))
    assert told[0].endswith(": 1 run finished, 2 runs new")
    assert told[1].startswith("1 combination cannot run and is left out; the first: ")


def test_a_full_disk_under_a_sweep_asks_for_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own files, and of a run: nobody can give `--resume` to a sweep."""
    tables = {"experiment": {**SMALL, "byzantine": 0, "rounds": 1}, "grid": {"seed": [0, 1]}}
    full = OSError(errno.ENOSPC, "No space left on device")

    def unwritable(*_: Any) -> None:
        raise full

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", unwritable)
        with pytest.raises(RecordError, match=r"No space left.*give the same command again$"):
            fl.sweep(tables, out=tmp_path / "sweep", jobs=1)
    failed = RecordError(
        "cannot write x: No space left on device; free some space, then continue the run with --resume"
    )
    failed.__cause__ = full
    monkeypatch.setattr(worker, "train", lambda *_: (_ for _ in ()).throw(failed))
    with socket.socket() as nowhere:
        told = worker._answer({"folder": str(tmp_path), "compare": False, "experiment": {}}, nowhere)
    assert told["error"] == "cannot write x: No space left on device; free some space, then give the same command again"
    assert advised(RecordError("no records; look")) == "no records; look"
