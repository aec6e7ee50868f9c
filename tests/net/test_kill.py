"""kill -9 of any process at any moment: no wrong sum, nothing opened twice, no file that stops a restart."""

import json
import subprocess
import sys

import pytest


def play(*words: str, seconds: float) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.net.kill", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def check(found: dict[str, object], rounds: int) -> None:
    assert (found["finished"], found["rounds"], found["wrong"], found["twice"]) == (True, rounds, 0, 0), found
    assert found["evidence"] == [rounds, []], found


def test_a_few_kills_in_a_few_rounds() -> None:
    found = play("--rounds", "25", "--every", "0.6", "--most", "100", seconds=150)
    check(found, 25)
    assert int(str(found["kills"])) >= 2


@pytest.mark.long
@pytest.mark.parametrize("groups", ["whole", "survivors"])
def test_two_hundred_rounds_with_a_kill_every_few_seconds(groups: str) -> None:
    found = play("--rounds", "200", "--every", "3", "--groups", groups, seconds=3600)
    check(found, 200)
    low, high = found["memory"]  # type: ignore[misc]
    assert high < low + 60, found
