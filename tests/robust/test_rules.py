"""What holds for every rule: agreement with its definition, and its symmetries."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robust
from robust.kernels import threads as parallel
from tests.robust import references
from tests.robust.cases import (
    BUILT_IN,
    BY_NORM,
    BY_ORDER,
    BY_VALIDATION,
    COORDINATE_WISE,
    Matrix,
    apply,
    close,
    largest_f,
    normal,
    parameters,
    whole,
)

few = settings(max_examples=25, deadline=None)
every_rule = pytest.mark.parametrize("rule", BUILT_IN)


def test_every_registered_rule_is_tested_here() -> None:
    assert set(BUILT_IN) == set(robust.AGGREGATORS) == set(references.RULES)


@every_rule
@few
@given(data=st.data())
def test_rule_agrees_with_its_definition(rule: str, data: st.DataObject) -> None:
    x = data.draw(normal())
    f = data.draw(st.integers(0, largest_f(rule, len(x))))
    if robust.AGGREGATORS[rule].withstands(len(x)) < 0:
        return
    found = apply(rule, x, f)
    wide = x.astype(np.float64)
    scale = float(np.abs(x).max())
    expected = references.RULES[rule](wide, **parameters(rule, len(x), f, x.shape[1]))
    if rule == "geometric_median":  # what is promised is the objective, to one part in a million
        assert references.objective(wide, found) <= references.objective(wide, expected) * (1 + 2e-6)
    else:
        assert found.dtype == np.float32
        assert close(found, expected, scale, 1e-5 if rule == "caf" else 2e-6)


@pytest.mark.parametrize("rule", sorted(set(BUILT_IN) - {"geometric_median", "caf", "smea", "mda"}))
@few
@given(data=st.data())
def test_rule_agrees_with_its_definition_when_there_are_ties(rule: str, data: st.DataObject) -> None:
    x = data.draw(whole())
    f = data.draw(st.integers(0, largest_f(rule, len(x))))
    if robust.AGGREGATORS[rule].withstands(len(x)) < 0:
        return
    expected = references.RULES[rule](x.astype(np.float64), **parameters(rule, len(x), f, x.shape[1]))
    assert close(apply(rule, x, f), expected, 1.0)


@few
@given(x=whole(most=8), data=st.data())
def test_mda_has_the_least_diameter_when_there_are_ties(x: Matrix, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, (len(x) - 1) // 2))
    accepted = robust.mda.detail(x, f=f).accepted
    assert accepted is not None
    assert len(accepted) == len(x) - f
    squared = references.distances(x.astype(np.float64))
    subsets = references.combinations(range(len(x)), len(x) - f)
    least = min(squared[np.ix_(subset, subset)].max() for subset in subsets)
    assert squared[np.ix_(accepted, accepted)].max() == least


@every_rule
@few
@given(data=st.data())
def test_order_of_rows_does_not_matter(rule: str, data: st.DataObject) -> None:
    if rule in BY_ORDER:
        return
    x = data.draw(normal(least=4))
    f = data.draw(st.integers(0, largest_f(rule, len(x))))
    order = np.array(data.draw(st.permutations(range(len(x)))))
    # Sums are rounded to double precision in another order: at most the last place of a float32 may differ.
    assert close(apply(rule, x[order], f), apply(rule, x, f), float(np.abs(x).max()), 1e-6)


@pytest.mark.parametrize("rule", sorted(set(BUILT_IN) - BY_VALIDATION - BY_NORM))
@few
@given(data=st.data())
def test_moving_all_rows_moves_the_result(rule: str, data: st.DataObject) -> None:
    x = data.draw(whole() if rule in COORDINATE_WISE else normal(least=4))
    f = data.draw(st.integers(0, largest_f(rule, len(x))))
    if robust.AGGREGATORS[rule].withstands(len(x)) < 0:
        return
    scale = float(np.abs(x).max()) or 1.0
    shift = (np.arange(x.shape[1]) % 5 - 2) * scale
    moved = (x + shift).astype(np.float32)
    assert close(apply(rule, moved, f), apply(rule, x, f) + shift, 3 * scale, 1e-5)


@pytest.mark.parametrize("rule", sorted(set(BUILT_IN) - BY_VALIDATION))
@few
@given(data=st.data())
def test_scaling_all_rows_scales_the_result(rule: str, data: st.DataObject) -> None:
    x = data.draw(normal(least=4))
    f = data.draw(st.integers(0, largest_f(rule, len(x))))
    factor = data.draw(st.sampled_from([0.5, 8.0, 1e-3, -4.0]))
    scaled = (x * factor).astype(np.float32)
    assert close(apply(rule, scaled, f), apply(rule, x, f) * factor, float(np.abs(scaled).max()), 1e-5)


@every_rule
@few
@given(data=st.data())
def test_rows_that_are_all_the_same_come_back_exactly(rule: str, data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 40))
    row = data.draw(
        st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40).map(
            lambda values: np.array(values, dtype=np.float32)
        )
    )
    x = np.repeat(row[None], n, axis=0)
    f = data.draw(st.integers(0, largest_f(rule, n)))
    options = parameters(rule, n, f, x.shape[1])
    if rule in BY_VALIDATION:  # accept everything: what is asked is what becomes of accepted rows
        options = {
            "zeno": {"loss": lambda g: 0.0, "rho": 0.0},
            "zeno++": {"gradient": np.zeros_like(row), "rho": 0.0},
            "fltrust": {"server": row},
        }[rule]
    assert np.array_equal(robust.AGGREGATORS[rule](x, **options), row)


@every_rule
def test_inputs_are_not_changed_and_results_belong_to_the_caller(rule: str) -> None:
    x = np.random.default_rng(1).standard_normal((11, 50)).astype(np.float32)
    kept = x.copy()
    apply(rule, x, largest_f(rule, 11))
    assert np.array_equal(x, kept)
    x.setflags(write=False)  # a read-only matrix is accepted
    found = apply(rule, x, largest_f(rule, 11))
    assert not np.shares_memory(found, x)
    found[:] = 0  # the result belongs to the caller


@every_rule
@pytest.mark.parametrize("shape", [(7, 5), (20, 3000), (9, 70_001)])
def test_number_of_threads_does_not_matter(rule: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    f = min(largest_f(rule, shape[0]), 2)
    results = []
    before = parallel._limit
    try:
        for count in (1, 2, 5):
            robust.set_threads(count)
            results.append(apply(rule, x, f))
    finally:
        robust.set_threads(before)
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


@pytest.mark.parametrize("rule", sorted(COORDINATE_WISE))
@few
@given(data=st.data())
def test_coordinates_lie_between_honest_extremes(rule: str, data: st.DataObject) -> None:
    honest = data.draw(normal(least=3))
    most = largest_f(rule, 2 * len(honest) - 1)
    f = data.draw(st.integers(0, min(most, len(honest) - 1)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    bad = rng.choice(np.array([-3e38, -1.0, 0.0, 1.0, 1e30], dtype=np.float32), (f, honest.shape[1]))
    x = rng.permutation(np.concatenate([honest, bad]))
    found = apply(rule, x, f)
    if rule == "meamed":  # nearest the median, which is between them: one honest width away at most
        width = honest.max(axis=0) - honest.min(axis=0)
        assert (found >= honest.min(axis=0) - width * (1 + 1e-6)).all()
        assert (found <= honest.max(axis=0) + width * (1 + 1e-6)).all()
    else:
        assert (found >= honest.min(axis=0)).all()
        assert (found <= honest.max(axis=0)).all()


@few
@given(x=normal(least=5), data=st.data())
def test_krum_returns_a_row(x: Matrix, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, (len(x) - 3) // 2))
    found = robust.krum.detail(x, f=f)
    assert found.accepted is not None
    assert np.array_equal(found.vector, x[found.accepted[0]])
    assert any(np.array_equal(found.vector, row) for row in x)


@pytest.mark.parametrize("rule", ["mean", "krum", "multi_krum", "mda", "monna", "caf", "smea", "geometric_median"])
def test_weights_make_the_vector(rule: str) -> None:
    x = np.random.default_rng(4).standard_normal((9, 30)).astype(np.float32)
    found = robust.aggregate(rule, x, **parameters(rule, 9, 2, 30))
    assert found.weights is not None
    assert found.weights.sum() == pytest.approx(1)
    assert close(found.vector, found.weights @ x.astype(np.float64), 1.0)
    if found.accepted is not None:
        assert tuple(np.flatnonzero(found.weights)) == found.accepted


def test_zeno_takes_any_loss_that_is_one_number() -> None:
    torch = pytest.importorskip("torch")
    rows = np.array([[1.0], [2.0], [-900.0]], dtype=np.float32)

    def loss(update: np.ndarray) -> object:
        return (torch.tensor(update, requires_grad=True)[0] - 2) ** 2

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert robust.zeno(rows, loss=loss).tolist() == [1.5]
    with pytest.raises(ValueError, match=r"loss must return one number for an update, got Tensor of shape \(2,\)"):
        robust.zeno(rows, loss=lambda update: torch.zeros(2, requires_grad=True))
    with pytest.raises(ValueError, match="got NoneType"):
        robust.zeno(rows, loss=lambda update: None)
