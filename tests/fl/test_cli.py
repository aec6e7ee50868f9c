"""The command line as a user types it: what it prints and returns. A mistake is not a traceback."""

import contextlib
import json
import os
import pty
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import fl.sweeps.sweep
import robust
from fl.cli import main
from fl.config.read import to_toml
from fl.reporting.progress import LineProgress, LiveProgress, sparkline
from tests.fl.runs import tiny

ROOT = Path(__file__).parents[2]


def share(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fl", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd or ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(tiny(name="mine", secure=True)))
    return path


def test_train_report_and_resume(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first command is a process of its own; the others need not import torch again."""
    trained = share("train", "mine.toml", "--set", "rounds=3", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "exposed clients: none" in trained.stdout
    assert "round 3/3" in trained.stderr
    assert (tmp_path / "runs" / "mine" / "model.safetensors").exists()
    monkeypatch.chdir(tmp_path)
    assert main(["train", "mine.toml"]) == 2
    assert "--resume runs/mine" in capsys.readouterr().err
    assert main(["train", "--resume", "runs/mine", "--set", "rounds=4"]) == 0
    assert "continuing after round 3" in capsys.readouterr().err
    assert main(["report", "runs/mine"]) == 0
    assert capsys.readouterr().out.split() == ["runs/mine/report.html", "runs/mine/report.png"]
    assert "mine" in (tmp_path / "runs" / "mine" / "report.html").read_text("utf-8")


def test_json_is_all_that_stands_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if a user's function prints. Progress and paths go to stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "printing_metric.py").write_text(
        "def ones(found, wanted):\n    print('from a metric')\n    return 1.0\n"
    )
    e = tiny(name="mine", rounds=1, task={"metrics": ["accuracy", "printing_metric:ones"]})
    (tmp_path / "mine.toml").write_text(to_toml(e))
    assert main(["train", "mine.toml", "--json"]) == 0
    said = capsys.readouterr()
    summary = json.loads((tmp_path / "runs" / "mine" / "summary.json").read_text())
    assert json.loads(said.out) == {"folder": "runs/mine", **summary}
    assert "round 1/1" in said.err
    assert "from a metric" in said.err
    assert main(["report", "runs/mine", "--json"]) == 0
    said = capsys.readouterr()
    (row,) = json.loads(said.out)
    assert said.err.split() == ["runs/mine/report.html", "runs/mine/report.png"]
    assert (row["run"], row["rounds"], row["measures"]["ones"]) == ("mine", 1, 1.0)
    assert row["measures"]["accuracy"] == summary["accuracy"]
    assert (row["exposed_in_a_round"], row["alone"]) == (len(summary["exposed"]), summary["alone"])
    assert main(["data", "list", "--folder", str(tmp_path), "--json"]) == 0
    listed = {entry["name"]: entry["present"] for entry in json.loads(capsys.readouterr().out)}
    assert (listed["digits"], listed["cifar10"]) == (True, False)
    assert main(["train", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["label-flip-zeno"] == ["m1", "m5", "m10"]


PRINTING = """
import ctypes
import os

import numpy as np
import torch
from torch import nn

from robust import Outcome, Rows, aggregator

print("printed at import")
os.write(1, b"written at import\\n")
ctypes.CDLL(None).puts(b"printed by C")


class Printing(nn.Linear):
    def forward(self, x):
        print("printed by a model")
        return super().forward(x.flatten(1))


def net(shape, classes):
    return Printing(shape[0] * shape[1] * shape[2] if len(shape) == 3 else shape[0], classes)


@aggregator(paper="Nobody 2000", needs="n > 2f", withstands=lambda n: (n - 1) // 2)
def plain(rows: Rows) -> Outcome:
    \"\"\"The mean. Nobody 2000.\"\"\"
    return rows.average(np.arange(len(rows)))
"""


@pytest.fixture
def printing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an experiment whose model and rule are in a module that prints."""
    (tmp_path / "printing.py").write_text(PRINTING)
    monkeypatch.syspath_prepend(str(tmp_path))  # so that the configuration can be checked here
    e = tiny(name="mine", rounds=1, model="printing:net", aggregation={"rule": "printing:plain"})
    forget()
    (tmp_path / "mine.toml").write_text(to_toml(e))
    return tmp_path / "mine.toml"


def forget() -> None:
    """Let the next command import the module again."""
    sys.modules.pop("printing", None)
    robust.AGGREGATORS.remove("plain")


def test_json_is_all_that_stands_on_stdout_of_a_training_in_several_processes(printing: Path) -> None:
    done = share("train", "mine.toml", "--workers", "2", "--json", cwd=printing.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["folder"] == "runs/mine"
    for what in ("printed at import", "written at import", "printed by a model"):
        assert done.stderr.count(what) >= 2, what  # in this process or in each worker
    assert "printed by C" in done.stderr


def test_what_c_code_prints_is_not_on_stdout_either() -> None:
    code = (
        "import ctypes, os; from fl.reporting.stdout import kept_clean\n"
        "with kept_clean(True):\n"
        "    ctypes.CDLL(None).puts(b'from C'); print('from Python'); os.system('echo from a shell')\n"
        "print('the answer')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "the answer\n"
    assert sorted(done.stderr.splitlines()) == ["from C", "from Python", "from a shell"]


def test_a_report_can_be_asked_for_where_stderr_is_closed(file: Path) -> None:
    command = f"{sys.executable} -m fl train mine.toml --json 2>&-"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=file.parent, env=environment)
    assert done.returncode == 0
    assert json.loads(done.stdout)["folder"] == "runs/mine"


def test_json_can_be_asked_for_where_stdout_is_closed(file: Path) -> None:
    command = f"{sys.executable} -m fl train mine.toml --json >&-"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=file.parent, env=environment)
    assert done.returncode == 0, done.stderr
    assert (file.parent / "runs" / "mine" / "summary.json").exists()


def test_an_answer_that_the_disk_has_no_room_for_is_one_line(file: Path) -> None:
    command = f"{sys.executable} -m fl train mine.toml --json >/dev/full"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=file.parent, env=environment)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "share: No space left on device" in done.stderr


def test_a_child_gets_its_socket_where_this_process_has_no_standard_streams() -> None:
    code = (
        "import os; [os.close(n) for n in range(3)]\n"
        "from fl.training.child import Child; from fl.training.channel import send\n"
        "child = Child('fl.sweeps.worker')\n"
        "send(child.socket, {'experiment': {'rounds': -1}, 'folder': None, 'compare': False})\n"
        "os._exit(0 if (child.heard() or {}).get('do') == 'impossible' else 1)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_a_forecast_that_is_stopped_has_nothing_to_continue(
    printing: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(printing.parent)
    Path("seeds.toml").write_text('base = "mine.toml"\n[grid]\nseed = [0]\n')
    monkeypatch.setattr(fl.sweeps.sweep, "forecast", stopped)
    assert main(["sweep", "seeds.toml", "--dry-run"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "share: stopped"


def test_json_is_all_that_stands_on_stdout_of_every_command_that_imports_modules_of_a_user(
    printing: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(printing.parent)
    sweep = 'base = "mine.toml"\n[experiment]\nmachine = { workers = 0 }\n[grid]\nseed = [0]\n'
    Path("seeds.toml").write_text(sweep)
    capfd.readouterr()
    for command in (
        ["sweep", "seeds.toml", "--jobs", "1", "--dry-run", "--json"],
        ["sweep", "seeds.toml", "--jobs", "1", "--json"],
        ["report", "sweeps/seeds/runs/seed=0", "--no-picture", "--json"],
    ):
        assert main(command) == 0 or command[0] == "report"
        forget()
        said = capfd.readouterr()
        assert json.loads(said.out), command
        assert "printed at import" in said.err
        assert "written at import" in said.err
    print("later")
    os.write(1, b"to the descriptor\n")
    assert sorted(capfd.readouterr().out.splitlines()) == ["later", "to the descriptor"]


MISTAKES = [
    (["train", "nothing.toml"], "there is no file nothing.toml"),
    (["train"], "--resume"),
    (["train", "{file}", "--resume", "x"], "--resume"),
    (["train", "{file}", "--set", "rounds"], "key=value"),
    (["train", "{file}", "--set", "clusters.groupings=10"], "clusters.groupings"),
    (["train", "{file}", "--set", "clients=60000"], "data"),
    (["train", "{file}", "--set", "data.name=cifar10"], "share data fetch cifar10"),
    (["train", "{file}", "--curve", "x"], "no curve"),
    (["train", "--resume", "nowhere"], "no run in nowhere"),
    (["train", "--resume", "nowhere", "--out", "x"], "leave out --out"),
    (["train", "{file}", "--set", "model=nowhere:nothing"], "model"),
    (["report", "nowhere"], "no run in nowhere"),
    (["report", "nowhere", "--curve", "x"], "--reference"),
    (["plan", "--clients", "30", "--byzantine", "40"], "--byzantine"),
    (["config"], "--describe"),
    (["config", "nothing.toml"], "there is no"),
    (["data", "fetch", "imagenet"], "imagenet"),
    (["data", "import", "mnist", "nowhere"], "nowhere"),
    (["data", "fetch", "mnist", "--url", "file:///etc"], "http"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str],
    words: str,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARE_DATA", str(tmp_path / "data"))
    assert main([argument.format(file=file) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("share: ")
    assert said.count("\n") == 1
    assert "Traceback" not in said


@pytest.mark.parametrize("arguments", [[], ["dance"], ["plan"], ["train", "--speed", "9"], ["data"]])
def test_a_command_that_does_not_exist_shows_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: share" in capsys.readouterr().err


def test_plan_prints_a_table_or_json_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--clients", "60", "--byzantine", "6", "--rule", "krum"]
    assert main([*arguments, "--picture", str(tmp_path / "p.png")]) == 0
    shown = capsys.readouterr().out
    assert "Recommended: fixed, m = 4, R = 1" in shown
    assert "expose 60 of 60" in shown
    assert (tmp_path / "p.png").exists()
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recommended"]["size"] == 4
    assert main(["plan", "--clients", "20", "--byzantine", "9", "--rule", "krum"]) == 1


def test_config_describes_keys_and_checks_files(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--describe"]) == 0
    assert "clusters.groupings (integer; 1)" in capsys.readouterr().out
    assert main(["config", str(file), "--set", "rounds=9"]) == 0
    assert "rounds = 9" in capsys.readouterr().out


def test_the_packaged_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--list"]) == 0
    assert "label-flip-zeno  (curves: m1, m5, m10)" in capsys.readouterr().out


def test_data_list_says_what_is_present(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["data", "list", "--folder", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "digits       here" in said
    assert "cifar10      -" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--clients", "12", "--byzantine", "1"],
        ["config", "--describe"],
        ["config", "digits"],
        ["train", "--list"],
        ["report", "{run}"],
        ["--help"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_commands_that_need_no_torch_do_not_load_it(arguments: list[str], tmp_path: Path) -> None:
    if "{run}" in arguments:
        from fl.reporting.records import Folder
        from fl.training.loop import run

        with Folder.create(tmp_path / "run", tiny(rounds=1)) as folder:
            run(folder.experiment, folder=folder)
    code = (
        "import sys\nfrom fl.cli import main\n"
        f"try:\n    main({[a.format(run=tmp_path / 'run') for a in arguments]!r})\n"
        "except SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_on_a_terminal_one_line_moves(file: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fl", "train", str(file), "--out", str(tmp_path / "run")],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        cwd=ROOT,
    )
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    text = said.decode()
    assert text.count("\r\x1b[2K") > 5
    assert "secure aggregation" in text
    assert "round 2/2" in text
    assert "100.0%" in text or "accuracy" in text


def test_both_displays_show_notes(capsys: pytest.CaptureFixture[str]) -> None:
    assert sparkline([0.0, 0.5, 1.0], 2) == "▅█"
    for kind in (LineProgress, LiveProgress):
        shown = kind(sys.stdout)
        shown.begin("x", 3, 1)
        shown.note("hello")
        shown.end()
        assert "hello" in capsys.readouterr().out


def test_an_internal_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    from fl import planner

    def broken(question: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(planner, "plan", broken)
    with pytest.raises(ZeroDivisionError):
        main(["plan", "--clients", "12", "--byzantine", "1"])


RULE_THAT_FAILS = """
import robust
{above}

@robust.aggregator(paper="nobody 2026", needs="nothing", withstands=lambda n: 0, name="failing_of_mine")
def rule(rows):
    {inside}
"""


@pytest.mark.parametrize(
    ("command", "above", "inside", "error"),
    [
        ("train", "", "raise BrokenPipeError(32, 'Broken pipe')", BrokenPipeError),
        ("train", "", "import matplotlib.nothing_of_this_name", ModuleNotFoundError),
        ("train", "import matplotlib.nothing_of_this_name", "pass", ModuleNotFoundError),
        ("config", "import matplotlib.nothing_of_this_name", "pass", ModuleNotFoundError),
        ("train", "", "open('nowhere/at_all')", FileNotFoundError),
        ("config", "open('nowhere/at_all')", "pass", FileNotFoundError),
    ],
)
def test_an_error_in_the_users_own_code_shows_where_it_is(
    command: str, above: str, inside: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "fails_of_mine.py").write_text(RULE_THAT_FAILS.format(above=above, inside=inside))
    text = to_toml(tiny()).replace('rule = "median"', 'rule = "fails_of_mine:rule"')
    (tmp_path / "mine.toml").write_text(text)
    try:
        with pytest.raises(error) as raised:
            main([command, str(tmp_path / "mine.toml"), *(["--out", str(tmp_path / "run")] * (command == "train"))])
        assert any(Path(entry.path).name == "fails_of_mine.py" for entry in raised.traceback)
    finally:
        sys.modules.pop("fails_of_mine", None)
        if "failing_of_mine" in robust.AGGREGATORS:
            robust.AGGREGATORS.remove("failing_of_mine")


def test_a_reader_that_stops_reading_is_no_error_of_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `share config --describe | head -1`."""

    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", buffering=1)
    monkeypatch.setattr(sys, "stdout", stream)
    code = main(["config", "--describe"])
    monkeypatch.undo()
    with contextlib.suppress(BrokenPipeError):
        stream.close()
    assert code == 1


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"share {version('share-secagg')}\n"


WITHOUT_EXTRA = """
import sys
class Blocked:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
from fl.cli import main
sys.exit(main({arguments!r}))
"""


@pytest.mark.parametrize(
    ("arguments", "blocked", "extra"),
    [
        (["quickstart"], ["torch"], "fl"),
        (["train", "digits"], ["torch"], "fl"),
        (["data", "list"], ["torch"], "fl"),
        (["quickstart"], ["torch", "msgspec", "tomli_w", "rich", "jinja2", "matplotlib"], "fl"),
        (["plan", "--clients", "12", "--byzantine", "1"], ["torch", "msgspec"], "fl"),
        (["flower", "local", "flower-digits", "--nodes", "8"], ["flwr"], "flower"),
    ],
    ids=lambda value: " ".join(value),
)
def test_without_its_packages_a_command_names_the_extra_to_install(
    arguments: list[str], blocked: list[str], extra: str, tmp_path: Path
) -> None:
    code = WITHOUT_EXTRA.format(blocked=blocked, arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("share: this command needs ")
    assert done.stderr.endswith(f"; install it with: pip install 'share-secagg[{extra}]'\n")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
