"""Simulations with noise: secure and clear sums are the same, bit for bit, if the noise is."""

from typing import Any

import numpy as np
import pytest

from secagg import Policy, Stage
from secagg.agreement import Noise
from secagg.crypto import SegmentNoise
from secagg.simulation import WholeRun, clear, clear_whole, make_agreement, run
from secagg.types import Entropy
from tests.secagg.drbg import Drbg

NOISE = Noise(segments=(SegmentNoise(clip=1.0, sigma=10**6),), colluders=0)


def source(client: int, round: int) -> Entropy:
    return Drbg(b"noise of %d in %d" % (client, round))


def inputs(size: int) -> dict[int, Any]:
    return {v: np.random.default_rng(v).normal(0, 0.2, size) for v in range(12)}


@pytest.mark.parametrize("processes", [1, 2])
def test_whole_groups_in_the_clear_give_the_same_noisy_sums(processes: int) -> None:
    agreement, identities = make_agreement(
        members=12, size=6, groupings=2, schedule="atoms", atom=3, length=50, clip=16.0, noise=NOISE, rounds=2,
    )  # fmt: skip
    secure = WholeRun(agreement, identities, processes=processes, noise=source)
    for t in range(2):
        found = secure.round(t, inputs(50), drop=[3])
        same = clear_whole(agreement, t, inputs(50), [3], noise=source)
        fresh = clear_whole(agreement, t, inputs(50), [3])
        assert found.groups.keys() == same.groups.keys()
        for group in found.groups:
            assert np.array_equal(found.groups[group].total, same.groups[group].total)
            assert not np.array_equal(found.groups[group].total, fresh.groups[group].total)


def test_survivors_in_the_clear_give_the_same_noisy_sums() -> None:
    agreement, identities = make_agreement(
        members=12, size=6, length=50, clip=16.0, noise=NOISE, groups="survivors", policy=Policy(memory="round")
    )
    drop = {4: Stage.INPUTS}
    found = run(agreement, inputs(50), identities, drop=drop, noise=source)
    same = clear(agreement, inputs(50), drop=drop, noise=source)
    assert found.groups.keys() == same.groups.keys()
    assert all(np.array_equal(found.groups[g].total, same.groups[g].total) for g in found.groups)
