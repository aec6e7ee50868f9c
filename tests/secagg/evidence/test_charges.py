"""Charges with known answers: worked out by hand, where members of one record pay differently."""

from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import ceil

import pytest

from secagg import Stage
from secagg.agreement.agreement import Agreement
from secagg.agreement.cost import round_charge, survivors_reserve, survivors_settled
from secagg.evidence import Evidence, RoundRecord, RunRecord, charges, verify
from secagg.privacy.budget import Charge
from tests.secagg.evidence import common, run_common, second, second_policy, second_runs

RHO = 2**40  # units in one

# Two groupings of a, b, c, d, e, f: abc | def and abd | cef. The norm is 10, sigma 5, so that a leverage of 1 costs
# 10^2 / (2 * 5^2) = 2. One client colludes. If it is c, the server knows d (abd - abc), and the other way round: their
# leverage is 1, and their own noise is all that counts, on the grid too: eta is 0. For a, the worst colluder is b.
# Without b there are the sums ac, def, ad, cef. What they do not see is (a, c, d, e, f) = (1, -1, -1, 1/2, 1/2), of
# squared length 7/2: the leverage of a is 1 - 2/7. The same holds for b, e and f. Their eta is between 0 and 2^-60.
# A leverage of several groupings is raised by 10^-9 and then to a multiple of 2^-24: 11983726 is above 5/7 * 2^24.
EXPOSED, HIDDEN = Charge(2 * RHO, 0), Fraction(11983726, 2**24)


@cache
def two_groupings() -> tuple[Agreement, bytes]:
    """An agreement whose groupings cross, and the evidence of a round that everybody answered."""
    for seed in range(20):
        agreement, identities = common.agreed("noise of two groupings", seed)
        first, second = (set(map(frozenset, grouping)) for grouping in agreement.groupings(0))
        if not first & second:
            run = common.WholeRun(agreement, identities)
            run.round(0, {v: [v, 0, 1] for v in agreement.terms.ids})
            return agreement, run.evidence()
    raise AssertionError("all groupings are the same")


def moving(agreement: Agreement) -> set[int]:
    """c and d: who changes the company that the others of its group keep."""
    groups = list(agreement.groups(0).values())
    both = [set(a) & set(b) for a in groups[:2] for b in groups[2:]]
    return {v for pair in both if len(pair) == 1 for v in pair}


def test_members_of_two_groupings_pay_differently() -> None:
    agreement, _ = two_groupings()
    seated = set().union(*agreement.groups(0).values())
    found = {v: round_charge(agreement, 0, v) for v in seated}
    assert {v for v, charge in found.items() if charge == EXPOSED} == moving(agreement)
    others = [charge for v, charge in found.items() if v not in moving(agreement)]
    assert len(others) == 4
    assert set(others) == {Charge(ceil(2 * HIDDEN * RHO), 1)}


def test_a_round_has_the_highest_rho_and_the_highest_eta_of_different_members() -> None:
    agreement, data = two_groupings()
    record = Evidence.from_bytes(data).rounds[0]
    assert record.charge == (Charge(2 * RHO, 1),)
    assert charges.highest(agreement, 0, agreement.groups(0)) == (Charge(2 * RHO, 1),)
    assert verify(data).problems == ()
    assert second.check(data) == ""


def test_a_round_without_noise_or_without_a_complete_group_costs_nothing() -> None:
    agreement, _ = two_groupings()
    assert charges.highest(agreement, 0, {}) == ()
    quiet, _ = common.agreed("two groupings")
    assert charges.highest(quiet, 0, quiet.groups(0)) == ()


@pytest.mark.parametrize("wrong", [Charge(2 * RHO, 0), Charge(2 * RHO - 1, 1), Charge(ceil(2 * HIDDEN * RHO), 1)])
def test_a_lower_charge_of_a_round_is_found_by_both_verifiers(wrong: Charge) -> None:
    _, data = two_groupings()

    def lower(record: RoundRecord) -> RoundRecord:
        return replace(record, charge=(wrong,))

    (problem,) = verify(common.in_round(data, 0, lower)).problems
    assert f"its charge is rho {wrong.rho}, eta {wrong.eta}, and the agreement asks for rho {2 * RHO}, eta 1" in problem
    assert "the charge has the largest" in second.check(common.in_round(data, 0, lower))


# Seven clients, six of them in two groups of three. One drops out, so that two are left in its group. The norm is 10
# and sigma is 10, so that a leverage of 1 costs 1/2. One client colludes: of two, the other one may be it, and the own
# noise is all that counts; of three, two are left, and the leverage is 1/2. The reserve is for two, the least number.
PAIR, TRIPLE = Charge(RHO // 2, 0), Charge(RHO // 4, 1)


@cache
def shrunk() -> tuple[Agreement, bytes]:
    agreement = run_common.agreed("noise in groups")
    gone = min(agreement.groups(agreement.terms.first_round)[0, 0])
    result = run_common.played(agreement, stops={gone: Stage.INPUTS})
    return agreement, run_common.evidence_of(agreement, [result])


def test_members_of_a_group_that_shrank_pay_more() -> None:
    agreement, data = shrunk()
    record = Evidence.from_bytes(data).runs[0]
    alive = {one.sender for one in record.inputs}
    groups = [sorted(alive.intersection(group)) for group in agreement.groups(record.round).values()]
    assert sorted(map(len, groups)) == [2, 3]
    for group in groups:
        expected = PAIR if len(group) == 2 else TRIPLE
        assert {survivors_settled(agreement.terms, v, groups) for v in group} == {expected}
    assert {survivors_reserve(agreement.terms, v) for v in alive} == {PAIR}


def test_a_run_has_the_highest_rho_and_the_highest_eta_of_different_members() -> None:
    agreement, data = shrunk()
    record = Evidence.from_bytes(data).runs[0]
    assert record.reserved == (PAIR,)
    assert record.settled == (Charge(PAIR.rho, TRIPLE.eta),)
    alive = {one.sender for one in record.inputs}
    groups = [alive.intersection(group) for group in agreement.groups(record.round).values()]
    assert charges.highest_settled(agreement, alive, groups) == record.settled
    assert verify(data).problems == ()
    assert second_runs.check(data) == ""


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("settled", PAIR), ("settled", TRIPLE), ("settled", Charge()), ("reserved", TRIPLE), ("reserved", Charge())],
)
def test_a_lower_charge_of_a_run_is_found_by_both_verifiers(name: str, wrong: Charge) -> None:
    _, data = shrunk()

    def lower(record: RunRecord) -> RunRecord:
        return replace(record, **{name: (wrong,)})  # type: ignore[arg-type]

    (problem,) = verify(run_common.changed(data, 0, lower)).problems
    assert f"its {name} charge is {charges.text((wrong,))}" in problem
    assert "the charge has the largest" in second_runs.check(run_common.changed(data, 0, lower))


def test_who_weighs_more_reserves_more() -> None:
    """Weights of 3 to 6, in an agreement of mean weight 46/12: the cost grows with the square."""
    agreement = run_common.agreed("noise of weights in cells")
    light, heavy = (survivors_reserve(agreement.terms, v) for v in (0, 8))
    assert abs(heavy.rho / light.rho - 4) < 1e-6
    assert charges.highest_reserved(agreement, [0, 8, 9]) == (heavy,)
    assert charges.highest_reserved(agreement, [0, 9]) == (light,)


def test_the_second_verifier_finds_the_leverage_and_the_lattice_of_the_first() -> None:
    """Leverages and lattices of three groupings: by the code that is audited, and by trying all colluders."""
    from secagg.privacy.leverage import leverage
    from secagg.privacy.smoothing import kernel

    for seed in range(3):
        agreement, _ = common.agreed("noise of three groupings", seed)
        groupings = agreement.groupings(0)
        every = tuple(sorted({group for grouping in groupings for group in grouping}))
        for k in (0, 1, 2):
            for v in (0, 1):
                exact = second_policy.worst(every, v, k)
                assert 0 <= min(Fraction(1), leverage(groupings, v, k)) - exact <= Fraction(1, 10**7)
                found = kernel(groupings, v, k)
                assert found
                parts = second_policy.connected(groupings, v)
                rows = tuple(group for part in parts for group in part)
                assert (found.rank, found.square) == second_policy.lattice(rows, k)
