"""Cases small enough to compute by hand."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

import robust


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)[:, None]


def test_median_of_an_even_number_of_rows() -> None:
    x = column(4, 1, 3, 100)
    assert robust.median(x) == 3.5
    assert robust.median(x, middle="lower") == 3


def test_trimmed_mean_by_count_and_by_fraction() -> None:
    x = column(100, 1, 2, 3, -50)
    assert robust.trimmed_mean(x, f=1) == 2
    assert robust.trimmed_mean(x, f=2) == 2
    assert robust.trimmed_mean(x, fraction=0.4) == 2
    assert robust.trimmed_mean(x, fraction=0.2) == 2
    assert robust.trimmed_mean(x, fraction=0.19) == np.float32(56 / 5)


def test_fraction_is_rounded_down_to_rows_exactly() -> None:
    for count in range(1, 201):
        for hundredths in range(50):
            found = robust.aggregators.rows_in_fraction(count, hundredths / 100)
            assert found == hundredths * count // 100


def test_a_product_counts_as_whole_if_it_is_whole_to_nine_digits() -> None:
    assert robust.aggregators.rows_in_fraction(10, 0.29999999996) == 3  # 2.9999999996
    assert robust.aggregators.rows_in_fraction(10, 0.2999999999) == 2  # 2.999999999


def test_a_fraction_below_one_half_leaves_a_row() -> None:
    """0.49999999999 of 20 rows is 10 to nine digits, and removing 10 per side would leave none."""
    for fraction in (0.49999999999, np.nextafter(0.5, 0)):
        for n in (1, 2, 19, 20, 1000):
            assert robust.aggregators.rows_in_fraction(n, fraction) == (n - 1) // 2
            assert robust.trimmed_mean(column(*range(n)), fraction=float(fraction)) == (n - 1) / 2


def test_meamed_takes_the_lower_of_two_equally_near() -> None:
    assert robust.meamed(column(0, 2, 3, 4, 6), f=1) == np.float32(9 / 4)  # 0 rather than 6
    assert robust.meamed(column(0, 2, 3, 4, 5), f=2) == 3


def test_krum_counts_n_minus_f_minus_2_neighbours() -> None:
    """With n - f - 1 neighbours the row at 18 would win, with n - f the row at 15."""
    assert robust.krum(column(0, 5, 15, 18, 19, 24, 27), f=1) == 19


def test_krum_squares_distances_once() -> None:
    """By plain distances the row at 8 would win, by fourth powers the row at 20."""
    assert robust.krum(column(1, 6, 8, 20, 26, 33, 35), f=1) == 26


def test_krum_gives_ties_to_the_first_row() -> None:
    x = column(5, 1, 1, 5, 5, 1)
    assert robust.krum.detail(x, f=1).accepted == (0,)
    assert robust.multi_krum.detail(x, f=1, m=3).accepted == (0, 1, 2)


def test_multi_krum_takes_between_one_and_n_minus_f_rows() -> None:
    x = column(1, 2, 3, 4, 50)
    assert np.array_equal(robust.multi_krum(x, f=1, m=1), robust.krum(x, f=1))
    assert robust.multi_krum(x, f=1) == 2.5


def test_bulyan_runs_krum_again_after_each_removal() -> None:
    """The five best first scores belong to the rows at 1, 2, 5, 6, 9, which would give 13/3."""
    found = robust.bulyan.detail(column(1, 2, 5, 6, 9, 23, 26), f=1)
    assert found.accepted == (1, 2, 3, 4, 5)
    assert found.vector == np.float32(20 / 3)


def test_mda_leaves_out_the_far_rows() -> None:
    x = column(0, 1, 2, 50, 60)
    assert robust.mda.detail(x, f=2).accepted == (0, 1, 2)
    assert robust.mda(x, f=2) == 1


def test_mda_is_exact_far_beyond_trying_all_subsets() -> None:
    """C(60, 16) is 1.5e14."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 30)).astype(np.float32)
    x[:16] += 5 * rng.standard_normal((16, 30)).astype(np.float32)
    found = robust.mda.detail(x, f=16).accepted
    assert found is not None
    assert len(found) == 44
    squared = ((x[:, None].astype(float) - x) ** 2).sum(axis=2)
    diameter = squared[np.ix_(found, found)].max()
    for out in set(range(60)) - set(found):  # no exchange of one row for another makes it smaller
        for inside in found:
            swapped = [out, *(i for i in found if i != inside)]
            assert squared[np.ix_(swapped, swapped)].max() >= diameter


def test_smea_and_mda_differ_where_variance_and_diameter_do() -> None:
    x = np.array([[3, 1], [-2, 3], [-3, 1], [-3, -4], [-1, 0], [0, -4]])
    assert robust.smea.detail(x, f=2).rejected == (1, 3)
    assert robust.mda.detail(x, f=2).rejected == (0, 1)


def test_caf_without_bad_rows_is_the_mean() -> None:
    x = np.random.default_rng(0).standard_normal((6, 9)).astype(np.float32)
    assert np.array_equal(robust.caf(x, f=0), robust.mean(x))


def test_caf_drops_an_outlier_and_says_so() -> None:
    x = np.random.default_rng(1).standard_normal((8, 9)).astype(np.float32)
    x[5] += 50
    weights = robust.caf.detail(x, f=1).weights
    assert weights is not None
    assert weights[5] == 0
    assert (np.delete(weights, 5) > 0).all()


@pytest.mark.parametrize(
    "values", [(-2, 2, 1, -2, 3, 1), (0, 0, 0, 3, -3, 1), (1, 1, 1, 2, 2, 2), (-1, 0, 0, 1, 5, -5), (3, 3, 1, 2, 2, 0)]
)
@pytest.mark.parametrize("f", [1, 2])
def test_caf_is_exact_on_ties_in_any_order(values: tuple[int, ...], f: int) -> None:
    """Against fractions: on a line the direction is known, so the rule needs no rounding at all."""
    expected = _caf_on_a_line(values, f)
    for order in set(permutations(values)):
        found = robust.caf(np.array(order, dtype=np.float32)[:, None], f=f)
        assert found[0] == pytest.approx(float(expected), abs=1e-6), order


def _caf_on_a_line(values: Sequence[int], f: int) -> Fraction:
    counts, best, result = [Fraction(1)] * len(values), None, Fraction(0)
    while sum(counts) > len(values) - 2 * f:
        mean = sum((c * x for c, x in zip(counts, values, strict=True)), Fraction(0)) / sum(counts)
        far = [(x - mean) ** 2 for x in values]
        variance = sum((c * t for c, t in zip(counts, far, strict=True)), Fraction(0)) / sum(counts)
        if best is None or variance < best:
            best, result = variance, mean
        largest = max(t for c, t in zip(counts, far, strict=True) if c)
        if not largest:
            break
        counts = [c * (1 - t / largest) if c else c for c, t in zip(counts, far, strict=True)]
    return result


def test_caf_follows_no_single_direction_where_several_are_widest() -> None:
    """Four points on two equal axes: whatever axis a solver returns first, the result is the centre."""
    cross = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0], [0, 0]], dtype=np.float32)
    for turn in range(6):
        assert np.abs(robust.caf(np.roll(cross, turn, axis=0), f=1)).max() < 1e-7


def test_centered_clipping_moves_by_the_radius_at_most() -> None:
    x = column(10, 10, 10, -1000)
    assert robust.centered_clipping(x, centre=np.zeros(1), radius=1.0, steps=1) == 0.5
    assert robust.centered_clipping(x, centre=np.zeros(1), radius=1.0, steps=2) == 1.0
    assert robust.centered_clipping(x, centre=np.array([10.0]), radius=2.0, steps=1) == 9.5


def test_centered_clipping_remembers_nothing() -> None:
    x = np.random.default_rng(3).standard_normal((5, 8)).astype(np.float32)
    centre = np.ones(8, dtype=np.float32)
    first = robust.centered_clipping(x, centre=centre, radius=0.1)
    assert np.array_equal(first, robust.centered_clipping(x, centre=centre, radius=0.1))
    assert np.array_equal(centre, np.ones(8))


def test_norm_bounded_mean_bounds_norms() -> None:
    x = np.array([[3, 4], [0, 1], [300, 400]], dtype=np.float32)
    assert np.allclose(robust.norm_bounded_mean(x, bound=1.0), [(0.6 + 0 + 0.6) / 3, (0.8 + 1 + 0.8) / 3])
    assert np.allclose(robust.norm_bounded_mean(x), [2, 3])  # the median norm is 5


def test_zeno_accepts_what_lowers_the_loss_enough() -> None:
    """f(x + g) = (g - 2)^2, f(x) = 4: g = 1 gains 3, g = 4 gains 0, g = 5 loses 5."""
    x = column(1, 4, 5)

    def loss(g: np.ndarray) -> float:
        return float((g[0] - 2) ** 2)

    assert robust.zeno.detail(x, loss=loss, rho=0.0).accepted == (0, 1)
    assert robust.zeno(x, loss=loss, rho=0.0) == 2.5
    assert robust.zeno.detail(x, loss=loss, rho=0.1).accepted == (0,)  # 0 - 0.1 * 16 < 0
    assert robust.zeno.detail(x, loss=loss, rho=0.1, epsilon=1.6).accepted == (0, 1)
    known = {"losses": np.array([9.0, 1.0, 4.0, 9.0]), "rho": 0.0}  # by row, also where a row is ignored
    assert robust.zeno.detail(column(np.nan, 1, 4, 5), loss=lambda g: 4.0, **known).accepted == (1, 2)
    with pytest.raises(ValueError, match="one value per row: got 4 for 3 rows"):
        robust.zeno(x, loss=loss, **known)


def test_zeno_plus_plus_accepts_by_the_first_order_score() -> None:
    """-eta <v, g> - rho |g|^2 >= -eta eps with v = -1: eta g - rho g^2 + eta eps >= 0."""
    x = column(1, -1, 30)
    v = np.array([-1.0])
    assert robust.zeno_plus_plus.detail(x, gradient=v, rho=0.0).accepted == (0, 2)
    assert robust.zeno_plus_plus.detail(x, gradient=v, rho=0.1).accepted == (0,)  # 30 - 90 < 0
    assert robust.zeno_plus_plus.detail(x, gradient=v, rho=0.1, eta=4.0).accepted == (0, 2)
    assert robust.zeno_plus_plus.detail(x, gradient=v, rho=0.0, epsilon=1.0).accepted == (0, 1, 2)
    assert robust.zeno_plus_plus.detail(x, gradient=v, rho=0.0, epsilon=0.999).accepted == (0, 2)
    assert robust.zeno_plus_plus.detail(x, gradient=v, rho=0.1, eta=0.5, epsilon=1.3).accepted == (0, 1)
    assert robust.zeno_plus_plus.detail(x, gradient=v, rho=0.1, eta=0.5, epsilon=1.1).accepted == (0,)


def test_zeno_plus_plus_bounds_the_length_of_what_it_accepts() -> None:
    """Without `longest` a row along the descent direction may be as long as eta |gradient| / rho."""
    gradient = np.full(4, 0.5, dtype=np.float32)  # of length 1
    rows = -np.stack([*[0.1 * gradient] * 4, 9000 * gradient])
    assert np.linalg.norm(robust.zeno_plus_plus(rows, gradient=gradient)) == pytest.approx(1800.08)
    found = robust.AGGREGATORS["zeno++"].detail(rows, gradient=gradient, longest=1.0)
    assert np.linalg.norm(found.vector) == pytest.approx((4 * 0.1 + 1) / 5)
    assert found.accepted == (0, 1, 2, 3, 4)
    assert not robust.zeno_plus_plus(-rows, gradient=gradient, longest=1.0).any()
    assert np.linalg.norm(robust.zeno_plus_plus(-11_000 * gradient[None], gradient=gradient)) == 0
    with pytest.raises(ValueError, match="negative"):
        robust.zeno_plus_plus(rows, gradient=gradient, longest=-1.0)


def test_zeno_without_an_accepted_row_is_zero() -> None:
    x = column(1, 2)
    by_gradient = robust.zeno_plus_plus.detail(x, gradient=np.array([1.0]))
    for nothing in (robust.zeno.detail(x, loss=lambda g: float(g[0])), by_gradient):
        assert np.array_equal(nothing.vector, [0])
        assert (nothing.accepted, nothing.rejected) == ((), (0, 1))


def test_zeno_rejects_a_row_whose_loss_is_not_a_number_and_refuses_a_broken_model() -> None:
    x = column(1, 2)
    for bad in (np.nan, np.inf):
        found = robust.zeno.detail(x, loss=lambda g, bad=bad: bad if g[0] == 2 else 1 - float(g[0]))
        assert found.accepted == (0,)
    with pytest.raises(ValueError, match="must be finite, got nan"):
        robust.zeno(x, loss=lambda g: np.nan)


def test_dnc_marks_all_f_rows_at_once_along_one_direction() -> None:
    """Along the first axis; without the row at 900, the one at 7 on the second axis would stand out."""
    x = np.zeros((9, 2), dtype=np.float32)
    x[:7, 0] = [3, -1, -1, 0, 0, -1, 0]
    x[7], x[8] = [900, 0], [0, 7]
    found = robust.dnc.detail(x, f=2, rng=np.random.default_rng(0))
    assert found.rejected == (1, 7)


def test_dnc_sees_a_row_only_in_the_coordinates_that_it_draws() -> None:
    x = np.zeros((5, 1000), dtype=np.float32)
    x[4, 0] = 100
    seen = [robust.dnc(x, f=1, rng=np.random.default_rng(seed), sampled=500, rounds=1)[0] == 0 for seed in range(20)]
    assert 3 < sum(seen) < 17
    assert robust.dnc(x, f=1, rng=np.random.default_rng(0), sampled=500, rounds=20)[0] == 0
    with pytest.raises(ValueError, match="sampled=0"):
        robust.dnc(x, f=1, rng=np.random.default_rng(0), sampled=0)


def test_fltrust_weighs_by_direction_and_gives_rows_the_servers_length() -> None:
    rows = [[3, 0], [30, 40], [-1, 0], [0, 0], [0, -9]]
    found = robust.fltrust.detail(rows, server=[2, 0])
    assert found.accepted == (0, 1)
    assert np.allclose(found.vector, (1.0 * np.array([2, 0]) + 0.6 * np.array([1.2, 1.6])) / 1.6)
    assert not robust.fltrust([[-1, 0], [0, 3]], server=[2, 0]).any()
    assert np.linalg.norm(robust.fltrust([[1e30, 0], [2, 0]], server=[2, 0])) == pytest.approx(2)
