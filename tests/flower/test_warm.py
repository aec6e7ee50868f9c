"""The warm executor as a process of its own, without Flower's other processes."""

import fcntl
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from fl.errors import ConfigError
from fl.flower import supernode, warm
from fl.flower.supernode import Clock, shorten_sleeps, start_node, with_config

START = """
import sys, time
from pathlib import Path
from fl.flower.supernode import Executor
executor = Executor.start(Path(sys.argv[1]), clean=Path(sys.argv[2]))
print(executor.process.pid, executor.wait(), flush=True)
time.sleep(600)
"""


def wait_until_gone(*paths: Path) -> None:
    end = time.monotonic() + 600
    while any(path.exists() for path in paths):
        assert time.monotonic() < end, paths
        time.sleep(0.1)


def test_it_runs_flowers_command_in_a_fork_and_ends_with_whoever_started_it(tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    clean.mkdir()
    (clean / "identity.key").write_text("secret")
    command = [sys.executable, "-c", START, str(tmp_path / "warm"), str(clean)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        number, folder = starter.stdout.readline().split()
        script = Path(folder) / warm.COMMAND
        assert Path(folder).stat().st_mode & 0o077 == 0
        copied = Path(shutil.copy(script, tmp_path / "copy"))
        with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
            subprocess.run([script, "--help"], stdout=out, stderr=err, check=True, timeout=600)
        wait_for_text(tmp_path / "out", "--runtime-api-address")  # the fork writes where the command would
        assert not (tmp_path / "err").read_text()
        starter.send_signal(signal.SIGKILL)
    wait_until_gone(Path(folder), clean, Path(f"/proc/{number}"))
    alone = subprocess.run([copied, "--help"], capture_output=True, text=True, check=True)
    assert "the warm executor does not answer" in alone.stderr
    assert "--runtime-api-address" in alone.stdout


def test_python_may_be_in_a_folder_with_spaces_and_a_long_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first line with such a path starts nothing, and the node would never answer."""
    place = tmp_path / "my projects" / ("it's-long" * 20)
    place.mkdir(parents=True)
    (place / "python").symlink_to(sys.executable)
    own = place / warm.COMMAND
    own.write_text('#!/bin/sh\necho "own $@"\n')
    own.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    monkeypatch.setenv("PATH", str(place))
    script = warm.prepare(tmp_path / "warm") / warm.COMMAND
    monkeypatch.undo()
    found = subprocess.run([script, "--token", "a b"], capture_output=True, text=True, check=True)
    assert found.stdout == "own --token a b\n"


def wait_for_text(path: Path, text: str) -> None:
    end = time.monotonic() + 600
    while text not in path.read_text():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_what_a_killed_executor_left_behind_is_removed_and_a_living_one_is_not(tmp_path: Path) -> None:
    living, dead = warm.prepare(tmp_path / "1"), warm.prepare(tmp_path / "2")
    with (living / warm.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        warm.remove_stale(tmp_path)
    assert living.exists()
    assert not dead.exists()


def test_the_folder_of_the_node_is_added_to_its_configuration(tmp_path: Path) -> None:
    mine = f'share-node="{tmp_path}"'
    assert with_config(tmp_path, ["--insecure"], False) == ["--insecure", "--node-config", mine]
    both = with_config(tmp_path, ["--node-config", "partition-id=0", "--insecure"], True)
    assert both == ["--node-config", f"{mine} share-simulate=true partition-id=0", "--insecure"]
    with pytest.raises(ConfigError, match="share flower identity"):
        start_node(tmp_path / "nowhere", [])


def test_sleeps_are_shortened_in_versions_that_were_tried_and_in_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, another Flower is installed: run `pytest -m long tests/flower` with it, then add it to SEEN."""
    import flwr.supernode.start_client_internal as loop

    assert ".".join(version("flwr").split(".")[:2]) in supernode.SEEN
    monkeypatch.setattr(loop, "time", time)
    assert shorten_sleeps(0.01) == ""
    assert isinstance(loop.time, Clock)  # type: ignore[attr-defined]
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for seconds in (3, 0.5, 0.001):
        loop.time.sleep(seconds)  # type: ignore[attr-defined]
    assert slept == [0.01, supernode.ANSWER_POLL, 0.001]
    assert loop.time.monotonic is time.monotonic  # type: ignore[attr-defined]
    assert "does not sleep as expected" in shorten_sleeps(0.01)
    monkeypatch.setattr(supernode, "version", lambda name: "9.9.1")
    assert "Flower 9.9.1 was not tried" in shorten_sleeps(0.01)
