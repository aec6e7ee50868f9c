"""The section `statistics`: in bytes, in the file, and what follows from it for the vector and the policy."""

import tomllib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import AgreementRefused, Policy, TooFewSurvivors, UsageError, WireError
from secagg.agreement import Proposal, Terms, read_agreement, sections, write_agreement
from secagg.agreement.statistics.limbs import Entry, limb_bits
from secagg.agreement.statistics.section import STATISTICS
from secagg.crypto import Segment
from secagg.protocol.result import GroupSum
from secagg.statistics import (
    Bins,
    Categories,
    Contingency,
    Count,
    Histogram,
    LeastSquares,
    Mean,
    Numbers,
    Present,
    Quantiles,
    Statistic,
    Statistics,
    Sum,
    Variance,
    evaluate,
    site_update,
)
from tests.secagg.statistics.common import plain_terms, report_of, terms_for

AGE = Numbers("age", 0, 120, step=1)
NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=10)


@st.composite
def numbers(draw: st.DrawFn) -> Numbers:
    low = draw(st.integers(-100, 100))
    return Numbers(draw(NAMES), low, low + draw(st.integers(1, 100)), draw(st.sampled_from([None, 1, 0.5, 0.01])))


CELLS = st.builds(Categories, NAMES, st.lists(NAMES, min_size=1, unique=True).map(tuple)) | st.builds(
    lambda column, edges: Bins(column, tuple(sorted(edges))),
    NAMES,
    st.lists(st.floats(-1e9, 1e9).map(lambda edge: edge + 0.0), min_size=2, max_size=5, unique=True),
)


@st.composite
def declarations(draw: st.DrawFn) -> Statistics:
    asked: list[Statistic] = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        common: dict[str, Any] = {"name": name, "min_sites": draw(st.integers(0, 3))}
        kind = draw(st.sampled_from([Count, Sum, Mean, Variance, Histogram, Quantiles, Contingency, LeastSquares]))
        if kind is Count:
            common["of"] = draw(st.none() | st.builds(Present, NAMES))
        elif kind is Contingency:
            common |= {"rows": draw(CELLS), "by": draw(CELLS), "suppress": draw(st.integers(0, 9))}
        elif kind is Histogram:
            common |= {"of": draw(CELLS), "suppress": draw(st.integers(0, 9))}
        elif kind is Quantiles:
            common |= {"of": draw(CELLS.filter(lambda one: isinstance(one, Bins))), "probabilities": (0.1, 0.5)}
        elif kind is LeastSquares:
            chosen = draw(st.lists(numbers(), min_size=2, max_size=4, unique_by=lambda one: one.column))
            common |= {"target": chosen[0], "features": tuple(chosen[1:]), "intercept": draw(st.booleans())}
        else:
            common |= {"of": draw(numbers()), "limbs": draw(st.integers(3, 4))}
        asked.append(kind(**common))
    return Statistics(most_rows=draw(st.integers(1, 10**6)), min_sites=draw(st.integers(0, 3)), asked=tuple(asked))


@settings(deadline=None)
@given(declarations())
def test_declarations_survive_bytes_and_file(statistics: Statistics) -> None:
    terms = replace(plain_terms(3), segments=(), statistics=statistics)
    assert Terms.from_bytes(terms.to_bytes()) == terms
    text = write_agreement(Proposal(terms=terms))
    assert read_agreement(text).terms == terms
    assert "segments" not in tomllib.loads(text)
    assert set(tomllib.loads(text)["statistics"]) >= {one.name for one in statistics.asked}


@settings(deadline=None)
@given(declarations(), st.data())
def test_changed_bytes_of_a_section_are_refused_or_mean_something_else(
    statistics: Statistics, data: st.DataObject
) -> None:
    terms = replace(plain_terms(3), segments=(), statistics=statistics)
    raw, size = bytearray(terms.to_bytes()), len(sections.to_bytes(terms))
    raw[-1 - data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = Terms.from_bytes(raw)
    except WireError:
        return
    assert found.statistics != statistics


@settings(deadline=None)
@given(st.integers(1, 100_000), st.integers(0, 2**80), st.data())
def test_limbs_add_up_to_the_exact_sum_without_wrapping(clients: int, most: int, data: st.DataObject) -> None:
    entry = Entry("x", (2,), most, clients)
    assert clients * (2 ** limb_bits(clients) - 1) < 2**31 <= clients * (2 ** (limb_bits(clients) + 1) - 1)
    count = min(clients, 5)
    numbers = data.draw(
        st.lists(st.lists(st.integers(0, most), min_size=2, max_size=2), min_size=count, max_size=count)
    )
    parts = [entry.split(two) for two in numbers]
    assert all(part.shape == entry.segment.shape and part.max() <= entry.segment.bound for part in parts)
    assert entry.join(sum(parts)) == [sum(column) for column in zip(*numbers, strict=True)]
    worst = entry.split([most, most]).astype(object) * clients
    assert entry.join(worst) == [clients * most] * 2
    assert worst.max() < 2**31


def test_the_vector_has_what_is_declared_and_nothing_else() -> None:
    statistics = Statistics(most_rows=1000, asked=(Mean(name="age", of=AGE),))
    given = statistics.segments(3)
    assert terms_for(Mean(name="age", of=AGE)).segments == given
    assert replace(plain_terms(3), segments=given, statistics=statistics).segments == given
    spy = Segment(name="spy", shape=(1,), bound=5)
    for wrong in ((*given, spy), given[:1], (spy,)):
        with pytest.raises(UsageError, match="the vector has exactly what is declared"):
            replace(plain_terms(3), segments=wrong, statistics=statistics)


def test_without_a_declaration_nothing_can_be_asked() -> None:
    terms = plain_terms(3)
    with pytest.raises(UsageError, match="this agreement declares none"):
        site_update(terms, {"age": [1]})
    with pytest.raises(UsageError, match="this agreement declares none"):
        evaluate(terms, [])


@pytest.mark.parametrize("groups", ["whole", "survivors"])
def test_the_policy_must_keep_the_least_number_of_sites(groups: Any) -> None:
    few = Policy(anonymity=3, min_survivors=2)
    for more in ({"min_sites": 4}, {}):
        asked = Count(name="n", min_sites=0 if more else 4)
        with pytest.raises(AgreementRefused, match=r"from 4 sites on .* set policy.min_survivors = 4"):
            terms_for(asked, sites=5, policy=few, groups=groups, **more)
        kept = Policy(anonymity=3, min_survivors=4)
        assert terms_for(asked, sites=5, policy=kept, groups=groups, **more).statistics.least_sites == 4
    off = Policy(mode="report-even-if-exposed", min_survivors=4)
    with pytest.raises(AgreementRefused, match="opens sums of 1"):
        terms_for(Count(name="n", min_sites=4), sites=5, policy=off)


def test_a_result_of_too_few_sites_is_refused() -> None:
    terms = terms_for(Count(name="n", min_sites=3), sites=5)
    data = [{"x": [1, 2]}] * 5
    assert report_of(terms, data[:3])["n"].rows == 6
    with pytest.raises(TooFewSurvivors, match="2 sites took part; this agreement gives results from 3 on"):
        report_of(terms, data[:2])
    with pytest.raises(TooFewSurvivors, match="0 sites"):
        evaluate(terms_for(Count(name="n")), [])


def test_groups_are_added_up_and_no_site_counts_twice() -> None:
    terms = terms_for(Count(name="n"), sites=6)
    one = terms.encoding.encode(site_update(terms, {"x": [1]}).update)[0]
    report = evaluate(terms, [GroupSum(one * 2, (0, 1)), GroupSum(one * 3, (2, 4, 5))], round=7)
    assert report["n"].rows == 5
    assert list(report.sites) == [0, 1, 2, 4, 5]
    assert list(report.missing) == [3]
    with pytest.raises(UsageError, match="a site is in two of them"):
        evaluate(terms, [GroupSum(one * 2, (0, 1)), GroupSum(one * 2, (1, 2))])


def test_numbers_outside_of_what_was_agreed_are_not_sent() -> None:
    entry = Entry("x", (1,), most=10, clients=3)
    for number in (-1, 11):
        with pytest.raises(UsageError, match="outside of 0 to 10"):
            entry.split([number])
    wide = Entry("x", (1,), most=2**40, clients=3)
    with pytest.raises(UsageError, match="outside of 0 to"):
        wide.split([2**40 + 1])


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"kind": "meen", "column": "age"}, "expected one of .*did you mean 'mean'"),
        ({"kind": "mean", "column": "age", "low": 0}, "statistics.x.high: expected a number, but the key is missing"),
        ({"kind": "mean", "column": "age", "low": 0, "hi": 1}, "unknown key; did you mean 'high'"),
        ({"kind": "mean", "column": "age", "low": 1, "high": 1}, "expected low < high"),
        ({"kind": "mean", "column": "age", "low": 0, "high": 1, "step": 0.3}, "a multiple of the step"),
        ({"kind": "mean", "column": "age", "low": 0, "high": 1, "step": 0}, "expected more than 0"),
        ({"kind": "mean", "column": "age", "low": 0, "high": 1e12, "step": 0.01}, "at most .* steps"),
        ({"kind": "variance", "column": "a", "low": 0, "high": 1e9, "step": 1}, "where values are multiplied"),
        ({"kind": "mean", "column": "a", "low": 0, "high": 2**31, "step": 1, "limbs": 1}, "do not fit into 1 limb"),
        ({"kind": "mean", "column": " age", "low": 0, "high": 1}, "no blanks at the ends"),
        ({"kind": "histogram", "column": "age"}, "expected one of edges, categories, or bins with low and high"),
        ({"kind": "histogram", "column": "age", "edges": [1, 1]}, "each larger than the one before"),
        ({"kind": "histogram", "column": "age", "categories": ["a", "a"]}, "different texts"),
        ({"kind": "histogram", "column": "age", "categories": [1]}, "expected a list of texts"),
        ({"kind": "quantiles", "column": "a", "edges": [0, 1], "probabilities": [1.0]}, "each between 0 and 1"),
        ({"kind": "quantiles", "column": "a", "categories": ["a"]}, "unknown key"),
        ({"kind": "contingency", "rows": {"column": "a", "edges": [0, 1]}}, "x.columns: expected a table"),
        ({"kind": "least_squares", "target": {"column": "y", "low": 0, "high": 1}}, "expected a list of tables"),
        ([], "expected a table"),
    ],
)
def test_a_wrong_declaration_is_refused_with_what_was_expected(table: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        STATISTICS.read({"most_rows": 1000, "x": table}).segments(3)


def test_too_many_rows_for_the_ring_are_refused_with_what_fits() -> None:
    with pytest.raises(UsageError, match="expected at most 715827882 rows"):
        terms_for(Count(name="n"), most_rows=2**30)
    with pytest.raises(UsageError, match=r"statistics.most_rows: .* missing"):
        STATISTICS.read({"n": {"kind": "count"}})
