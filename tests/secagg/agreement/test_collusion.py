"""How likely colluders leave an honest client alone: against all sets of colluders, and against simulation."""

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Policy, Schedule, UsageError
from secagg.agreement import Terms, alone, alone_in_grouping, correlation
from secagg.simulation import make_agreement


def by_enumeration(members: int, colluders: int, size: int, groups: int, least: int) -> Fraction:
    cut = [set(range(start, start + size)) for start in range(0, size * groups, size)]
    bad = 0
    for chosen in combinations(range(members), colluders):
        inside = [len(group.intersection(chosen)) for group in cut]
        bad += any(least - 1 <= j < size for j in inside)
    return Fraction(bad, comb(members, colluders))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_the_probability_is_that_of_all_sets_of_colluders(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 5))
    groups = data.draw(st.integers(1, 10 // size))
    members = data.draw(st.integers(size * groups, 11))
    colluders, least = data.draw(st.integers(0, members)), data.draw(st.integers(2, size))
    found = alone_in_grouping(members, colluders, size=size, groups=groups, least=least)
    assert found == pytest.approx(float(by_enumeration(members, colluders, size, groups, least)), abs=1e-14)


@pytest.mark.parametrize(("size", "expected"), [(3, 0.92), (4, 0.30), (5, 0.05), (6, 0.0076)])
def test_a_fifth_of_sixty(size: int, expected: float) -> None:
    assert alone_in_grouping(60, 12, size=size, groups=60 // size) == pytest.approx(expected, rel=0.05)


def test_a_thousand_members_take_little_time() -> None:
    assert 0.03 < alone_in_grouping(1000, 333, size=10, groups=100) < 0.04
    assert alone_in_grouping(1000, 333, size=1000, groups=1) == 0.0


def test_nonsense_is_refused() -> None:
    for arguments in ({"size": 4, "groups": 3}, {"size": 4, "groups": 1, "least": 5}, {"size": 4, "groups": 0}):
        with pytest.raises(UsageError):
            alone_in_grouping(10, 3, **arguments)


def terms(**more: object) -> Terms:
    given: dict[str, object] = {"members": 24, "size": 4, "length": 1, "clip": 1.0} | more
    policy = Policy(mode="report-even-if-exposed") if given.get("groups") != "survivors" else Policy(memory="round")
    return make_agreement(**{"policy": policy, **given})[0].terms  # type: ignore[arg-type]


def simulated(terms: Terms, colluders: int, rounds: int, times: int = 400) -> float:
    """How often a fixed set of colluders leaves somebody alone, over random seeds."""
    rng, bad, hits = np.random.default_rng(3), set(range(colluders)), 0
    for _ in range(times):
        seed = rng.bytes(32)
        drawn = (terms.schedule.draw(terms.ids, seed, t, terms.sample or None) for t in range(rounds))
        groups = (group for groupings in drawn for grouping in groupings for group in grouping)
        hits += any(len(bad.intersection(group)) == len(group) - 1 for group in groups)
    return hits / times


@pytest.mark.parametrize("name", ["random", "fixed", "transversal", "atoms"])
@pytest.mark.parametrize("groupings", [1, 3])
@pytest.mark.parametrize("sample", [0, 14])
def test_a_round_or_a_training_is_as_likely_as_in_simulation(name: str, groupings: int, sample: int) -> None:
    if name == "fixed" and sample and groupings > 1:
        return  # what fits in a sample depends on the seed
    found = terms(schedule=name, groupings=groupings, atom=2 if name == "atoms" else 0, rounds=2, sample=sample)
    for rounds in (1, 2):
        risk, truth = alone(found, 6, rounds=rounds), simulated(found, 6, rounds)
        if risk.exact and not (name == "fixed" and sample):
            assert risk.probability == pytest.approx(truth, abs=0.08)
        assert truth <= risk.probability + 0.07
    if groupings == 1 and name in ("random", "fixed"):
        assert risk.exact


def test_atoms_bound_any_number_of_rounds() -> None:
    found = terms(size=8, schedule="atoms", atom=4, groupings=2, rounds=10**6)
    assert alone(terms(size=8, schedule="atoms", atom=4), 3).probability == 0.0  # no group has seven colluders
    risk = alone(found, 3, rounds=10**6)  # but the sums of several rounds give those of the atoms
    assert risk.probability == alone_in_grouping(24, 3, size=4, groups=6)
    assert not risk.exact


def test_with_survivors_the_server_chooses_who_is_left() -> None:
    """Finding 6: T = 3 beside a third of colluders. In groups of 10, two colluders and dropouts isolate a client."""
    shrinking = terms(members=60, size=10, groups="survivors", schedule="random")
    assert alone(shrinking, 20).probability > 0.999
    assert alone(terms(members=60, size=10), 20).probability < 0.01
    flat = terms(members=60, size=60, groups="survivors")
    assert alone(flat, 20).probability == 0.0  # t = 41 survivors, of which 20 collude
    careful = Policy(min_survivors=9, memory="round")
    assert alone(terms(members=60, size=10, groups="survivors", policy=careful), 20).probability < 0.1


def test_correlation_is_the_root_of_leverage() -> None:
    """Finding 7: 0.8 allowed 0.894; the default of 0.5 allows 0.707. tests/secagg/test_leverage.py simulates it."""
    assert correlation(0.8) == pytest.approx(0.8944, abs=1e-4)
    assert correlation(Policy().max_leverage) == pytest.approx(0.7071, abs=1e-4)


def test_groups_of_every_schedule_are_uniform() -> None:
    """The exact formula assumes that each grouping alone is a uniformly random one."""
    rng, hits = np.random.default_rng(5), dict.fromkeys(["random", "fixed", "transversal", "atoms"], 0)
    for name in hits:
        schedule = Schedule(name=name, size=4, groupings=2, atom=2 if name == "atoms" else 0)
        for _ in range(1500):
            grouping = schedule.draw(range(12), rng.bytes(32), 0)[1]
            hits[name] += any({0, 1} <= set(group) for group in grouping)
    assert all(hit / 1500 == pytest.approx(3 / 11, abs=0.05) for hit in hits.values())
