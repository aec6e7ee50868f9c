"""Attacks against their formulas, number by number, and what an attack is told."""

import math
from typing import Any

import numpy as np
import pytest

import robust
from robust import attacks
from robust.attacks import AttackInput, _push, _strongest, largest_hidden_z
from robust.rows import Rows, as_matrix

EPS = float(np.finfo(np.float32).eps)
HONEST = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32) + 1
OWN = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32) - 2


def given(byzantine: int = 3, own: np.ndarray | None = None) -> AttackInput:
    return AttackInput(as_matrix(HONEST), byzantine, own, None)


def test_an_attack_has_the_name_and_the_text_of_its_function() -> None:
    for name, attack in robust.ATTACKS.items():
        assert attack.__name__ == attack.name == attack._function.__name__ == name
        assert attack.__doc__ == attack._function.__doc__


def test_attackers_see_the_rows_that_they_are_said_to_know() -> None:
    assert np.array_equal(given(own=OWN).known("honest").array(), HONEST)
    assert np.array_equal(given(own=OWN).known("own").array(), OWN)
    assert np.array_equal(given(0).known("own").array(), HONEST)  # nobody attacks: nothing is needed of them
    with pytest.raises(ValueError, match=r"knows='own' needs the attackers' own updates: pass own="):
        given(1).known("own")
    spoiled = AttackInput(np.full((2, 2), np.nan, np.float32), 1, None, None)
    with pytest.raises(ValueError, match="all rows that the attackers see contain NaN or infinity"):
        spoiled.known("honest")


def test_attackers_try_an_attack_on_as_many_rows_as_there_are_honest_ones() -> None:
    assert np.array_equal(given(own=OWN).rehearsal("honest"), HONEST)
    assert np.array_equal(given(own=OWN).rehearsal("own"), np.vstack([OWN, OWN]))
    sent = given().all_send(HONEST[1].astype(np.float64))
    assert sent.dtype == np.float32
    assert np.array_equal(sent, np.vstack([HONEST[1]] * 3))


def test_updates_of_attackers_have_one_row_each_of_the_right_length() -> None:
    for wrong in (OWN[:2], OWN[:, :3]):
        with pytest.raises(ValueError, match=r"own must have shape \(3, 4\)"):
            robust.sign_flip(HONEST, 3, own=wrong)
    assert robust.sign_flip(HONEST, 0, own=np.empty((0, 4))).shape == (0, 4)
    assert robust.sign_flip(HONEST, 0).shape == (0, 4)


@pytest.mark.parametrize("kind", [np.float64, np.int32, np.uint8, np.float16])
def test_what_an_attack_returns_becomes_float32(kind: type) -> None:
    made = robust.Attack(lambda given: np.full((2, 4), 3, dtype=kind))(HONEST, 2)
    assert made.dtype == np.float32
    assert np.array_equal(made, np.full((2, 4), 3))


def test_the_mean_of_the_known_rows_is_scaled() -> None:
    mean, own = HONEST.mean(axis=0, dtype=np.float64), OWN.mean(axis=0, dtype=np.float64)
    for found, expected in (
        (robust.sign_flip(HONEST, 2), -mean),
        (robust.sign_flip(HONEST, 2, scale=2.5), -2.5 * mean),
        (robust.fall_of_empires(HONEST, 2), -mean),
        (robust.fall_of_empires(HONEST, 2, factor=0.25), 0.25 * mean),
        (robust.fall_of_empires(HONEST, 3, own=OWN, knows="own", factor=-3.0), -3 * own),
    ):
        assert np.allclose(found, expected, rtol=1e-6)
    assert np.array_equal(robust.sign_flip(HONEST, 3, own=OWN, scale=4.0), -4 * OWN)


def test_a_little_is_enough_by_default_stays_where_enough_honest_rows_are_further_out() -> None:
    """Of n = 9 with q = 3: s = floor(9/2 + 1) - 3 = 2 of 6 honest rows, so z is the 4/6 quantile."""
    mean, std = HONEST.mean(axis=0, dtype=np.float64), HONEST.std(axis=0, dtype=np.float64)
    z = 0.430727299295
    assert largest_hidden_z(9, 3) == pytest.approx(z, rel=1e-10)
    assert np.allclose(robust.a_little_is_enough(HONEST, 3), mean - z * std, atol=1e-6)
    assert np.allclose(robust.a_little_is_enough(HONEST, 3, z=-2.0), mean + 2 * std, atol=1e-6)


@pytest.mark.parametrize("n", range(1, 14))
def test_the_hidden_shift_is_the_quantile_of_its_definition(n: int) -> None:
    for q in range(n):
        supporters = math.floor(n / 2 + 1) - q
        share = (n - q - max(supporters, 1)) / (n - q)
        found = largest_hidden_z(n, q)
        if share <= 0.5:
            assert found == 0
        else:
            assert (1 + math.erf(found / math.sqrt(2))) / 2 == pytest.approx(share, abs=1e-12)


def test_gaussian_rows_are_those_of_the_generator() -> None:
    noise = np.random.default_rng(4).standard_normal((2, 4), dtype=np.float32)
    found = robust.gaussian(HONEST, 2, rng=np.random.default_rng(4), mean=3.0, std=0.5)
    assert np.array_equal(found, noise * np.float32(0.5) + np.float32(3))
    by_default = robust.gaussian(HONEST, 2, rng=np.random.default_rng(4))
    assert np.array_equal(by_default, noise * np.float32(200))
    still = robust.gaussian(HONEST, 2, rng=np.random.default_rng(4), mean=1.5, std=0.0)
    assert np.array_equal(still, np.full((2, 4), 1.5))
    with pytest.raises(ValueError, match="a standard deviation cannot be negative, got -1e-09"):
        robust.gaussian(HONEST, 2, rng=np.random.default_rng(4), std=-1e-9)


def test_a_target_is_counted_among_the_given_rows() -> None:
    spoiled = np.insert(HONEST, 0, np.nan, axis=0)
    assert np.array_equal(robust.mimic(spoiled, 1, target=2)[0], HONEST[1])
    with pytest.raises(ValueError, match="row 0 was requested, but it contains NaN or infinity"):
        robust.mimic(spoiled, 1, target=0)


@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
def test_the_direction_of_a_push(direction: str) -> None:
    rows = Rows(as_matrix(HONEST))
    mean = HONEST.mean(axis=0, dtype=np.float64)
    expected = {
        "std": -HONEST.std(axis=0, dtype=np.float64),
        "unit": -mean / math.sqrt(sum(float(v) ** 2 for v in mean)),
        "sign": -np.sign(mean),
    }[direction]
    assert np.allclose(_push(rows, mean, direction), expected, rtol=1e-6, atol=0)
    assert not np.any(_push(rows, np.zeros(4), "unit"))


@pytest.mark.parametrize(("units", "sign"), [(0.5, 0), (1.0, 0), (1.5, -1), (-0.5, 0), (-1.0, 0), (-1.5, 1)])
def test_a_sign_counts_beyond_one_rounding_of_the_mean_size(units: float, sign: int) -> None:
    """The mean size of these values is 4, so rounding alone moves their mean by 4 eps at most."""
    rows = Rows(as_matrix([[4.0], [-4.0], [4.0], [-4.0]]))
    assert _push(rows, np.array([units * 4 * EPS]), "sign").tolist() == [sign]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
def test_pushes_go_as_far_as_their_limit_at_every_scale(direction: str, scale: float) -> None:
    x = (HONEST * scale).astype(np.float32)
    wide = x.astype(np.float64)
    squares = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
    mean = wide.mean(axis=0)
    for attack, reach, limit in (
        (robust.min_max, lambda row: float(((wide - row) ** 2).sum(axis=1).max()), squares.max()),
        (robust.min_sum, lambda row: float(((wide - row) ** 2).sum()), squares.sum(axis=1).max()),
    ):
        row = attack(x, 1, direction=direction)[0].astype(np.float64)
        assert reach(row) == pytest.approx(float(limit), rel=1e-4)
        push = _push(Rows(as_matrix(x)), mean, direction)
        along = (row - mean) @ push / np.linalg.norm(push) / np.linalg.norm(row - mean)
        assert along == pytest.approx(1, abs=1e-5)  # forwards, in the direction of the push


class Trial:
    """Counts what the search for the strongest attack tries, on one attacker and one honest row."""

    byzantine = 1

    def __init__(self, peak: float) -> None:
        self.peak = peak
        self.tried: list[float] = []

    def rehearsal(self, knows: str) -> np.ndarray:
        return np.zeros((1, 1), np.float32)

    def damage(self, t: float) -> float:
        return 10 - abs(float(np.float32(t)) - self.peak)

    def against(self, rows: np.ndarray) -> np.ndarray:
        return np.array([self.damage(float(rows[-1, 0]))])

    def search(self, largest: float) -> float:
        def ray(t: float) -> Any:
            self.tried.append(t)
            return np.full((1, 1), t)

        return _strongest(ray, self, "honest", np.zeros(1), self.against, largest)  # type: ignore[arg-type]


@pytest.mark.parametrize("peak", [0.0, 0.002, 0.07, 0.3, 0.9, 2.0, 2.5, 7.0])
def test_the_search_tries_a_geometric_grid_and_then_golden_sections(peak: float) -> None:
    """Each section keeps the part of the bracket around its better point; the strongest of all tries is the answer."""
    trial = Trial(peak)
    found = trial.search(2.0)
    grid = [0.002 * 1000 ** (i / 15) for i in range(16)]
    assert trial.tried[:16] == pytest.approx(grid)
    best = max(range(16), key=lambda i: trial.damage(grid[i]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, 15)]
    golden = (math.sqrt(5) - 1) / 2
    for left, right in zip(trial.tried[16::2], trial.tried[17::2], strict=True):
        assert (left, right) == pytest.approx((high - golden * (high - low), low + golden * (high - low)))
        if trial.damage(left) > trial.damage(right):
            high = right
        else:
            low = left
    assert len(trial.tried) == 16 + 2 * 8
    assert trial.damage(found) == max(map(trial.damage, trial.tried))


def test_nobody_who_attacks_needs_no_search() -> None:
    called: list[object] = []
    made = robust.fall_of_empires(HONEST, 0, against=lambda rows: called.append(rows), largest=3.0)
    assert made.shape == (0, 4)
    assert called == []


def test_an_optimised_attack_uses_the_strength_that_it_found() -> None:
    """Against the mean the largest strength does most, in the direction away from it."""
    mean, std = HONEST.mean(axis=0, dtype=np.float64), HONEST.std(axis=0, dtype=np.float64)
    by_factor = robust.fall_of_empires(HONEST, 2, against=robust.mean, factor=9.0)
    assert np.allclose(by_factor, -100 * mean, rtol=1e-5)
    by_deviation = robust.a_little_is_enough(HONEST, 2, against=robust.mean, z=9.0, largest=8.0)
    assert np.allclose(by_deviation, mean - 8 * std, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("knows", ["honest", "own"])
def test_an_optimised_attack_searches_along_its_own_rows(knows: str) -> None:
    """Here a rule is moved furthest by one row: three times the negative mean, or the mean less 2.5 deviations."""
    rows = (HONEST if knows == "honest" else OWN).astype(np.float64)
    mean, std = rows.mean(axis=0), rows.std(axis=0)
    for attack, weakest in ((robust.fall_of_empires, -3 * mean), (robust.a_little_is_enough, mean - 2.5 * std)):

        def against(x: np.ndarray, weakest: np.ndarray = weakest) -> np.ndarray:
            assert x.shape == (9, 4)
            return mean + 9 - np.abs(x[-1] - weakest).max()

        made = attack(HONEST, 3, own=OWN, knows=knows, against=against, largest=5.0)
        assert np.abs(made - weakest).max() < 0.1 * np.linalg.norm(mean)


def test_labels_are_mirrored_up_to_the_last_one() -> None:
    assert robust.label_flip([0, 2], 3).tolist() == [2, 0]
    assert robust.label_flip([0], 1).tolist() == [0]
    for labels in ([0, 3], [-1, 2]):
        with pytest.raises(ValueError, match=rf"labels must be 0 to 2, got {min(labels)} to {max(labels)}"):
            robust.label_flip(labels, 3)
    assert robust.label_flip(np.array([250, 0], np.uint8), 256).tolist() == [5, 255]
    assert attacks.label_flip(np.array([], np.int64), 0).size == 0
