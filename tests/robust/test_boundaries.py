"""Limits of rules and kernels at their last permitted value, and what a rule says it did."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import robust
from robust import attacks, geometry, subsets, tolerance
from robust.kernels import distances, network

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("n", "f"), [(1, 0), (2, 0), (3, 1), (4, 1), (32, 15), (33, 16), (34, 16), (1000, 16)])
def test_the_search_for_the_least_diameter_leaves_out_a_minority_of_at_most_16(n: int, f: int) -> None:
    assert subsets.largest_f_for_diameter(n) == f


@pytest.mark.parametrize(("n", "f"), [(1, 0), (3, 1), (19, 9), (20, 8), (21, 7), (27, 5), (40, 4), (300, 1), (2000, 0)])
def test_the_search_for_the_least_eigenvalue_stays_within_its_work(n: int, f: int) -> None:
    assert subsets.largest_f_for_eigenvalue(n) == f


def test_the_tables_of_networks_are_shared_and_cannot_be_written() -> None:
    for table in (network.steps_to_sort(40), network.steps_to_select(40, 19, 21)):
        with pytest.raises(ValueError, match="read-only"):
            table[0, 0] = 1


def test_fltrust_does_not_accept_a_row_at_a_right_angle() -> None:
    assert robust.fltrust.detail([[1, 0], [0, 3], [-1, 0], [0, 0]], server=[2, 0]).accepted == (0,)


def test_dnc_without_bad_rows_draws_nothing() -> None:
    rng = np.random.default_rng(5)
    robust.dnc([[1, 2], [2, 1], [1, 1]], f=0, rng=rng)
    assert rng.integers(2**62) == np.random.default_rng(5).integers(2**62)


def test_caf_has_a_bound_where_n_is_three_times_f() -> None:
    assert robust.caf.kappa(9, 3) > 0
    assert robust.caf.kappa(10, 3) < robust.caf.kappa(9, 3)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_a_process_that_may_use_one_core_uses_one_thread() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from robust.kernels import threads; print(threads._limit)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.parametrize(("n", "sort", "select"), [(20, 32, 22), (40, 98, 76), (64, 169, 124)])
def test_comparators_are_joined_where_the_order_allows_it(n: int, sort: int, select: int) -> None:
    """Each step reads and writes its rows once: fewer steps are less traffic."""
    assert len(network.steps_to_sort(n)) == sort
    assert len(network.steps_to_select(n, (n - 1) // 2, n // 2 + 1)) == select


def test_many_rows_leave_room_for_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 2049 rows on, partial sums of distances take more than the room for them, and there is one of them."""
    monkeypatch.setattr(distances, "PARTIAL_BYTES", 8)
    x = np.array([[0], [3], [4]], np.float32)
    assert distances.squared_distances(x, np.arange(3)).tolist() == [[0, 9, 16], [9, 0, 1], [16, 1, 0]]


def test_caf_ends_when_exactly_n_less_2f_rows_are_left() -> None:
    """The first direction removes two rows, which leaves three of five: their mean is not considered."""
    assert robust.caf([[0, 0], [0, 0], [0, 0], [10, 0], [0, 10]], f=1).tolist() == [2, 2]


@pytest.mark.parametrize("bad", [-1, 7])
def test_a_number_of_bad_clients_that_cannot_be_is_refused(bad: int) -> None:
    with pytest.raises(ValueError, match=f"must be 0 to 6, got {bad}"):
        tolerance.clean_clusters(n_clients=6, bad=bad, cluster_size=2)
    with pytest.raises(ValueError, match=f"must be 0 to 5, so that one is honest; got {bad}"):
        tolerance.signal_lost(n_clients=6, bad=bad, cluster_size=2)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6])
def test_a_far_row_pulls_the_geometric_median_as_much_at_every_scale(scale: float) -> None:
    near = np.random.default_rng(3).normal(size=(6, 2))
    found = [robust.geometric_median(np.vstack([factor * near, [[6e24, 8e24]]])) for factor in (1.0, scale)]
    assert np.allclose(found[1], scale * found[0], rtol=1e-4, atol=0)


@pytest.mark.parametrize("seed", range(5))
def test_the_geometric_median_ends_exactly_when_its_gradient_proves_it(seed: int) -> None:
    """g(z) - g* <= |grad g(z)| 2 g(z) / n: here from the rows themselves, at the point where the iteration starts."""
    x = np.random.default_rng(seed).normal(size=(7, 5))
    squared = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    typical = geometry.typical_distances(squared)
    z = (1 / typical / (1 / typical).sum()) @ x
    lengths = np.linalg.norm(x - z, axis=1)
    bound = 2 * np.linalg.norm(((z - x) / lengths[:, None]).sum(axis=0)) / len(x)
    for within, enough in ((bound * 1.001, True), (bound * 0.999, False)):
        assert geometry.geometric_median_weights(squared, 1e-9, within, 1)[1] is enough


def test_a_cover_leaves_out_the_rows_that_it_has_taken() -> None:
    """Every set that is found touches every long pair, and a least one is found."""
    for long in ([(0, 1), (1, 2), (2, 3)], [(0, 1), (0, 2), (0, 3), (1, 2)], [(0, 1), (2, 3), (4, 5)]):
        partners = [sum(1 << (set(pair) - {i}).pop() for pair in long if i in pair) for i in range(6)]
        covers = list(subsets._covers(partners, 3))
        assert covers
        assert all(out >> a & 1 or out >> b & 1 for out in covers for a, b in long)
        least = min(sum(1 << i & out > 0 for i in range(6)) for out in covers)
        every = (out for out in range(64) if all(out >> a & 1 or out >> b & 1 for a, b in long))
        assert least == min(out.bit_count() for out in every)


def test_mixing_accepts_all_but_one_row_as_bad() -> None:
    for step in robust.PRE_AGGREGATORS.values():
        assert step.largest_f(5) == 4


def test_a_rule_has_the_text_of_its_function() -> None:
    for rule in (*robust.AGGREGATORS.values(), *robust.PRE_AGGREGATORS.values()):
        assert rule.__doc__


def test_every_weighted_sum_has_its_own_weights() -> None:
    """Rows are taken four at a time and sums two at a time; no number of them may change the result."""
    draw = np.random.default_rng(3)
    for n, count in ((1, 1), (3, 2), (4, 3), (5, 4), (9, 5), (13, 2)):
        x, weights = draw.normal(size=(n, 70)).astype(np.float32), draw.normal(size=(count, n))
        found = distances.weighted_sums(x, np.arange(n), weights)
        assert found is not None
        np.testing.assert_allclose(found, weights @ x.astype(np.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 9, 13])
def test_distances_and_one_weighted_sum_for_every_number_of_rows(n: int) -> None:
    draw = np.random.default_rng(n)
    x, weights = draw.normal(size=(n, 1100)).astype(np.float32), draw.normal(size=n)
    wide = x.astype(np.float64)
    expected = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(distances.squared_distances(x, np.arange(n)), expected, rtol=1e-5, atol=1e-5)
    found = distances.weighted_sum(x, np.arange(n), weights)
    assert found is not None
    np.testing.assert_allclose(found, weights @ wide, rtol=0, atol=1e-5)


def test_batchers_network_has_as_many_comparators_as_he_says() -> None:
    """(k^2 - k + 4) 2^(k-2) - 1 for 2^k wires (Batcher 1968)."""
    for k in range(1, 9):
        assert len(network.batcher(2**k)) == (k * k - k + 4) * 2**k // 4 - 1


def wires(values: list[int], steps: object) -> list[int]:
    values = list(values)
    for step in steps:  # type: ignore[attr-defined]
        a, b, c, d = step if len(step) == 4 else (*step, -1, -1)
        pairs = [(a, b)] if c < 0 else [(a, c), (b, d), (b, c)]
        for i, j in pairs:
            values[i], values[j] = min(values[i], values[j]), max(values[i], values[j])
    return values


@pytest.mark.parametrize("seed", range(60))
def test_joined_comparators_do_what_they_did_alone(seed: int) -> None:
    """For any network, not only for those that sort."""
    draw = np.random.default_rng(seed)
    width = int(draw.integers(3, 7))
    net = [tuple(sorted(draw.choice(width, 2, replace=False).tolist())) for _ in range(int(draw.integers(1, 12)))]
    joined = network._grouped(net)
    for _ in range(5):
        values = draw.permutation(width).tolist()
        assert wires(values, joined) == wires(values, net)


@pytest.mark.parametrize("seed", range(20))
def test_mimic_copies_the_row_that_stands_out_most(seed: int) -> None:
    """Along the direction of largest variance, from the rows themselves and wherever their mean is."""
    x = np.random.default_rng(seed).normal(size=(6, 4)).astype(np.float32) + 3
    centred = x - x.mean(axis=0, dtype=np.float64)
    direction = np.linalg.svd(centred)[2][0]
    chosen = x[np.argmax(np.abs(centred @ direction))]
    assert np.array_equal(robust.mimic(x, 2), [chosen, chosen])


class OneAttacker:
    """What the search for the strongest attack asks of its input."""

    byzantine = 1

    def rehearsal(self, knows: str) -> np.ndarray:
        return np.zeros((1, 1), np.float32)


def test_the_search_for_the_strongest_attack_is_as_precise_as_eight_golden_sections() -> None:
    grid = np.geomspace(0.001, 1, 16)
    for peak in np.linspace(0.05, 0.9, 120):
        at = int(np.argmin(np.abs(grid - peak)))
        width = grid[min(at + 1, 15)] - grid[max(at - 1, 0)]
        found = attacks._strongest(
            lambda t: np.full((1, 1), t),
            OneAttacker(),  # type: ignore[arg-type]
            "honest",
            np.zeros(1),
            lambda rows, peak=peak: np.array([10.0 - abs(float(rows[-1, 0]) - peak)]),
            1.0,
        )
        assert abs(found - peak) <= ((5**0.5 - 1) / 2) ** 8 * width * 1.001, peak
