"""Attacks: what each one sends, in both views, and that optimised ones do more damage."""

import inspect
import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import robust
from robust.attacks import largest_hidden_z
from tests.robust.cases import BUILT_IN, BY_VALIDATION, Matrix, normal, parameters

few = settings(max_examples=25, deadline=None)
every_attack = pytest.mark.parametrize("name", sorted(robust.ATTACKS))
ESTIMATING = ["fall_of_empires", "a_little_is_enough", "min_max", "min_sum", "mimic"]


def rows(count: int = 8, seed: int = 0, width: int = 25) -> Matrix:
    return (np.random.default_rng(seed).standard_normal((count, width)) + 0.5).astype(np.float32)


@every_attack
def test_one_call_shape_for_all(name: str) -> None:
    assert list(inspect.signature(robust.ATTACKS[name]).parameters)[:4] == ["honest", "byzantine", "own", "rng"]
    first, *others = inspect.signature(robust.ATTACKS[name]._function).parameters.values()
    assert first.name == "given"
    assert all(one.kind is one.KEYWORD_ONLY for one in others)


@every_attack
@pytest.mark.parametrize("byzantine", [0, 1, 5])
def test_rows_out_have_the_right_shape_and_inputs_are_kept(name: str, byzantine: int) -> None:
    honest, own = rows(), rows(byzantine, 1)
    kept = honest.copy(), own.copy()
    for theirs in (None, own):
        made = robust.ATTACKS[name](honest, byzantine, own=theirs, rng=np.random.default_rng(2))
        assert made.shape == (byzantine, 25)
        assert made.dtype == np.float32
        made[:] = 0  # the result belongs to the caller
    assert np.array_equal(honest, kept[0])
    assert np.array_equal(own, kept[1])


@every_attack
def test_wrong_shapes_and_counts_are_refused(name: str) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="cannot be negative, got -1"):
        robust.ATTACKS[name](rows(), -1, rng=rng)
    with pytest.raises(ValueError, match=r"own must have shape \(2, 25\), got \(3, 25\)"):
        robust.ATTACKS[name](rows(), 2, own=rows(3), rng=rng)
    with pytest.raises(ValueError, match="it takes"):
        robust.ATTACKS[name](rows(), 2, rng=rng, strength=3)


@pytest.mark.parametrize("name", ESTIMATING)
def test_attackers_who_know_only_themselves_see_nothing_else(name: str) -> None:
    own = rows(4, 3)
    one = robust.ATTACKS[name](rows(8, 4), 4, own=own, knows="own")
    other = robust.ATTACKS[name](rows(8, 5), 4, own=own, knows="own")
    assert np.array_equal(one, other)
    assert not np.array_equal(one, robust.ATTACKS[name](rows(8, 4), 4, own=own))
    with pytest.raises(ValueError, match="pass own="):
        robust.ATTACKS[name](rows(), 4, knows="own")


@pytest.mark.parametrize("name", [*ESTIMATING, "sign_flip"])
def test_attackers_ignore_rows_that_are_not_finite(name: str) -> None:
    honest = rows()
    spoiled = np.insert(honest, 2, np.nan, axis=0)
    options = {"z": 1.0} if name == "a_little_is_enough" else {}
    assert np.array_equal(robust.ATTACKS[name](spoiled, 3, **options), robust.ATTACKS[name](honest, 3, **options))


def test_sign_flip_is_minus_scale_times_the_attackers_own_update() -> None:
    own = rows(3, 1)
    assert np.array_equal(robust.sign_flip(rows(), 3, own=own), -own)
    assert np.array_equal(robust.sign_flip(rows(), 3, own=own, scale=10.0), own * np.float32(-10))
    honest = rows()
    assert np.allclose(robust.sign_flip(honest, 3), np.repeat(-honest.mean(axis=0)[None], 3, axis=0))


def test_fall_of_empires_in_both_views() -> None:
    honest, own = rows(), rows(3, 1)
    published = robust.fall_of_empires(honest, 3, factor=-0.5)
    assert np.allclose(published, -0.5 * honest.mean(axis=0))
    as_run = robust.fall_of_empires(honest, 3, own=own, knows="own", factor=-10.0)
    assert np.allclose(as_run, -10 * own.mean(axis=0), rtol=1e-5)
    assert np.array_equal(as_run[0], as_run[2])  # all rows are equal, which is what breaks Krum


def test_a_little_is_enough_shifts_by_z_deviations() -> None:
    honest = rows(9)
    made = robust.a_little_is_enough(honest, 3, z=1.5)
    assert np.allclose(made, honest.mean(axis=0) - 1.5 * honest.std(axis=0), atol=1e-5)
    hidden = robust.a_little_is_enough(honest, 3)  # n = 12, q = 3
    assert np.allclose(hidden, honest.mean(axis=0) - largest_hidden_z(12, 3) * honest.std(axis=0), atol=1e-5)


@pytest.mark.parametrize(
    ("n", "q", "share", "z"),
    [
        (50, 24, 0.9231, 1.4261),  # 2 of the 26 honest rows further out make a majority
        (20, 4, 0.5625, 0.1573),  # 7 of 16
        (60, 12, 0.6042, 0.2641),  # 19 of 48
        (7, 2, 0.6000, 0.2533),  # 2 of 5
        (3, 1, 0.5000, 0.0),  # 1 of 2
        (50, 12, 0.6316, 0.3360),  # 14 of 38
    ],
)
def test_hidden_z_is_that_of_a_normal_table(n: int, q: int, share: float, z: float) -> None:
    """Computed by hand: this share of a normal distribution lies below z deviations."""
    assert largest_hidden_z(n, q) == pytest.approx(z, abs=5e-5)
    assert (1 + math.erf(largest_hidden_z(n, q) / math.sqrt(2))) / 2 == pytest.approx(share, abs=5e-5)


def test_hidden_z_without_attackers_and_with_a_majority() -> None:
    assert largest_hidden_z(10, 9) == 0
    assert largest_hidden_z(10, 0) == 0
    assert largest_hidden_z(10, 7) > 0


@few
@given(honest=normal(), direction=st.sampled_from(["std", "unit", "sign"]))
def test_min_max_is_as_far_as_the_furthest_honest_rows_and_no_further(honest: Matrix, direction: str) -> None:
    made = robust.min_max(honest, 1, direction=direction)[0].astype(np.float64)
    wide = honest.astype(np.float64)
    limit = np.sqrt(((wide[:, None] - wide) ** 2).sum(axis=2).max())
    furthest = np.linalg.norm(wide - made, axis=1).max()
    assert furthest == pytest.approx(limit, rel=1e-4)


@pytest.mark.parametrize("name", ["min_max", "min_sum"])
@pytest.mark.parametrize("direction", ["unit", "sign"])
def test_a_mean_that_is_zero_but_for_rounding_pushes_nowhere(name: str, direction: str) -> None:
    honest = np.array([[0.1], [0.2], [-0.3]], dtype=np.float32)
    for order in permutations(range(3)):
        assert np.abs(robust.ATTACKS[name](honest[list(order)], 1, direction=direction)).max() < 1e-7


@pytest.mark.parametrize("name", ["min_max", "min_sum"])
def test_the_sign_of_a_mean_that_is_zero_but_for_rounding_pushes_nowhere(name: str) -> None:
    honest = np.array([[0.1, 1, 1], [0.2, 1, 1], [-0.3, 2, -2]], dtype=np.float32)
    pushed = [robust.ATTACKS[name](np.roll(honest, turn, axis=0), 1, direction="sign")[0] for turn in range(3)]
    for row in pushed:
        assert np.abs(row[[0, 2]]).max() < 1e-7
        assert row[1] < honest[:, 1].mean()
        assert np.allclose(row, pushed[0])


@few
@given(honest=normal(), direction=st.sampled_from(["std", "unit", "sign"]))
def test_min_sum_is_as_far_in_all_as_the_worst_honest_row_and_no_further(honest: Matrix, direction: str) -> None:
    made = robust.min_sum(honest, 1, direction=direction)[0].astype(np.float64)
    wide = honest.astype(np.float64)
    limit = ((wide[:, None] - wide) ** 2).sum(axis=2).sum(axis=1).max()
    assert ((wide - made) ** 2).sum() == pytest.approx(limit, rel=1e-4)


@pytest.mark.parametrize("name", ["min_max", "min_sum"])
def test_equal_rows_leave_no_room_to_push(name: str) -> None:
    honest = np.repeat(rows(1), 5, axis=0)
    assert np.array_equal(robust.ATTACKS[name](honest, 2)[0], honest[0])
    zeros = np.zeros((3, 4), dtype=np.float32)
    assert not robust.ATTACKS[name](zeros, 2, direction="unit").any()


def test_mimic_copies_the_row_that_stands_out() -> None:
    honest = rows(8) * np.float32(0.1)
    honest[5] += 4
    assert np.array_equal(robust.mimic(honest, 3), np.repeat(honest[5:6], 3, axis=0))
    assert np.array_equal(robust.mimic(honest, 2, target=1)[1], honest[1])
    with pytest.raises(ValueError, match="row 8 was requested, but rows are numbered 0 to 7"):
        robust.mimic(honest, 2, target=8)


def test_gaussian_needs_and_uses_a_generator() -> None:
    with pytest.raises(ValueError, match="pass rng="):
        robust.gaussian(rows(), 2)
    with pytest.raises(ValueError, match="cannot be negative"):
        robust.gaussian(rows(), 2, rng=np.random.default_rng(0), std=-1.0)
    made = robust.gaussian(rows(width=20_000), 5, rng=np.random.default_rng(0), mean=3.0, std=2.0)
    assert made.mean() == pytest.approx(3, abs=0.05)
    assert made.std() == pytest.approx(2, abs=0.05)
    again = robust.gaussian(rows(width=20_000), 5, rng=np.random.default_rng(0), mean=3.0, std=2.0)
    assert np.array_equal(made, again)


def test_zero_and_non_finite() -> None:
    assert not robust.zero(rows(), 2).any()
    assert np.isnan(robust.non_finite(rows(), 2)).all()
    assert np.array_equal(robust.non_finite(rows(), 1, value="-inf"), np.full((1, 25), -np.inf))
    with pytest.raises(ValueError, match="'nan' or 'inf' or '-inf'"):
        robust.non_finite(rows(), 1, value="zero")


@pytest.mark.parametrize("rule", sorted(set(BUILT_IN) - {"meamed", "monna", "smea", *BY_VALIDATION}))
@pytest.mark.parametrize("name", ["fall_of_empires", "a_little_is_enough"])
@pytest.mark.parametrize(("count", "byzantine"), [(9, 2), (11, 2), (16, 4)])
@pytest.mark.parametrize("knows", ["honest", "own"])
def test_optimised_attacks_do_at_least_as_much_damage_as_any_strength_of_a_grid(
    rule: str, name: str, count: int, byzantine: int, knows: str
) -> None:
    """Attackers who know only themselves try the rule on the real number of rows: their own, repeated."""
    honest, own = rows(count), rows(byzantine, 1)
    stand_ins = honest if knows == "honest" else own[np.arange(count) % byzantine]
    centre = (honest if knows == "honest" else own).mean(axis=0)
    seen = set()

    def against(x: Matrix) -> np.ndarray:
        seen.add(x.shape)
        return robust.AGGREGATORS[rule](x, **parameters(rule, len(x), byzantine, x.shape[1]))

    def attack(others: Matrix = honest, **strength: object) -> Matrix:
        return robust.ATTACKS[name](others, byzantine, own=own, knows=knows, **strength)

    def damage(made: Matrix) -> float:
        return float(np.linalg.norm(against(np.concatenate([stand_ins, made])) - centre))

    made = attack(against=against)
    assert seen == {(count + byzantine, 25)}
    if knows == "own":  # they see nothing of the honest rows
        assert np.array_equal(made, attack(rows(count, 7), against=against))
    key, sign = ("factor", -1) if name == "fall_of_empires" else ("z", 1)
    for strength in np.geomspace(0.1, 100, 16):
        assert damage(made) >= damage(attack(**{key: float(sign * strength)})) * (1 - 1e-6)


def test_optimised_attack_on_the_mean_goes_as_far_as_it_may() -> None:
    honest = rows(9)
    made = robust.fall_of_empires(honest, 3, against=robust.mean, largest=7.0)
    assert np.allclose(made, -7 * honest.mean(axis=0), rtol=1e-5)


def test_identical_rows_of_fall_of_empires_beat_krum_where_independent_sign_flips_do_not() -> None:
    """Why SHARE with Krum fails under FoE at m = 10: poisoned clusters are closest to each other."""
    rng = np.random.default_rng(0)
    honest = (0.05 + rng.standard_normal((14, 400))).astype(np.float32)
    own = (0.05 + rng.standard_normal((6, 400))).astype(np.float32)
    colluding = robust.fall_of_empires(honest, 6, own=own, knows="own", factor=-1.0)
    chosen = robust.krum.detail(np.concatenate([honest, colluding]), f=6).accepted
    assert chosen is not None
    assert chosen[0] >= 14
    alone = robust.sign_flip(honest, 6, own=own, scale=10.0)
    chosen = robust.krum.detail(np.concatenate([honest, alone]), f=6).accepted
    assert chosen is not None
    assert chosen[0] < 14


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
def test_label_flip_mirrors_labels(kind: type) -> None:
    labels = np.array([0, 1, 9, 4], dtype=kind)
    flipped = robust.label_flip(labels, 10)
    assert flipped.tolist() == [9, 8, 0, 5]
    assert flipped.dtype == kind
    assert labels.tolist() == [0, 1, 9, 4]
    assert np.array_equal(robust.label_flip(flipped, 10), labels)
    assert robust.label_flip(labels[:0], 10).size == 0


def test_label_flip_refuses_invalid_labels() -> None:
    for labels in ([0, 10], [-1, 3]):
        with pytest.raises(ValueError, match="labels must be 0 to 9"):
            robust.label_flip(labels, 10)
    with pytest.raises(ValueError, match="integers"):
        robust.label_flip([0.5], 10)


@pytest.mark.parametrize(
    "sent", [np.zeros(3), np.zeros((1, 3)), np.zeros((2, 2)), np.array(["a"]), np.zeros((2, 3), dtype=complex)]
)
def test_an_attack_that_returns_the_wrong_shape_is_refused(sent: NDArray[Any]) -> None:
    made = robust.Attack(lambda given: sent)
    with pytest.raises(TypeError, match="2 x 3"):
        made(np.ones((4, 3)), 2)
