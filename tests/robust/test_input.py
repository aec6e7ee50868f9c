"""Checks of the input of all rules: values that are not finite, shapes, types, and refusals with numbers."""

import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robust
from robust.rows import Rows, as_matrix
from tests.robust.cases import BUILT_IN, largest_f, normal, parameters

every_rule = pytest.mark.parametrize("rule", BUILT_IN)
few = settings(max_examples=20, deadline=None)


@every_rule
@few
@given(data=st.data())
def test_k_rows_that_are_not_finite_leave_n_minus_k_rows_and_f_minus_k_bad_ones(rule: str, data: st.DataObject) -> None:
    finite = data.draw(normal(least=7, most=11))
    k = data.draw(st.integers(1, 4))
    n = len(finite) + k
    f = data.draw(st.integers(0, largest_f(rule, n)))
    places = np.sort(np.array(data.draw(st.permutations(range(n)))[:k]))
    x = np.empty((n, finite.shape[1]), dtype=np.float32)
    x[np.setdiff1d(np.arange(n), places)] = finite
    for place in places:  # one bad value is enough
        x[place] = finite[0]
        x[place, data.draw(st.integers(0, x.shape[1] - 1))] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    left = max(f - k, 0)
    given_options = parameters(rule, n, f, x.shape[1])
    fewer_options = parameters(rule, len(finite), left, x.shape[1])
    if rule == "monna":
        trusted = int(np.setdiff1d(np.arange(n), places)[1])
        given_options["trusted"], fewer_options["trusted"] = trusted, 1
    found = robust.aggregate(rule, x, **given_options)
    expected = robust.aggregate(rule, finite, **fewer_options)
    assert found.ignored == tuple(places.tolist())
    assert found.rows == n
    assert np.array_equal(found.vector, expected.vector)
    kept = np.setdiff1d(np.arange(n), places)
    if expected.accepted is not None:
        assert found.accepted == tuple(kept[list(expected.accepted)].tolist())
        assert found.rejected == tuple(sorted(set(range(n)) - set(found.accepted)))
    if expected.weights is not None:
        assert found.weights is not None
        assert np.array_equal(found.weights[kept], expected.weights)
        assert not found.weights[places].any()


@every_rule
def test_all_rows_not_finite_is_refused(rule: str) -> None:
    x = np.full((9, 4), np.nan, dtype=np.float32)
    with pytest.raises(ValueError, match="all 9 rows contain NaN or infinity"):
        robust.AGGREGATORS[rule](x, **parameters(rule, 9, 1, 4))


@pytest.mark.parametrize("rule", [rule for rule in BUILT_IN if "f" in robust.AGGREGATORS[rule].parameters])
@pytest.mark.parametrize("n", [3, 4, 7, 12])
def test_too_many_bad_rows_are_refused_with_both_numbers(rule: str, n: int) -> None:
    f = max(robust.AGGREGATORS[rule].withstands(n), -1) + 1
    x = np.zeros((n, 3), dtype=np.float32)
    with pytest.raises(ValueError, match=rf"{rule} needs n .*: got n={n}, f={f}"):
        robust.AGGREGATORS[rule](x, **parameters(rule, n, f, 3))
    with pytest.raises(ValueError, match=rf"{rule} needs n .*: got n={n}, f={f}"):
        robust.AGGREGATORS[rule].check(n, **parameters(rule, n, f, 3))


def test_refusal_says_how_many_rows_were_ignored() -> None:
    x = np.zeros((5, 3), dtype=np.float32)
    x[:3] = np.nan
    with pytest.raises(ValueError, match=r"krum needs .* got n=2, f=0 \(3 of 5 rows are not finite\)"):
        robust.krum(x, f=1)


@every_rule
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_input_is_refused(rule: str, shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="empty"):
        robust.AGGREGATORS[rule](np.zeros(shape), **parameters(rule, 3, 0, shape[1]))


@every_rule
def test_vectors_and_stacks_of_matrices_are_refused(rule: str) -> None:
    for shape in [(5,), (2, 3, 4)]:
        with pytest.raises(ValueError, match="one row per update"):
            robust.AGGREGATORS[rule](np.zeros(shape), **parameters(rule, 5, 0, 4))


@every_rule
@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int32, np.uint8, ">f4"])
def test_other_real_types_are_rounded_to_float32(rule: str, kind: str) -> None:
    x = np.random.default_rng(5).integers(0, 9, (9, 33)).astype(kind)
    options = parameters(rule, 9, 1, 33)
    found = robust.AGGREGATORS[rule](x, **options)
    assert found.dtype == np.float32
    assert np.array_equal(found, robust.AGGREGATORS[rule](x.astype(np.float32), **options))


@pytest.mark.parametrize("kind", [np.complex64, np.bool_, object, "U1"])
def test_other_types_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="real numbers"):
        robust.mean(np.zeros((3, 3)).astype(kind))


def test_float64_beyond_float32_is_a_row_that_is_not_finite() -> None:
    x = np.ones((5, 3))
    x[2, 1] = 1e300
    found = robust.aggregate("median", x)
    assert found.ignored == (2,)
    assert np.array_equal(found.vector, [1, 1, 1])


@pytest.mark.parametrize("rule", ["median", "krum", "mean", "zeno++"])
def test_memory_layout_does_not_matter(rule: str) -> None:
    x = np.random.default_rng(6).standard_normal((9, 40)).astype(np.float32)
    wider = np.zeros((18, 80), dtype=np.float32)
    wider[::2, ::2] = x
    raw = bytearray(x.nbytes + 1)
    shifted = np.frombuffer(raw, dtype=np.float32, offset=1, count=x.size).reshape(x.shape)
    shifted[:] = x
    options = parameters(rule, 9, 1, 40)
    expected = robust.AGGREGATORS[rule](x, **options)
    for same in (np.asfortranarray(x), wider[::2, ::2], shifted, list(x), x.tolist()):
        assert np.array_equal(robust.AGGREGATORS[rule](same, **options), expected)


ONES = np.ones(3)
ASK = {"row": 1, "combined": ONES, "mixed": np.eye(3), "scaled": ONES, "products": np.ones(4, "f")}


@pytest.mark.parametrize("ask", [*ASK, "array", "squared_distances", "squared_norms"])
def test_rows_never_return_a_value_that_is_not_finite(ask: str) -> None:
    """Rules of others are safe too: every method detects bad rows."""
    x = np.zeros((3, 4), dtype=np.float32)
    x[1, 2] = np.inf
    with pytest.raises(robust.rows.NotFiniteError):
        getattr(Rows(as_matrix(x)), ask)(*([ASK[ask]] if ask in ASK else []))
    assert len(Rows(as_matrix(x)).finite()) == 2


def test_zeno_calls_the_loss_for_finite_rows_only() -> None:
    seen = []

    def loss(g: np.ndarray) -> float:
        seen.append(g)
        return float(np.abs(g).sum())

    x = np.ones((4, 3), dtype=np.float32)
    x[3] = np.nan
    robust.zeno(x, loss=loss)
    assert len(seen) == 1 + 3
    assert all(np.isfinite(g).all() for g in seen)


def test_losses_of_the_given_rows_are_refused_for_the_rows_that_a_step_makes() -> None:
    given = [[1.0], [2.0], [-900.0]]
    losses = [1.0, 0.0, 8e5]
    assert robust.aggregate("zeno", given, loss=lambda g: 4.0, losses=losses).accepted == (0, 1)
    with pytest.raises(ValueError, match="a step before the rule makes other rows"):
        robust.aggregate("zeno", given, loss=lambda g: 4.0, losses=losses, before=[("nnm", {"f": 1})])


def test_trusted_row_must_be_finite() -> None:
    x = np.zeros((5, 3), dtype=np.float32)
    x[2] = np.nan
    with pytest.raises(ValueError, match="row 2 was requested, but it contains NaN"):
        robust.monna(x, f=1, trusted=2)
    assert robust.monna.detail(x, f=1, trusted=3).accepted == (0, 1, 3, 4)


@pytest.mark.parametrize(("rule", "name"), [("centered_clipping", "centre"), ("zeno++", "gradient")])
def test_vector_parameters_must_fit_and_be_finite(rule: str, name: str) -> None:
    x = np.zeros((5, 3), dtype=np.float32)
    with pytest.raises(ValueError, match=f"{name} must be a vector of length 3"):
        robust.AGGREGATORS[rule](x, **{name: np.zeros(4)})
    with pytest.raises(ValueError, match=f"{name} contains NaN"):
        robust.AGGREGATORS[rule](x, **{name: np.array([0, np.nan, 0])})


def test_tensors_of_torch_in_any_form_are_read() -> None:
    torch = pytest.importorskip("torch")
    plain = [[1.0, 2.0], [3.0, 4.0], [900.0, 0.0]]
    for tensor in (
        torch.tensor(plain, dtype=torch.bfloat16),
        torch.tensor(plain, requires_grad=True),
        torch.tensor(plain, dtype=torch.float16),
        [torch.tensor(row, requires_grad=True) for row in plain],
        [torch.tensor(row, dtype=torch.bfloat16) for row in plain],
    ):
        assert robust.median(tensor).tolist() == [3.0, 2.0]
    assert robust.sign_flip(torch.tensor(plain, requires_grad=True)[:1], 1).tolist() == [[-1.0, -2.0]]
    centre = torch.zeros(2, dtype=torch.bfloat16)
    assert np.isfinite(robust.centered_clipping(plain, centre=centre)).all()


def test_parameters_and_results_may_be_tensors_of_torch_in_any_form() -> None:
    torch = pytest.importorskip("torch")
    rows = np.array([[1.0], [2.0], [-900.0]], dtype=np.float32)

    def forms(values: object) -> list[object]:
        plain = torch.tensor(values)
        learned = plain.clone().requires_grad_()
        return [values, plain, learned, plain.to(torch.bfloat16), list(learned), list(plain.to(torch.bfloat16))]

    for losses in forms([1.0, 0.0, 900.0]):
        assert robust.zeno(rows, loss=lambda g: 2.0, losses=losses).tolist() == [1.5]
    for gradient in forms([-1.0]):
        assert robust.zeno_plus_plus(rows, gradient=gradient).tolist() == [1.5]
    for sent in (*forms([[5.0], [6.0]]), [list(row) for row in torch.tensor([[5.0], [6.0]], requires_grad=True)]):
        assert robust.Attack(lambda given, sent=sent: sent)(rows, 2).tolist() == [[5.0], [6.0]]
    expected = robust.fall_of_empires(rows, 1, against=robust.mean)
    for kind in (torch.float32, torch.bfloat16):

        def against(x: np.ndarray, kind: object = kind) -> object:
            return torch.tensor(robust.mean(x), requires_grad=True).to(kind)

        assert np.allclose(robust.fall_of_empires(rows, 1, against=against), expected)
    labels = torch.tensor([0, 1, 9])
    for given_labels in (labels, list(labels), labels.tolist()):
        assert robust.label_flip(given_labels, 10).tolist() == [9, 8, 0]
    with pytest.raises(ValueError, match=r"labels must be integers, not float32"):
        robust.label_flip(torch.tensor([0.0, 1.0], requires_grad=True), 10)


def test_views_of_tensors_that_torch_has_not_computed_yet_are_read() -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.tensor([[1 + 2j, 3 - 4j]])
    assert robust.mean(numbers.conj().imag).tolist() == [-2, 4]
    assert robust.mean([numbers.conj().real[0], numbers.real[0]]).tolist() == [1, 3]


def test_tensors_in_a_form_that_numpy_does_not_have_are_refused_with_what_to_call() -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that it will remove some of these forms
        forms = [
            (ones.to(torch.float8_e4m3fn), r"got a tensor of torch\.float8_e4m3fn: call \.float\(\)"),
            (ones.to_sparse(), r"of torch\.float32 in the layout torch\.sparse_coo: call \.to_dense\(\)"),
            (ones.to_sparse_csr(), r"in the layout torch\.sparse_csr: call \.to_dense\(\)"),
            (ones.to(torch.bfloat16).to_sparse(), r"of torch\.bfloat16 in the layout torch\.sparse_coo: call"),
            (torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8), r"of torch\.qint8: call \.dequantize\(\)"),
            (torch.nested.nested_tensor([ones[0], ones[1]]), r"a nested tensor of .*: call \.to_padded_tensor\(0\.0\)"),
        ]
    for tensor, problem in forms:
        with pytest.raises(TypeError, match=rf"^updates must be real numbers in a form that numpy has; .*{problem}"):
            robust.median(tensor)
        with pytest.raises(TypeError, match=r"^rows of <lambda> must be real numbers"):
            robust.Attack(lambda given, sent=tensor: sent)([[1.0, 2.0]], 3)
    with pytest.raises(TypeError, match=r"^updates must be real numbers; got a tensor on the device meta, which"):
        robust.median(torch.ones(3, 2, device="meta"))
    float8 = torch.ones(2).to(torch.float8_e4m3fn)
    with pytest.raises(TypeError, match=r"^updates must be .*float8"):
        robust.median([float8, float8])
    with pytest.raises(TypeError, match=r"^gradient must be .*float8"):
        robust.zeno_plus_plus([[1.0, 2.0]], gradient=float8)
    with pytest.raises(TypeError, match=r"^losses must be .*float8"):
        robust.zeno([[1.0], [2.0]], loss=lambda g: 0.0, losses=float8)
    with pytest.raises(TypeError, match=r"^labels must be .*float8"):
        robust.label_flip(float8, 10)
    with pytest.raises(TypeError, match=r"^what against returns must be .*float8"):
        robust.fall_of_empires([[1.0, 2.0]], 1, against=lambda x: float8)


def test_values_that_are_no_vector_of_real_numbers_are_refused_by_name() -> None:
    for losses, got in (([0.0], "got 1 for 2 rows"), ([[0.0], [0.0]], r"got shape \(2, 1\) for 2 rows")):
        with pytest.raises(ValueError, match=f"^losses must have one value per row: {got}$"):
            robust.zeno([[1.0], [2.0]], loss=lambda g: 0.0, losses=losses)
    with pytest.raises(ValueError, match=r"^losses must be real numbers; got complex128$"):
        robust.zeno([[1.0], [2.0]], loss=lambda g: 0.0, losses=[1j, 0j])
    with pytest.raises(ValueError, match=r"^gradient must be a vector of real numbers; got <U1$"):
        robust.zeno_plus_plus([[1.0, 2.0]], gradient=["a", "b"])
    with pytest.raises(ValueError, match=r"^updates must be numbers in lists of equal length: "):
        robust.median([[1.0, 2.0], [3.0]])
    for result, got in ((np.zeros(3), r"shape \(3,\) of float64"), (0.0, r"shape \(\) of float64"), ("ab", r"of <U2")):
        with pytest.raises(TypeError, match=rf"^against must return a vector of 2 real numbers; got .*{got}$"):
            robust.fall_of_empires([[1.0, 2.0]], 1, against=lambda x, result=result: result)


@pytest.mark.parametrize("result", [np.zeros(3), np.zeros((1, 2)), 0.0])
def test_a_rule_of_your_own_must_return_a_vector_as_long_as_a_row(result: object) -> None:
    @robust.aggregator(paper="nobody 2026", needs="f = 0", withstands=lambda n: 0)
    def strange(rows: robust.Rows) -> robust.Outcome:
        return robust.Outcome(result)  # type: ignore[arg-type]

    try:
        with pytest.raises(TypeError, match="vector of length 2"):
            strange([[1, 2], [3, 4]])
    finally:
        robust.AGGREGATORS.remove("strange")


@pytest.fixture
def own() -> Iterator[list[str]]:
    """Names of rules and steps that the test has registered, and that are removed after it."""
    names: list[str] = []
    yield names
    for name in names:
        (robust.AGGREGATORS if name in robust.AGGREGATORS else robust.PRE_AGGREGATORS).remove(name)


def returning(own: list[str], result: object) -> None:
    @robust.aggregator(paper="nobody 2026", needs="f = 0", withstands=lambda n: 0)
    def strange(rows: robust.Rows) -> robust.Outcome:
        return result  # type: ignore[return-value]

    own.append("strange")


def test_a_rule_of_your_own_may_return_a_list_or_a_tensor(own: list[str]) -> None:
    torch = pytest.importorskip("torch")
    learned = torch.tensor([1.0, 2.0], requires_grad=True)
    vectors = [[1.0, 2.0], learned, learned.to(torch.bfloat16), np.array([1.0, 2.0]), np.array([1, 2]), list(learned)]
    for vector in vectors:
        returning(own, robust.Outcome(vector))  # type: ignore[arg-type]
        found = robust.aggregate("strange", [[1, 2], [3, 4]]).vector
        assert (type(found), found.dtype, found.tolist()) == (np.ndarray, np.float32, [1, 2])
        robust.AGGREGATORS.remove(own.pop())


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (robust.Outcome(np.array(["a", "b"])), r"shape \(2,\) of <U1"),  # type: ignore[arg-type]
        (robust.Outcome(np.array([1j, 2])), r"shape \(2,\) of complex128"),  # type: ignore[arg-type]
        (robust.Outcome(np.array([True, False])), r"shape \(2,\) of bool"),  # type: ignore[arg-type]
        (np.zeros(2), "ndarray"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_outcome_with_real_numbers_is_refused(own: list[str], result: object, got: str) -> None:
    returning(own, result)
    with pytest.raises(TypeError, match=rf"^strange must return an Outcome with a vector of length 2, got {got}$"):
        robust.aggregate("strange", [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"accepted": np.array([0, 3])}, r"accepted .* different row numbers, 0 to 2; got \[0, 3\]"),
        ({"accepted": np.array([-1])}, r"accepted .*; got \[-1\]"),
        ({"accepted": np.array([1, 1])}, r"accepted .*; got \[1, 1\]"),
        ({"accepted": np.array([True, False, True])}, r"accepted .*; got \[True, False, True\]"),
        ({"accepted": np.array([0.5])}, r"accepted .*; got \[0.5\]"),
        ({"accepted": 1}, r"accepted .*; got 1"),
        ({"weights": np.ones(2)}, r"weights .* 3 finite numbers, one per row; got shape \(2,\) of float64"),
        ({"weights": 0.5}, r"weights .*; got shape \(\) of float64"),
        ({"weights": [0.5, 0.5, np.nan]}, r"weights .*; got \[0.5, 0.5, nan\]"),
        ({"weights": ["a", "b", "c"]}, r"weights .*; got \['a', 'b', 'c'\]"),
    ],
)
@pytest.mark.parametrize("before", [[], [("nnm", {"f": 1})]])
def test_wrong_rows_or_weights_of_a_rule_of_your_own_are_refused(
    own: list[str], extra: dict[str, Any], problem: str, before: list[tuple[str, dict[str, Any]]]
) -> None:
    returning(own, robust.Outcome(np.zeros(2), **extra))
    with pytest.raises(TypeError, match=rf"^strange: {problem}$"):
        robust.aggregate("strange", [[1, 2], [3, 4], [5, 6]], before=before)


STEPS: list[list[tuple[str, dict[str, Any]]]] = [
    [],
    [("nnm", {"f": 1})],
    [("bucketing", {"size": 2, "rng": np.random.default_rng(0)})],
]


@pytest.mark.parametrize("before", STEPS)
def test_a_rule_of_your_own_may_accept_no_row(own: list[str], before: list[tuple[str, dict[str, Any]]]) -> None:
    returning(own, robust.Outcome(np.zeros(2), accepted=[]))  # type: ignore[arg-type]
    assert robust.aggregate("strange", [[1, 2], [3, 4], [5, 6]], before=before).accepted == ()


ODD = np.zeros((3, 2), dtype=np.float32)
WRONG_MIXED = [
    (ODD, r"must return robust\.Mixed\(matrix\), got ndarray"),
    (None, r"must return robust\.Mixed\(matrix\), got NoneType"),
    (robust.Mixed(ODD[:, :1]), r"a matrix of 3 x 2 real numbers, one row per input row; got shape \(3, 1\) of float32"),
    (robust.Mixed(ODD[:2]), r"a matrix of 3 x 2 real numbers, one row per input row; got shape \(2, 2\) of float32"),
    (robust.Mixed(ODD[0]), r"got shape \(2,\) of float32"),
    (robust.Mixed(ODD.astype(complex)), r"got shape \(3, 2\) of complex128"),  # type: ignore[arg-type]
    (robust.Mixed(ODD, members=(np.array([0, 1]),)), r"of 1 x 2 real numbers, one row per entry of members; got shape"),
    (robust.Mixed(ODD[:0], members=()), r"of 0 x 2 real numbers, one row per entry of members; got shape \(0, 2\)"),
    (robust.Mixed(ODD[:1], members=(np.array([0, 3]),)), ": each entry of members must be an array of row numbers, 0"),
    (robust.Mixed(ODD[:1], members=5), "each entry of members must be an array of row numbers"),  # type: ignore[arg-type]
    (robust.Mixed(ODD[:1], members=(np.array([-1]),)), "members must be an array of row numbers, 0 to 2"),
    (robust.Mixed(ODD[:1], members=(np.array([], dtype=int),)), "members must be an array of row numbers, 0 to 2"),
    (robust.Mixed(ODD[:1], members=(np.array([0.5]),)), "members must be an array of row numbers"),  # type: ignore[arg-type]
    (robust.Mixed(ODD[:1], members=(np.array([[0]]),)), "members must be an array of row numbers, 0 to 2"),
]


def mixing(own: list[str], result: object) -> None:
    @robust.pre_aggregator(paper="nobody 2026", needs="nothing of n and f")
    def strange_step(rows: robust.Rows) -> robust.Mixed:
        return result  # type: ignore[return-value]

    own.append("strange_step")


@pytest.mark.parametrize(("result", "problem"), WRONG_MIXED)
def test_a_step_of_your_own_must_return_rows_as_wide_as_those_that_it_got(
    own: list[str], result: object, problem: str
) -> None:
    mixing(own, result)
    x = [[1, 2], [3, 4], [5, 6]]
    with pytest.raises(TypeError, match=f"^strange_step.*{problem}"):
        robust.aggregate("median", x, before=[("strange_step", {})])
    with pytest.raises(TypeError, match=f"^strange_step.*{problem}"):
        robust.PRE_AGGREGATORS["strange_step"](x)


def test_a_step_of_your_own_may_return_lists_or_tensors(own: list[str]) -> None:
    torch = pytest.importorskip("torch")
    x = [[1.0, 2.0], [3.0, 4.0]]
    for result, members, vector in (
        (robust.Mixed([[5.0, 6.0], [7.0, 8.0]]), ((0,), (1,)), [6, 7]),  # type: ignore[arg-type]
        (robust.Mixed(torch.tensor([[5.0, 6.0]], requires_grad=True), ([1, 0],)), ((0, 1),), [5, 6]),  # type: ignore[arg-type]
        (robust.Mixed(np.array([[5.0, 6.0]]), (np.array([1]),)), ((1,),), [5, 6]),  # type: ignore[arg-type]
    ):
        mixing(own, result)
        made = robust.PRE_AGGREGATORS["strange_step"].detail(x)
        assert (made.matrix.dtype, made.members) == (np.float32, members)
        found = robust.aggregate("median", x, before=[("strange_step", {})])
        assert found.vector.tolist() == vector
        robust.PRE_AGGREGATORS.remove(own.pop())


def test_an_error_about_rows_says_whose_rows_they_are(own: list[str]) -> None:
    """Those of the rule, of a step before it, or of another rule that its function called."""
    inner: Callable[[robust.Rows], object]

    @robust.aggregator(paper="nobody 2026", needs="n > 2f", withstands=lambda n: (n - 1) // 2)
    def calling(rows: robust.Rows, *, f: int = 0) -> robust.Outcome:
        inner(rows)
        return rows.pick(0)

    own.append("calling")

    def own_error(rows: robust.Rows) -> None:
        raise robust.RowsError("too few for me")

    def whose(call: Callable[[], object]) -> str | None:
        with pytest.raises(robust.RowsError) as caught:
            call()
        return caught.value.rule

    x = np.ones((4, 2))
    missing = np.full((4, 2), np.nan)
    assert whose(lambda: robust.krum(x, f=5)) == "krum"
    assert whose(lambda: robust.krum.check(4, f=5)) == "krum"
    assert whose(lambda: robust.median.check(0)) == "median"
    assert whose(lambda: robust.median(missing)) == "median"
    assert whose(lambda: robust.zeno(x, loss=lambda g: float("nan"))) == "zeno"
    assert whose(lambda: robust.aggregate("median", x, before=[("nnm", {"f": 4})])) == "nnm"
    assert whose(lambda: robust.zeno(x, loss=lambda g: robust.krum(x, f=5)[0])) == "zeno: krum"
    inner = own_error
    assert whose(lambda: calling(x)) == "calling"
    assert whose(lambda: calling(x, f=2)) == "calling"
    inner = lambda rows: robust.krum(rows.array(), f=5)  # noqa: E731
    assert whose(lambda: calling(x)) == "calling: krum"
    inner = lambda rows: robust.krum.check(4, f=5)  # noqa: E731
    assert whose(lambda: calling(x)) == "calling: krum"
    inner = lambda rows: robust.aggregate("median", rows.array(), before=[("nnm", {"f": 4})])  # noqa: E731
    assert whose(lambda: calling(x)) == "calling: nnm"
    error = pickle.loads(pickle.dumps(robust.RowsError("few", rule="krum")))
    assert (str(error), error.rule, robust.RowsError("few").rule) == ("few", "krum", None)


def test_rows_that_do_not_suffice_have_an_error_of_their_own() -> None:
    with pytest.raises(robust.RowsError, match="n > 2f"):
        robust.krum([[1.0], [2.0]], f=1)
    with pytest.raises(robust.RowsError, match="all 2 rows"):
        robust.median([[np.nan], [np.inf]])
    with pytest.raises(ValueError, match="multi_krum needs 1 <= m") as caught:
        robust.multi_krum(np.eye(5), f=1, m=9)
    assert not isinstance(caught.value, robust.RowsError)


def test_a_row_that_is_ignored_is_not_trimmed_a_second_time() -> None:
    updates = [[1], [2], [3], [10], [np.nan]]
    assert robust.trimmed_mean(updates, fraction=0.2).tolist() == [4]
    assert robust.trimmed_mean(updates, f=1).tolist() == [4]


def test_a_fraction_just_below_one_half_leaves_the_middle() -> None:
    assert robust.trimmed_mean([[1], [2], [3], [90]], fraction=0.49999999999).tolist() == [2.5]


def test_multi_krum_averages_what_is_left_if_fewer_than_m_rows_are_finite() -> None:
    updates = [[1], [2], [3], [6], [np.nan], [np.nan], [np.nan]]
    assert robust.multi_krum(updates, f=1, m=6).tolist() == [3]


def test_of_rows_equally_near_the_first_count_however_many_there_are() -> None:
    """Twenty rows at distance 2, then nineteen at distance 1: more than a sort that is not stable keeps in order."""
    updates = np.array([[0.0]] + [[2.0]] * 20 + [[1.0]] * 5 + [[-1.0]] * 14)
    assert robust.nnm(updates, f=34)[0].tolist() == pytest.approx([5 / 6])
    assert robust.monna.detail(updates, f=15, trusted=0).accepted == (*range(6), *range(21, 40))
