"""What `share flower status` and `share flower local` show while a round is under way."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from fl.cli import main
from fl.flower import federation, now
from fl.flower.apps.watching import WatchedGrid
from fl.flower.now import JOINING, NOW, Follower, Watch, read_now
from fl.flower.status import Status, read_status
from tests.flower.grid import InProcessGrid
from tests.flower.runs import agreed, trained, whole
from tests.flower.test_apps import over, run, secured


@pytest.fixture
def written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(now, "EVERY", 0.0)


@pytest.mark.usefixtures("written_at_once")
def test_the_status_shows_a_round_of_a_training_while_it_runs(tmp_path: Path) -> None:
    training, folders = agreed(whole(), tmp_path / "nodes")
    out, seen = tmp_path / "run", list[Status]()

    def look(client: int, action: str, message: Message) -> Message:
        if (client, action, message.metadata.group_id) == (5, "round", "2"):
            seen.append(read_status(out))
        return message

    trained(InProcessGrid(folders, before=look), training, out)
    (found,) = seen
    assert found.now is not None
    assert (found.now.stage, found.now.round, len(found.rounds)) == ("round", 2, 1)
    assert found.now.connected == tuple(range(8))
    asked = [one.client for one in found.now.clients if one.asked is not None]
    assert asked == [0, 1, 2, 3, 4]  # this node gets its message at this moment
    text = "\n".join(found.lines())
    assert re.search(r"round 2: training on the nodes, 0 of 8 after \d s; missing: client 0, client 1, ", text)
    assert re.search(r"8 of 8 members are connected; at most \d s are left", text)
    assert re.fullmatch(r"asked \d s ago", found.nodes[0].now)
    assert json.loads(json.dumps(found.to_json()))["now"]["round"] == 2
    after = read_status(out)
    assert after.now is None
    assert after.ended


@pytest.mark.usefixtures("written_at_once")
def test_the_status_shows_who_is_missing_before_a_round(tmp_path: Path) -> None:
    training, folders = agreed(whole(rounds=1), tmp_path / "nodes")
    grid, seen = InProcessGrid(folders), list[Status]()
    grid.kill(3)

    def look(client: int, action: str, message: Message) -> Message:
        seen.append(read_status(tmp_path / "run"))
        return message

    grid.before = look
    trained(grid, training, tmp_path / "run")
    joining = [one for one in seen if one.now is not None and one.now.stage == "round"]
    assert joining[-1].nodes[3].now == "not connected"
    assert len(joining[-1].now.connected) == 7  # type: ignore[union-attr]


@pytest.mark.usefixtures("written_at_once")
def test_the_status_shows_a_round_of_an_app_while_it_runs(tmp_path: Path) -> None:
    grid, seen = secured(tmp_path), list[Status]()

    def look(client: int, message: Message) -> Message:
        if message.metadata.message_type == "evaluate" and client == 2:
            seen.append(read_status(tmp_path / "agreement.record"))
        return message

    grid.before = look
    run(over(tmp_path), grid, rounds=1)
    (found,) = seen
    assert found.now is not None
    assert (found.now.stage, found.now.round, found.now.index) == ("evaluate", 1, 1)
    assert "round 1: evaluating on the nodes, 0 of 6 after " in "\n".join(found.lines())
    assert read_status(tmp_path / "agreement.record").now is None


def test_answers_and_reasons_are_seen_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(now, "EVERY", 0.0)
    watch = Watch(tmp_path)
    watch.begin("round", 4, [0, 1, 2, 3], 60.0)
    for client in (0, 1, 2):
        watch.asked(client)
    watch.answered(0)
    watch.answered(1, "it refused: no")
    watch.look([0, 1, 2], {77: "another agreement"})
    found = read_now(tmp_path)
    assert found is not None
    assert [str(one) for one in found.clients] == [
        "answered 0 s ago",
        "it refused: no",
        "asked 0 s ago",
        "not connected",
    ]
    assert found.strangers == {"77": "another agreement"}
    assert 59 < found.left <= 60
    watch.begin(JOINING, 5, [0], 60.0)
    since = read_now(tmp_path)
    watch.begin(JOINING, 5, [0], 60.0)  # goes on
    again = read_now(tmp_path)
    assert since is not None
    assert again is not None
    assert again.since >= since.since


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"time": 1.0, "stage": "round", "ind',
        "[]",
        "3",
        "[" * 100_000,
        '{"clients": 3, "stage": "round"}',
        '{"clients": {"x": {}}, "stage": "round", "index": 0, "round": 1, "since": 0, "until": 0, "time": 0}',
        '{"clients": {"1": 7}, "stage": "round", "index": 0, "round": 1, "since": 0, "until": 0, "time": 0}',
        '{"clients": {}, "stage": "round", "index": Infinity, "round": 1, "since": 0, "until": 0, "time": 0}',
        "\x00" * 400,
        "\ud800",
    ],
)
def test_a_torn_file_does_not_break_the_status(tmp_path: Path, text: str) -> None:
    (tmp_path / NOW).write_bytes(text.encode("utf-8", "surrogatepass"))
    assert read_status(tmp_path).now is None
    assert main(["flower", "status", str(tmp_path)]) == 0


def test_lines_that_cannot_be_read_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"round": 1, "clusters": [], "dropouts": [], "skipped": ""}
    lines = [json.dumps(good), "\x00" * 20, '{"round": 2}', "[]", json.dumps({**good, "round": 3}), '{"round": 4, "cl']
    (tmp_path / "rounds.jsonl").write_text("\n".join(lines))
    assert main(["flower", "status", str(tmp_path)]) == 0
    assert "3 lines of rounds.jsonl cannot be read and are left out" in capsys.readouterr().out
    assert [one.round for one in read_status(tmp_path).rounds] == [1, 3]


def test_nothing_in_the_file_reaches_the_terminal_unprintable(tmp_path: Path) -> None:
    """Reasons come from nodes, and a node may want to write to the operator's terminal."""
    watch = Watch(tmp_path)
    watch.begin("round", 0, [0], 10.0)
    state = json.loads((tmp_path / NOW).read_text())
    state["clients"]["0"] = {"asked": 1.0, "answered": 1.0, "problem": "\x1b[2J\x9b" + "x" * 1000}
    state["strangers"] = {"1\x1b[31m": "\r\nfake line"}
    (tmp_path / NOW).write_text(json.dumps(state))
    for line in read_status(tmp_path).lines():
        assert line.isprintable()
        assert len(line) < 800


def test_many_strangers_do_not_make_the_file_large(tmp_path: Path) -> None:
    """Without node authentication anybody can be a stranger."""
    watch = Watch(tmp_path)
    watch.look([], dict.fromkeys(range(5000), "y" * 10000))
    watch.begin("round", 0, [0], 10.0)
    assert (tmp_path / NOW).stat().st_size < 10_000


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    Watch(tmp_path / "absent").begin("round", 0, [0], 10.0)
    Watch().begin("round", 0, [0], 10.0)


def test_a_server_that_stopped_is_said_to_be_silent(tmp_path: Path) -> None:
    Watch(tmp_path).begin("round", 2, [0, 1], 10.0)
    state = json.loads((tmp_path / NOW).read_text())
    (tmp_path / NOW).write_text(json.dumps({**state, "time": time.time() - 100}))
    text = "\n".join(read_status(tmp_path).lines())
    assert "the server has written nothing for 100 s; look whether it still runs" in text


def test_a_long_round_is_told_of_now_and_then(tmp_path: Path) -> None:
    Watch(tmp_path).begin("round", 2, [0, 1], 600.0)
    assert list(Follower(tmp_path).lines()) == []  # it has just begun
    state = json.loads((tmp_path / NOW).read_text())
    (tmp_path / NOW).write_text(json.dumps({**state, "since": time.time() - 7}))
    follower = Follower(tmp_path)
    assert list(follower.lines()) == ["round 3: training on the nodes, 0 of 2 after 7 s; missing: client 0, client 1"]
    assert list(follower.lines()) == []


def test_lines_of_the_server_are_shown_when_they_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one line late: the last line is shown although no other follows."""
    texts = ["x share: round 1\n", "x share: round 1\nshare: rou", "x share: round 1\nshare: round 2\n"]

    class Run:
        step = -1

        def log(self, name: str) -> str:
            return texts[min(self.step, 2)]

        def poll(self) -> int | None:
            self.step += 1
            return None if self.step < 3 else 0

    shown: list[tuple[int, str]] = []
    fake = Run()
    monkeypatch.setattr(federation.time, "sleep", lambda seconds: None)  # type: ignore[attr-defined]
    lines: Iterator[str] = federation.server_lines(fake, fake)  # type: ignore[arg-type]
    for line in lines:
        shown.append((fake.step, line))
    assert shown == [(0, "round 1"), (2, "round 2")]


def test_an_answer_that_does_not_decode_affects_its_node_only(tmp_path: Path) -> None:
    """Flower's own loop pulls all answers at once, so one would end the run for everybody."""
    grid = secured(tmp_path)
    pull = grid.pull_messages

    def broken(numbers: Any) -> list[Message]:
        (number,) = numbers
        replies = pull([number])
        if any(reply.metadata.src_node_id == 1004 for reply in replies) and len(grid.log) > 6:
            raise ValueError("cannot decode")
        return replies

    grid.pull_messages = broken  # type: ignore[method-assign]
    found = run(over(tmp_path), grid, rounds=1)
    assert found.train_metrics_clientapp
    (train, _) = (json.loads(line) for line in (tmp_path / "agreement.record/rounds.jsonl").read_text().splitlines())
    assert [entry["client"] for entry in train["dropouts"]] == [4]


def test_a_watched_grid_waits_as_long_as_asked(tmp_path: Path) -> None:
    grid = secured(tmp_path)
    grid.before = lambda client, message: None
    told: list[int | None] = []
    watched = WatchedGrid(grid, told.append)
    assert watched.get_node_ids() == grid.get_node_ids()
    message = Message(next(iter(grid.contexts.values())).state, 1000, "train")
    assert watched.send_and_receive([message], timeout=0.3) == []
    assert told
    assert set(told) == {None}
