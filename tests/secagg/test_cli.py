"""The `secagg` command as a user types it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import secagg
from secagg.cli.main import main
from tests.vectors import __main__ as vectors


def test_demo_shows_every_stage_and_checks_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--clients", "10", "--length", "1000", "--drop", "2", "--seed", "1"]) == 0
    out = capsys.readouterr().out
    for word in ("keys", "shares", "inputs", "consistency", "unmasking", "8 vectors", "exact"):
        assert word in out


def test_demo_as_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--clients", "9", "--length", "500", "--drop", "2", "--seed", "5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["exact"] is True
    assert len(report["survivors"]) == 7
    inputs = next(stage for stage in report["stages"] if stage["stage"] == "inputs")
    assert sorted({*inputs["dropped"], *report["survivors"]}) == list(range(9))
    assert inputs["bytes_up_per_client"] * 9 >= 7 * 4 * 500


def test_demo_seed_fixes_who_drops_but_never_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for _ in range(2):
        main(["demo", "--clients", "6", "--length", "10", "--drop", "1", "--seed", "3", "--json"])
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0]["survivors"] == reports[1]["survivors"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "COMMAND"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["demo", "--clients", "ten"], "invalid int value: 'ten' (see secagg demo --help)"),
        (["exposure"], "required: --clients, --size"),
        (["exposure", "--clients", "99999999999", "--size", "3"], "--clients: expected a whole number from 2"),
        (["demo", "--clients", "1"], "--clients: expected a whole number from 2"),
        (["demo", "--clients", "5", "--drop", "9"], "--drop 9"),
        (["demo", "--clients", "10", "--drop", "5", "--length", "10"], "threshold"),
        (["demo", "--clients", "3", "--drop", "1", "--length", "10"], "fewer colluders allow more"),
        (["demo", "--clients", "10", "--threshold", "5"], "does not fit cells"),
        (["exposure", "--clients", "60", "--size", "3", "--groupings", "2", "--schedule", "spiral"], "spiral"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as stop:  # argparse
        code = stop.code
    err = capfd.readouterr().err
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_all_vectors_are_checked_if_no_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_vectors.py` checks each of them; here one is enough."""
    every = sorted(Path(vectors.__file__).parent.glob("*.json"))
    shutil.copy(next(path for path in every if path.name == "n5_flat.json"), tmp_path)
    assert vectors.main([str(tmp_path)]) == 0
    assert vectors.main(["/nowhere"]) == 2
    checked: list[Path] = []
    monkeypatch.setattr("tests.vectors.check.check_file", lambda path: checked.append(path) or 1)
    assert vectors.main([]) == 0
    assert checked == every


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"secagg {secagg.__version__}\n"


def test_python_dash_m_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "secagg", "demo", "--clients", "4", "--length", "10", "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["exact"] is True
