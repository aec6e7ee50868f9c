"""kill -9 of any process at any moment: no wrong sum, nothing opened twice, no file that stops a restart."""

import json
from pathlib import Path

import pytest

from tests.net.zygote import Process


def play(*words: str, seconds: float) -> dict[str, object]:
    done = Process("import sys; from tests.net.kill import main; main(sys.argv[1:])", words, Path.cwd())
    out, err = done.communicate(seconds)
    assert done.returncode == 0, err[-3000:]
    return json.loads(out)  # type: ignore[no-any-return]


def check(found: dict[str, object], rounds: int) -> None:
    assert (found["finished"], found["rounds"], found["wrong"], found["twice"]) == (True, rounds, 0, 0), found
    assert (found["evidence"], found["statement"]) == ([rounds, []], []), found


def test_a_few_kills_in_a_few_rounds() -> None:
    found = play("--rounds", "16", "--every", "0.4", "--most", "250", "--least", "2", seconds=300)
    check(found, 16)
    assert int(str(found["kills"])) >= 2


@pytest.mark.long
@pytest.mark.parametrize("groups", ["whole", "survivors"])
def test_two_hundred_rounds_with_a_kill_every_few_seconds(groups: str) -> None:
    found = play("--rounds", "200", "--every", "3", "--groups", groups, seconds=3600)
    check(found, 200)
    low, high = found["memory"]  # type: ignore[misc]
    assert high < low + 60, found
