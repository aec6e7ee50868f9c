"""Whatever stops, and whenever: the round goes on or ends with a clear word, and no update is answered twice."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg import Policy
from secagg.agreement.cost import round_charge, survivors_reserve
from secagg.agreement.noise import Noise
from secagg.cli.main import main
from secagg.crypto import SegmentNoise
from secagg.errors import AgreementRefused, BudgetExceeded, TooFewSurvivors, UsageError
from secagg.net import Deadlines, Hub
from secagg.privacy import Budget
from tests.net.common import FAST, RunningSite, expected, make_world, running, vector

ROUND = Policy(anonymity=2, memory="round")
BOTH = pytest.mark.parametrize("groups", ["whole", "survivors"])
QUICK = replace(FAST, deadlines=Deadlines(gather=1, answers=1, keys=1, shares=1, inputs=1, consistency=1, unmasking=1))


class Gate:
    """A source that waits until it is opened, and counts its calls."""

    def __init__(self, member: int) -> None:
        self.member, self.calls, self.open, self.reached = member, 0, threading.Event(), threading.Event()

    def __call__(self, round: int, data: bytes) -> Any:
        self.calls += 1
        self.reached.set()
        assert self.open.wait(20)
        return vector(self.member, round)


async def reached(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.reached.wait, 20)


@BOTH
def test_a_hub_that_stops_in_a_round_finishes_it_when_it_returns(tmp_path: Path, groups: str) -> None:
    proposal = make_world(tmp_path, 3, groups=groups, policy=ROUND)

    async def play() -> None:
        gate = Gate(2)
        async with Hub(proposal, tmp_path / "hub", settings=FAST) as hub:
            port = hub.port
            sites = [RunningSite(proposal, tmp_path, v, port, gate if v == 2 else None) for v in range(3)]
            for site in sites:
                await site.__aenter__()
            task = asyncio.create_task(hub.round(b""))
            await reached(gate)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        gate.open.set()
        async with Hub(proposal, tmp_path / "hub", settings=replace(FAST, listen=f"127.0.0.1:{port}")) as hub:
            assert hub.unfinished == 0
            outcome = await hub.round(b"")
            assert (outcome.round, outcome.members) == (0, {(0, 0): (0, 1, 2)})
            assert np.allclose(outcome.sum(), expected(range(3), 0), atol=1e-6)
            assert hub.unfinished is None
            assert np.allclose((await hub.round()).sum(), expected(range(3), 1), atol=1e-6)
        assert sites[0].calls == [0, 1]
        assert gate.calls == 2
        for site in sites:
            await site.__aexit__()

    asyncio.run(play())


@BOTH
def test_a_site_that_returns_sends_the_same_answer_and_computes_nothing_again(tmp_path: Path, groups: str) -> None:
    """Site 0 answers and stops; site 2 is slow, so that the round is still open when site 0 returns."""
    proposal = make_world(tmp_path, 3, groups=groups, policy=ROUND)

    async def play() -> None:
        gate = Gate(2)
        async with Hub(proposal, tmp_path / "hub", settings=FAST) as hub:
            sites = [RunningSite(proposal, tmp_path, v, hub.port, gate if v == 2 else None) for v in range(3)]
            for site in sites:
                await site.__aenter__()
            task = asyncio.create_task(hub.round())
            await reached(gate)
            while sites[0].calls != [0] or ("answered" not in [name for name, _ in sites[0].events]):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            await sites[0].__aexit__()
            again = RunningSite(proposal, tmp_path, 0, hub.port)
            async with again:
                gate.open.set()
                outcome = await task
                assert outcome.members == {(0, 0): (0, 1, 2)}
                assert np.allclose(outcome.sum(), expected(range(3), 0), atol=1e-6)
                assert again.calls == []
            for site in sites[1:]:
                await site.__aexit__()

    asyncio.run(play())


def test_a_late_site_takes_part_in_the_next_round(tmp_path: Path) -> None:
    """Two groups of two. Without site 3 the other group opens; with it, both do."""
    policy = Policy(anonymity=2)
    proposal = make_world(tmp_path, 4, size=2, policy=policy)

    async def play() -> None:
        async with running(tmp_path, proposal, [0, 1, 2], QUICK) as (hub, _):
            outcome = await hub.round()
            assert len(outcome.sums) == 1
            assert outcome.dropouts == {3: "it sent no advert"}
            async with RunningSite(proposal, tmp_path, 3, hub.port):
                outcome = await hub.round()
                assert len(outcome.sums) == 2
                for group, members in outcome.members.items():
                    assert np.allclose(outcome.sum(group), expected(members, 1), atol=1e-6)

    asyncio.run(play())


class Failing:
    """A source that fails in some rounds, with a text that nobody else should read."""

    def __init__(self, member: int, rounds: set[int]) -> None:
        self.member, self.rounds = member, rounds

    def __call__(self, round: int, data: bytes) -> Any:
        if round in self.rounds:
            raise ValueError("patient 4711")
        return vector(self.member, round)


def test_a_site_that_was_called_in_vain_is_left_out_of_roll_calls_for_a_while(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proposal = make_world(tmp_path, 4, policy=ROUND, roll_call=True)

    async def play() -> None:
        async with running(tmp_path, proposal, [0, 1, 2]) as (hub, _):
            status = hub.folder / "status.json"
            async with RunningSite(proposal, tmp_path, 3, hub.port, Failing(3, {0, 2})):
                for out in ((1,), (3, 4)):
                    assert not (await hub.round()).opened
                    for t in out:
                        outcome = await hub.round()
                        assert outcome.members == {(0, 0): (0, 1, 2)}
                        assert np.allclose(outcome.sum(), expected(range(3), t), atol=1e-6)
                        why = (
                            f"left out of the roll call until round {out[-1] + 1}: it did not answer round {out[0] - 1}"
                        )
                        assert outcome.dropouts == {3: why}
                        assert list(json.loads(status.read_text())["left_out"].values()) == [why]
                        assert main(["status", str(tmp_path / "hub")]) == 0
                        assert f"left out: {{'3': '{why}'}}" in capsys.readouterr().out
                assert (await hub.round()).members == {(0, 0): (0, 1, 2, 3)}
                assert json.loads(status.read_text())["left_out"] == {}
                assert main(["status", str(tmp_path / "hub")]) == 0
                assert "left out" not in capsys.readouterr().out
        assert hub.metrics.get("secagg_dropouts_total", reason="left out of the roll call") == 3

    asyncio.run(play())


def test_a_site_is_called_again_if_the_policy_does_not_hold_without_it(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3, policy=replace(ROUND, max_leverage=0.4), roll_call=True)

    async def play() -> None:
        async with (
            running(tmp_path, proposal, [0, 1]) as (hub, _),
            RunningSite(proposal, tmp_path, 2, hub.port, Failing(2, {0})),
        ):
            assert not (await hub.round()).opened
            assert (await hub.round()).members == {(0, 0): (0, 1, 2)}

    asyncio.run(play())


def test_the_text_of_a_source_that_fails_stays_out_of_status_and_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proposal = make_world(tmp_path, 3)
    caplog.set_level("DEBUG", "secagg.net")

    async def play() -> None:
        async with running(tmp_path, proposal, [0, 1]) as (hub, _):
            for error in (ValueError("patient 4711"), UsageError("patient 4711")):

                def fails(round: int, data: bytes, error: Exception = error) -> Any:
                    raise error

                async with RunningSite(proposal, tmp_path, 2, hub.port, fails) as site:
                    outcome = await hub.round()
                    kept = (site.site.folder / "status.json").read_text() + str(
                        [one.__dict__ for one in caplog.records]
                    )
                assert type(error).__name__ in kept
                assert "patient" not in kept + str(outcome.to_json())
                assert any("patient 4711" in str(values) for _, values in site.events), "its operator is told"

    asyncio.run(play())


def test_survivors_open_without_a_site_that_stops_in_the_middle(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 4, groups="survivors", policy=ROUND, colluders=1)

    async def play() -> None:
        gate = Gate(3)
        async with running(tmp_path, proposal, [0, 1, 2], QUICK) as (hub, _):
            last = RunningSite(proposal, tmp_path, 3, hub.port, gate)
            await last.__aenter__()
            task = asyncio.create_task(hub.round())
            await reached(gate)
            last.task.cancel()  # type: ignore[union-attr]
            outcome = await task
            assert outcome.members == {(0, 0): (0, 1, 2)}
            assert np.allclose(outcome.sum(), expected(range(3), 0), atol=1e-6)
            assert outcome.dropouts == {3: "it did not answer in time"}
            gate.open.set()
            await last.__aexit__()

    asyncio.run(play())


@BOTH
def test_a_hub_without_enough_sites_waits_and_then_gives_up_with_a_clear_word(tmp_path: Path, groups: str) -> None:
    proposal = make_world(tmp_path, 3, groups=groups, policy=ROUND)
    patience = replace(QUICK, deadlines=replace(QUICK.deadlines, gather=0.2, give_up=0.6))

    async def play() -> None:
        async with running(tmp_path, proposal, [0], patience) as (hub, sites):
            with pytest.raises(TooFewSurvivors, match="too few sites are there"):
                await hub.round()
            assert sites[0].calls == []

    asyncio.run(play())


def test_a_site_whose_source_fails_says_so_and_keeps_the_reason_to_itself(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 4, size=2)

    def broken(round: int, data: bytes) -> Any:
        raise OSError("patient 4711 is not in the file")

    async def play() -> None:
        async with running(tmp_path, proposal, [0, 1, 2]) as (hub, _):
            last = RunningSite(proposal, tmp_path, 3, hub.port, broken)
            async with last:
                outcome = await hub.round()
            assert len(outcome.sums) == 1
            assert outcome.dropouts[3] == "it could not compute its vector"
            assert "4711" in str(last.events)

    asyncio.run(play())


def test_one_process_per_folder(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)

    async def play() -> None:
        async with running(tmp_path, proposal, [0]) as (hub, _):
            with pytest.raises(UsageError, match="another process"):
                async with Hub(proposal, tmp_path / "hub", settings=FAST):
                    pass
            with pytest.raises(UsageError, match="another process"):
                async with RunningSite(proposal, tmp_path, 0, hub.port):
                    pass

    asyncio.run(play())


def test_an_agreement_that_is_not_complete_or_not_mine_is_refused(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)
    other = make_world(tmp_path / "other", 3)
    with pytest.raises(UsageError, match="member 2 has not signed"):
        Hub(replace(proposal, signatures={v: proposal.signatures[v] for v in (0, 1)}), tmp_path / "hub")
    with pytest.raises(UsageError, match="not the hub's certificate"):
        Hub(other, tmp_path / "hub")
    with pytest.raises(UsageError, match="no section transport"):
        Hub(make_bare(), tmp_path / "hub")
    (tmp_path / "0" / "tls.pem").rename(tmp_path / "tls.pem")
    (tmp_path / "1" / "tls.pem").rename(tmp_path / "0" / "tls.pem")
    with pytest.raises(UsageError, match="not this member's certificate"):
        RunningSite(proposal, tmp_path, 0, 1)


def make_bare() -> Any:
    from secagg.agreement import Proposal, Signature
    from secagg.simulation import make_agreement

    agreement, identities = make_agreement(members=3, size=3, length=2, clip=1.0)
    return Proposal.of(agreement).add(Signature(v, agreement.sign(v, identities[v])) for v in identities)


def test_the_last_round_is_the_last(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3, rounds=1)

    async def play() -> None:
        async with running(tmp_path, proposal) as (hub, _):
            assert (await hub.round()).opened
            with pytest.raises(UsageError, match="was the last one"):
                await hub.round()

    asyncio.run(play())


def test_another_agreement_on_the_same_data_must_name_the_first(tmp_path: Path) -> None:
    first = make_world(tmp_path, 3)
    second = make_world(tmp_path, 3, name="second")

    async def play() -> None:
        async with running(tmp_path, first) as (hub, _):
            assert (await hub.round()).opened
        patience = replace(QUICK, deadlines=replace(QUICK.deadlines, answers=10))
        async with running(tmp_path, second, None, patience) as (hub, sites):
            outcome = await hub.round()
            assert not outcome.opened
            for site in sites.values():
                assert site.task is not None
                with pytest.raises(AgreementRefused, match="does not name"):
                    await site.task

    asyncio.run(play())


@BOTH
def test_a_site_answers_within_its_budget_and_then_stops(tmp_path: Path, groups: str) -> None:
    noise = Noise(segments=(SegmentNoise(clip=8.0, sigma=2**24),))
    proposal = make_world(tmp_path, 3, groups=groups, policy=ROUND, change={"noise": noise})
    costs = round_charge(proposal.agreement, 0, 0) if groups == "whole" else survivors_reserve(proposal.terms, 0)
    budget = Budget(epsilon=1.05 * (costs + costs).epsilon(1e-6), delta=1e-6)

    async def play() -> None:
        patience = replace(FAST, deadlines=replace(FAST.deadlines, gather=1, keys=1, give_up=2))
        async with running(tmp_path, proposal, [1, 2], patience) as (hub, _):
            limited = RunningSite(proposal, tmp_path, 0, hub.port, budget=budget)
            async with limited:
                opened = 0
                with suppress(TooFewSurvivors):
                    while opened < 6 and 0 in (await hub.round()).members.get((0, 0), ()):
                        opened += 1
                assert 1 <= opened < 6
                assert limited.task is not None
                with pytest.raises(BudgetExceeded):
                    await limited.task

    asyncio.run(play())
