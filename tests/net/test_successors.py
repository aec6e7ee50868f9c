"""Successors and roll calls over the network service."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg import Policy
from secagg.agreement import MemberFolder
from secagg.errors import AgreementRefused
from secagg.evidence import verify
from secagg.net.answers import Membership, SurvivorAnswers, WholeAnswers
from secagg.simulation.agree import agree_on
from tests.net.common import FAST, expected, make_world, running


@pytest.mark.parametrize(
    ("groups", "kind", "policy"),
    [("whole", WholeAnswers, Policy(anonymity=2)), ("survivors", SurvivorAnswers, Policy(anonymity=2, memory="round"))],
)
def test_a_site_checks_a_successor_with_what_its_folder_kept(
    groups: str, kind: Any, policy: Policy, tmp_path: Path
) -> None:
    first = make_world(tmp_path, 4, groups=groups, policy=policy).agreement
    folders = {v: MemberFolder(tmp_path / str(v)) for v in range(4)}
    identities = {v: folder.identity for v, folder in folders.items()}
    second = agree_on(replace(first.terms, name="next", predecessors=(first.fingerprint,)), identities)
    signatures = {v: second.sign(v, identities[v]) for v in identities}
    site = tmp_path / "site"
    site.mkdir()

    def member() -> Membership:
        earlier = tuple(folders[0].earlier(second.terms))
        who: dict[str, Any] = {"agreement": second, "signatures": signatures, "me": 0, "identity": identities[0]}
        return Membership(**who, folder=site, journal=site / "journal", earlier=earlier)

    with pytest.raises(AgreementRefused, match="predecessors: the agreement names 1"):
        kind(member())
    folders[0].keep_agreements([first])
    kind(member())


def test_a_roll_call_sums_the_sites_that_are_there(tmp_path: Path) -> None:
    policy = Policy(anonymity=2, min_survivors=2, max_leverage=1.0, memory="round")
    proposal = make_world(tmp_path, 4, policy=policy, roll_call=True)
    quick = replace(FAST, deadlines=replace(FAST.deadlines, gather=1.5))

    async def play() -> None:
        async with running(tmp_path, proposal, sites=(0, 1, 3), settings=quick) as (hub, _):
            for t in (0, 1):
                outcome = await hub.round()
                assert outcome.members == {(0, 0): (0, 1, 3)}
                np.testing.assert_allclose(outcome.sums[0, 0], expected((0, 1, 3), t), atol=1e-6)
        async with running(tmp_path, proposal, settings=quick) as (hub, _):
            outcome = await hub.round()
            assert outcome.members == {(0, 0): (0, 1, 2, 3)}

    asyncio.run(play())


def test_a_site_that_lost_its_saved_state_goes_on_with_its_chain(tmp_path: Path) -> None:
    """Its keys are gone, with the rounds that they were for. Its store has the last answer, which the next names."""
    proposal = make_world(tmp_path, 4)

    async def play() -> list[bool]:
        async with running(tmp_path, proposal) as (hub, _):
            assert (await hub.round()).opened
        states = sorted(tmp_path.rglob("client.state"))
        assert len(states) == 4
        states[0].unlink()
        async with running(tmp_path, proposal) as (hub, _):
            return [(await hub.round()).opened for _ in range(5)]

    assert asyncio.run(play())[-1]
    (evidence,) = (path for path in tmp_path.rglob("evidence") if path.is_file())
    report = verify(evidence.read_bytes())
    assert report.holds, report.problems
    assert not any("did not arrive in time" in note for note in report.notes)
