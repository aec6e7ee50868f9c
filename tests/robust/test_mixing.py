"""Pre-aggregation: agreement with definitions, and pipelines that keep count of rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robust
from tests.robust import references
from tests.robust.cases import Matrix, close, normal, whole

few = settings(max_examples=25, deadline=None)


def wide(x: Matrix) -> np.ndarray:
    return x.astype(np.float64)


@few
@given(x=normal(), radius=st.sampled_from([0.0, 1e-7, 0.5, 3.0, 1e9]))
def test_clipping_agrees_with_its_definition_and_keeps_its_input(x: Matrix, radius: float) -> None:
    kept = x.copy()
    found = robust.clipping(x, radius=radius)
    assert close(found, references.clipping(wide(x), radius), float(np.abs(x).max()))
    assert np.array_equal(x, kept)
    assert not np.shares_memory(found, x)
    short = np.linalg.norm(wide(x), axis=1) < radius
    assert np.array_equal(found[short], x[short])


@few
@given(x=normal(), data=st.data())
def test_arc_agrees_with_its_definition_and_keeps_its_input(x: Matrix, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, (len(x) - 1) // 2))
    kept = x.copy()
    assert close(robust.arc(x, f=f), references.arc(wide(x), f), float(np.abs(x).max()))
    assert np.array_equal(x, kept)


@few
@given(data=st.data())
def test_nnm_agrees_with_its_definition(data: st.DataObject) -> None:
    x = data.draw(st.one_of(normal(), whole()))
    f = data.draw(st.integers(0, len(x) - 1))
    assert close(robust.nnm(x, f=f), references.nnm(wide(x), f), float(np.abs(x).max()))


@few
@given(x=normal(), size=st.integers(1, 5), seed=st.integers(0, 99))
def test_buckets_are_means_of_a_random_partition(x: Matrix, size: int, seed: int) -> None:
    found = robust.bucketing(x, size=size, rng=np.random.default_rng(seed))
    assert len(found) == -(-len(x) // size)
    order = np.random.default_rng(seed).permutation(len(x))
    for i, row in enumerate(found):
        assert close(row, wide(x)[order[i * size : (i + 1) * size]].mean(axis=0), float(np.abs(x).max()))


STEPS = {"clipping": {"radius": 3.0}, "arc": {"f": 3}, "nnm": {"f": 3}, "bucketing": {"size": 2}}


@pytest.mark.parametrize("step", list(robust.PRE_AGGREGATORS))
def test_a_step_says_which_rows_it_ignored_and_what_each_new_row_stands_for(step: str) -> None:
    finite = np.random.default_rng(2).standard_normal((7, 30)).astype(np.float32)
    x = np.insert(finite, [3, 5], [[np.nan], [np.inf]], axis=0)  # rows 3 and 6
    for again in range(2):
        options = dict(STEPS[step])
        if step == "bucketing":
            options["rng"] = np.random.default_rng(again)
        found = robust.PRE_AGGREGATORS[step].detail(x, **options)
        assert found.rows == 9
        assert found.ignored == (3, 6)
        assert sorted(row for members in found.members for row in members) == [0, 1, 2, 4, 5, 7, 8]
        assert len(found.members) == len(found.matrix)
        if step == "bucketing":
            assert [len(members) for members in found.members] == [2, 2, 2, 1]
            for row, members in zip(found.matrix, found.members, strict=True):
                assert close(row, wide(x)[list(members)].mean(axis=0), 1.0)
            options["rng"] = np.random.default_rng(again)
        else:
            assert found.members == ((0,), (1,), (2,), (4,), (5,), (7,), (8,))
        assert np.array_equal(robust.PRE_AGGREGATORS[step](x, **options), found.matrix)
    assert robust.nnm.detail(finite, f=1).ignored == ()


def test_a_step_and_a_rule_with_the_rest_of_f_equal_a_pipeline() -> None:
    finite = np.random.default_rng(3).standard_normal((8, 30)).astype(np.float32)
    x = np.insert(finite, 3, np.nan, axis=0)
    ready = robust.nnm.detail(x, f=3)
    expected = robust.aggregate("krum", x, f=3, before=[("nnm", {"f": 3})])
    assert np.array_equal(robust.krum(ready.matrix, f=3 - len(ready.ignored)), expected.vector)


@pytest.mark.parametrize("size", [1e30, 1e38, 3e38])
@pytest.mark.parametrize("radius", [1e-7, 1e-3, 1.0, 1e6])
def test_rows_near_the_largest_are_clipped_to_the_radius_exactly(size: float, radius: float) -> None:
    """A factor below 1e-38 has few digits in float32: the clipped rows would miss the radius."""
    directions = np.random.default_rng(5).uniform(-1, 1, (4, 50))
    x = (size * directions).astype(np.float32)
    found = wide(robust.clipping(x, radius=radius))
    assert np.allclose(np.linalg.norm(found, axis=1), radius, rtol=1e-6, atol=0)
    assert close(found, references.clipping(wide(x), radius), radius)


def test_equal_rows_stay_exactly_equal_through_every_step() -> None:
    row = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    x = np.repeat(row[None], 7, axis=0)
    for found in (
        robust.nnm(x, f=2),
        robust.arc(x, f=2),
        robust.clipping(x, radius=1e6),
        robust.bucketing(x, size=3, rng=np.random.default_rng(0)),
    ):
        assert all(np.array_equal(one, row) for one in found)


def test_pipeline_is_its_steps_in_order() -> None:
    x = np.random.default_rng(1).standard_normal((9, 30)).astype(np.float32)
    found = robust.aggregate("krum", x, f=2, before=[("arc", {"f": 2}), ("nnm", {"f": 2})])
    assert np.array_equal(found.vector, robust.krum(robust.nnm(robust.arc(x, f=2), f=2), f=2))
    assert found.weights is None


@pytest.mark.parametrize("step", ["nnm", "arc"])
def test_rows_ignored_by_a_step_count_as_bad_in_all_that_follow(step: str) -> None:
    finite = np.random.default_rng(2).standard_normal((8, 30)).astype(np.float32)
    x = np.insert(finite, 3, np.nan, axis=0)
    found = robust.aggregate("multi_krum", x, f=3, m=2, before=[(step, {"f": 3})])
    expected = robust.aggregate("multi_krum", finite, f=2, m=2, before=[(step, {"f": 2})])
    assert np.array_equal(found.vector, expected.vector)
    assert found.ignored == (3,)
    assert expected.accepted is not None
    assert found.accepted == tuple(i + (i >= 3) for i in expected.accepted)


def test_row_numbers_survive_a_pipeline() -> None:
    """Row 4 keeps its number after row 0 was ignored, so monna trusts the right row."""
    x = np.array([[np.nan], [0.0], [0.1], [9.0], [9.1], [9.2]], dtype=np.float32)
    found = robust.aggregate("monna", x, f=3, trusted=4, before=[("clipping", {"radius": 100.0})])
    assert found.accepted == (3, 4, 5)


def test_fraction_counts_all_rows_that_were_given() -> None:
    finite = np.random.default_rng(3).standard_normal((9, 5)).astype(np.float32)
    x = np.insert(finite, 0, np.inf, axis=0)
    plain = robust.trimmed_mean(x, fraction=0.45)  # 4 of 10 a side, one of them ignored already
    assert np.array_equal(plain, robust.trimmed_mean(finite, f=3))
    after = robust.aggregate("trimmed_mean", x, fraction=0.45, before=[("clipping", {"radius": 1e9})])
    assert np.array_equal(after.vector, plain)


def test_accepted_buckets_are_reported_as_the_rows_in_them() -> None:
    x = np.arange(12, dtype=np.float32)[:, None]
    x[5] = np.nan
    order = np.random.default_rng(4).permutation(11)
    found = robust.aggregate("krum", x, f=1, before=[("bucketing", {"size": 2, "rng": np.random.default_rng(4)})])
    finite = np.delete(np.arange(12), 5)
    buckets = [tuple(sorted(finite[order[i : i + 2]].tolist())) for i in range(0, 11, 2)]
    assert found.accepted in buckets
    assert found.ignored == (5,)
    assert np.isclose(found.vector[0], np.mean(found.accepted))


def test_accepted_rows_are_reported_after_two_steps_of_bucketing() -> None:
    x = np.arange(16, dtype=np.float32)[:, None]
    before = [("bucketing", {"size": 2, "rng": np.random.default_rng(seed)}) for seed in (5, 6)]
    found = robust.aggregate("krum", x, f=0, before=before)
    assert found.accepted is not None
    assert len(found.accepted) == 4
    assert np.isclose(found.vector[0], np.mean(found.accepted))
