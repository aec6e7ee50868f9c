"""zCDP as (epsilon, delta): the figures of dp-accounting, and the definition."""

import math
import warnings
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import UsageError
from secagg.privacy import Budget, Charge, epsilon, rho_within
from secagg.privacy.budget import ETA_UNIT, RHO_UNIT

# python -c "from dp_accounting.rdp import rdp_privacy_accountant as r; o = r.DEFAULT_RDP_ORDERS;
#            print(r.compute_epsilon(o, [a * RHO for a in o], DELTA)[0])"   (dp-accounting 0.6.0)
RECORDED = {
    (0.0001, 1e-05): 0.045089034092552556,
    (0.0001, 1e-09): 0.0775912297667542,
    (0.01, 1e-05): 0.5458132098177004,
    (0.01, 0.001): 0.35437147789350365,
    (0.5, 1e-05): 4.728507067217623,
    (0.5, 1e-09): 6.4741236679351335,
    (1.0, 1e-05): 7.077391578166641,
    (3.0, 1e-12): 20.460560179151102,
    (10.0, 0.001): 25.089030551383694,
    (100.0, 0.1): 128.8095582117724,
}
ORDERS = [1 + x / 10.0 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024]  # its default
rhos = st.floats(1e-7, 1e3)
deltas = st.floats(1e-15, 0.4)


@pytest.mark.parametrize(("rho", "delta"), RECORDED)
def test_epsilon_is_that_of_dp_accounting_on_its_orders_and_never_above_it(rho: float, delta: float) -> None:
    assert epsilon(rho, delta, ORDERS) == pytest.approx(RECORDED[rho, delta], abs=1e-9)
    assert epsilon(rho, delta) <= RECORDED[rho, delta] + 1e-12


@pytest.mark.long
def test_epsilon_agrees_with_dp_accounting_as_it_is_installed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dp_accounting.rdp import rdp_privacy_accountant as oracle
    for power in range(-28, 21):
        for delta in (1e-15, 1e-9, 1e-5, 1e-2, 0.4):
            rho = 10 ** (power / 4)
            theirs = oracle.compute_epsilon(ORDERS, [order * rho for order in ORDERS], delta)[0]
            assert epsilon(rho, delta, ORDERS) == pytest.approx(theirs, abs=1e-9, rel=1e-12)
            assert epsilon(rho, delta) <= theirs * (1 + 1e-12)


@settings(max_examples=200, deadline=None)
@given(rho=rhos, delta=deltas, order=st.floats(1.02, 1e6))
def test_no_order_gives_less_than_the_search_finds(rho: float, delta: float, order: float) -> None:
    assert epsilon(rho, delta) <= epsilon(rho, delta, [order]) * (1 + 1e-9) + 1e-12


@settings(max_examples=100, deadline=None)
@given(rho=rhos, delta=deltas)
def test_the_gaussian_mechanism_keeps_the_promise(rho: float, delta: float) -> None:
    """The exact delta of a Gaussian shifted by mu = sqrt(2 rho) (Balle and Wang 2018) is not above."""
    found, mu = epsilon(rho, delta), math.sqrt(2 * rho)

    def cdf(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    exact = cdf(mu / 2 - found / mu)
    if found < 600:
        exact -= math.exp(found) * cdf(-mu / 2 - found / mu)
    assert exact <= delta * (1 + 1e-6)


@settings(max_examples=100, deadline=None)
@given(limit=st.floats(1e-3, 1e3), delta=deltas)
def test_the_rho_within_a_limit_is_the_largest(limit: float, delta: float) -> None:
    rho = rho_within(limit, delta)
    assert epsilon(rho, delta) <= limit
    assert epsilon(rho * 1.000001 + 1e-12, delta) > limit


@settings(max_examples=100, deadline=None)
@given(
    limit=st.floats(0.01, 100),
    delta=st.floats(1e-12, 0.1),
    parts=st.lists(st.fractions(0, Fraction(1, 3)), min_size=1, max_size=30),
    eta=st.floats(0, 1e-3),
)
def test_what_a_budget_allows_is_within_it(limit: float, delta: float, parts: list[Fraction], eta: float) -> None:
    budget, total = Budget(limit, delta), Charge()
    for part in parts:
        charge = Charge.of(part, eta)
        assert charge.rho * Fraction(RHO_UNIT) >= part
        assert charge.eta * Fraction(ETA_UNIT) >= Fraction(eta)
        if budget.allows(total + charge):
            total += charge
    assert total.epsilon(delta) <= limit * (1 + 1e-9)


def test_a_charge_is_rounded_up_to_whole_units() -> None:
    assert Charge.of(Fraction(RHO_UNIT) / 3, ETA_UNIT / 3) == Charge(1, 1)
    assert Charge.of(5 * Fraction(RHO_UNIT), 7 * ETA_UNIT) == Charge(5, 7)


def test_neither_total_of_a_budget_is_exceeded_by_a_unit() -> None:
    budget = Budget(2.0, 1e-6)
    assert budget.allows(budget.limit)
    assert not budget.allows(Charge(budget.limit.rho + 1, 0))
    assert not budget.allows(Charge(0, budget.limit.eta + 1))


def test_a_budget_buys_almost_all_of_its_epsilon() -> None:
    for limit in (0.1, 1.0, 8.0, 50.0):
        spent = Charge(Budget(limit, 1e-6).limit.rho)
        assert 0.99 * limit < spent.epsilon(1e-6) <= limit


def test_noise_too_small_for_the_grid_has_no_charge() -> None:
    with pytest.raises(UsageError, match="too small for the grid"):
        Charge.of(Fraction(1), math.inf)
    assert Charge.of(Fraction(10**30), 0.0) == Charge(2**63 - 1)
    assert Charge(0, 2**63 - 1).epsilon(1e-5) > 10


@pytest.mark.parametrize(("limit", "delta"), [(0, 0.1), (1, 0), (-1, 0.1), (1, 1), (math.nan, 0.1), ("1", 0.1)])
def test_a_budget_has_a_positive_epsilon_and_a_small_delta(limit: float, delta: float) -> None:
    with pytest.raises(UsageError, match="budget: "):
        Budget(limit, delta)


@pytest.mark.parametrize("arguments", [(-1.0, 0.1), (1.0, 0.0), (1.0, 1.0), (math.inf, 0.1), (1.0, 0.1, [1.0])])
def test_arguments_that_mean_nothing_are_refused(arguments: tuple[float, float]) -> None:
    with pytest.raises(UsageError):
        epsilon(*arguments)
