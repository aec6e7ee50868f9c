"""(f, kappa)-robustness under every attack: the published constants hold, and so do those derived here.

Allouah et al. 2023a: for every set S of n - f rows, the squared distance between the result and the
mean of S is at most kappa times the variance of S.
"""

import math
from itertools import combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray

import robust
from robust import tolerance
from tests.robust.cases import ALIKE, BUILT_IN, BY_VALIDATION, apply, close

KAPPAS = {rule: kappa for rule in BUILT_IN if (kappa := robust.AGGREGATORS[rule].kappa)}
PROVEN = list(KAPPAS)
SIZES = [(5, 1), (5, 2), (9, 2), (9, 3), (9, 4), (11, 4), (12, 5), (20, 4)]


def honest_rows(kind: str, count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    width = 12
    if kind == "alike":
        rows = rng.standard_normal((count, width)) + 2
    elif kind == "apart":  # every row its own direction: as heterogeneous as clients can be
        rows = np.eye(count, width) * 5 + rng.standard_normal((count, width)) * 0.01
    else:  # two camps of clients
        rows = rng.standard_normal((count, width)) * 0.1 + np.where(np.arange(count) % 2, 1.0, -1.0)[:, None]
    return rows.astype(np.float32)


def attacks(rule: str, honest: NDArray[np.float32], f: int, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Every registered attack, the ones optimised against this rule, and a few more."""
    own = honest[rng.integers(len(honest), size=f)]
    made = {name: attack(honest, f, rng=rng) for name, attack in robust.ATTACKS.items()}
    against = {"against": lambda rows: apply(rule, rows, f)}
    made["fall_of_empires, optimised"] = robust.fall_of_empires(honest, f, **against)
    made["a_little_is_enough, optimised"] = robust.a_little_is_enough(honest, f, **against)
    made["sign_flip, scaled"] = robust.sign_flip(honest, f, own=own, scale=100.0)
    made["fall_of_empires, own"] = robust.fall_of_empires(honest, f, own=own, knows="own", factor=-10.0)
    made["non_finite, inf"] = robust.non_finite(honest, f, value="inf")
    made["far away"] = np.full((f, honest.shape[1]), 1e30, dtype=np.float32)
    return made


def assert_bounded(result: NDArray[np.float32], chosen: NDArray[np.float32], kappa: float, what: object) -> None:
    assert math.isfinite(kappa), what  # or the bound would hold for anything
    wide = chosen.astype(np.float64)
    centre = wide.mean(axis=0)
    variance = ((wide - centre) ** 2).sum(axis=1).mean()
    slack = 1e-6 * float((wide**2).sum(axis=1).max())
    assert ((result - centre) ** 2).sum() <= kappa * variance * (1 + 1e-5) + slack, what


@pytest.mark.parametrize("rule", PROVEN)
def test_kappa_is_a_number_for_every_f_that_is_withstood(rule: str) -> None:
    """It is never below f / (n - 2f): no rule can do better (Allouah et al. 2023a)."""
    kappa = robust.AGGREGATORS[rule].kappa
    assert kappa is not None
    for n in range(1, 120):
        for f in range(robust.AGGREGATORS[rule].withstands(n) + 1):
            assert f / (n - 2 * f) <= kappa(n, f) < math.inf, (n, f)


@pytest.mark.parametrize("kind", ["alike", "apart", "camps"])
@pytest.mark.parametrize("rule", PROVEN)
def test_kappa_holds_for_the_honest_rows_under_every_attack(rule: str, kind: str) -> None:
    for n, f in SIZES:
        if f > robust.AGGREGATORS[rule].withstands(n) or (rule == "smea" and n > 12):
            continue
        rng = np.random.default_rng([n, f])
        honest = honest_rows(kind, n - f, rng)
        for name, bad in attacks(rule, honest, f, rng).items():
            x = np.concatenate([honest, bad])  # row 0, which monna trusts, is honest
            assert_bounded(apply(rule, x, f), honest, KAPPAS[rule](n, f), (rule, n, f, name))


@pytest.mark.parametrize("rule", PROVEN)
def test_kappa_holds_for_every_choice_of_n_minus_f_rows(rule: str) -> None:
    for n, f, seed in [(5, 1, 0), (7, 2, 1), (8, 2, 2), (9, 3, 3), (9, 2, 4), (7, 3, 5), (9, 4, 6)]:
        if f > robust.AGGREGATORS[rule].withstands(n):
            continue
        rng = np.random.default_rng(seed)
        x = (rng.standard_normal((n, 6)) * rng.choice([0.1, 1, 10], (n, 1))).astype(np.float32)
        result = apply(rule, x, f)
        for subset in combinations(range(n), n - f):
            if rule != "monna" or 0 in subset:
                assert_bounded(result, x[list(subset)], KAPPAS[rule](n, f), (rule, n, f, subset))


@pytest.mark.parametrize("rule", [rule for rule in PROVEN if rule not in {"smea", "monna"}])
def test_mixing_improves_kappa_as_published(rule: str) -> None:
    """Allouah et al. 2023a: 8 f / (n - f) (kappa + 1) after nearest-neighbour mixing."""
    for n, f in SIZES:
        if f > robust.AGGREGATORS[rule].withstands(n):
            continue
        kappa = 8 * f / (n - f) * (KAPPAS[rule](n, f) + 1)
        rng = np.random.default_rng([n, f, 7])
        for kind in ("alike", "apart", "camps"):
            honest = honest_rows(kind, n - f, rng)
            for name, bad in attacks(rule, honest, f, rng).items():
                x = np.concatenate([honest, bad])
                options = {"f": f} if "f" in robust.AGGREGATORS[rule].parameters else {}
                result = robust.aggregate(rule, x, before=[("nnm", {"f": f})], **options).vector
                assert_bounded(result, honest, kappa, (rule, n, f, kind, name))


@pytest.mark.parametrize("rule", sorted(set(BUILT_IN) - BY_VALIDATION))
def test_honest_rows_that_agree_are_not_moved_by_as_many_bad_rows_as_are_withstood(rule: str) -> None:
    """The least that withstanding means, with or without a kappa."""
    honest = np.linspace(-2, 3, 7).astype(np.float32)
    for n in range(1, 24):
        f = tolerance.withstands(rule, n)
        if robust.AGGREGATORS[rule].withstands(n) < 0 or (rule == "smea" and n > 14):
            continue
        sizes = 10.0 ** np.arange(f)[:, None]
        unlike = [honest + sizes, honest - sizes * np.eye(7)[np.arange(f) % 7]]  # on one line; on seven
        for bad in (-honest, 100 * honest, honest + 1, *([] if rule in ALIKE else unlike)):
            x = np.repeat(honest[None], n, axis=0)
            x[n - f :] = bad  # row 0, which monna trusts, is honest
            assert close(apply(rule, x, f), honest, 1.0), (n, f)


@pytest.mark.parametrize("name", ["min_max", "min_sum", "fall_of_empires"])
def test_dnc_sets_the_colluders_of_its_authors_aside(name: str) -> None:
    """All four, and they alone, where nothing hides them in the spread of the honest rows."""
    options = {"factor": -2.0} if name == "fall_of_empires" else {}
    for seed in range(10):
        honest = (np.random.default_rng(seed).standard_normal((16, 200)) + 0.3).astype(np.float32)
        x = np.concatenate([honest, robust.ATTACKS[name](honest, 4, **options)])
        found = robust.dnc.detail(x, f=4, rng=np.random.default_rng(seed))
        assert found.accepted == tuple(range(16)), seed


@pytest.mark.parametrize(("n", "f"), [(5, 1), (9, 4), (20, 4), (21, 10)])
def test_dnc_stays_near_the_honest_rows_if_the_bad_rows_are_alike(n: int, f: int) -> None:
    """Whatever they contain: colluders that it keeps are not far away."""
    for seed, distance in product(range(5), np.geomspace(0.01, 1e6, 17)):
        rng = np.random.default_rng([n, f, seed])
        honest = rng.standard_normal((n - f, 12))
        centre, spread = honest.mean(axis=0), math.sqrt(honest.var(axis=0).sum())
        direction = rng.standard_normal(12)
        bad = centre + distance * spread * direction / np.linalg.norm(direction)
        x = np.concatenate([np.repeat(bad[None], f, axis=0), honest])
        result = robust.dnc(x, f=f, rng=rng)
        assert np.linalg.norm(result - centre) < 8 * spread, (seed, distance)


def test_the_limit_of_dnc_a_larger_bad_row_hides_one_in_another_direction() -> None:
    """Two bad rows at a right angle: one direction shows one of them, and the other moves the result without bound."""
    honest = np.zeros((18, 3), dtype=np.float32)
    honest[:, 0], honest[:, 2] = np.tile([1, -1], 9), np.tile([1, 1, -1], 6)
    for size in (1e2, 1e3, 1e4):
        bad = np.array([[size**2, 0, 0], [0, size, 0]], dtype=np.float32)
        found = robust.dnc.detail(np.concatenate([honest, bad]), f=2, rng=np.random.default_rng(0))
        assert found.accepted is not None
        assert 18 not in found.accepted
        assert 19 in found.accepted
        assert found.vector[1] == pytest.approx(size / 18)


def test_the_limit_of_dnc_a_larger_bad_row_hides_one_in_the_same_direction() -> None:
    """The honest rows agree, but the larger bad row puts the mean nearer to the smaller one than to them."""
    for size in (1e2, 1e4):
        found = robust.dnc.detail([[0], [0], [0], [size], [100 * size]], f=2, rng=np.random.default_rng(0))
        assert found.accepted == (1, 2, 3)
        assert found.vector[0] == pytest.approx(size / 3)


def test_a_bounded_mean_withstands_nothing() -> None:
    """f rows of -x among n - f of x give (1 - 2f/n) x, although the honest rows have no variance."""
    honest = np.linspace(-2, 3, 7).astype(np.float32)
    x = np.stack([honest, honest, honest, -honest])
    assert np.allclose(robust.norm_bounded_mean(x), honest / 2)
    assert tolerance.withstands("norm_bounded_mean", 4) == 0


def test_mean_is_not_robust_for_any_kappa() -> None:
    """The check above can fail: one far row moves the mean without bound."""
    honest = honest_rows("alike", 9, np.random.default_rng(0))
    x = np.concatenate([honest, np.full((1, 12), 1e6, dtype=np.float32)])
    with pytest.raises(AssertionError):
        assert_bounded(robust.mean(x), honest, 1e6, "mean")


@pytest.mark.parametrize("rule", [rule for rule in PROVEN if rule != "monna"])
def test_too_many_bad_rows_break_the_bound(rule: str) -> None:
    """With more bad rows than the rule withstands, the same bound fails."""
    n, f = 9, robust.AGGREGATORS[rule].withstands(9)
    honest = honest_rows("alike", n - 5, np.random.default_rng(1))
    x = np.concatenate([honest, np.full((5, 12), 1e6, dtype=np.float32)])
    with pytest.raises(AssertionError):
        assert_bounded(apply(rule, x, f), honest, KAPPAS[rule](n, f), rule)
