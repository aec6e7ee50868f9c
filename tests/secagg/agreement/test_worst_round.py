"""The most that a round costs is what it costs somebody in some round, and finding it takes no time."""

from fractions import Fraction
from typing import Any

import pytest

from secagg import AgreementRefused, Policy
from secagg.agreement import Noise, round_figures, worst_round
from secagg.agreement.cost import _size, charge
from secagg.privacy.smoothing import Kernel
from tests.secagg.agreement.common import Trial
from tests.secagg.agreement.test_cost import COARSE, REPORT, noisy, weighted

LOOSE = Policy(max_leverage=1.0, anonymity=2, memory="round")
HEAVY = (1, 1, 1, 1, 1, 1, 1, 1, 9)


@pytest.mark.parametrize(
    "more",
    [
        {"schedule": "transversal", "rounds": 3},  # one grouping
        {"schedule": "transversal", "groupings": 2, "rounds": 1},
        {"schedule": "random", "size": 4, "rounds": 1},  # one of nine is left out
        {"schedule": "random", "rounds": 3},
        {"schedule": "fixed", "size": 4, "rounds": 3},
        {"schedule": "atoms", "size": 4, "atom": 2, "rounds": 3},  # one of nine has no atom
        {"schedule": "atoms", "size": 4, "atom": 2, "groupings": 2, "rounds": 3},
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_the_worst_round_of_members_is_the_worst_of_their_rounds(more: dict[str, Any], seed: int) -> None:
    trial = Trial(weighted(HEAVY, **more, policy=LOOSE), seed=bytes([seed]) * 32)
    terms = trial.terms
    drawn = {
        v
        for round in terms.rounds
        for cell in trial.cells(round)
        for grouping in cell.groupings
        for group in grouping
        for v in group
    }
    for members in ([0], [8], [3, 8], terms.ids):
        there = [v for v in members if v in drawn]
        figures = [round_figures(trial, round, v) for v in there for round in terms.rounds]
        found = worst_round(trial, members)
        if figures:
            assert _size(found.assumed) >= max(_size(one.assumed) for one in figures)
        if terms.round_count == 1 or terms.schedule.name in ("fixed", "atoms") or 8 not in members or 8 in drawn:
            assert _size(found.assumed) == max((_size(one.assumed) for one in figures), default=(0, 0))


def test_a_grid_that_no_noise_is_enough_for_is_refused_at_once() -> None:
    """Whoever writes such an agreement must not keep those busy who read it."""
    with pytest.raises(AgreementRefused, match=r"^noise: sigma 1 is too .* use fewer groupings or fewer colluders$"):
        charge(noisy(), 0, Fraction(1, 2), Kernel(5, 10**30))


def test_many_colluders_take_no_time_where_they_leave_only_ones_own_noise() -> None:
    """The lattice around a member grows doubly exponentially with the colluders; it is not needed then."""
    noise = Noise(segments=COARSE.segments, colluders=29)
    trial = Trial(noisy(members=36, size=6, schedule="random", groupings=3, noise=noise, policy=REPORT))
    assert worst_round(trial).assumed == worst_round(trial).local


def test_a_member_that_a_round_with_several_groupings_does_not_draw_has_figures() -> None:
    trial = Trial(noisy(members=11, size=3, schedule="random", groupings=2, noise=COARSE, policy=REPORT, sample=6))
    drawn = {v for grouping in trial.groupings(0) for group in grouping for v in group}
    (absent, *_) = set(trial.terms.ids) - drawn
    figures = round_figures(trial, 0, absent)
    assert figures.everybody == figures.assumed == figures.local
