"""docs/add-an-aggregator.md is followed literally, and docs/robust.md is compared with the code."""

import math
import re
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import robust
from robust import tolerance
from tests.benchmarks.robust.measure import measure_rule
from tests.robust import cases, references, test_input, test_parameters, test_robustness, test_rules, test_tolerance

DOCS = Path(__file__).parent.parent.parent / "docs"


def code_blocks(page: str) -> list[str]:
    """The code of a page. The guide's rule gets another name, in case somebody adds FABA to the package."""
    text = (DOCS / page).read_text().replace("faba", "guided")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def registries_as_before() -> Iterator[None]:
    before = set(robust.AGGREGATORS)
    yield
    for name in set(robust.AGGREGATORS) - before:
        robust.AGGREGATORS.remove(name)


@pytest.mark.usefixtures("registries_as_before")
def test_the_guide_works_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    for block in code_blocks("add-an-aggregator.md"):
        exec(compile(block, "add-an-aggregator.md", "exec"), scope)
    printed = capsys.readouterr().out.splitlines()
    promised = re.findall(r"print\(.*?\)\s+# (.*)", "\n".join(code_blocks("add-an-aggregator.md")))
    assert len(printed) == len(promised) == 3
    for line, comment in zip(printed, promised, strict=True):
        assert comment.startswith(line)
    with pytest.raises(ValueError, match="guided needs n > 2f: got n=5, f=3"):
        robust.aggregate("guided", np.zeros((5, 2)), f=3)
    with pytest.raises(ValueError, match="guided does not take k; it takes f: int"):
        robust.aggregate("guided", np.zeros((5, 2)), k=3)


GUIDED = "| `guided` | Xia et al. 2019 | n > 2f | f passes | its f, a minority | 9 | 9f/(n-2f) * |"


def guided(x: NDArray[np.float64], f: int) -> NDArray[np.float64]:
    """The slow version that the guide asks for."""
    left = list(range(len(x)))
    for _ in range(f):
        mean = sum(x[i] for i in left) / len(left)
        left.remove(max(left, key=lambda i: float(((x[i] - mean) ** 2).sum())))
    return np.asarray(sum(x[i] for i in left) / len(left))


def common_tests(*modules: ModuleType) -> Iterator[tuple[Callable[..., None], dict[str, Any]]]:
    """The tests that run for every built-in rule, with all their other parameters."""
    for module in modules:
        for name, test in vars(module).items():
            marks = [mark.args for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
            if name.startswith("test_") and ("rule", cases.BUILT_IN) in marks:
                others = [(key, values) for key, values in marks if key != "rule"]
                for chosen in product(*(values for _, values in others)):
                    yield test, dict(zip((key for key, _ in others), chosen, strict=True))


@pytest.mark.usefixtures("registries_as_before")
def test_a_rule_entered_in_the_three_tables_is_covered_and_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    exec(compile(code_blocks("add-an-aggregator.md")[0], "add-an-aggregator.md", "exec"), {})
    monkeypatch.setattr(robust.AGGREGATORS["guided"], "kappa", lambda n, f: 9 * f / (n - 2 * f))
    monkeypatch.setitem(cases.NEEDS, "guided", cases._f)
    monkeypatch.setitem(references.RULES, "guided", guided)
    page = (DOCS / "robust.md").read_text()
    last = next(line for line in page.splitlines() if line.startswith("| `fltrust`"))
    (tmp_path / "robust.md").write_text(page.replace(last, f"{last}\n{GUIDED}"))
    monkeypatch.setattr(sys.modules[__name__], "DOCS", tmp_path)

    covering = list(common_tests(test_rules, test_input, test_tolerance))
    assert len(covering) > 15
    for test, others in covering:
        test(rule="guided", **others)
    test_parameters.test_the_registries_hold_what_they_should()
    test_parameters.test_every_docstring_has_a_formula_and_a_paper("guided")
    test_robustness.test_kappa_is_a_number_for_every_f_that_is_withstood("guided")
    test_the_table_of_rules_is_the_registry()
    test_constants_are_those_of_the_page()
    monkeypatch.setattr(test_rules, "BUILT_IN", (*cases.BUILT_IN, "guided"))
    test_rules.test_every_registered_rule_is_tested_here()

    measured = measure_rule("guided", np.ones((9, 40), dtype=np.float32), 1)
    assert math.isfinite(measured.ours)
    assert measured.numpy == math.inf  # there is no plain numpy version


def test_the_first_example_works_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    exec(compile(code_blocks("robust.md")[0], "robust.md", "exec"), scope)
    found = scope["found"]
    assert isinstance(found, robust.Aggregate)
    assert found.ignored == (3,)
    assert found.rejected is not None
    assert 7 in found.rejected
    assert capsys.readouterr().out.startswith("(3,)")


def test_a_step_called_alone_passes_the_rest_of_f_on_as_written() -> None:
    scope: dict[str, object] = {}
    for block in code_blocks("robust.md"):
        exec(compile(block, "robust.md", "exec"), scope)
    assert scope["left"] == 3
    expected = robust.aggregate("krum", scope["updates"], f=4, before=[("nnm", {"f": 4})])  # type: ignore[arg-type]
    assert np.array_equal(scope["vector"], expected.vector)  # type: ignore[arg-type]


def rows_of_table(page: str, first: str) -> Iterator[list[str]]:
    """Cells of a table whose header begins with `first`."""
    inside = False
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith(f"| {first} |"):
            inside = True
        elif inside and not line.startswith("|"):
            return
        elif inside and not line.startswith("|--"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_of_rules_is_the_registry() -> None:
    seen = []
    for name, paper, needs, _cost, _withstands, of_20, kappa in rows_of_table("robust.md", "rule"):
        rule = robust.AGGREGATORS[name.strip("`")]
        seen.append(rule.name)
        assert rule.paper == paper
        assert rule.needs == needs
        assert tolerance.withstands(rule.name, 20) == int(of_20)
        assert (rule.kappa is None) == (kappa.startswith("no"))
    assert seen == list(robust.AGGREGATORS)


def test_the_table_of_steps_is_the_registry() -> None:
    seen = []
    for name, paper, needs, *words in rows_of_table("robust.md", "step"):
        step = robust.PRE_AGGREGATORS[name.strip("`")]
        seen.append(step.name)
        assert (step.paper, step.needs) == (paper, needs)
        assert all(words)
    assert seen == list(robust.PRE_AGGREGATORS)


def constant(cell: str, n: int, f: int) -> float:
    """The value of a formula as the page writes it; of two formulas, the smaller value that n allows."""
    values = []
    for part in cell.rstrip("* ").split(";"):
        condition, formula = re.fullmatch(r"(?: for n > (\d)f, if less, )?(.*)", part).groups()  # type: ignore[union-attr]
        if condition is None or n > int(condition) * f:
            code = formula.replace("²", "**2").replace("·", "*").replace("√2", "√(2)").replace("√", "sqrt")
            code = re.sub(r"(?<=[\d)])\s*(?=[nfs(])", "*", code)  # 2f, 4 (1 + ...), 2 sqrt(...)
            values.append(eval(code, {"n": n, "f": f, "sqrt": math.sqrt}))
    return float(min(values))


def test_constants_are_those_of_the_page() -> None:
    known = {cells[0].strip("`"): cells[6] for cells in rows_of_table("robust.md", "rule")}
    for name, rule in robust.AGGREGATORS.items():
        if rule.kappa is not None:
            for n, f in ((20, 4), (60, 12), (11, 2), (20, 0), (12, 4), (19, 8)):
                assert rule.kappa(n, f) == pytest.approx(constant(known[name], n, f)), name


def test_the_tables_of_tolerance_are_computed() -> None:
    for cells in rows_of_table("robust.md", "m"):
        m, c, worst, lemma, bad, clean, once, always = (float(cell) for cell in cells)
        m, bad = int(m), int(bad)
        assert tolerance.clusters(60, m) == c
        assert tolerance.bad_clients_worst_case("trimmed_mean", 60, m, fraction=0.4) == worst
        assert float(references.paper_bad_clients(40, m)) == pytest.approx(lemma, abs=0.05)
        mean = sum(k * p for k, p in enumerate(tolerance.clean_clusters(60, bad, m)))
        assert float(mean) == pytest.approx(clean, abs=0.005)
        holds = tolerance.probability_rule_holds("trimmed_mean", 60, bad, m, fraction=0.4)
        assert float(holds) == pytest.approx(once, rel=0.05)
        assert float(tolerance.probability_all(holds, 10)) == pytest.approx(always, rel=0.05)
    header = (DOCS / "robust.md").read_text()
    cases = re.findall(r"m = (\d+), q = (\d+) \|", header)
    exact, written = ([float(cell) for cell in cells[1:]] for cells in rows_of_table("robust.md", "n = 60, R = 10"))
    assert len(cases) == len(exact) == 4
    for (m, bad), ours, theirs in zip(cases, exact, written, strict=True):
        assert float(tolerance.signal_lost(60, int(bad), int(m), 10)) == pytest.approx(ours, rel=0.05)
        assert float(references.paper_signal_lost(60, int(bad), int(m), 10)) == pytest.approx(theirs, rel=0.05)


def test_the_table_of_attacks_is_the_registry() -> None:
    named = [name for cells in rows_of_table("robust.md", "attack") for name in re.findall(r"`(\w+)", cells[0])]
    assert set(named) == {*robust.ATTACKS, "label_flip"}
