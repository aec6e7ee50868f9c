"""Rounds over real connections on loopback: sums are exact, and every site computes its vector once per round."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from secagg import Policy
from secagg.evidence import verify
from tests.net.common import expected, make_world, running

ROUND = Policy(anonymity=2, memory="round")


@pytest.mark.parametrize("groups", ["whole", "survivors"])
def test_three_sites_and_a_hub_sum_exactly_over_several_rounds(tmp_path: Path, groups: str) -> None:
    proposal = make_world(tmp_path, 3, groups=groups, policy=ROUND)

    async def play() -> None:
        async with running(tmp_path, proposal) as (hub, sites):
            for t in range(3):
                outcome = await hub.round()
                assert outcome.round == t
                assert np.allclose(outcome.sum(), expected(range(3), t), atol=1e-6)
                assert outcome.members == {(0, 0): (0, 1, 2)}
                assert outcome.dropouts == {}
            assert [one.calls for one in sites.values()] == [[0, 1, 2]] * 3
            evidence.append((hub.folder / "evidence").read_bytes())

    evidence: list[bytes] = []
    asyncio.run(play())
    for member in range(3):
        report = verify(evidence[0], journal=tmp_path / str(member) / "journal", threads=1)
        assert (report.problems, report.rounds, report.opened) == ((), 3, 3)
