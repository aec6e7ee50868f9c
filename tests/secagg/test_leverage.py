"""Leverage: exact to rounding, the same bits everywhere, and the price of differential privacy."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.exposure import leverage as module
from secagg.exposure.leverage import Leverage
from secagg.exposure.rowspace import Field, RowSpace
from secagg.exposure.schedules import Schedule
from tests.secagg import rational

FIELD = Field.drawn_from(b"a test")
SEED = bytes(32)

rows_of_columns = st.integers(1, 8).flatmap(
    lambda n: st.tuples(
        st.lists(st.sets(st.integers(0, n - 1), min_size=1).map(tuple), min_size=1, max_size=8),
        st.lists(st.integers(1, 9), min_size=n, max_size=n),
    )
)


def measure(rows, weights) -> Leverage:
    space, result = RowSpace(len(weights), FIELD), Leverage(np.array(weights, np.float64))
    for row in rows:
        if space.add(row):
            result.add(row)
    return result


@settings(deadline=None, max_examples=300)
@given(rows_of_columns)
def test_leverage_is_the_diagonal_of_the_projector(case):
    rows, weights = case
    exact = rational.leverage(rows, range(len(weights)), [Fraction(w) for w in weights])
    assert measure(rows, weights).values == pytest.approx([float(value) for value in exact], abs=1e-10)


@pytest.mark.parametrize(("name", "size", "groupings"), [("random", 6, 4), ("transversal", 5, 4), ("random", 3, 3)])
def test_the_interpreter_computes_the_same_bits(name, size, groupings, monkeypatch):
    draw = Schedule(name=name, size=size, groupings=groupings).draw(range(30), SEED, 0)
    rows = [group for grouping in draw for group in grouping]
    weights = [1 + (7 * i % 11) / 3 for i in range(30)]
    compiled = measure(rows, weights).values.tobytes()
    monkeypatch.setattr(module, "remainder", module.remainder.py_func)
    assert measure(rows, weights).values.tobytes() == compiled


def test_mean_leverage_is_rank_over_clients_and_one_grouping_gives_one_over_m():
    draw = Schedule(name="random", size=5, groupings=3).draw(range(60), SEED, 0)
    space, result = RowSpace(60, FIELD), Leverage(np.ones(60))
    for grouping in draw:
        for group in grouping:
            if space.add(group):
                result.add(group)
        if space.rank == 12:
            assert result.values == pytest.approx(0.2)
    assert space.rank == 3 * 11 + 1
    assert result.values.mean() == pytest.approx(34 / 60)


def test_a_heavy_client_has_a_high_leverage():
    assert measure([(0, 1, 2)], [10, 1, 1]).values == pytest.approx([100 / 102, 1 / 102, 1 / 102])


def test_numerically_dependent_rows_count_as_exposing():
    values = measure([(0, 1, 2), (0, 1)], [1, 1, 1e-9]).values
    assert (values == 1).all()
    result = Leverage(np.array([1, 1, 1e-9]))
    result.add((0, 1, 2))
    assert (result.consider((0, 1)) == 1).all()


@settings(deadline=None, max_examples=100)
@given(rows_of_columns, st.integers(0, 7), st.floats(1.5, 32))
def test_the_zcdp_cost_of_noise_added_once_is_leverage_times_that_of_one_release(case, client, alpha):
    """The Rényi divergence between what the server sees of two neighbouring inputs, from its covariance.

    Each client adds N(0, 1) to its update once; the server sees A·diag(w)·(x + z). One release alone of a
    client that moves by 1 costs α/2.
    """
    rows, weights = case
    client %= len(weights)
    seen = np.array(rational.matrix(rows, range(len(weights))), float) * np.array(weights)
    moved = seen[:, client]
    renyi = alpha / 2 * moved @ np.linalg.pinv(seen @ seen.T, rcond=1e-9) @ moved
    assert renyi == pytest.approx(alpha / 2 * measure(rows, weights).values[client], abs=1e-6 * alpha)


def test_the_privacy_loss_of_sampled_noise_has_the_mean_that_leverage_predicts():
    draw = Schedule(name="random", size=4, groupings=2).draw(range(12), SEED, 0)
    seen = np.array(rational.matrix([g for grouping in draw for g in grouping], range(12)), float)
    basis = np.linalg.svd(seen, full_matrices=False)
    vectors = basis.Vh[basis.S > 1e-9]  # what the server sees is an invertible map of vectors @ (x + z)
    rng = np.random.default_rng(7)
    sigma, client = 2.0, 5
    noisy = vectors @ rng.normal(0, sigma, (12, 200_000))
    shift = vectors[:, [client]]
    loss = (((noisy - shift) ** 2).sum(0) - (noisy**2).sum(0)) / (2 * sigma**2)
    rho = measure([g for grouping in draw for g in grouping], [1] * 12).values[client] / (2 * sigma**2)
    assert loss.mean() == pytest.approx(rho, rel=0.03)
    assert loss.var() == pytest.approx(2 * rho, rel=0.03)


def test_two_groupings_can_cost_one_client_more_than_twice_as_much():
    """The rank, and so the mean, grows at most R times; the leverage of a client does not obey that."""
    rows = [(5, 16, 17), (3, 6, 11), (0, 2, 13), (1, 10, 14), (4, 7, 8), (9, 12, 15)]
    rows += [(4, 7, 14), (3, 5, 11), (1, 2, 10), (15, 16, 17), (8, 9, 12), (0, 6, 13)]
    found = measure(rows, [1] * 18)
    assert found.values.max() == pytest.approx(8 / 9)
    assert found.values.mean() <= 2 / 3


@pytest.mark.parametrize(("size", "groupings"), [(3, 1), (4, 2), (10, 5)])
def test_the_best_estimate_has_correlation_root_leverage_with_an_update(size, groupings):
    """Finding 7: a limit of 0.8 on leverage is a correlation of up to 0.894, not a harmless share."""
    rng = np.random.default_rng(7)
    n, d = 60, 40_000
    draw = Schedule(name="random", size=size, groupings=groupings).draw(range(n), SEED, 0)
    rows = [group for grouping in draw for group in grouping]
    matrix = np.array([[v in row for v in range(n)] for row in rows], float)
    updates = rng.normal(size=(n, d))
    estimates = np.linalg.pinv(matrix) @ (matrix @ updates)
    cosines = np.einsum("nd,nd->n", estimates, updates)
    cosines /= np.linalg.norm(estimates, axis=1) * np.linalg.norm(updates, axis=1)
    assert cosines == pytest.approx(np.sqrt(measure(rows, [1] * n).values), abs=0.02)


def test_a_row_that_is_nearly_dependent_is_projected_twice():
    result = measure([(0, 1, 2), (0, 1)], [1.1, 0.7, 1e-4])
    assert result.rank == 2
    assert not result.lost
    assert abs(result._basis[0] @ result._basis[1]) < 1e-14  # one projection alone leaves about 1e-12


def test_the_values_are_a_copy():
    result = measure([(0, 1, 2)], [1, 1, 1])
    result.values[:] = 0
    assert result.values == pytest.approx(1 / 3)


def test_what_was_lost_stays_lost_for_every_later_row():
    result = Leverage(np.array([1, 1, 1e-9, 1, 1]))
    for row in ((0, 1, 2), (0, 1)):
        result.add(row)
    assert (result.consider((3, 4)) == 1).all()
    result.add((3, 4))
    assert (result.values == 1).all()
