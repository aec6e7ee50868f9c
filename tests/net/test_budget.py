"""What a site has spent stays with it, also when its budget is used up."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from secagg import Budget, BudgetExceeded, FileJournal, Policy, UsageError
from secagg.agreement import Noise
from secagg.crypto import SegmentNoise
from secagg.net import Site
from secagg.privacy import Charge
from secagg.protocol import spent
from tests.net.common import RunningSite, make_world, running

NOISE = Noise(segments=(SegmentNoise(clip=8.0, sigma=2**24),))


def test_a_site_whose_budget_is_used_up_says_nothing_of_it_to_the_hub(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3, policy=Policy(anonymity=2, memory="round"), change={"noise": NOISE})

    async def play() -> str:
        async with running(tmp_path, proposal, [1, 2]) as (hub, _):
            poor = RunningSite(proposal, tmp_path, 0, hub.port, budget=Budget(1e-3, 1e-6))
            with suppress(BudgetExceeded):
                async with poor:
                    outcome = await hub.round()
            assert any("epsilon" in str(values) for _, values in poor.events)  # its operator is told
            return str(outcome.to_json()) + str(outcome.dropouts)

    told = asyncio.run(play())
    assert "could not compute its vector" in told
    assert "epsilon" not in told
    assert "budget" not in told
    assert spent(FileJournal(tmp_path / "0" / "journal")) == Charge()


def test_a_site_reads_its_budget_from_its_floors(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3, policy=Policy(anonymity=2, memory="round"), change={"noise": NOISE})
    floors = tmp_path / "0" / "floors.toml"
    assert Site(proposal, tmp_path / "0", print)._member.budget is None
    floors.write_text("budget = { epsilon = 0.001, delta = 1e-6 }")
    assert Site(proposal, tmp_path / "0", print)._member.budget == Budget(1e-3, 1e-6)
    assert Site(proposal, tmp_path / "0", print, budget=Budget(2.0, 1e-6))._member.budget == Budget(2.0, 1e-6)
    floors.write_text("budgets = 3")
    with pytest.raises(UsageError, match=r"floors\.toml: "):
        Site(proposal, tmp_path / "0", print)
