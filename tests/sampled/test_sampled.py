"""The maker and the runner of mutants drawn at random; and `survivors.toml` fits the sources and the tests."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sampled import __main__ as command
from tests.sampled import draw, tree
from tests.sampled.draw import Survivor, sample, survivors
from tests.sampled.judge import Judge, Sound, Verdict, Verdicts
from tests.sampled.operators import Mutant, is_valid, mutants_of
from tests.sampled.pytest_server import TOO_LONG
from tests.sampled.related import Related

ROOT = Path(__file__).parents[2]


def made(source: str) -> set[tuple[str, str]]:
    return {(one.operator, one.new_line) for one in mutants_of("x.py", source) if is_valid(one, source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {("comparison", "a <= b"), ("comparison", "a >= b"), ("statement", "pass")}),
        ("x = a in b", {("comparison", "x = a not in b")}),
        ("x = (a) is (b)", {("comparison", "x = (a) is not (b)")}),
        ("x = a and not b", {("boolean", "x = a or not b"), ("boolean", "x = a and b")}),
        ("x = a + -b", {("arithmetic", "x = a - -b"), ("arithmetic", "x = a + +b")}),
        ("x = 3", {("constant", "x = (4)"), ("constant", "x = (2)")}),
        ("x = True", {("constant", "x = False")}),
        ("x += b", {("arithmetic", "x -= b"), ("statement", "pass")}),
        ("x.y = b", {("statement", "pass")}),
        (
            "def f(a=1): return a",
            {("default", f"def f(a=({k})): return a") for k in (0, 2)} | {("return", "def f(a=1): return None")},
        ),
        ("class A:\n    x: int = 0", {("default", "x: int = (1)"), ("default", "x: int = (-1)")}),
        ("for a in b:\n    break", {("loop", "continue")}),
        ("def f():\n    raise A", {("statement", "pass")}),
        ("try:\n    x\nexcept (A, B) as e:\n    y = e", {("exception", "except () as e:"), ("statement", "pass")}),
    ],
)
def test_ordinary_operators(source: str, expected: set[tuple[str, str]]) -> None:
    assert made(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""1 < 2"""',
        "x: list[1]",
        "def f(a: 1 | 2) -> 3: ...",
        'x = f"{1 + 1}"',
        "if TYPE_CHECKING:\n    a()",
        'if __name__ == "__main__":\n    a()',
        '__all__ = [*a, "b" * 2]',
        "Union = int | str",
    ],
)
def test_what_is_no_behaviour_is_left_alone(source: str) -> None:
    assert made(source) == set()


def test_a_place_after_letters_of_several_bytes_is_right() -> None:
    assert made("x = {'é': a == b}") == {("comparison", "x = {'é': a != b}")}


def test_equal_lines_of_one_function_are_told_apart() -> None:
    ids = [one.id for one in mutants_of("x.py", "def f():\n    x = 1\n    x = 1")]
    assert len(set(ids)) == len(ids) == 4
    assert ids[2] == "x.py: f: x = 1 -> x = (2) (1)"


def test_a_sample_follows_from_its_seed_and_hardly_changes_with_one_source(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("".join(f"x{i} = {i}\n" for i in range(60)))
    before = [one.id for one in sample(1, 40, tmp_path, ("a.py", "b.py"))]
    assert before != [one.id for one in sample(2, 40, tmp_path, ("a.py", "b.py"))]
    (tmp_path / "b.py").write_text("new = 1\n" + (tmp_path / "b.py").read_text())
    draw.all_mutants.cache_clear()
    after = [one.id for one in sample(1, 40, tmp_path, ("a.py", "b.py"))]
    assert len(set(before) & set(after)) >= 38


def test_every_survivor_has_a_test_that_exists_or_a_reason() -> None:
    for survivor in survivors().values():
        assert bool(survivor.killed_by) != bool(survivor.equivalent), survivor.id
        if survivor.killed_by:
            file, _, name = survivor.killed_by.partition("::")
            assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(), f"{survivor.killed_by} does not exist"


@pytest.mark.long
def test_every_survivor_is_still_a_mutant() -> None:
    ids = {one.id for one in draw.all_mutants()}
    gone = [one for one in survivors() if one not in ids]
    assert not gone, f"the sources have changed: correct these entries of tests/survivors.toml, or remove them: {gone}"


@pytest.mark.long
def test_every_survivor_is_killed_by_its_test(tmp_path: Path) -> None:
    assert command.main(["--out", str(tmp_path), "--listed"]) == 0


# --- which tests ------------------------------------------------------------------------------------------------


def test_a_test_file_is_related_through_packages_and_helpers(tmp_path: Path) -> None:
    files = {
        "secagg/__init__.py": "from secagg.inner import thing",
        "secagg/inner.py": "from secagg import deep\nthing = 1",
        "secagg/deep.py": "",
        "tests/helper.py": "from secagg import thing",
        "tests/secagg/test_direct.py": "from secagg import thing",
        "tests/secagg/test_helped.py": "import tests.helper",
        "tests/secagg/test_deep.py": "from secagg import deep",
        "tests/secagg/test_slow.py": "import subprocess\nfrom secagg import deep",
        "tests/secagg/test_other.py": "import os",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    related = Related(tmp_path)
    names = [Path(name).stem for name in related.tests("secagg/inner.py")]
    assert names == ["test_direct", "test_helped"]
    names = [Path(name).stem for name in related.tests("secagg/deep.py")]
    assert names == ["test_deep", "test_direct", "test_helped", "test_slow"]


# --- the copy ---------------------------------------------------------------------------------------------------


def test_after_a_mutant_the_file_its_time_and_the_compiled_code_are_as_before(tmp_path: Path) -> None:
    (tmp_path / "p" / "__pycache__").mkdir(parents=True)
    (tmp_path / "p" / "a.py").write_text("x = 1")
    os.utime(tmp_path / "p" / "a.py", (1000, 1000))
    with tree.changed(tmp_path, "p/a.py", "x = 2"):
        assert (tmp_path / "p" / "a.py").read_text() == "x = 2"
        (tmp_path / "p" / "__pycache__" / "compiled from the mutant").touch()
    assert (tmp_path / "p" / "a.py").read_text() == "x = 1"
    assert (tmp_path / "p" / "a.py").stat().st_mtime == 1000
    assert list((tmp_path / "p" / "__pycache__").iterdir()) == []
    assert not (tmp_path / tree.KEPT).exists()


def test_a_copy_that_a_killed_run_left_changed_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "FOLDERS", ("p",))
    monkeypatch.setattr(tree, "FILES", ())
    (tmp_path / "origin" / "p").mkdir(parents=True)
    (tmp_path / "origin" / "p" / "a.py").write_text("x = 1")
    copy = tmp_path / "copy"
    tree.copy_tree(copy, tmp_path / "origin")
    with monkeypatch.context() as killed:
        killed.setattr(tree, "restore", lambda folder: None)
        with tree.changed(copy, "p/a.py", "x = 2"):
            (copy / "p" / "__pycache__").mkdir()
    tree.copy_tree(copy, tmp_path / "origin")
    assert (copy / "p" / "a.py").read_text() == "x = 1"
    assert not (copy / "p" / "__pycache__").exists()


def test_a_fork_runs_tests_in_order_and_stops_at_the_first_failure_and_at_its_budget(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_1(): pass\ndef test_2(): assert False\ndef test_3(): pass")
    (tmp_path / "test_b.py").write_text("def test_4(): pass\ndef test_5(): pass")
    code = "import json, sys; from tests.sampled.pytest_server import fork; print(json.dumps("
    code += "[fork(['test_b.py', 'test_a.py'], 9.0), fork(['test_b.py'], -1.0), fork(['absent.py'], 9.0)]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True)
    first, second, third = json.loads(done.stdout)
    assert list(first["ran"]) == ["test_b.py::test_4", "test_b.py::test_5", "test_a.py::test_1", "test_a.py::test_2"]
    assert first["failed"] == "test_a.py::test_2"
    assert (list(second["ran"]), second["stopped"], second["failed"]) == (["test_b.py::test_4"], True, "")
    assert third["code"] == 4


def test_a_server_that_is_killed_takes_the_running_test_with_it(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(
        "import os, pathlib, time\n"
        "def test_1():\n    pathlib.Path('pid').write_text(f'{os.getpid()} ')\n    time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    code = "from tests.sampled import pytest_server as p; p.HEAVY = p.HEAVY_TOO = (); p.main()"
    server = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, stdin=subprocess.PIPE)
    assert server.stdin is not None
    server.stdin.write(b'{"tests": ["test_a.py"], "budget": 9.0}\n')
    server.stdin.flush()
    assert _until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith(" "))
    child = int((tmp_path / "pid").read_text())
    assert Path(f"/proc/{child}").exists()
    server.kill()
    server.communicate()
    assert _until(lambda: not Path(f"/proc/{child}").exists() or "\nState:\tZ" in _status(child))


def _status(process: int) -> str:
    try:
        return Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return "\nState:\tZ"


def _until(done: Callable[[], bool]) -> bool:
    """Wait for something that happens in another process."""
    for _ in range(600):
        if done():
            return True
        time.sleep(0.1)
    return False


# --- the verdict ------------------------------------------------------------------------------------------------


class Scripted:
    """A copy whose tests fail as a table says."""

    def __init__(self, folder: Path, answers: Sequence[dict[str, Any]]) -> None:
        self.folder, self.answers, self.asked = folder, list(answers), list[list[str]]()
        (folder / "x.py").write_text("y = 1")

    def run(self, tests: Sequence[str], budget: float) -> dict[str, Any]:
        self.asked.append(list(tests))
        return {"code": 0, "failed": "", "ran": {"t": 1.0}, "stopped": False} | self.answers.pop(0)


class Nobody:
    def tests(self, mutant: Mutant) -> list[str]:
        return []


class Two:
    def tests(self, file: str) -> list[str]:
        return ["tests/a.py", "tests/b.py"]


def judged(tmp_path: Path, *answers: dict[str, Any]) -> tuple[Verdict, Scripted]:
    [mutant, _] = mutants_of("x.py", "y = 1")
    copy = Scripted(tmp_path, answers)
    verdicts = Verdicts(tmp_path / "verdicts.jsonl")
    judge = Judge(Nobody(), Two(), verdicts, Sound(), 40.0)  # type: ignore[arg-type]
    found = judge.judge(mutant, copy)  # type: ignore[arg-type]
    assert (tmp_path / "x.py").read_text() == "y = 1"
    return found, copy


def test_a_test_kills_only_if_it_passes_without_the_mutant(tmp_path: Path) -> None:
    failed = {"code": 1, "failed": "tests/a.py::t"}
    found, copy = judged(tmp_path, failed, {})
    assert (found.verdict, found.by) == ("killed", "tests/a.py::t")
    found, copy = judged(tmp_path, failed, failed, {})
    assert found.verdict == "survived"
    assert copy.asked[1:] == [["tests/a.py::t"], ["tests/a.py", "tests/b.py", "--deselect=tests/a.py::t"]]


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ({"code": 98}, "no verdict"),
        ({"code": 5, "ran": {}}, "no test"),
        ({}, "survived"),
    ],
)
def test_what_else_can_come_out(tmp_path: Path, answer: dict[str, Any], verdict: str) -> None:
    assert judged(tmp_path, answer)[0].verdict == verdict


ENDLESS_TEST = {"code": TOO_LONG, "failed": "tests/a.py::t", "ran": {}}


@pytest.mark.parametrize(
    ("answers", "verdict", "by"),
    [
        ([ENDLESS_TEST, {"ran": {"t": 24.0}}], "killed", "does not end: tests/a.py::t"),
        ([ENDLESS_TEST, {"ran": {"t": 26.0}}, {}], "survived", "1 tests of 2 names"),
        ([ENDLESS_TEST, ENDLESS_TEST, {}], "survived", "1 tests of 2 names"),
        ([{"code": -11}, {}], "killed", "exit -11"),  # the interpreter crashed
        ([{"code": TOO_LONG}, {}], "killed", "exit 97"),  # an import did not end
        ([{"code": -11}, {"code": -11}], "no verdict", "exit -11, also without the mutant"),
        ([{"code": 4}, {}, {}], "killed", "exit 4"),  # pytest could not begin
        ([{"code": 4}, {"code": 4}, {}, {}], "survived", "1 tests of 1 names"),  # tests/a.py is gone
    ],
)
def test_what_is_no_failed_test_kills_only_if_the_unchanged_copy_does_better(
    tmp_path: Path, answers: list[dict[str, Any]], verdict: str, by: str
) -> None:
    found, copy = judged(tmp_path, *answers)
    assert (found.verdict, found.by, copy.answers) == (verdict, by, [])


def test_a_compiled_loop_that_never_ends_is_stopped_and_named(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_1(): pass\ndef test_2(): (2 ** 10**9) % 3; pow(7, 10**10**6)")
    code = "import json; from tests.sampled import pytest_server as p; p.ENDLESS = 0.2; print(json.dumps("
    code += "p.fork(['test_a.py'], 9.0)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout) == {"code": TOO_LONG, "failed": "test_a.py::test_2", "ran": {}, "stopped": False}


def test_an_import_that_never_ends_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("pow(7, 10**10**6)")
    code = "import json; from tests.sampled import pytest_server as p; p.ENDLESS = 0.2; print(json.dumps("
    code += "p.fork(['test_a.py'], 9.0)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout) == {"code": TOO_LONG, "failed": "", "ran": {}, "stopped": False}


def test_verdicts_are_kept_and_killers_of_the_same_file_come_first(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path / "v")
    verdicts.add(Verdict("x.py: f: a -> b", "constant", "killed", "tests/a.py::far", 1.0))
    verdicts.add(Verdict("x.py: module: a -> b", "constant", "killed", "tests/a.py::near", 1.0))
    verdicts.add(Verdict("z.py: module: a -> b", "constant", "killed", "tests/a.py::other", 1.0))
    [mutant, _] = mutants_of("x.py", "y = 1")
    assert Verdicts(tmp_path / "v").killers(mutant) == ["tests/a.py::near", "tests/a.py::far"]


def test_the_bar_is_95_percent_of_those_that_are_not_equivalent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Mutant] = list(mutants_of("x.py", "".join(f"x{i} = 1\n" for i in range(20))))
    assert len(chosen) == 40
    verdicts = Verdicts(tmp_path / "v")
    for place, one in enumerate(chosen):
        verdicts.add(Verdict(one.id, "constant", "survived" if place < 4 else "killed", "t", 1.0))
    verdicts.add(Verdict(chosen[3].id, "constant", "killed", "t", 1.0))  # by a test that was written since
    assert command.summary(chosen, verdicts)[1] is False
    first = Survivor(file="x.py", old="x0 = 1", new="x0 = (2)", equivalent="nobody reads it")
    monkeypatch.setattr(command, "survivors", lambda: {first.id: first})
    assert first.id == chosen[0].id
    text, good = command.summary(chosen, Verdicts(tmp_path / "v"))
    assert good is (37 / 39 >= 0.95) is False
    assert "40 of 40 mutants judged: 37 killed, 1 equivalent, 2 alive; 94.9% of" in text
    assert text.endswith("died (36 of all at their first run)")
    verdicts.add(Verdict(chosen[1].id, "constant", "killed", "t", 1.0))
    assert command.summary(chosen, verdicts)[1] is True
    del verdicts.known[chosen[5].id]
    assert command.summary(chosen, verdicts)[1] is False  # not all are judged
