"""What openings cost, against the formulas of the documents in exact fractions."""

from fractions import Fraction
from math import inf
from typing import Any

import pytest

from secagg import AgreementRefused, Policy, UsageError
from secagg.agreement import Noise, Terms, all_rounds, cost, most_per_round, round_figures, worst_round
from secagg.agreement.cost import (
    LOCAL,
    Figures,
    _judged_once,
    _least_sigma,
    _Rows,
    charge,
    charged_groupings,
    check_noise,
    flat_charge,
    known_before_seed,
    round_charge,
    survivors_reserve,
    survivors_settled,
)
from secagg.agreement.keeping import lasting_atoms, lasting_groupings
from secagg.crypto import Segment, SegmentNoise
from secagg.privacy.budget import Charge
from secagg.privacy.leverage import leverage
from secagg.privacy.smoothing import Kernel, excess, kernel
from tests.secagg.agreement.common import Trial, plain_terms

ROUND = Policy(memory="round")
REPORT = Policy(memory="round", mode="report-even-if-exposed")
SEGMENTS = (Segment(name="a", shape=(3,), bound=50), Segment(name="b", shape=(2,), bound=9))
NOISE = Noise(segments=(SegmentNoise(clip=4, sigma=1), SegmentNoise(clip=3, sigma=2)), colluders=2)
COARSE = Noise(segments=(SegmentNoise(clip=4, sigma=9), SegmentNoise(clip=3, sigma=9)), colluders=1)
FLOATS = (Segment(shape=(2,), clip=64.0),)
FINE = Noise(segments=(SegmentNoise(clip=1.0, sigma=10**6),), colluders=1)


def noisy(**more: Any) -> Terms:
    given: dict[str, Any] = {"members": 6, "size": 6, "segments": SEGMENTS, "noise": NOISE}
    return plain_terms(**given | more)


def weighted(weights: tuple[int, ...], **more: Any) -> Terms:
    loose = Policy(max_leverage=1.0, memory="round")
    given: dict[str, Any] = {"size": 3, "weights": weights, "segments": FLOATS, "noise": FINE, "policy": loose}
    return plain_terms(**given | more)


def paid(terms: Terms, client: int, share: Fraction, lattice: Kernel | None = None) -> Charge:
    """share sum(norm^2 / 2 sigma^2), and what the grid adds around the client."""
    assert terms.noise is not None
    norms = terms.encoding.norms(terms.relative_weight(client))
    rho = sum(
        share * Fraction(norm**2, 2 * one.sigma**2) for norm, one in zip(norms, terms.noise.segments, strict=True)
    )
    eta = 0.0
    for segment, one in zip(terms.encoding.segments, terms.noise.segments, strict=True):
        eta += excess(lattice, one.sigma, segment.length) if lattice else 0.0
    return Charge.of(Fraction(rho), eta)


def in_a_group(terms: Terms, client: int, size: int, colluders: int) -> Charge:
    honest = size - colluders
    return (
        paid(terms, client, Fraction(1, honest), Kernel(size - 1, 2))
        if honest > 1
        else paid(terms, client, Fraction(1))
    )


def figures(terms: Terms, client: int, size: int, colluders: int) -> Figures:
    return Figures(
        in_a_group(terms, client, size, 0), in_a_group(terms, client, size, colluders), paid(terms, client, Fraction(1))
    )


# --- one opening ---------------------------------------------------------------------------------------------------


def test_a_charge_adds_up_all_segments_and_what_the_grid_adds() -> None:
    terms, lattice = noisy(), Kernel(5, 2)
    found = charge(terms, 0, Fraction(1, 4), lattice)
    assert found.rho == -int(-(Fraction(1, 4) * (Fraction(16, 2) + Fraction(9, 8)) * 2**40) // 1)
    assert found == paid(terms, 0, Fraction(1, 4), lattice)
    assert found.eta > paid(noisy(segments=SEGMENTS[:1], noise=Noise(segments=NOISE.segments[:1])), 0, Fraction(1, 4), lattice).eta > 0  # fmt: skip  # noqa: E501


def test_with_its_own_noise_alone_a_member_loses_nothing_on_the_grid() -> None:
    terms = noisy()
    whole = Charge.of(Fraction(8) + Fraction(9, 8), 0.0)
    assert charge(terms, 0, Fraction(1), Kernel(5, 2)) == charge(terms, 0, Fraction(1), None) == whole
    assert charge(terms, 0, Fraction(1), Kernel(10**6, 2)) == whole


def test_a_charge_without_noise_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^an agreement without noise has no cost$"):
        charge(plain_terms(), 0, Fraction(1), None)


@pytest.mark.parametrize(("lattice", "least"), [(Kernel(1, 2), 1), (Kernel(10**6, 2), 2), (Kernel(5, 100), 4)])
def test_noise_that_is_too_small_for_the_grid_is_refused_with_what_is_enough(lattice: Kernel, least: int) -> None:
    assert _least_sigma(lattice) == least
    assert excess(lattice, least, 1) < inf
    assert least == 1 or excess(lattice, least - 1, 1) == inf
    if least > 1:
        with pytest.raises(AgreementRefused, match=rf"^noise: sigma 1 is too small .* use at least {least}$"):
            charge(noisy(), 0, Fraction(1, 2), lattice)


def test_a_flat_sum_costs_the_share_that_the_honest_leave() -> None:
    terms = noisy()
    for size in range(1, 7):
        for colluders in range(size + 2):
            expected = in_a_group(terms, 0, size, colluders)
            assert flat_charge(terms, 0, size, colluders) == expected
        assert flat_charge(terms, 0, size, LOCAL) == paid(terms, 0, Fraction(1))


def test_charges_of_figures_are_added_and_multiplied_one_by_one() -> None:
    one = Figures(Charge(1, 2), Charge(3, 4), Charge(5, 6))
    assert one.times(3) == Figures(Charge(3, 6), Charge(9, 12), Charge(15, 18))
    assert one + one.times(2) == one.times(3)
    far = Figures(Charge(2**40, 0), Charge(2**41, 0), Charge(2**42, 0))
    assert far.epsilons(1e-5) == tuple(Charge(2**k, 0).epsilon(1e-5) for k in (40, 41, 42))


# --- rounds --------------------------------------------------------------------------------------------------------


def test_a_round_is_charged_for_the_assumed_colluders_or_another_number() -> None:
    training = Trial(noisy())
    for colluders, assumed in ((None, 2), (0, 0), (1, 1), (2, 2)):
        assert round_charge(training, 0, 3, colluders) == in_a_group(training.terms, 3, 6, assumed)
    assert round_charge(training, 0, 3, LOCAL) == paid(training.terms, 3, Fraction(1))
    assert round_figures(training, 0, 3) == figures(training.terms, 3, 6, 2)


def test_a_member_that_no_group_holds_is_charged_by_its_own_noise_at_most() -> None:
    training = Trial(noisy(members=7, size=3, groupings=1, policy=REPORT))
    (grouping,) = training.groupings(0)
    (left_out,) = set(range(7)).difference(*grouping)
    assert round_charge(training, 0, left_out, 0) == paid(training.terms, left_out, Fraction(1))


def test_overlapping_groups_cost_what_their_leverage_and_lattice_say() -> None:
    training = Trial(noisy(members=12, size=4, groupings=2, schedule="random", policy=REPORT, rounds=2, noise=COARSE))
    for client in (0, 7):
        for k in (0, 1):
            drawn = training.groupings(1)
            share, lattice = leverage(drawn, client, k), kernel(drawn, client, k)
            expected = paid(training.terms, client, share, lattice if share < 1 else None)
            assert round_charge(training, 1, client, k) == expected


def test_a_lattice_that_is_too_large_to_find_leaves_a_member_its_own_noise() -> None:
    """Three groupings of more than 100 members: their leverage could be computed, what the grid adds could not."""
    training = Trial(noisy(members=102, size=17, groupings=3, schedule="random", policy=REPORT, noise=COARSE))
    assert kernel(training.groupings(0), 0, 0) is None
    assert leverage(training.groupings(0), 0, 0) < 1
    assert round_charge(training, 0, 0, 0) == paid(training.terms, 0, Fraction(1))


def test_atoms_are_charged_where_several_sums_show_them() -> None:
    atoms: dict[str, Any] = {"members": 12, "size": 6, "schedule": "atoms", "atom": 3, "rounds": 2}
    for more, shown in (({}, False), ({"groupings": 2}, True), ({"groups": "survivors", "policy": ROUND}, True)):
        training = Trial(noisy(**atoms | more))
        lasting = lasting_atoms(None, training.terms.schedule, training.terms.ids, training.seed)
        assert charged_groupings(training, 1) == ((lasting,) if shown else training.groupings(1))
    fixed = Trial(noisy(members=12, groupings=2, policy=REPORT))
    assert charged_groupings(fixed, 0) == fixed.groupings(0)


def test_equal_groupings_are_judged_once() -> None:
    one, other = (((0, 1), (2, 3)),), (((0, 2), (1, 3)),)
    assert _Rows(one) == _Rows(one)
    assert hash(_Rows(one)) == hash(_Rows(one))
    assert _Rows(one) != _Rows(other)
    assert _Rows(one) != one


@pytest.mark.parametrize(
    ("more", "once"),
    [
        ({"schedule": "fixed", "groupings": 2, "weights": (1, 2, 1, 1, 1, 1)}, True),
        ({"schedule": "atoms", "size": 6, "atom": 3, "groupings": 2, "weights": (1, 2) * 6}, True),
        ({"schedule": "random", "groupings": 1}, True),
        ({"schedule": "random", "groupings": 2}, False),
        ({"schedule": "random", "groupings": 2, "rounds": 1}, True),
        ({"schedule": "transversal", "groupings": 2, "size": 2}, True),
        ({"schedule": "transversal", "groupings": 2, "size": 2, "weights": (1, 2, 1, 1, 1, 1)}, False),
    ],
)
def test_one_round_is_judged_for_all_where_all_are_alike(more: dict[str, Any], once: bool) -> None:
    given: dict[str, Any] = {"rounds": 3, "policy": REPORT} | more
    assert _judged_once(plain_terms(**given)) is once


# --- the worst member and the worst round --------------------------------------------------------------------------


def test_the_worst_member_of_disjoint_groups_is_the_heaviest() -> None:
    terms = weighted((1, 3, 2, 1, 1, 1), rounds=4)
    assert worst_round(Trial(terms)) == figures(terms, 1, 3, 1)
    assert worst_round(Trial(terms), [0, 2]) == figures(terms, 2, 3, 1)
    assert worst_round(Trial(terms), [3]) == figures(terms, 3, 3, 1)
    assert all_rounds(Trial(terms)) == figures(terms, 1, 3, 1).times(4)
    assert all_rounds(Trial(terms), [0, 2]) == figures(terms, 2, 3, 1).times(4)


def test_a_flat_sum_that_may_shrink_costs_its_heaviest_member_the_smallest_sum() -> None:
    policy = Policy(memory="round", anonymity=3, min_survivors=4, max_leverage=1.0)
    terms = weighted((1, 3, 2, 1, 1, 1), size=6, policy=policy, rounds=2)
    assert terms.varying
    assert worst_round(Trial(terms)) == figures(terms, 1, 4, 1)
    assert worst_round(Trial(terms), [0, 2]) == figures(terms, 2, 4, 1)


def test_overlapping_groups_cost_their_worst_member_in_their_worst_round() -> None:
    terms = weighted((1,) * 11 + (2,), size=4, groupings=2, schedule="random", policy=REPORT, rounds=3)
    training = Trial(terms)
    every = {(t, v, k): round_charge(training, t, v, k) for t in range(3) for v in range(12) for k in (0, 1)}
    worst = [max((every[t, v, k] for t in range(3) for v in range(12)), key=lambda c: (c.rho, c.eta)) for k in (0, 1)]
    assert worst_round(training) == Figures(worst[0], worst[1], paid(terms, 11, Fraction(1)))
    some = [max((every[t, v, k] for t in range(3) for v in (0, 5)), key=lambda c: (c.rho, c.eta)) for k in (0, 1)]
    assert worst_round(training, [0, 5]) == Figures(some[0], some[1], paid(terms, 0, Fraction(1)))


def test_a_member_that_the_groups_leave_out_costs_nothing() -> None:
    for groupings in (1, 2):
        training = Trial(noisy(members=7, size=3, groupings=groupings, policy=REPORT, noise=NOISE))
        drawn = training.groupings(0)
        (left_out,) = set(range(7)).difference(*drawn[0])
        if groupings > 1 and any(left_out in group for group in drawn[1]):
            continue
        found = worst_round(training, [left_out])
        assert found == Figures(Charge(), Charge(), paid(training.terms, left_out, Fraction(1)))


@pytest.mark.parametrize(
    "more", [{"schedule": "random"}, {"schedule": "random", "sample": 3}, {"schedule": "atoms", "atom": 3, "sample": 3}]
)
def test_a_heavy_member_that_only_later_rounds_draw_counts(more: dict[str, Any]) -> None:
    terms = weighted((1,) * 6 + (4,), rounds=9, **more)
    seed = next(seed for seed in map(bytes, ([k] * 32 for k in range(99))) if 6 not in _members(terms, seed))
    training = Trial(terms, seed=seed)
    later = max(round_charge(training, t, 6).rho for t in terms.rounds if 6 in _members(terms, seed, t))
    assert worst_round(training) == worst_round(training, [6]) == figures(terms, 6, 3, 1)
    assert worst_round(training).assumed.rho == later


def test_of_a_sample_only_the_groups_that_are_drawn_cost() -> None:
    given: dict[str, Any] = {"members": 12, "size": 4, "groupings": 2, "sample": 8, "policy": REPORT, "noise": COARSE}
    terms = noisy(schedule="random", **given)
    training = Trial(terms)
    every = [round_charge(training, 0, v, 0) for v in _members(terms, training.seed)]
    assert worst_round(training).everybody == max(every, key=lambda one: (one.rho, one.eta))


def test_a_member_of_a_grid_may_get_the_worst_place_in_another_round() -> None:
    terms = noisy(members=37, size=6, groupings=2, schedule="transversal", policy=REPORT, rounds=3, noise=COARSE)
    training = Trial(terms)
    (left_out,) = set(range(37)) - _members(terms, training.seed)
    assert worst_round(training, [left_out]) == worst_round(training)
    assert worst_round(training).everybody.rho >= round_charge(training, 1, left_out, 0).rho > 0


def test_every_fixed_group_counts_whoever_is_sampled() -> None:
    terms = weighted((1,) * 6 + (4,) + (1,) * 5, sample=3, rounds=2)
    training = Trial(
        terms, seed=next(s for s in map(bytes, ([k] * 32 for k in range(99))) if 6 not in _members(terms, s))
    )
    assert worst_round(training) == figures(terms, 6, 3, 1)
    assert any(6 in group for group in lasting_groupings(None, terms.schedule, terms.ids, training.seed)[0])


def _members(terms: Terms, seed: bytes, round: int = 0) -> set[int]:
    return set().union(*Trial(terms, seed=seed).groupings(round)[0])


def test_three_thousand_places_of_new_groupings_are_judged_and_more_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that, a member's own noise alone counts."""
    worst = Figures(Charge(1), Charge(2), Charge(3))
    monkeypatch.setattr(cost, "_worst", lambda training, round, members: worst)
    for rounds, judged in ((750, True), (751, False)):
        terms = noisy(members=4, size=2, groupings=2, schedule="random", policy=REPORT, rounds=rounds)
        assert worst_round(Trial(terms)) == (worst if judged else Figures(*[paid(terms, 0, Fraction(1))] * 3))


def test_the_noise_is_judged_with_the_groups() -> None:
    check_noise(Trial(plain_terms()))  # no noise, no cost
    check_noise(Trial(noisy()))
    tiny = Noise(segments=(SegmentNoise(clip=4, sigma=1), SegmentNoise(clip=3, sigma=1)))
    with pytest.raises(AgreementRefused, match="too small for the grid"):
        check_noise(Trial(noisy(members=36, size=6, groupings=2, schedule="random", policy=REPORT, noise=tiny)))


# --- survivors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ({"policy": ROUND}, 3),
        ({"policy": Policy(memory="round", anonymity=4)}, 4),
        ({"policy": Policy(memory="round", min_survivors=5)}, 5),
        ({"schedule": "atoms", "atom": 4, "size": 12, "policy": ROUND}, 4),
        ({"schedule": "atoms", "atom": 3, "size": 6, "groupings": 2, "policy": ROUND}, 3),
        ({"schedule": "random", "groupings": 2, "size": 6, "policy": ROUND}, 1),
        ({"policy": REPORT}, 1),
    ],
)
def test_survivors_reserve_the_smallest_sum_that_the_policy_allows(more: dict[str, Any], size: int) -> None:
    terms = noisy(**{"members": 12, "size": 12, "groups": "survivors", "colluders": 1} | more)
    for colluders, assumed in ((None, 2), (0, 0), (1, 1)):
        assert survivors_reserve(terms, 0, colluders) == in_a_group(terms, 0, size, assumed)
    assert worst_round(Trial(terms)) == figures(terms, 0, size, 2)
    assert known_before_seed(terms) == most_per_round(terms) == figures(terms, 0, size, 2)


def test_survivors_are_charged_for_the_heaviest_of_those_asked() -> None:
    terms = weighted((1, 3, 2, 1, 1, 1), size=6, groups="survivors", colluders=1)
    assert worst_round(Trial(terms)) == figures(terms, 1, 3, 1)
    assert worst_round(Trial(terms), [0, 2]) == figures(terms, 2, 3, 1)
    assert known_before_seed(terms) == figures(terms, 1, 3, 1)


def test_survivors_settle_for_the_sums_that_were_opened() -> None:
    terms = noisy(groups="survivors", colluders=1, policy=ROUND)
    assert survivors_settled(terms, 0, [(0, 1, 2, 3)]) == in_a_group(terms, 0, 4, 2)
    assert survivors_settled(terms, 0, [(5, 0, 4, 3), ()]) == in_a_group(terms, 0, 4, 2)
    assert survivors_settled(terms, 0, [(0, 1, 2, 3), (4, 5)]) == in_a_group(terms, 0, 4, 2)
    assert survivors_settled(terms, 4, [(0, 1, 2, 3), (4, 5)]) == paid(terms, 4, Fraction(1))
    for nothing in ([], [()], [(1, 2, 3)]):
        assert survivors_settled(terms, 0, nothing) == Charge()


# --- before there is a seed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ({"members": 12, "size": 4}, 4),
        ({"members": 12, "size": 6, "schedule": "atoms", "atom": 3}, 6),
        ({"members": 12, "size": 6, "schedule": "atoms", "atom": 3, "groupings": 2}, 3),
        ({"members": 12, "size": 12, "policy": ROUND}, 3),  # a flat sum that may shrink
        ({"members": 12, "size": 6, "groupings": 2, "policy": REPORT}, 0),
    ],
)
def test_what_does_not_depend_on_the_seed_is_known_before(more: dict[str, Any], size: int) -> None:
    terms = noisy(**more)
    known = figures(terms, 0, size, 2) if size else None
    assert known_before_seed(terms) == known
    assert most_per_round(terms) == (known or Figures(*[paid(terms, 0, Fraction(1))] * 3))


def test_the_heaviest_member_is_shown_before_there_is_a_seed() -> None:
    terms = weighted((1, 3, 2, 1, 1, 1))
    assert known_before_seed(terms) == figures(terms, 1, 3, 1)
    several = weighted((1, 3, 2, 1, 1, 1), groupings=2, policy=REPORT)
    assert most_per_round(several) == Figures(*[paid(several, 1, Fraction(1))] * 3)
