"""Sites hear how each round ended, in one reason; a site that cannot answer does not use up the rounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg import Policy
from secagg.cli.main import main
from secagg.errors import UsageError
from secagg.net import Hub, messages
from secagg.net.desk import MOST_NOTES, Desk
from secagg.net.series import Series, run_series
from tests.net.common import FAST, RunningSite, expected, make_world, running, vector

ROUND = Policy(anonymity=2, memory="round")
BOTH = pytest.mark.parametrize("groups", ["whole", "survivors"])


def heard(site: RunningSite) -> list[dict[str, Any]]:
    return [values for name, values in site.events if name == "round over"]


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.01)


class Data:
    """The data of one site, which can be damaged and repaired."""

    def __init__(self, member: int) -> None:
        self.member, self.value, self.asked = member, float("nan"), 0

    def __call__(self, round: int, data: bytes) -> Any:
        return np.full(4, self.value) + vector(self.member, round)

    def ready(self) -> None:
        self.asked += 1
        if np.isnan(self.value):
            raise ValueError("patient 4711 has no value")


@BOTH
def test_sites_hear_how_a_round_ended_and_one_reason_is_given_for_a_lost_one(
    tmp_path: Path, groups: str, capsys: pytest.CaptureFixture[str]
) -> None:
    proposal = make_world(tmp_path, 3, groups=groups, policy=ROUND)

    async def play() -> None:
        data = Data(2)
        async with running(tmp_path, proposal, [0, 1]) as (hub, sites):
            site = RunningSite(proposal, tmp_path, 2, hub.port, data)
            async with site:
                outcome = await hub.round()
                assert not outcome.opened
                why = "it could not compute its vector"
                assert outcome.dropouts == {2: why}
                if groups == "whole":
                    assert outcome.lost == {(0, 0): f"2: {why}"}
                assert hub.metrics.get("secagg_dropouts_total", reason=why) == 1
                assert main(["status", str(tmp_path / "hub")]) == 0
                assert f"last round: 0, lost: {next(iter(outcome.lost.values()))}\n" in capsys.readouterr().out
                stored = json.loads((hub.folder / "results" / "round-0.json").read_text())
                assert stored["seconds"] == round(outcome.seconds, 3) > 0
                assert (stored["dropouts"], stored["lost"][0]["members"]) == ({"2": why}, ["0", "1", "2"])
                data.value = 0.0
                assert (await hub.round()).opened
                await until(lambda: all(len(heard(one)) == 2 for one in (*sites.values(), site)))
        for member, one in ((0, sites[0]), (2, site)):
            lost, opened = heard(one)
            assert (lost["round"], lost["opened"], lost["sites"]) == (0, False, 0)
            assert lost["reason"] == (why if member == 2 else next(iter(outcome.lost.values())))
            assert opened == {"round": 1, "opened": True, "sites": 3, "reason": ""}
        assert main(["status", str(tmp_path / "0")]) == 0
        assert "last round: 1, opened with 3 sites\n" in capsys.readouterr().out
        async with running(tmp_path, proposal, [0]) as (hub, sites):  # neither end knows what the other has heard
            await until(lambda: bool(heard(sites[0])))
            assert heard(sites[0]) == [opened]

    asyncio.run(play())


@BOTH
def test_a_site_that_cannot_compute_is_away_until_it_can(
    tmp_path: Path, groups: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round is lost. The next one waits for the site, and is not begun without it."""
    monkeypatch.setattr("secagg.net.desk.PRESENT", 0.3)
    proposal = make_world(tmp_path, 3, groups=groups, policy=ROUND)

    async def play() -> None:
        data = Data(2)
        async with (
            running(tmp_path, proposal, [0, 1]) as (hub, _),
            RunningSite(proposal, tmp_path, 2, hub.port, data, ready=data.ready) as site,
        ):
            task = asyncio.create_task(hub.round())
            await until(lambda: data.asked >= 1)
            if groups == "whole":
                assert not (await task).opened
                task = asyncio.create_task(hub.round())
            await until(lambda: 2 not in hub.present())
            await until(lambda: data.asked >= 3)
            assert not task.done()
            kept = (site.site.folder / "status.json").read_text()
            assert "patient" not in kept
            data.value = 0.0
            outcome = await task
            assert outcome.round == (1 if groups == "whole" else 0)
            assert np.allclose(outcome.sum(), expected(range(3), outcome.round), atol=1e-6)
            names = [name for name, _ in site.events]
            assert (names.count("not ready"), names.count("ready")) == (1, 1)
            assert json.loads((site.site.folder / "status.json").read_text())["refused"] == ""

    asyncio.run(play())


class Halted(Exception):  # noqa: N818 - the name says what happened
    """The hub's process ends here."""


def test_a_series_goes_on_after_a_restart_and_then_begins_anew(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3, rounds=8)
    asked: dict[str, Any] = {"every": 0.0, "most_lost": 3, "data": b""}

    async def play(rounds: int, stop_after: int = 100) -> list[int]:
        outcomes: list[Any] = []

        def stop(outcome: Any) -> None:
            if len(outcomes) == stop_after:
                raise Halted

        async with running(tmp_path, proposal) as (hub, _):
            with suppress(Halted):
                await run_series(hub, rounds=rounds, outcomes=outcomes, on_outcome=stop, **asked)
        return [one.round for one in outcomes]

    assert asyncio.run(play(3, stop_after=1)) == [0]
    assert asyncio.run(play(3)) == [1, 2], "three rounds in all"
    assert asyncio.run(play(3, stop_after=3)) == [3, 4, 5]
    assert asyncio.run(play(3)) == [], "all were over, and only the sites had to be told"
    assert asyncio.run(play(3)) == [6, 7], "the agreement has no more"
    with pytest.raises(UsageError, match="was the last one"):
        asyncio.run(play(3))


def test_another_number_of_rounds_is_another_series(tmp_path: Path) -> None:
    Series(tmp_path, rounds=5, next_round=0, last_round=99).begin()
    assert Series(tmp_path, rounds=4, next_round=2, last_round=99).until == 6
    assert Series(tmp_path, rounds=5, next_round=2, last_round=99).until == 5


def test_a_permanent_refusal_does_not_use_up_all_rounds(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3, rounds=50)

    async def play() -> None:
        outcomes: list[Any] = []
        asked: dict[str, Any] = {"rounds": 40, "every": 0.0, "data": b"", "on_outcome": None}
        async with running(tmp_path, proposal, [0, 1]) as (hub, sites):
            async with RunningSite(proposal, tmp_path, 2, hub.port, Data(2)):
                await run_series(hub, most_lost=2, outcomes=outcomes, **asked)
                assert [one.opened for one in outcomes] == [False, False]
                assert hub.next_round == 2
            await until(lambda: "end" in [name for name, _ in sites[0].events])
            (end,) = [values["text"] for name, values in sites[0].events if name == "end"]
            assert end == "2 rounds in a row opened nothing, so the hub stops; rounds 2 to 39 are left"

    asyncio.run(play())


def test_notes_are_read_in_order_before_the_next_message_and_are_few() -> None:
    async def play() -> None:
        desk = Desk([0])
        desk.put(0, b"message 1")
        tag, found = await desk.wait(0, "", 1) or ("", b"")
        assert found == b"message 1"
        desk.clear()
        for number in range(MOST_NOTES + 3):
            desk.tell(0, b"note %d" % number)
        desk.put(0, b"message 2")
        assert not desk.told([0])
        read = []
        for _ in range(MOST_NOTES + 1):
            tag, found = await desk.wait(0, tag, 1) or ("", b"")
            assert desk.is_current(0, tag) == (found == b"message 2"), "a note is not answered"
            read.append(found)
        assert read == [b"note %d" % number for number in range(3, MOST_NOTES + 3)] + [b"message 2"]
        assert desk.told([0])
        assert await desk.wait(0, tag, 0.01) is None

    asyncio.run(play())


def test_what_a_lying_hub_says_of_rounds_is_only_shown(tmp_path: Path) -> None:
    """Notes of another agreement and of rounds that do not exist are refused; control characters are not shown."""
    proposal = make_world(tmp_path, 3, rounds=5)
    mine, other = proposal.agreement.fingerprint, bytes(32)

    async def play() -> None:
        async with (
            Hub(proposal, tmp_path / "hub", settings=FAST) as hub,
            RunningSite(proposal, tmp_path, 0, hub.port) as site,
        ):
            for over in (
                messages.Over(other, 1, 3, b""),
                messages.Over(mine, 5, 3, b""),
                messages.Over(mine, 3, 0, b"\x1b[2J gone \xff"),
                messages.Over(mine, 2, 0, b"an older one"),
                messages.Over(mine, 4, 3, b""),
            ):
                hub._desk.tell(0, messages.encode(over))
            await until(lambda: len(heard(site)) == 2)
            assert [one["round"] for one in heard(site)] == [3, 4]
            assert heard(site)[0]["reason"] == "?[2J gone \ufffd"
            assert [name for name, _ in site.events].count("refused") == 2
            assert site.calls == []

    asyncio.run(play())
