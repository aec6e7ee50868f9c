"""What a rule may ask of its rows, on some rows of a matrix, and what the caller is told about each row."""

import numpy as np
import pytest

import robust
from robust.parameters import Registry, check_parameters, read_parameters
from robust.rows import NotFiniteError, Rows, as_matrix, as_vector, must_be_among

X = np.random.default_rng(0).integers(-9, 10, (7, 5)).astype(np.float32)
WIDE = X.astype(np.float64)
CHOSEN = np.array([5, 1, 2])


def some() -> Rows:
    """Rows 5, 1 and 2 of seven, which their caller knows under these numbers."""
    return Rows(as_matrix(X)).subset(CHOSEN)


def test_methods_count_positions_among_the_rows_that_are_left() -> None:
    rows, part = some(), WIDE[CHOSEN]
    assert (len(rows), rows.width, rows.given, rows.ignored) == (3, 5, 7, 0)
    assert rows.labels.tolist() == [5, 1, 2]
    assert np.array_equal(rows.array(), part)
    assert np.array_equal(rows.row(2), X[2])
    assert np.array_equal(rows.columns(np.array([4, 0])), part[:, [4, 0]])
    assert np.array_equal(rows.middle_mean(1, 2), np.sort(part, axis=0)[1])
    assert np.array_equal(rows.squared_distances(), ((part[:, None] - part[None]) ** 2).sum(axis=2))
    assert np.array_equal(rows.squared_distances_to(X[0]), ((part - WIDE[0]) ** 2).sum(axis=1))
    assert np.array_equal(rows.squared_norms(), (part**2).sum(axis=1))
    assert np.array_equal(rows.products(X[0]), part @ WIDE[0])
    assert np.array_equal(rows.combined(np.array([1.0, 2, -1])), part[0] + 2 * part[1] - part[2])
    assert np.array_equal(rows.mixed(np.array([[1.0, 0, 1], [0, 3, 0]])), [part[0] + part[2], 3 * part[1]])
    assert np.array_equal(rows.scaled(np.array([2.0, 0, -1])), [2 * part[0], 0 * part[1], -part[2]])
    assert [rows.position(label) for label in (5, 1, 2)] == [0, 1, 2]
    again = rows.subset(np.array([2, 0]))
    assert again.labels.tolist() == [2, 5]
    assert np.array_equal(again.array(), X[[2, 5]])


def test_distances_are_computed_once_and_cannot_be_written() -> None:
    rows = some()
    found = rows.squared_distances()
    assert found is rows.squared_distances()
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 1


def test_a_copy_of_rows_belongs_to_the_caller() -> None:
    rows = Rows(as_matrix(X))
    for copy in (rows.array(), rows.row(0), rows.columns(np.arange(5)), rows.scaled(np.ones(7))):
        assert not np.shares_memory(copy, X)


def test_outcomes_of_rules_that_pick_average_or_weigh() -> None:
    rows, part = some(), WIDE[CHOSEN]
    picked = rows.pick(1)
    assert np.array_equal(picked.vector, X[1])
    assert (picked.weights.tolist(), picked.accepted.tolist(), picked.converged) == ([0, 1, 0], [1], True)  # type: ignore[union-attr]
    mean = rows.average(np.array([0, 2]))
    assert np.array_equal(mean.vector, (part[0] + part[2]) / 2)
    assert (mean.weights.tolist(), mean.accepted.tolist(), mean.converged) == ([0.5, 0, 0.5], [0, 2], True)  # type: ignore[union-attr]
    weighed = rows.weigh(np.array([2.0, 0, 1]))
    assert np.array_equal(weighed.vector, 2 * part[0] + part[2])
    assert weighed.weights is not None
    assert (weighed.weights.tolist(), weighed.accepted, weighed.converged) == ([2, 0, 1], None, True)


def test_rows_that_are_not_finite_are_counted_wherever_they_are_left_out() -> None:
    x = X.copy()
    x[1, 4], x[6, 0], x[0, 0] = np.nan, np.inf, -np.inf
    rows = Rows(as_matrix(x), ignored=2, given=9).subset(np.array([5, 1, 2, 6]))
    left = rows.finite()
    assert (left.labels.tolist(), left.given, left.ignored, len(left)) == ([5, 2], 9, 4, 2)
    with pytest.raises(NotFiniteError):
        rows.columns(np.array([0, 4]))
    with pytest.raises(NotFiniteError):
        rows.row(1)
    assert np.array_equal(left.array(), x[[5, 2]])


def test_columns_are_scaled_in_pieces_and_tiny_factors_keep_their_digits() -> None:
    x = np.full((2, (1 << 16) + 3), 2.0**127, np.float32)
    x[1] = np.arange(x.shape[1]) % 7
    found = Rows(as_matrix(x)).scaled(np.array([3 * 2.0**-140, 0.5]))
    assert np.array_equal(found[0], np.full(x.shape[1], 3 * 2.0**-13, np.float32))
    assert np.array_equal(found[1], x[1] / 2)
    least = float(np.finfo(np.float32).tiny)
    for factor in (least, -least, least / 3, -least / 3, 0.0):
        exact = (x[0, :1].astype(np.float64) * factor).astype(np.float32)
        assert np.array_equal(Rows(as_matrix(x[:1])).scaled(np.array([factor]))[0, :1], exact)


@pytest.mark.parametrize(
    ("updates", "problem"),
    [
        ([1.0, 2.0], "updates must be a matrix with one row per update; got 1 dimensions"),
        (np.zeros((2, 2, 2)), "updates must be a matrix with one row per update; got 3 dimensions"),
        (np.zeros((0, 3)), "updates must not be empty; got 0 rows of length 3"),
        (np.zeros((3, 0)), "updates must not be empty; got 3 rows of length 0"),
        (np.zeros((1, 1), dtype=bool), "updates must be real numbers; got bool"),
    ],
)
def test_what_is_no_matrix_of_real_numbers_is_refused(updates: object, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        as_matrix(updates)  # type: ignore[arg-type]


def test_a_matrix_is_read_without_a_copy_and_cannot_be_written() -> None:
    found = as_matrix(X)
    assert np.shares_memory(found, X)
    assert not found.flags.writeable
    assert X.flags.writeable


def test_row_numbers_and_vectors_are_checked() -> None:
    must_be_among(3, 0)
    must_be_among(3, 2)
    for label in (-1, 3):
        with pytest.raises(ValueError, match=f"^row {label} was requested, but rows are numbered 0 to 2$"):
            must_be_among(3, label)
    assert as_vector([1, 2], 2, "centre").tolist() == [1, 2]
    for wrong, problem in (
        ([1, 2, 3], r"centre must be a vector of length 2, got shape \(3,\)"),
        ([[1, 2]], r"centre must be a vector of length 2, got shape \(1, 2\)"),
        ([1, np.inf], "centre contains NaN or infinity"),
    ):
        with pytest.raises(ValueError, match=f"^{problem}$"):
            as_vector(wrong, 2, "centre")


def test_everything_that_a_rule_reports_about_its_rows() -> None:
    x = np.array([[np.nan], [1], [2], [4], [90], [np.inf]])
    found = robust.multi_krum.detail(x, f=1, m=2)
    assert (found.rows, found.ignored, found.accepted, found.rejected) == (6, (0, 5), (1, 2), (0, 3, 4, 5))
    assert found.weights is not None
    assert (found.weights.tolist(), found.converged) == ([0, 0.5, 0.5, 0, 0, 0], True)
    assert found.vector.tolist() == [1.5]
    assert robust.Aggregate(found.vector, rows=6, ignored=(), accepted=None, weights=None).converged
    mean = robust.mean.detail([[1], [3]])
    assert (mean.rows, mean.ignored, mean.accepted, mean.rejected) == (2, (), None, None)
    assert mean.weights is not None
    assert mean.weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("f", "bad", "left"), [(0, 0, 0), (1, 0, 1), (2, 1, 1), (1, 1, 0), (1, 2, 0), (None, 1, None)])
def test_every_ignored_row_was_one_of_the_f_bad_rows(f: int | None, bad: int, left: int | None) -> None:
    seen: list[int | None] = []

    @robust.aggregator(paper="nobody 2026", needs="n > 2f", withstands=lambda n: (n - 1) // 2)
    def watched(rows: Rows, *, f: int | None = None) -> robust.Outcome:
        rows.squared_norms()
        seen.append(f)
        return rows.pick(0)

    try:
        x = np.ones((9, 2))
        x[:bad] = np.nan
        assert watched.detail(x, **({} if f is None else {"f": f})).ignored == tuple(range(bad))
        assert seen == [left]
    finally:
        robust.AGGREGATORS.remove("watched")


@pytest.mark.parametrize(
    ("bad", "f", "problem"),
    [
        (0, -1, "krum needs n > 2f + 2: got n=7, f=-1"),
        (0, 3, "krum needs n > 2f + 2: got n=7, f=3"),
        (2, -1, "krum needs n > 2f + 2: got n=7, f=-1"),
        (3, 4, "krum needs n > 2f + 2: got n=4, f=1 (3 of 7 rows are not finite)"),
    ],
)
def test_a_refusal_names_the_rows_and_bad_rows_that_are_left(bad: int, f: int, problem: str) -> None:
    x = np.ones((7, 2))
    x[:bad] = np.nan
    with pytest.raises(robust.RowsError) as caught:
        robust.krum(x, f=f) if bad != 3 else robust.krum._for_rows(4, 3, 7, {"f": f})
    assert str(caught.value) == problem


def test_a_step_sees_the_rows_of_the_step_before_and_what_was_ignored() -> None:
    """Rows 0 and 3 are not finite: f = 3 is 1 for every step and for the rule."""
    x = np.arange(8.0)[:, None] ** 2
    x[[0, 3]] = np.nan
    found = robust.aggregate("multi_krum", x, f=3, m=1, before=[("nnm", {"f": 3}), ("arc", {"f": 3})])
    finite = np.delete(x, [0, 3], axis=0)
    expected = robust.multi_krum.detail(robust.arc(robust.nnm(finite, f=1), f=1), f=1, m=1)
    assert np.array_equal(found.vector, expected.vector)
    assert expected.accepted is not None
    assert found.accepted == tuple(np.array([1, 2, 4, 5, 6, 7])[list(expected.accepted)].tolist())
    assert (found.rows, found.ignored, found.weights) == (8, (0, 3), None)


def test_no_fewer_than_no_rows_are_trimmed_beside_those_that_were_ignored() -> None:
    """A fraction of 0 is no row, and a fraction of 0.3 is two of seven: one of them was ignored."""
    assert robust.trimmed_mean([[np.nan], [1], [2], [4.5]], fraction=0.0).tolist() == [2.5]
    assert robust.trimmed_mean([[np.nan], [1], [2], [3], [4], [5], [-9]], fraction=0.3).tolist() == [2.5]


def test_the_name_and_text_of_a_rule_are_those_of_its_function() -> None:
    assert robust.zeno_plus_plus.name == "zeno++"
    assert robust.zeno_plus_plus.__name__ == "zeno_plus_plus"
    assert robust.AGGREGATORS["zeno++"] is robust.zeno_plus_plus
    assert robust.krum.__name__ == robust.krum.name == "krum"
    assert (robust.krum.__doc__ or "").startswith("The row that is closest")
    assert (robust.krum.paper, robust.krum.needs) == ("Blanchard et al. 2017", "n > 2f + 2")


def test_parameters_of_every_kind_are_read_and_described() -> None:
    def rule(
        given: int, *, skipped: int, kept: int, optional: str = "x", anything: list[int] | None = None
    ) -> None: ...

    known = read_parameters(rule, skip=("skipped",))
    assert [(one.name, one.required, one.default) for one in known.values() if not one.required] == [
        ("optional", False, "x"),
        ("anything", False, None),
    ]
    assert [str(one) for one in known.values()] == ["kept: int", "optional: str = 'x'", "anything: list or None = None"]
    assert check_parameters("rule", known, {"kept": 1, "anything": [1]}) == {"kept": 1, "anything": [1]}
    assert check_parameters("rule", known, {"kept": 1, "anything": None}) == {"kept": 1, "anything": None}
    for wrong in ({"kept": 1, "optional": 3}, {"kept": 1, "anything": (1,)}, {"kept": True}):
        with pytest.raises(ValueError, match="is not"):
            check_parameters("rule", known, wrong)
    with pytest.raises(ValueError, match=r"^rule does not take a, b; it takes kept: int, optional"):
        check_parameters("rule", known, {"b": 1, "a": 1})
    assert check_parameters("rule", {}, {}) == {}


def test_entries_of_a_registry_are_added_removed_and_counted() -> None:
    registry: Registry[int] = Registry("thing")
    registry.add("one", 1)
    registry.add("two", 2)
    assert (len(registry), list(registry), registry["two"]) == (2, ["one", "two"], 2)
    registry.remove("one")
    assert dict(registry) == {"two": 2}
    with pytest.raises(robust.UnknownNameError, match=r"^no thing 'one'; there are two$"):
        registry["one"]
