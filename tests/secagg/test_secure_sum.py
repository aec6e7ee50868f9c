"""The one call for the impatient."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Stage, TooFewSurvivors, UsageError, secure_mean, secure_sum


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_integers_are_summed_exactly_for_any_dropouts(data: st.DataObject) -> None:
    n = data.draw(st.integers(4, 9))
    shape = data.draw(st.sampled_from([(3,), (2, 2), (1,)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    vectors = [rng.integers(-(10**6), 10**6, shape) for _ in range(n)]
    most = n - ((n + n // 3) // 2 + 1)
    drop = data.draw(st.dictionaries(st.integers(0, n - 1), st.sampled_from(list(Stage)[:5]), max_size=most))
    total = secure_sum(vectors, drop=drop)
    expected = sum(vectors[v] for v in range(n) if drop.get(v, Stage.DONE) > Stage.INPUTS)
    assert total.dtype == np.int64
    assert np.array_equal(total, expected)


def test_floats_are_summed_to_fixed_point_accuracy() -> None:
    vectors = [np.linspace(-1, 1, 50) * i for i in range(6)]
    assert np.allclose(secure_sum(vectors), sum(vectors), atol=6 * 8 / 2**28)
    assert np.allclose(secure_mean(vectors), sum(vectors) / 6, atol=8 / 2**28)


def test_a_dict_of_arrays_comes_out_as_such() -> None:
    update = {"weight": np.ones((2, 3), np.float32), "bias": np.zeros(2), "count": np.array([[7]])}
    total = secure_sum([update] * 5, drop=[2])
    assert list(total) == list(update)
    assert total["weight"].shape == (2, 3)
    assert np.allclose(total["weight"], 4)
    assert total["count"].tolist() == [[28]]  # integers stay exact beside floats
    assert secure_mean([update] * 5)["count"].tolist() == [[7.0]]


def test_too_many_dropouts_hide_the_sum() -> None:
    with pytest.raises(TooFewSurvivors, match="threshold"):
        secure_sum([[1], [2], [3], [4]], drop=[0, 1])


def test_three_clients_survive_a_dropout_only_without_colluders() -> None:
    with pytest.raises(TooFewSurvivors, match="fewer colluders allow more dropouts"):
        secure_sum([[1], [2], [3]], drop=[0])
    with pytest.raises(TooFewSurvivors, match="fewer than 3"):  # each of two would know the other's
        secure_sum([[1], [2], [3]], drop=[0], colluders=0)
    assert secure_sum([[1], [2], [3]], drop=[0], colluders=0, anonymity=2).tolist() == [5]


def test_booleans_half_floats_and_generators_are_summed_too() -> None:
    assert secure_sum(np.array([i % 2 == 0, True]) for i in range(4)).tolist() == [2, 4]
    assert secure_sum([np.array([0.5], np.float16)] * 4).tolist() == [2.0]


@pytest.mark.parametrize(
    ("vectors", "options", "says"),
    [
        ([[1]], {}, "needs at least 3 vectors"),
        ([[1], [2, 3], [4]], {}, "vector 1 has shape"),
        ([[1.0], [np.nan], [2.0]], {}, "NaN"),
        ([[], [], []], {}, "empty"),
        ([[2**30]] * 4, {}, "2"),
        ([[1], [2], [3]], {"drop": [7]}, "client 7"),
        ([[1], [2], [3], [4]], {"threshold": 2}, "does not fit cells"),
        ([[1], [2]], {}, "needs at least 3 vectors"),
    ],
)
def test_usage_errors_have_clear_messages(vectors: list, options: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        secure_sum(vectors, **options)


def test_clip_limits_what_one_client_adds() -> None:
    vectors = [[0.5], [0.5], [100.0], [0.5]]
    assert np.allclose(secure_sum(vectors, clip=1.0), [2.5], atol=1e-6)
