"""Cells: who is in which, how many colluders each must withstand, and the plan that follows for each."""

import re
from fractions import Fraction
from itertools import chain, combinations
from math import comb
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import AgreementRefused, Policy, Schedule, UsageError
from secagg.agreement import Member
from secagg.agreement.cells import FAILURE_BITS, cell_sizes, check_cells, colluders_in_cell, threshold_in_cell
from secagg.agreement.terms import Terms
from secagg.crypto import Identity
from secagg.crypto.segments import Segment
from secagg.simulation import agree_on, make_agreement

SEED = bytes(range(32))


def beyond(members: int, colluders: int, cell: int, k: int) -> Fraction:
    """The probability that a random cell has more than k colluders."""
    ways = sum(comb(colluders, x) * comb(members - colluders, cell - x) for x in range(k + 1, cell + 1))
    return Fraction(ways, comb(members, cell))


@given(st.data())
def test_k_is_the_least_that_all_draws_exceed_with_probability_below_2_to_the_minus_40(data: st.DataObject) -> None:
    members = data.draw(st.integers(2, 300))
    colluders = data.draw(st.integers(0, members))
    cell, draws = data.draw(st.integers(1, members)), data.draw(st.integers(1, 10**6))
    k = colluders_in_cell(members, colluders, cell, draws)
    limit = Fraction(1, 2**FAILURE_BITS)
    assert draws * beyond(members, colluders, cell, k) < limit
    assert k == max(0, cell - (members - colluders)) or draws * beyond(members, colluders, cell, k - 1) >= limit


def test_the_tail_is_what_all_sets_of_colluders_give() -> None:
    for bad in range(7):
        hits = [len({0, 1, 2} & set(colluders)) for colluders in combinations(range(6), bad)]
        for k in range(4):
            assert beyond(6, bad, 3, k) == Fraction(sum(hit > k for hit in hits), len(hits))


def test_a_third_of_1000_in_fixed_cells_of_100() -> None:
    k = colluders_in_cell(1000, 333, 100, draws=10)
    assert (k, threshold_in_cell(100, k)) == (67, 84)
    # The seed of a ceremony may be one of about 1000 that a relay could have refused.
    k = colluders_in_cell(1000, 333, 100, draws=10 * 1000)
    assert (k, threshold_in_cell(100, k)) == (71, 86)


def test_a_third_of_3000_no_longer_breaks_a_cell_of_300() -> None:
    """Finding 5: with a third of each cell as its bound, some cell almost certainly has more colluders."""
    assert 1 - (1 - beyond(3000, 1000, 300, 100)) ** 10 > Fraction(99, 100)
    k = colluders_in_cell(3000, 1000, 300, draws=10)
    assert 10 * beyond(3000, 1000, 300, k) < Fraction(1, 2**40)
    assert 2 * threshold_in_cell(300, k) > 300 + k


def test_a_large_roster_takes_little_time() -> None:
    assert colluders_in_cell(65535, 21845, 300, draws=219 * 200 * 65535) < 300


@given(st.integers(4, 200), st.integers(2, 60), st.sampled_from(["random", "fixed", "atoms"]), st.integers(1, 3))
def test_sizes_are_whole_groups_within_the_limit(n: int, most: int, name: str, groupings: int) -> None:
    schedule = Schedule(name=name, size=4, groupings=groupings, atom=2 if name == "atoms" else 0)
    try:
        sizes = cell_sizes(n, most, schedule)
    except UsageError:
        return
    assert all(size % 4 == 0 and size <= max(most, 4) for size in sizes) or sizes == (n // 4 * 4,)
    assert sum(sizes) == n // 4 * 4  # nobody is left out who would fit in a group
    assert max(sizes) - min(sizes) in (0, 4)


def drawn(name: str, round: int, sample: int | None = None, groupings: int = 1) -> list[tuple[int, ...]]:
    schedule = Schedule(name=name, size=6, groupings=groupings, atom=3 if name == "atoms" else 0)
    sizes = cell_sizes(sample or 60, 18, schedule)
    cells = schedule.draw_cells(range(60), SEED, round, sizes, sample)
    assert [len(cell.clients) for cell in cells] == list(sizes)
    together = list(chain.from_iterable(cell.clients for cell in cells))
    assert len(set(together)) == len(together)
    for cell in cells:
        assert all(sorted(chain.from_iterable(grouping)) == list(cell.clients) for grouping in cell.groupings)
        assert all(set(atom) <= set(cell.clients) for atom in cell.atoms)
    return [cell.clients for cell in cells]


@pytest.mark.parametrize("name", ["fixed", "atoms"])
def test_lasting_cells_are_the_same_in_every_round(name: str) -> None:
    assert drawn(name, 0) == drawn(name, 1) == drawn(name, 17)


@pytest.mark.parametrize("name", ["random", "fixed", "atoms", "transversal"])
def test_other_cells_are_drawn_again_in_every_round(name: str) -> None:
    sample = 36 if name in ("fixed", "atoms") else None
    if name == "transversal":
        schedule = Schedule(name=name, size=3, groupings=3)
        cells = [[c.clients for c in schedule.draw_cells(range(60), SEED, t, (30, 30))] for t in (0, 1)]
        assert cells[0] != cells[1]
    else:
        assert drawn(name, 0, sample) != drawn(name, 1, sample)


@given(st.integers(0, 50), st.sampled_from([None, 36]))
def test_atoms_stay_whole_over_rounds_samples_and_cells(round: int, sample: int | None) -> None:
    schedule = Schedule(name="atoms", size=6, groupings=2, atom=3)
    lasting = set(schedule.atoms(range(60), SEED, 0))
    sizes = cell_sizes(sample or 60, 18, schedule)
    for cell in schedule.draw_cells(range(60), SEED, round, sizes, sample):
        assert set(cell.atoms) <= lasting
        for group in chain.from_iterable(cell.groupings):
            assert sum(set(atom) <= set(group) for atom in cell.atoms) == 2


def test_atoms_that_do_not_fit_are_left_out_of_every_round() -> None:
    schedule = Schedule(name="atoms", size=6, atom=3)
    cells = [[c.clients for c in schedule.draw_cells(range(39), SEED, t, (18, 18))] for t in range(8)]
    assert all(cell == cells[0] for cell in cells)


def test_one_cell_is_drawn_as_without_cells() -> None:
    for name in ("random", "fixed", "transversal", "atoms"):
        schedule = Schedule(name=name, size=6, groupings=2, atom=3 if name == "atoms" else 0)
        (cell,) = schedule.draw_cells(range(40), SEED, 5, (36,))
        assert cell.groupings == schedule.draw(range(40), SEED, 5)


def test_cells_have_their_own_random_order() -> None:
    schedule = Schedule(name="fixed", size=2, groupings=2)
    first, second = schedule.draw_cells(range(40), SEED, 0, (20, 20))
    places = [
        [tuple(map(cell.clients.index, group)) for group in chain.from_iterable(cell.groupings)]
        for cell in (first, second)
    ]
    assert places[0] != places[1]


def test_cells_without_a_threshold_are_refused_with_what_fits() -> None:
    with pytest.raises(UsageError, match="a cell of 6 may consist of them alone") as refused:
        make_agreement(members=60, size=6, length=1, clip=1.0, groups="survivors", cell=6)
    assert "use cells of at least 20 clients or assume at most 5 colluders" in str(refused.value)
    make_agreement(members=60, size=6, length=1, clip=1.0, groups="survivors", cell=6, colluders=5)
    for cell, fits in ((19, False), (20, True)):
        k = colluders_in_cell(60, 20, cell, draws=10 * 59)
        assert (k < cell) is fits


def test_draws_count_cells_rounds_and_seeds() -> None:
    """Fixed cells are drawn once, others in every round; a relay of the ceremony chooses among n - 1 seeds."""
    common = {"members": 60, "size": 6, "length": 1, "clip": 1.0, "groups": "survivors", "cell": 30, "rounds": 20}
    common |= {"policy": Policy(memory="round"), "colluders": 5}
    for name, sample, draws in (("fixed", 0, 2 * 59), ("random", 0, 2 * 20 * 59), ("fixed", 48, 2 * 20 * 59)):
        found = make_agreement(**common, schedule=name, sample=sample)[0].terms  # type: ignore[arg-type]
        assert found.draws == draws
        assert found.colluders_of(30) == colluders_in_cell(60, 5, 30, draws)
    atoms = {"schedule": "atoms", "atom": 3}
    assert make_agreement(**common | atoms)[0].terms.draws == 2 * 59  # type: ignore[arg-type]
    assert make_agreement(**common | atoms | {"cell": 0})[0].terms.draws == 20 * 59  # type: ignore[arg-type]


def test_a_threshold_is_held_against_every_cell() -> None:
    check_cells(1000, 333, (100,), 10, 84)
    for threshold in (83, 101):
        with pytest.raises(UsageError, match=f"threshold: {threshold} does not fit .* expected 84 to 100"):
            check_cells(1000, 333, (100,), 10, threshold)


def test_a_plan_follows_from_the_agreement() -> None:
    agreement, _ = make_agreement(
        members=40,
        size=4,
        length=3,
        clip=1.0,
        groups="survivors",
        cell=20,
        rounds=5,
        schedule="random",
        colluders=3,
        policy=Policy(memory="round"),
    )
    for round in (0, 4):
        plans = [agreement.plan(round, cell, b"model") for cell in range(2)]
        assert sorted(chain.from_iterable(plan.ids for plan in plans)) == list(range(40))
        joined = tuple(tuple(chain.from_iterable(plan.groupings[0] for plan in plans)) for _ in range(1))
        assert joined == agreement.groupings(round)
        for plan in plans:
            assert plan.assumed_colluders == 3
            assert plan.t == threshold_in_cell(20, 3)
            assert (plan.round, plan.context, plan.training_id) == (round, b"model", agreement.fingerprint)
    assert len({agreement.plan(t, c, x).hash for t in (0, 1) for c in (0, 1) for x in (b"", b"model")}) == 8


def test_a_plan_of_no_cell_round_or_kind_is_refused() -> None:
    agreement, _ = make_agreement(members=6, size=3, length=1, clip=1.0, groups="survivors")
    for round, cell, why in (
        (1, 0, "round 1 is not in the agreement"),
        (0, 1, "cell: expected .* from 0 to 0"),
    ):
        with pytest.raises(UsageError, match=why):
            agreement.plan(round, cell, b"")
    whole, _ = make_agreement(members=6, size=3, length=1, clip=1.0)
    with pytest.raises(UsageError, match="'survivors'"):
        whole.plan(0, 0, b"")


def test_weights_are_normalised_over_all_members() -> None:
    """A client's factor must not depend on who was drawn with it (finding 3)."""
    identities = {v: Identity.generate() for v in range(12)}
    members = tuple(Member(v, identities[v].public, weight=5 if v == 4 else 1) for v in range(12))
    terms = Terms(
        name="weights",
        members=members,
        segments=(Segment(shape=(1,), clip=1.0),),
        schedule=Schedule(name="random", size=3),
        last_round=3,
        groups="survivors",
        cell=6,
        colluders=1,
        policy=Policy(memory="round"),
    )
    agreement = agree_on(terms, identities)
    factors = {
        (v, plan.relative_weight(v))
        for round in range(4)
        for plan in (agreement.plan(round, cell, b"") for cell in range(2))
        for v in plan.ids
    }
    assert factors == {(v, (5 if v == 4 else 1) * 12 / 16) for v in range(12)}


def sparse(**more: Any) -> Terms:
    common = {"members": 300, "size": 300, "length": 1, "clip": 1.0, "groups": "survivors"}
    return make_agreement(**common | more)[0].terms  # type: ignore[arg-type]


def test_sparse_neighbourhoods_that_are_too_small_are_refused_with_what_fits() -> None:
    with pytest.raises(
        AgreementRefused, match=r"degree: with 30 colluders among 300 clients, .*degree = (\d+)"
    ) as refused:
        sparse(degree=20, threshold=11, colluders=30)
    degree, threshold = map(int, re.findall(r"(?:degree|threshold) = (\d+)", str(refused.value)))
    plan_terms = sparse(degree=degree, threshold=threshold, colluders=30)
    assert plan_terms.degree == degree
    with pytest.raises(AgreementRefused, match="degree: "):
        sparse(degree=degree - 2, threshold=threshold - 1, colluders=30)


def test_the_sparse_mode_sums_one_group() -> None:
    with pytest.raises(UsageError, match="sums one group of all clients"):
        sparse(size=100, degree=20, threshold=11, colluders=3)
    agreement, _ = make_agreement(
        members=40, size=20, length=1, clip=1.0, groups="survivors", cell=20, degree=10, threshold=8, colluders=3
    )
    assert agreement.plan(0, 1, b"").degree == 10
