"""Sweeps: the grid of a file, its statistics, and a folder that survives kill -9, failing runs and changed files."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fl
import robust
from fl.cli import main
from fl.config.checks import experiment
from fl.config.grid import Axis, Value, from_mapping, read_sweep
from fl.config.read import packaged_experiments, write_tables
from fl.errors import ConfigError, RecordError, TrainingWarning
from fl.reporting.records import Folder
from fl.reporting.results import FINISHED, Mean, Outcome, Results, mean_of
from fl.reporting.sweep_progress import SweepProgress
from fl.sweeps import folder, pool
from fl.sweeps.estimate import Cost, _cost, _samples
from fl.sweeps.pool import Job, work
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
    """Killed when its first run is finished, with one begun; continued from the copy of the file in the folder."""
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
    assert "also holds 4 runs that are not part of this sweep, such as rule=mean,attack=mine,seed=0" in said.err
    answer = json.loads(said.out)
    assert [entry["attack"] for entry in answer["worst"]] == ["flip", "flip"]
    assert main(["sweep", str(changed), "--out", str(swept.folder), "--dry-run"]) == 0
    assert "4 runs, of which 4 are finished; 0 rounds to train" in capsys.readouterr().out


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
        ({"grid": {"seed": [1]}, "measure": 3}, "measure: expected text"),
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
    with pytest.raises(ConfigError, match="measure: expected one of accuracy, loss, got 'f1'"):
        folder.checked(from_mapping({**tables, "skip_impossible": True, "measure": "f1"}))


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


def axis(name: str, key: str, *labels: str) -> Axis:
    return Axis(name, tuple(Value(label, {key: label}) for label in labels))


def results(values: dict[tuple[str, str], list[float]], measure: str = "accuracy") -> Results:
    """Rules a and b, attacks x and y, two seeds; a value that is not there is a run that failed."""
    axes = [axis("seed", "seed", "0", "1"), axis("rule", "aggregation.rule", "a", "b")]
    axes.append(axis("attack", "attack.name", "x", "y"))
    outcomes = []
    for seed in range(2):
        for rule, attack in (("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")):
            found = values[rule, attack]
            labels = {"rule": rule, "attack": attack, "seed": str(seed)}
            points = [(1.0, 0.1), (2.0, found[seed])] if seed < len(found) else []
            outcomes.append(Outcome(f"{rule}{attack}{seed}", labels, FINISHED if points else "failed", points))
    return Results("test", axes, measure, outcomes)


def test_means_intervals_and_the_worst_attack() -> None:
    found = results({("a", "x"): [0.8, 0.9], ("a", "y"): [0.6, 0.6], ("b", "x"): [0.5], ("b", "y"): []})
    mean = found.cells[0].mean
    assert mean is not None
    assert (mean.value, mean.high) == (pytest.approx(0.85), pytest.approx(0.85 + 12.706 * 0.05))
    assert found.cells[1].mean == Mean(0.6, 0.6, 0.6)
    assert found.cells[2].mean == Mean(0.5, None, None)  # one seed has no interval
    assert (found.cells[2].finished, found.cells[2].wanted) == (1, 2)
    assert found.cells[3].mean is None
    assert [(entry.labels["rule"], entry.attack) for entry in found.worst] == [("a", "y"), ("b", "")]
    assert found.worst[1].mean is None  # not the best of those that are there
    assert found.table()[1] == ["a", "85.0% ± 63.5", "60.0% ± 0.0", "60.0% ± 0.0"]
    assert found.table()[2] == ["b", "50.0% (1 of 2)", "-", "-"]


def test_the_worst_loss_is_the_largest() -> None:
    found = results({("a", "x"): [2.0, 2.0], ("a", "y"): [1.0, 1.0], ("b", "x"): [1, 1], ("b", "y"): [3, 3]}, "loss")
    assert [entry.attack for entry in found.worst] == ["x", "y"]
    assert found.cells[0].best == 0.1


def test_what_records_measure_can_be_compared_and_the_worst_backdoor_succeeds_most() -> None:
    backdoor = {"byzantine": 2, "attack.name": "backdoor"}
    for measure, changes in (
        ("backdoor success", backdoor),
        ("worst class", {"task.per_class": True}),
        ("worst client", {"task.per_client": True}),
    ):
        asked = {"experiment": {**SMALL, "byzantine": 0}, "grid": {"seed": [0]}, "measure": measure}
        with pytest.raises(ConfigError, match="measure: expected one of"):
            folder.checked(from_mapping(asked))
        assert folder.checked(from_mapping({**asked, "variants": {"what": {"it": changes}}})).possible
    attacks = {("a", "x"): [0.2, 0.2], ("a", "y"): [0.9, 0.9], ("b", "x"): [0.5, 0.5], ("b", "y"): [0.1, 0.1]}
    assert [entry.attack for entry in results(attacks, "backdoor success").worst] == ["y", "x"]


@pytest.mark.parametrize(("n", "t"), [(2, 12.706), (3, 4.303), (31, 2.042), (61, 2.000), (1001, 1.962)])
def test_intervals_are_those_of_student(n: int, t: float) -> None:
    """The points are those of printed tables of Student's t."""
    values = [0.0, 1.0] * (n // 2) + [0.5] * (n % 2)
    spread = (sum((value - 0.5) ** 2 for value in values) / (n - 1)) ** 0.5
    high = mean_of(values).high
    assert high is not None
    assert (high - 0.5) / spread * n**0.5 == pytest.approx(t, abs=6e-4)


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
