"""Which tests reach a mutant, from recordings of traced runs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.sampled.operators import mutants_of
from tests.sampled.reached import Reached, record
from tests.sampled.tree import ROOT

PRODUCT = """
from numba import njit

LIMIT = 3
UNUSED = 4


def both(x):
    if x > LIMIT:
        return compiled(x)
    return 0


@njit
def compiled(x):
    return inner(x) + 1


@njit
def inner(x):
    return 2 * x


def nobody():
    return 5
"""

ITS_TESTS = """
import pytest
from secagg.codec import both

@pytest.mark.parametrize("x", [1, 2])
def test_small(x):
    assert both(x) == 0

def test_large():
    assert both(5) == 11

def test_nothing():
    pass
"""


def test_the_tests_of_a_mutant_are_those_that_run_its_line_or_name_what_it_changes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name, text in {
        "secagg/codec.py": PRODUCT,
        "secagg/__init__.py": "",
        "tests/test_a.py": ITS_TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    copy = tmp_path / "traced" / "0"
    shutil.copytree(root, copy)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "tests.sampled.tracer", "tests/test_a.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)])}
    subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True)
    (copy / "reached" / "done").touch()

    def tests(text: str) -> dict[str, list[str]]:
        reached = Reached(tmp_path / "traced", root)
        return {one.id.partition(": ")[2]: reached.tests(one) for one in mutants_of("secagg/codec.py", text)}

    found = tests(PRODUCT)
    small, large = "tests/test_a.py::test_small", "tests/test_a.py::test_large"
    assert set(found["both: if x > LIMIT: -> if x >= LIMIT:"]) == {small, large}
    assert found["both: return compiled(x) -> return None"] == [large]
    assert found["both: return 0 -> return None"] == [small]
    assert found["compiled: return inner(x) + 1 -> return inner(x) - 1"] == [large]
    assert found["inner: return 2 * x -> return 2 / x"] == [large]  # two compiled functions deep
    assert set(found["module: LIMIT = 3 -> LIMIT = (4)"]) == {small, large}
    assert found["module: UNUSED = 4 -> UNUSED = (5)"] == []
    assert found["nobody: return 5 -> return None"] == []
    (root / "secagg/codec.py").write_text(moved := "#\n" + PRODUCT)  # lines have moved since
    assert tests(moved)["both: return 0 -> return None"] == [small]
    assert tests(moved)["both: return compiled(x) -> return None"] == [large]
    (root / "secagg/codec.py").write_text(changed := PRODUCT.replace("return 0", "return -0"))  # functions count
    assert set(tests(changed)["both: return -0 -> return None"]) == {small, large}
    (root / "tests/test_a.py").write_text(ITS_TESTS.replace("test_small", "test_renamed"))
    assert tests(changed)["both: return -0 -> return None"] == [large]


def test_quick_tests_come_first_and_of_these_the_narrow_ones(tmp_path: Path) -> None:
    folder = tmp_path / "traced" / "0" / "reached"
    folder.mkdir(parents=True)
    (folder / "done").touch()
    for root in (tmp_path, tmp_path / "traced" / "0"):
        (root / "x.py").write_text("y = 1\ndef f():\n    a = 1\n    return a\n")
        (root / "tests").mkdir()
        (root / "tests" / "test_a.py").write_text("".join(f"def test_{name}(): pass\n" for name in "sbno"))
    data = CoverageData(basename=str(folder / "lines.only"))
    for test, numbers in {"s": [3], "b": [3, 4], "n": [3], "o": [4]}.items():
        data.set_context(f"tests/test_a.py::test_{test}")
        data.add_lines({str(tmp_path / "traced" / "0" / "x.py"): numbers})
    data.write()
    costs = {"s": 0.3, "b": 0.1, "n": 0.2}
    (folder / "costs.only.json").write_text(json.dumps({f"tests/test_a.py::test_{k}": v for k, v in costs.items()}))
    [mutant, *_] = [one for one in mutants_of("x.py", (tmp_path / "x.py").read_text()) if one.old_line == "a = 1"]
    names = Reached(tmp_path / "traced", tmp_path).tests(mutant)
    assert names == [f"tests/test_a.py::test_{name}" for name in "nbs"]


def test_only_test_files_that_no_recording_has_are_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, traced = tmp_path / "root", tmp_path / "traced"
    asked = list[list[str]]()

    def run(command: list[str], *, cwd: Path, **_: object) -> None:
        asked.append([word for word in command if word.startswith("tests/")])
        (cwd / "reached").mkdir()
        (cwd / "reached" / "costs.only.json").write_text("{}")

    monkeypatch.setattr("tests.sampled.reached.subprocess.run", run)
    monkeypatch.setattr(
        "tests.sampled.reached.copy_tree", lambda copy, root: shutil.copytree(root, copy, dirs_exist_ok=True)
    )
    (root / "tests").mkdir(parents=True)
    (root / "tests/test_a.py").write_text("a")
    record(traced, root)
    record(traced, root)
    (root / "tests/test_b.py").write_text("b")
    record(traced, root)
    (root / "tests/test_a.py").write_text("c")
    record(traced, root)
    record(traced, root)
    assert asked == [[], ["tests/test_b.py"], ["tests/test_a.py"]]
    monkeypatch.setattr("tests.sampled.reached.subprocess.run", lambda *_, **__: None)
    (root / "tests/test_b.py").write_text("d")
    with pytest.raises(RuntimeError, match=r"recorded nothing; see .*trace\.log"):
        record(traced, root)
