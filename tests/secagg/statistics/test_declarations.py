"""What may be declared, at its limits: the last value that is taken, the first that is not, and the vector of it."""

import re
from typing import Any

import numpy as np
import pytest

from secagg import UsageError
from secagg.agreement.statistics.columns import Bins, Categories, Grid, Numbers, Present
from secagg.agreement.statistics.describe import described
from secagg.agreement.statistics.kinds import (
    COUNTS,
    KINDS,
    Contingency,
    Count,
    Frame,
    Histogram,
    LeastSquares,
    Mean,
    Quantiles,
    Statistic,
    Statistics,
    Sum,
    Variance,
)

AGE = Numbers("age", 0, 120, step=1)
SEX = Categories("sex", ("f", "m"))
MOST = 2**32 - 1
MOST_CELLS = 2**16 - 1


def refused(problem: str) -> Any:
    return pytest.raises(UsageError, match=f"^{re.escape(problem)}$")


def test_a_declaration_has_these_defaults() -> None:
    assert (Count(name="n").min_sites, Count(name="n").of) == (0, None)
    assert Mean(name="n", of=AGE).limbs == 4
    assert Histogram(name="n", of=SEX).suppress == 0
    assert Quantiles(name="n", of=Bins("x", (0, 1))).probabilities == (0.25, 0.5, 0.75)
    assert Contingency(name="n", rows=SEX, by=SEX).suppress == 0
    fit = LeastSquares(name="n", target=AGE, features=(Numbers("x", 0, 1),))
    assert (fit.intercept, fit.limbs) == (True, 4)
    assert Statistics(most_rows=1, asked=(Count(name="n"),)).min_sites == 0


def test_the_name_of_a_statistic_is_no_key_of_the_section() -> None:
    assert Count(name="x" * 100).name == "x" * 100
    for wrong in ("x" * 101, "most_rows", "min_sites"):
        with refused("name of a statistic: expected at most 100 characters, and not ('most_rows', 'min_sites')"):
            Count(name=wrong)
    with refused("name of a statistic: expected 1 to 200 printable characters, got str"):
        Count(name="")


@pytest.mark.parametrize(
    ("make", "field", "least", "most"),
    [
        (lambda **more: Count(name="a", **more), "min_sites", 0, MOST),
        (lambda **more: Mean(name="a", of=AGE, **more), "limbs", 1, 4),
        (lambda **more: Histogram(name="a", of=SEX, **more), "suppress", 0, MOST),
        (lambda **more: Contingency(name="a", rows=SEX, by=SEX, **more), "suppress", 0, MOST),
        (
            lambda **more: LeastSquares(name="a", target=AGE, features=(Numbers("x", 0, 1),), **more),
            "limbs",
            1,
            4,
        ),
    ],
)
def test_numbers_of_a_statistic_have_two_ends(make: Any, field: str, least: int, most: int) -> None:
    for fine in (least, most, np.int64(most)):
        assert type(getattr(make(**{field: fine}), field)) is int
    for wrong in (least - 1, most + 1, 1.0, True):
        with pytest.raises(UsageError, match=f"^statistics.a.{field}: expected a whole number from {least} to {most}"):
            make(**{field: wrong})


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Count(name="a", of=AGE), "column: expected Present, got Numbers"),  # type: ignore[arg-type]
        (lambda: Sum(name="a", of=SEX), "column: expected Numbers, got Categories"),  # type: ignore[arg-type]
        (lambda: Histogram(name="a", of=AGE), "column: expected Bins or Categories, got Numbers"),  # type: ignore[arg-type]
        (lambda: Quantiles(name="a", of=SEX), "column: expected Bins, got Categories"),  # type: ignore[arg-type]
        (lambda: Contingency(name="a", rows=AGE, by=SEX), "rows: expected Bins or Categories, got Numbers"),  # type: ignore[arg-type]
        (lambda: Contingency(name="a", rows=SEX, by=AGE), "columns: expected Bins or Categories, got Numbers"),  # type: ignore[arg-type]
        (lambda: LeastSquares(name="a", target=SEX, features=(AGE,)), "target: expected Numbers, got Categories"),  # type: ignore[arg-type]
        (
            lambda: LeastSquares(name="a", target=AGE, features=(SEX,)),  # type: ignore[arg-type]
            "features, each: expected Numbers, got Categories",
        ),
        (
            lambda: LeastSquares(name="a", target=AGE, features=(AGE,)),
            "features: expected every column once, the target's included",
        ),
        (lambda: LeastSquares(name="a", target=AGE, features=()), "features: expected 1 to 50, got 0"),
        (
            lambda: LeastSquares(name="a", target=AGE, features=(Numbers("x", 0, 1),), intercept=1),  # type: ignore[arg-type]
            "intercept: expected bool, got int",
        ),
    ],
)
def test_a_statistic_has_the_columns_that_it_needs(make: Any, problem: str) -> None:
    with refused(f"statistics.a.{problem}"):
        make()


def test_least_squares_has_at_most_fifty_features() -> None:
    features = tuple(Numbers(f"x{place}", 0, 1) for place in range(51))
    fit = LeastSquares(name="a", target=AGE, features=features[:50])
    assert fit.columns == (*features[:50], AGE)
    with refused("statistics.a.features: expected 1 to 50, got 51"):
        LeastSquares(name="a", target=AGE, features=features)


def test_quantiles_lie_strictly_between_0_and_1() -> None:
    bins = Bins("x", (0, 1))
    assert Quantiles(name="a", of=bins, probabilities=[0.5]).probabilities == (0.5,)  # type: ignore[arg-type]
    assert len(Quantiles(name="a", of=bins, probabilities=(0.5,) * MOST_CELLS).probabilities) == MOST_CELLS
    for wrong in ((), (0.0,), (1.0,), (0.5, -0.1), (0.5,) * (MOST_CELLS + 1)):
        with refused("statistics.a.probabilities: expected at least one number, each between 0 and 1"):
            Quantiles(name="a", of=bins, probabilities=wrong)


def test_a_table_has_at_most_a_million_cells() -> None:
    rows, by = Bins("x", tuple(range(1024 - 2))), Bins("y", tuple(range(1024 - 2)))
    assert len(rows.labels) == len(by.labels) == 1024
    assert Contingency(name="a", rows=rows, by=by).columns == (rows, by)
    with refused("statistics.a: expected at most 1048576 cells"):
        Contingency(name="a", rows=rows, by=Bins("y", tuple(range(1024 - 1))))


def test_a_section_has_different_names_and_at_most_a_thousand() -> None:
    asked = tuple(Count(name=str(place)) for place in range(1001))
    assert len(Statistics(most_rows=1, asked=asked[:1000]).asked) == 1000
    for wrong in (asked, (), (Count(name="a"), Count(name="a"))):
        with refused(f"statistics: expected 1 to 1000 of them with different names, got {len(wrong)}"):
            Statistics(most_rows=1, asked=wrong)
    with refused("statistics, each: expected Statistic, got Numbers"):
        Statistics(most_rows=1, asked=(AGE,))  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "least", "most"), [("most_rows", 1, 2**31 - 1), ("min_sites", 0, MOST)])
def test_numbers_of_the_section_have_two_ends(field: str, least: int, most: int) -> None:
    given: dict[str, Any] = {"most_rows": 5, "asked": (Count(name="a"),)}
    for fine in (least, most):
        assert getattr(Statistics(**(given | {field: fine})), field) == fine
    for wrong in (least - 1, most + 1):
        with refused(f"statistics.{field}: expected a whole number from {least} to {most}, got {wrong}"):
            Statistics(**(given | {field: wrong}))


def test_the_least_sites_are_the_most_that_anything_asks_for() -> None:
    few, many = Count(name="few", min_sites=2), Count(name="many", min_sites=5)
    asked = Statistics(most_rows=1, asked=(few, many), min_sites=3)
    assert (asked.least_sites, asked.least_sites_of(few), asked.least_sites_of(many)) == (5, 3, 5)
    assert Statistics(most_rows=1, asked=(few,)).least_sites == 2


def test_the_numbers_of_an_update_are_those_of_the_declarations() -> None:
    """Names, shapes and the largest values, for 1000 rows at each of 3 sites."""
    x, y = Numbers("x", 0, 10, step=1), Numbers("y", 0, 4, step=2)
    asked = (
        Count(name="n"),
        Count(name="m", of=Present("x")),
        Sum(name="s", of=x),
        Mean(name="e", of=x),
        Variance(name="v", of=x),
        Histogram(name="h", of=SEX),
        Quantiles(name="q", of=Bins("x", (0, 1, 2))),
        Contingency(name="t", rows=SEX, by=Bins("x", (0, 1, 2))),
        LeastSquares(name="f", target=y, features=(x,)),
    )
    segments = Statistics(most_rows=1000, asked=asked).segments(3)
    assert [(segment.name, segment.shape, segment.bound) for segment in segments] == [
        ("n.counts", (1,), 1000),
        ("m.counts", (2,), 1000),
        ("s.counts", (4,), 1000),
        ("s.sums", (1,), 10_000),
        ("e.counts", (4,), 1000),
        ("e.sums", (1,), 10_000),
        ("v.counts", (4,), 1000),
        ("v.sums", (1,), 10_000),
        ("v.squares", (1,), 100_000),
        ("h.counts", (4,), 1000),
        ("q.counts", (5,), 1000),
        ("t.counts", (4, 5), 1000),
        ("f.counts", (4,), 1000),
        ("f.sums", (2,), 10_000),
        ("f.products", (3,), 100_000),
    ]
    assert COUNTS == ("used", "missing", "clipped", "rounded")
    assert [cls.kind for cls in KINDS] == [
        *("count", "sum", "mean", "variance", "histogram", "quantiles", "contingency", "least_squares"),
    ]


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("limbs", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 1000, 10**6])
def test_codes_are_as_fine_as_fits(degree: int, limbs: int, rows: int) -> None:
    """The finest power of two for which the sums of all sites cannot wrap, up to 32 bits, and 26 of a factor."""
    frame, clients = Frame(rows=rows, clients=10), 10
    most = (2**31 - 1) // clients if limbs == 1 else 2 ** (27 * limbs) - 1
    fitting = [bits for bits in range(1, 27 if degree == 2 else 33) if rows * 2 ** (bits * degree) <= most]
    column = Numbers("x", 0, 1)
    if fitting:
        assert frame.grid(column, degree=degree, limbs=limbs) == Grid(column, 2 ** max(fitting))
    else:
        with refused(
            f"column 'x': sums over {rows} rows in each of 10 sites do not fit into {limbs} limb(s); use a smaller "
            "most_rows, a larger step or more limbs"
        ):
            frame.grid(column, degree=degree, limbs=limbs)


def test_a_declared_step_must_fit() -> None:
    frame = Frame(rows=1000, clients=10)
    last = (2**31 - 1) // 10 // 1000
    for steps, limbs in ((last, 1), (1, 1), (2**40, 2)):
        assert frame.grid(Numbers("x", 0, steps, step=1), degree=1, limbs=limbs).steps == steps
    with pytest.raises(UsageError, match=r"do not fit into 1 limb\(s\)"):
        frame.grid(Numbers("x", 0, last + 1, step=1), degree=1, limbs=1)
    assert frame.grid(Numbers("x", 0, 2**26, step=1), degree=2, limbs=3).steps == 2**26
    with refused(
        "column 'x': expected at most 67108864 steps from low to high where values are multiplied, got 67108865; "
        "use a larger step"
    ):
        frame.grid(Numbers("x", 0, 2**26 + 1, step=1), degree=2, limbs=4)
    assert Frame(rows=1, clients=10).grid(Numbers("x", 0, 2**26 + 1, step=1), degree=1, limbs=2).steps == 2**26 + 1
    with pytest.raises(UsageError, match=r"do not fit into 1 limb\(s\)"):
        Frame(rows=2**31 - 1, clients=10).grid(Numbers("x", 0, 1), degree=1, limbs=1)


@pytest.mark.parametrize(
    ("clients", "limbs", "rows", "most"),
    [
        (8, 1, 1, 2**28 - 1),  # 8 * 2^28 would wrap
        (1, 1, 1, 2**31 - 1),
        (10, 2, 2**20, 2**34 - 1),  # 2^20 * 2^34 needs a bit more than two limbs of 27
        (10, 2, 262657, (2**54 - 1) // 262657),  # all bits of two limbs
    ],
)
def test_sums_of_declared_steps_fill_their_limbs(clients: int, limbs: int, rows: int, most: int) -> None:
    frame = Frame(rows=rows, clients=clients)
    assert frame.grid(Numbers("x", 0, most, step=1), degree=1, limbs=limbs).steps == most
    with pytest.raises(UsageError, match=r"do not fit into"):
        frame.grid(Numbers("x", 0, most + 1, step=1), degree=1, limbs=limbs)


def test_products_of_declared_steps_fill_their_limbs_too() -> None:
    most = 463  # 10 sites * 1000 rows * 463^2 is below 2^31
    assert Frame(rows=1000, clients=10).grid(Numbers("x", 0, most, step=1), degree=2, limbs=1).steps == most
    with pytest.raises(UsageError, match=r"do not fit into 1 limb\(s\)"):
        Frame(rows=1000, clients=10).grid(Numbers("x", 0, most + 1, step=1), degree=2, limbs=1)


def test_codes_of_an_undeclared_step_tell_low_from_high() -> None:
    last = (2**31 - 1) // 10
    assert Frame(rows=last // 2, clients=10).grid(Numbers("x", 0, 1), degree=1, limbs=1).steps == 2
    for rows in (last // 2 + 1, last, last + 1):
        with pytest.raises(UsageError, match=r"do not fit into 1 limb\(s\)"):
            Frame(rows=rows, clients=10).grid(Numbers("x", 0, 1), degree=1, limbs=1)


def test_a_column_that_is_multiplied_has_codes_for_products() -> None:
    frame, column, other = Frame(rows=1000, clients=10), Numbers("x", 0, 1), Numbers("y", 0, 1)
    steps = {1: 2**17, 2: 2**8}  # of sums and of products that fit into one place
    assert Sum(name="s", of=column, limbs=1).grid(frame).steps == steps[1]
    assert Mean(name="m", of=column, limbs=1).grid(frame).steps == steps[1]
    assert Variance(name="v", of=column, limbs=1).grid(frame).steps == steps[2]
    fit = LeastSquares(name="f", target=column, features=(other,), limbs=1)
    assert fit.grids(frame) == (Grid(other, steps[2]), Grid(column, steps[2]))


def test_a_statistic_of_no_kind_has_no_numbers() -> None:
    with pytest.raises(NotImplementedError):
        _ = Statistic(name="x").columns
    with pytest.raises(NotImplementedError):
        Statistic(name="x").entries(Frame(rows=1, clients=1))


def test_rows_of_all_sites_can_be_counted() -> None:
    last = (2**31 - 1) // 3
    assert Statistics(most_rows=last, asked=(Count(name="n"),)).segments(3)[0].bound == last
    with refused(
        f"statistics.most_rows: 3 sites with {last + 1} rows each cannot be counted modulo 2^32; expected at most "
        f"{last} rows"
    ):
        Statistics(most_rows=last + 1, asked=(Count(name="n"),)).segments(3)
    with pytest.raises(UsageError, match=r"8 sites with 268435456 rows each .* expected at most 268435455 rows"):
        Statistics(most_rows=2**28, asked=(Count(name="n"),)).segments(8)


def test_a_vector_that_is_not_the_declared_one_is_told_by_six_names() -> None:
    def told(count: int) -> str:
        asked = Statistics(most_rows=5, asked=tuple(Count(name=str(place)) for place in range(count)))
        own = asked.segments(3)
        assert asked.vector(3, ()) == asked.vector(3, own) == own
        with pytest.raises(UsageError) as caught:
            asked.vector(3, own[:1])
        return str(caught.value).partition("declared (")[2]

    names = [f"{place}.counts" for place in range(7)]
    assert told(6) == ", ".join(names[:6]) + ")"
    assert told(7) == ", ".join(names[:6]) + ", ...)"


def test_noise_needs_sums_of_one_limb() -> None:
    Statistics(most_rows=1000, asked=(Count(name="n"), Mean(name="e", of=AGE, limbs=1))).check_noise(3)
    wide = Statistics(most_rows=1000, asked=(Count(name="n"), Mean(name="e", of=Numbers("x", 0, 1))))
    with pytest.raises(UsageError, match=r"^statistics.e: with noise, a sum must fit into one place"):
        wide.check_noise(3)


# --- in words ------------------------------------------------------------------------------------------------------


def test_every_statistic_is_told_in_words() -> None:
    income = Numbers("income", 0, 1e6)
    asked: dict[Statistic, str] = {
        Count(name="n"): "number of rows",
        Count(name="m", of=Present("age")): "number of rows with and without a value in 'age'",
        Sum(name="s", of=AGE, min_sites=1): "sum of 'age' (numbers from 0 to 120, in steps of 1); from 1 sites on",
        Mean(name="e", of=income, min_sites=4): "mean of 'income' (numbers from 0 to 1000000); from 4 sites on",
        Variance(name="v", of=AGE): "variance of 'age' (numbers from 0 to 120, in steps of 1)",
        Histogram(name="h", of=SEX, suppress=1): "counts of 'sex' (categories f, m)",
        Histogram(name="i", of=SEX, suppress=2): "counts of 'sex' (categories f, m); counts from 1 to 1 are not shown",
        Quantiles(name="q", of=Bins("x", (0, 1, 2.5)), probabilities=(0.1, 0.5)): (
            "quantiles 0.1, 0.5 from counts of 'x' (2 bins from 0 to 2.5)"
        ),
        Contingency(name="t", rows=SEX, by=Bins("x", (0, 1)), suppress=5): (
            "counts of pairs of 'sex' (categories f, m) and 'x' (1 bins from 0 to 1); counts from 1 to 4 are not shown"
        ),
        LeastSquares(name="f", target=AGE, features=(income, Numbers("y", 0, 1, step=0.5))): (
            "least squares of 'age' (numbers from 0 to 120, in steps of 1) on 'income' (numbers from 0 to 1000000), "
            "'y' (numbers from 0 to 1, in steps of 0.5)"
        ),
        LeastSquares(name="g", target=income, features=(Numbers("y", 0, 1),), intercept=False): (
            "least squares of 'income' (numbers from 0 to 1000000) on 'y' (numbers from 0 to 1), without a constant"
        ),
    }
    found = list(described(Statistics(most_rows=5, asked=tuple(asked))))
    assert found == [f"{one.name}: {words}" for one, words in asked.items()]
