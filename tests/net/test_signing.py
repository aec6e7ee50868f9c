"""A hub has an identity of its own, and signs a statement about its evidence when its rounds are over."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from secagg import Policy
from secagg.agreement import MemberFolder, Proposal, write_agreement
from secagg.cli.main import main
from secagg.errors import UsageError
from secagg.evidence import beside, check_envelope
from secagg.net import Hub
from tests.net.common import FAST, make_world, running
from tests.net.processes import finish, free_port, line_with, start
from tests.net.zygote import COMMAND, Process

SLOW = (  # a hub whose verification never ends
    "import time; from pathlib import Path; from secagg.evidence import beside; "
    "beside.envelope = lambda *_, **__: (Path('verifying').touch(), time.sleep(3600)); "
)


def problems(hub: Path, evidence: Path) -> list[str]:
    """What is wrong with the statement about this evidence."""
    text = evidence.with_name("evidence.intoto.json").read_text()
    return check_envelope(text, evidence.read_bytes(), MemberFolder(hub).identity.public)


def reopened(place: Path, proposal: Proposal) -> list[tuple[str, dict[str, Any]]]:
    """Open a hub without sites and close it; its events."""
    told: list[tuple[str, dict[str, Any]]] = []

    async def play() -> None:
        async with Hub(proposal, place, settings=FAST, on_event=lambda *one: told.append(one)):
            pass

    asyncio.run(play())
    return told


@pytest.mark.parametrize("groups", ["whole", "survivors"])
def test_the_last_round_of_an_agreement_ends_with_a_statement(tmp_path: Path, groups: str) -> None:
    proposal = make_world(tmp_path, 3, rounds=2, groups=groups, policy=Policy(anonymity=2, memory="round"))
    told: list[str] = []

    async def play() -> Hub:
        async with running(tmp_path, proposal) as (hub, _):
            hub._events._listener = lambda event, _: told.append(event)
            await hub.round()
            assert not list(hub.folder.glob("*.intoto.json"))
            await hub.round()
        return hub

    hub = asyncio.run(play())
    key = tmp_path / "hub" / "identity.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert hub.key == MemberFolder(tmp_path / "hub").identity.public
    assert problems(tmp_path / "hub", hub.folder / "evidence") == []
    assert told.index("statement") > max(place for place, event in enumerate(told) if event == "round over")
    status = json.loads((hub.folder / "status.json").read_text())
    assert (status["key"], status["statement"]) == (hub.key.hex(), str(hub.folder / "evidence.intoto.json"))
    again = Hub(proposal, tmp_path / "hub", settings=FAST)
    assert again.key == hub.key, "an identity is made once"


def test_a_statement_that_is_missing_or_stale_is_written_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposal = make_world(tmp_path, 3, rounds=1)

    async def play() -> Path:
        async with running(tmp_path, proposal) as (hub, _):
            await hub.round()
        return hub.folder

    folder = asyncio.run(play())
    statement, made = folder / "evidence.intoto.json", []
    first, really = statement.read_bytes(), beside.envelope

    def counted(*arguments: Any, **more: Any) -> str:
        made.append(1)
        return really(*arguments, **more)

    monkeypatch.setattr(beside, "envelope", counted)
    assert "statement" in [event for event, _ in reopened(tmp_path / "hub", proposal)]
    assert not made, "a statement that is right is not made again"
    for wrong in (None, b"", first[: len(first) // 2], first.replace(b'"sig": "', b'"sig": "AAAA')):
        statement.unlink()
        if wrong is not None:
            statement.write_bytes(wrong)
        assert "statement" in [event for event, _ in reopened(tmp_path / "hub", proposal)]
        assert statement.read_bytes() == first
    assert len(made) == 4


def test_evidence_that_does_not_hold_gets_no_statement(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    proposal = make_world(tmp_path, 3, rounds=1)

    async def play() -> Path:
        async with running(tmp_path, proposal) as (hub, _):
            await hub.round()
        return hub.folder

    folder = asyncio.run(play())
    (folder / "evidence.intoto.json").unlink()
    data = bytearray((folder / "evidence").read_bytes())
    place = data.index(proposal.signatures[1].signature)
    data[place] ^= 1
    (folder / "evidence").write_bytes(data)
    with pytest.raises(UsageError, match="another agreement"):
        reopened(tmp_path / "hub", proposal)  # the head is compared when the file is opened
    data[place] ^= 1
    data[-100 - len(b"sum")] ^= 1
    (folder / "evidence").write_bytes(data)
    with caplog.at_level(logging.WARNING, logger="secagg.net"):
        told = dict(reopened(tmp_path / "hub", proposal))
    assert "does not hold" in told["no statement"]["reason"]
    assert not (folder / "evidence.intoto.json").exists()
    assert "does not hold" in json.loads((folder / "status.json").read_text())["statement"]


def test_a_round_does_not_wait_for_a_statement_and_drops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proposal, go, begun, really = make_world(tmp_path, 3), Event(), Event(), beside.envelope

    def slow(*arguments: Any, **more: Any) -> str:
        begun.set()
        go.wait(60)
        return really(*arguments, **more)

    async def play() -> Path:
        async with running(tmp_path, proposal) as (hub, _):
            statement = hub.folder / "evidence.intoto.json"
            await hub.round()
            monkeypatch.setattr(beside, "envelope", slow)
            ending = asyncio.create_task(hub.finish(seconds=0))
            await asyncio.to_thread(begun.wait)
            assert (await hub.round()).opened
            await ending
            monkeypatch.setattr(beside, "envelope", really)
            go.set()
            await hub.finish(seconds=0)
            assert problems(tmp_path / "hub", hub.folder / "evidence") == []
            assert json.loads((hub.folder / "status.json").read_text())["statement"] == str(statement)
            await hub.round()
            assert json.loads((hub.folder / "status.json").read_text())["statement"] == ""
            return statement

    assert not asyncio.run(play()).exists(), "it would be about other evidence"


def test_a_statement_that_was_dropped_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verification ends after the next round has begun."""
    proposal, go, begun, really = make_world(tmp_path, 3), Event(), Event(), beside.envelope

    def slow(*arguments: Any, **more: Any) -> str:
        begun.set()
        go.wait(60)
        return really(*arguments, **more)

    async def play() -> Path:
        async with running(tmp_path, proposal) as (hub, _):
            await hub.round()
            monkeypatch.setattr(beside, "envelope", slow)
            ending = asyncio.create_task(hub.finish(seconds=0))
            await asyncio.to_thread(begun.wait)
            (worker,) = [one for one in threading.enumerate() if one.name == "secagg statement"]
            await hub.round()
            await ending
            go.set()
            await asyncio.to_thread(worker.join)
            return hub.folder / "evidence.intoto.json"

    assert not asyncio.run(play()).exists()


def test_a_listener_that_raises_keeps_nobody_waiting(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3, rounds=1)

    async def play() -> None:
        async with running(tmp_path, proposal) as (hub, _):
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)

            def broken(event: str, _: Any) -> None:
                if event == "statement":
                    raise BrokenPipeError(32, "Broken pipe")

            hub._events._listener = broken
            await hub.round()
            await asyncio.wait_for(hub.finish(seconds=0), 60)

    asyncio.run(play())


def test_a_hub_that_is_cancelled_while_it_waits_for_the_statement_gives_its_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposal, go, begun, really = make_world(tmp_path, 3, rounds=1), Event(), Event(), beside.envelope

    def slow(*arguments: Any, **more: Any) -> str:
        begun.set()
        go.wait(60)
        return really(*arguments, **more)

    async def play() -> None:
        async with running(tmp_path, proposal) as (hub, _):
            await hub.round()

    async def cancelled() -> None:
        monkeypatch.setattr(beside, "envelope", slow)
        playing = asyncio.create_task(play())
        await asyncio.to_thread(begun.wait)
        await asyncio.sleep(0.2)  # long enough to be in the end of the hub
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        go.set()

    asyncio.run(cancelled())
    monkeypatch.setattr(beside, "envelope", really)
    assert "statement" in dict(reopened(tmp_path / "hub", proposal))


def test_an_older_copy_of_the_state_is_refused_when_the_hub_starts(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)
    copies: list[Path] = []

    async def play() -> Path:
        async with running(tmp_path, proposal) as (hub, _):
            for number in range(3):
                await hub.round()
                copies.append(tmp_path / f"copy {number}")
                shutil.copytree(hub.folder, copies[-1])
        return hub.folder

    folder = asyncio.run(play())
    evidence = (folder / "evidence").read_bytes()
    shutil.rmtree(folder)
    shutil.copytree(copies[0], folder)
    (folder / "evidence").write_bytes(evidence)
    with pytest.raises(UsageError, match="before round 1, and evidence up to round 2: an older copy"):
        reopened(tmp_path / "hub", proposal)
    shutil.rmtree(folder)
    shutil.copytree(copies[2], folder)
    (folder / "evidence").write_bytes(evidence)
    reopened(tmp_path / "hub", proposal)


def test_whatever_fails_while_it_is_signed_ends_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proposal = make_world(tmp_path, 3, rounds=1)

    async def play() -> None:
        async with running(tmp_path, proposal) as (hub, _):
            await hub.round()

    asyncio.run(play())
    next((tmp_path / "hub").rglob("evidence.intoto.json")).unlink()

    def failing(error: Exception) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            raise error

        return call

    for place, error, reason in (
        ("secagg.evidence.beside.envelope", OSError(28, "No space left on device"), "No space left on device"),
        ("secagg.evidence.beside.envelope", ZeroDivisionError(), "ZeroDivisionError"),
        ("secagg.net.signing.Thread", RuntimeError("can't start new thread"), "can't start new thread"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(place, failing(error))
            told = dict(reopened(tmp_path / "hub", proposal))
        assert reason in told["no statement"]["reason"]
    assert "statement" in dict(reopened(tmp_path / "hub", proposal))


def world(place: Path, rounds: int) -> list[str]:
    """The folders of a hub and three sites; the words of `secagg serve`."""
    (place / "study.toml").write_text(write_agreement(make_world(place, 3, port=free_port(), rounds=rounds)))
    np.save(place / "values.npy", np.ones(4))
    return ["serve", "study.toml", "hub", "--rounds", "1"]


def join(place: Path) -> list[Process]:
    return [start(place, "join", "study.toml", str(v), "--data", "values.npy") for v in range(3)]


def test_the_commands_show_the_key_and_check_the_statement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve = world(tmp_path, 2)
    hub = start(tmp_path, *serve)
    key = line_with(hub, "Key of this hub").split()[-1]
    for site in join(tmp_path):
        finish(site)
    printed = finish(hub)[0]
    evidence = next((tmp_path / "hub").rglob("evidence"))
    statement = f"{evidence}.intoto.json"
    assert f"Signed statement {Path(statement).relative_to(tmp_path)}\n" in printed
    assert main(["verify", str(evidence), "--statement", statement, "--hub", key]) == 0
    assert main(["status", str(tmp_path / "hub")]) == 0
    assert f"  key: {key}\n" in capsys.readouterr().out
    assert main(["identity", str(tmp_path / "hub"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["identity"] == key


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_hub_that_is_stopped_while_it_signs_signs_at_its_next_start(tmp_path: Path, number: int) -> None:
    """SIGTERM does not wait for the verification either: the hub ends within the patience of `finish`."""
    serve = world(tmp_path, 1)
    hub = Process(SLOW + COMMAND, tuple(serve), tmp_path)
    for site in join(tmp_path):
        finish(site)
    line_with(hub, "Round 0")
    for _ in range(3000):
        if (tmp_path / "verifying").exists():
            break
        time.sleep(0.01)
    hub.send_signal(number)
    hub.communicate(60)
    assert hub.returncode == (0 if number == signal.SIGTERM else -number)
    evidence = next((tmp_path / "hub").rglob("evidence"))
    assert [path.name for path in evidence.parent.glob("*intoto*")] == []
    hub, sites = start(tmp_path, *serve), join(tmp_path)  # the sites hear the end again
    for one in (hub, *sites):
        finish(one)
    assert problems(tmp_path / "hub", evidence) == []
