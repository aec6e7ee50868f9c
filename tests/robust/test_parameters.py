"""Names and parameters: a wrong one is an error that lists the right ones."""

import re
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest

import robust
from robust.parameters import Registry, UnknownNameError, check_parameters, read_parameters

X = np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)


@pytest.mark.parametrize("registry", [robust.AGGREGATORS, robust.PRE_AGGREGATORS, robust.ATTACKS])
def test_a_wrong_name_lists_the_right_ones(registry: Registry[object]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        registry["krumm"]
    assert all(name in str(caught.value) for name in registry)
    assert "'krumm'" in str(caught.value)
    assert "krumm" not in registry
    assert registry.get("krumm") is None


def test_the_registries_hold_what_they_should() -> None:
    """At least these: new entries have tests of their own and need not be listed here."""
    assert set(robust.AGGREGATORS) >= {
        *("mean", "median", "trimmed_mean", "geometric_median", "krum", "multi_krum", "bulyan", "meamed"),
        *("centered_clipping", "mda", "monna", "caf", "smea", "norm_bounded_mean", "zeno", "zeno++"),
    }
    assert set(robust.PRE_AGGREGATORS) >= {"clipping", "arc", "nnm", "bucketing"}
    assert set(robust.ATTACKS) >= {
        *("sign_flip", "fall_of_empires", "a_little_is_enough", "gaussian", "mimic", "min_max", "min_sum"),
        *("zero", "non_finite"),
    }
    for name in robust.__all__:
        assert hasattr(robust, name)


@pytest.mark.parametrize("name", [*robust.AGGREGATORS, *robust.PRE_AGGREGATORS, *robust.ATTACKS])
def test_every_docstring_has_a_formula_and_a_paper(name: str) -> None:
    """Every docstring has a formula, in the symbols of its module, and a paper with its year."""
    found = {**robust.AGGREGATORS, **robust.PRE_AGGREGATORS, **robust.ATTACKS}[name]
    assert found.name == name
    assert name in repr(found)
    text = found.__doc__ or ""
    assert re.search(r"sum_\S|\b[xy]_\w|\b[xyz] = |[<>]= \S", text), text
    assert re.search(r"[A-Z][\w-]+.*\b(19|20)\d\d[ab]?\b", text), text
    if not isinstance(found, robust.Attack):
        assert found.needs
        author, year = re.fullmatch(r"([\w ]+?) et al\. (\d{4}[ab]?)(?:, .*)?", found.paper).groups()  # type: ignore[union-attr]
        assert author in text
        assert year in text


@pytest.mark.parametrize("name", [*robust.AGGREGATORS, *robust.PRE_AGGREGATORS])
def test_every_docstring_mentions_all_parameters(name: str) -> None:
    found = {**robust.AGGREGATORS, **robust.PRE_AGGREGATORS}[name]
    words = set(re.findall(r"(?<=\b)\d*([a-z_]+)", (found.__doc__ or "").lower()))  # 2f is f
    for parameter in set(found.parameters) - {"middle", "rng"}:  # described in other words
        assert parameter in words, parameter


def test_a_wrong_parameter_lists_the_right_ones() -> None:
    with pytest.raises(ValueError, match=r"multi_krum does not take k; it takes f: int, m: int or None = None"):
        robust.aggregate("multi_krum", X, f=1, k=2)
    with pytest.raises(ValueError, match="krum needs f; it takes f: int"):
        robust.aggregate("krum", X)
    with pytest.raises(ValueError, match="median does not take f; it takes middle: 'mean' or 'lower' = 'mean'"):
        robust.aggregate("median", X, f=1)
    with pytest.raises(ValueError, match="mean does not take f; it takes no parameters"):
        robust.mean.detail(X, f=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="nnm does not take k; it takes f: int"):
        robust.aggregate("krum", X, f=1, before=[("nnm", {"k": 1})])
    with pytest.raises(UnknownNameError, match="no pre-aggregator 'mixing'; there are arc, bucketing, clipping, nnm"):
        robust.aggregate("krum", X, f=1, before=[("mixing", {})])
    with pytest.raises(TypeError, match="krum takes its parameters by keyword"):
        robust.krum(X, 1)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", ["1", 1.0, True, None, [1]])
def test_a_parameter_of_the_wrong_type_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"krum: f=.* is not int; it takes f: int"):
        robust.aggregate("krum", X, f=value)


def test_types_are_checked_and_numbers_made_exact() -> None:
    def rule(
        *,
        whole: int,
        real: float = 1.0,
        choice: Literal["a", "b"] = "a",
        call: Callable[[int], int] | None = None,
        point: np.ndarray[tuple[int], np.dtype[np.float32]] | None = None,
    ) -> None: ...

    known = read_parameters(rule)
    assert [str(one) for one in known.values()] == [
        "whole: int",
        "real: float = 1.0",
        "choice: 'a' or 'b' = 'a'",
        "call: a callable or None = None",
        "point: a vector or None = None",
    ]
    found = check_parameters("rule", known, {"whole": np.int64(3), "real": 2, "call": abs, "point": [1, 2]})
    assert found == {"whole": 3, "real": 2.0, "call": abs, "point": [1, 2]}
    assert type(found["whole"]) is int
    assert type(found["real"]) is float
    for wrong in (
        {"real": float("nan")},
        {"real": float("inf")},
        {"real": "2"},
        {"choice": "c"},
        {"call": 3},
        {"point": 3.0},
        {"point": "text"},
    ):
        with pytest.raises(ValueError, match=r"rule: .* is not"):
            check_parameters("rule", known, {"whole": 1, **wrong})


def test_parameters_can_be_checked_before_there_are_rows() -> None:
    assert robust.AGGREGATORS["krum"].check(9, f=3) == {"f": 3}
    with pytest.raises(ValueError, match="got n=9, f=4"):
        robust.AGGREGATORS["krum"].check(9, f=4)
    with pytest.raises(ValueError, match="does not take k"):
        robust.PRE_AGGREGATORS["nnm"].check(9, k=4)


def test_a_name_can_be_registered_once() -> None:
    registry: Registry[int] = Registry("thing")
    registry.add("one", 1)
    with pytest.raises(ValueError, match="already an entry for thing 'one'"):
        registry.add("one", 2)
    assert dict(registry) == {"one": 1}


def test_a_parameter_without_a_type_is_told_by_its_name() -> None:
    def untyped(given, *, strength=2.0):  # type: ignore[no-untyped-def]
        return given.honest

    with pytest.raises(TypeError, match="untyped: the parameter strength has no type; write strength: float"):
        robust.attack(untyped)
