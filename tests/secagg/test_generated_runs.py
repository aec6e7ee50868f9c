"""Generated runs (`generated.py`, `check_outcome`) have these properties:

- A group sum is right if all clients of the group followed stage 2.
- There are no errors except those that the package defines.
- No run stops while n - dropouts - cheaters >= t.
- No honest client is blamed.
"""

import pytest

from tests.secagg.cheats import CHEATS
from tests.secagg.generated import MOST, draw, play_all

FAST, LONG, BLOCK = 200, 10_000, 500


@pytest.mark.parametrize("first", range(0, FAST, 50))
def test_generated_runs_are_exact_finish_and_blame_nobody_honest(first: int) -> None:
    totals = play_all(range(first, first + 50))
    assert totals["runs"] == 50
    assert totals["sums exact"] > 0
    assert totals["must finish"] > 0


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, LONG, BLOCK))
def test_ten_thousand_generated_runs_are_exact_finish_and_blame_nobody_honest(first: int) -> None:
    totals = play_all(range(first, first + BLOCK))
    print(totals)
    assert totals["runs"] == BLOCK


def test_the_generator_reaches_every_size_schedule_cheat_and_kind_of_trouble() -> None:
    cases = [draw(seed) for seed in range(3000)]
    assert {len(case.plan.ids) for case in cases} == set(range(2, MOST + 1))
    assert {case.plan.schedule.name for case in cases} == {"random", "fixed", "transversal", "atoms"}
    assert {case.plan.schedule.groupings for case in cases} == {1, 2, 3, 4}
    assert any(case.plan.weights for case in cases)
    assert any(case.plan.semi_honest_only for case in cases)
    assert any(len(case.plan.ids) < case.plan.members for case in cases)  # somebody is left out
    drawn = {name for case in cases for name in case.cheaters.values()}
    assert {name for name in CHEATS if not name.startswith("silence")} <= drawn
    assert {stage for case in cases for stage in case.absent.values()} == set(range(5))
    full = [case for case in cases if len(case.plan.ids) - len(case.absent) - len(case.cheaters) == case.plan.t]
    assert len(full) > 100  # exactly at the threshold
