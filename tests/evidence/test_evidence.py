"""`python -m tests.evidence` on a tiny package with a register of its own."""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests import json_lines, mutants, mutations
from tests.evidence import __main__ as command
from tests.evidence import pieces, report, run
from tests.evidence.outcomes import DONE, OUTCOMES, TOTAL
from tests.evidence.pieces import Piece
from tests.evidence.state import OtherTreeError, Result, State, tree_hash

REAL = Path(__file__).parents[2]
SOURCE = """
def root(x):
    if x < 0:  # audit: not-negative
        raise ValueError("expected x >= 0")
    if x > 100:  # audit: not-large
        raise ValueError("expected x <= 100")
    return x**0.5
"""
TESTS = """
import pytest
from pkg.check import root

@pytest.mark.parametrize("x", [-1, -4])
def test_negative(x):
    with pytest.raises(ValueError):
        root(x)

def test_large():
    with pytest.raises(ValueError):
        root(101)

def test_root():
    assert root(4) == 2
"""
REGISTER = """
[assumptions]
numbers = "Numbers are real."

[[topic]]
name = "Roots"
section = "docs/roots.md: 1. Roots"
residual = "Nobody checks the type."
vectors = []
no_vectors = "numbers need none."

[[topic.claim]]
id = "not-negative"
statement = "No root of a negative number is computed."
assumptions = ["numbers"]
tests = ["checks/test_pkg.py::test_negative"]
mutation = "disable"

[[topic.claim]]
id = "not-large"
statement = "No root of a large number is computed."
assumptions = []
tests = ["checks/test_pkg.py::test_large"]
mutation = "disable"
"""
SUITE = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.evidence.outcomes"]


def clear_caches() -> None:
    for cached in (mutations.register, mutations.claims, mutations.marks):
        cached.cache_clear()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository with one package, one test file and two claims; the runs beside its tests are made up."""
    root = tmp_path / "project"
    for name, text in {"pkg/check.py": SOURCE, "checks/test_pkg.py": TESTS, "claims.toml": REGISTER}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    monkeypatch.setattr(mutations, "ROOT", root)
    monkeypatch.setattr(mutations, "REGISTER", root / "claims.toml")
    monkeypatch.setattr(mutations, "PACKAGES", ("pkg",))
    monkeypatch.setattr(mutants, "mutants", list)
    monkeypatch.setattr(pieces, "run_pieces", lambda effort, seed: [made_up("seeds 5 to 9", True)])
    monkeypatch.setattr(run, "ROOT", root)
    monkeypatch.setattr(run, "WORKERS", 1)
    monkeypatch.setattr(run, "suite_command", lambda effort, tests: SUITE)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # starts in half the time
    monkeypatch.setattr(run, "copy_tree", lambda folder: shutil.copytree(root, folder, dirs_exist_ok=True))
    monkeypatch.setattr(command, "tree_hash", lambda: tree_hash(root))
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setenv("PYTHONPATH", f"{root}:{REAL}")
    clear_caches()
    yield root
    clear_caches()


def made_up(name: str, good: bool) -> Piece:
    return Piece("generated", name, lambda copy: (good, "2 runs"), more={"first seed": 5, "last seed": 9})


def evidence(root: Path) -> tuple[dict[str, str], dict]:
    found = json.loads((root.parent / "out" / "evidence.json").read_text())
    return {claim["id"]: claim["state"] for topic in found["topics"] for claim in topic["claims"]}, found


def test_a_run_says_for_every_claim_what_ran_and_what_came_out(project: Path) -> None:
    words = ["quick", "--out", str(project.parent / "out"), "--seed", "3"]
    assert command.main(words) == 0
    states, found = evidence(project)
    assert states == {"not-negative": "held", "not-large": "held"}
    assert found["suite"]["counts"] == {"passed": 4}
    claim = found["topics"][0]["claims"][0]
    assert claim["tests"][0]["cases"] == 2
    assert claim["assumptions"] == {"numbers": "Numbers are real."}
    assert claim["checks"][0]["verdict"] == "killed"
    assert [part["seeds"] for part in found["parts"]] == ["5 to 9", ""]
    assert {"seed", "commit", "machine", "versions", "load", "seconds", "tree"} <= found.keys()
    page = (project.parent / "out" / "evidence.html").read_text()
    assert "Everything that ran held" in page
    assert "No root of a large number is computed." in page
    # Nothing is left to do: the same command runs no test and no piece again.
    before = (project.parent / "out" / "results.jsonl").read_text(), (project.parent / "out" / OUTCOMES).read_text()
    assert command.main(words) == 0
    assert before == (
        (project.parent / "out" / "results.jsonl").read_text(),
        (project.parent / "out" / OUTCOMES).read_text(),
    )


def test_a_check_whose_tests_do_not_notice_its_loss_fails_the_run(project: Path) -> None:
    path = project / "checks" / "test_pkg.py"
    path.write_text(path.read_text().replace("root(101)", "raise ValueError"))
    assert command.main(["quick", "--out", str(project.parent / "out")]) == 1
    states, _ = evidence(project)
    assert states == {"not-negative": "held", "not-large": "failed"}
    assert "SURVIVED" in (project.parent / "out" / "evidence.html").read_text()


def test_another_tree_needs_another_folder(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    State(project.parent / "out", "quick", 1, "another hash")
    assert command.main(["quick", "--out", str(project.parent / "out")]) == 2
    assert "another tree" in capsys.readouterr().out
    with pytest.raises(OtherTreeError, match="another effort and another seed"):
        State(project.parent / "out", "full", 2, "another hash")


# --- claims without fresh evidence -------------------------------------------------------------------------------

LINE = mutations.mutated.__code__.co_firstlineno  # a line inside a function
PASSED = {name: {"test": name, "outcome": "passed", "seconds": 0.1} for name in ("t", "t[a]", "u")}
BAD = {"bad[a]": "passed", "bad[b]": "failed", "skipped": "skipped"}


def claim_of(tests: list[str], monkeypatch: pytest.MonkeyPatch) -> mutations.Claim:
    monkeypatch.setattr(mutations, "marks", lambda: {"x": (mutations.Mark("tests/mutations.py", LINE),)})
    return mutations.Claim("topic", "x", "X holds.", [], tests, "disable")


def disabled(good: bool) -> Result:
    more = {"claim": "x", "file": "tests/mutations.py", "line": LINE}
    return Result("mutation", "x", good, "killed" if good else "SURVIVED", 1.0, more)


@pytest.mark.parametrize(
    ("tests", "results", "expected"),
    [
        (["t"], [disabled(True)], "held"),
        (["t"], [], "tests only"),
        (["t", "u"], [disabled(False)], "failed"),
        (["t", "absent"], [disabled(True)], "no evidence"),
        (["bad"], [disabled(True)], "failed"),
        (["skipped"], [disabled(True)], "no evidence"),
    ],
)
def test_the_state_of_a_claim(
    tests: list[str], results: list[Result], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = PASSED | {name: {"test": name, "outcome": kind, "seconds": 0.0} for name, kind in BAD.items()}
    grouped = report.by_function(outcomes)
    assert report.of_claim(claim_of(tests, monkeypatch), grouped, results)["state"] == expected


def test_full_does_not_hold_while_something_is_missing(project: Path) -> None:
    state = State(project.parent / "out", "full", 1, tree_hash(project))
    (state.folder / OUTCOMES).write_text("\n".join(json.dumps(one) for one in PASSED.values()))
    state.keep(suite="passed")
    found = report.collect(state, {"mutation": 2})
    assert (found["held"], found["verdict"]) == (False, "incomplete")


def test_a_suite_that_did_not_finish_does_not_hold(project: Path) -> None:
    state = State(project.parent / "out", "quick", 1, tree_hash(project))
    state.keep(suite="did not finish: pytest ended with 3")
    found = report.collect(state, {"mutation": 2})
    assert (found["held"], found["verdict"]) == (False, "incomplete")


# --- the state of a run ------------------------------------------------------------------------------------------


def test_a_killed_run_continues_with_what_is_missing(project: Path) -> None:
    done: list[str] = []

    def act(name: str) -> Piece:
        return Piece("generated", name, lambda copy: (done.append(name) is None, ""), optional=name == "late")

    state = State(project.parent / "out", "quick", 1, "h")
    state.add(Result("generated", "a", True, "", 2.0))
    with (project.parent / "out" / "results.jsonl").open("a") as file:
        file.write('\n{"part": "generated", "name": "b", "go')  # the kill cut this line
    again = State(project.parent / "out", "quick", 1, "h")
    assert again.before == again.run["spent"]
    with run.new_progress() as progress:
        run.run_pieces(again, progress, [act("a"), act("b"), act("late")], minutes=0.0)
    assert done == ["b"]  # a is known, and there is no time for what is optional
    assert {name for _, name in State(project.parent / "out", "quick", 1, "h").results} == {"a", "b"}


def test_what_an_interruption_stops_has_no_result_and_runs_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        while not pieces._running:
            time.sleep(0.01)
        raise KeyboardInterrupt

    endless = pieces.program("timeit", "-n1", "-r1", "__import__('time').sleep(600)")
    todo = [made_up("first", False), Piece("generated", "endless", endless), made_up("last", True)]
    state = State(project.parent / "out", "full", 1, "h")
    with run.new_progress() as progress:
        run.run_pieces(state, progress, todo[:1], minutes=1e9)
        monkeypatch.setattr(run, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.run_pieces(state, progress, todo, minutes=1e9)
    assert not pieces._running
    known = State(project.parent / "out", "full", 1, "h").results
    assert [(name, one.good) for (_, name), one in known.items()] == [("first", False)]  # a failure stays one


def half(state: State, tests: int = 4, ran: int = 2) -> None:
    """What the folder has when so many of so many tests have run."""
    (state.folder / TOTAL).write_text(str(tests))
    (state.folder / OUTCOMES).write_text("\n{}" * ran)


def test_pieces_run_beside_the_second_half_of_the_suite_and_give_way_to_it(project: Path) -> None:
    """What is optional, or has not begun when the suite ends, is left for later."""
    state, began, end = State(project.parent / "out", "quick", 1, "h"), threading.Event(), threading.Event()
    nice = pieces.program("timeit", "-n1", "-r1", "assert __import__('os').nice(0) == 19")

    def last(copy: Path) -> tuple[bool, str]:
        began.set()
        return end.wait(30), str(copy)

    todo = [Piece("generated", "nice", nice), made_up("late", True), Piece("generated", "last", last)]
    check = replace(made_up("mutation", True), part="mutation")
    todo = [check, todo[0], replace(todo[1], optional=True), todo[2], made_up("never begun", True)]
    before = os.nice(0)
    with run.new_progress() as progress:
        with run.programs_beside(state, progress, lambda: todo):
            half(state, ran=1)
            assert not began.wait(1.5)
            half(state)
            assert began.wait(30)
            threading.Timer(0.5, end.set).start()
        assert [(name, one.good) for (_, name), one in state.results.items()] == [("nice", True), ("last", True)]
        assert state.results["generated", "last"].said == str(project)
        assert os.nice(0) == before
        run.run_pieces(state, progress, todo, minutes=1e9)
        assert [task.description for task in progress.tasks] == ["tests", "generated runs", "checks disabled"]
        assert progress.tasks[1].completed == progress.tasks[1].total == 4
    assert {name for _, name in state.results} == {"mutation", "nice", "last", "late", "never begun"}


@pytest.mark.parametrize("where", ["in the suite", "after it"])
def test_an_interruption_ends_the_programs_beside_the_suite(
    project: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    state = State(project.parent / "out", "quick", 1, "h")
    endless = pieces.program("timeit", "-n1", "-r1", "__import__('time').sleep(600)")
    todo = [Piece("generated", "endless", endless)]

    def suite() -> None:
        with run.new_progress() as progress, run.programs_beside(state, progress, lambda: todo):
            half(state)
            for _ in range(3000):
                if pieces._running:
                    break
                time.sleep(0.01)
            if where == "in the suite":
                raise KeyboardInterrupt
            monkeypatch.setattr("concurrent.futures.Future.result", interrupted)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        suite()
    assert not pieces._running
    assert not state.results


def test_a_program_may_get_a_second_chance_with_other_words() -> None:
    act = pieces.program("unittest", "absent_module", again=["--help"])
    good, said = act(Path())
    assert good
    assert "usage" in said
    good, said = pieces.program("unittest", "absent_module")(Path())
    assert not good
    assert "absent_module" in said


def test_a_piece_that_raises_is_a_failure_and_no_end() -> None:
    result = Piece("fuzz", "x", lambda copy: (1 / 0, "")).run(Path())  # type: ignore[arg-type,return-value]
    assert not result.good
    assert "ZeroDivisionError" in result.said


def test_the_suite_leaves_out_what_has_passed_and_runs_failures_again(project: Path) -> None:
    state = State(project.parent / "out", "quick", 1, "h")
    known = {"checks/test_pkg.py::test_large": "passed", "checks/test_pkg.py::test_root": "failed"}
    rows = [json.dumps({"test": test, "outcome": outcome, "seconds": 0.0}) for test, outcome in known.items()]
    (project.parent / "out" / OUTCOMES).write_text("\n".join(rows) + "\n")
    with run.new_progress() as progress:
        run.run_suite(state, progress, "quick")
    assert (project.parent / "out" / DONE).read_text() == "checks/test_pkg.py::test_large"
    ran = [one["test"].partition("::")[2] for one in json_lines.read(project.parent / "out" / OUTCOMES)[2:]]
    assert sorted(ran) == ["test_negative[-1]", "test_negative[-4]", "test_root"]
    assert state.run["suite"] == "passed"


def test_quick_draws_its_sample_with_the_seed() -> None:
    claims = mutations.claims()
    names = [[piece.name for piece in pieces.mutation_pieces(claims, "quick", seed)] for seed in (1, 1, 2)]
    assert names[0] == names[1]
    assert names[0] != names[2]
    assert sorted(names[0]) == sorted(names[2])
    assert [piece.optional for piece in pieces.mutation_pieces(claims, "quick", 1)].count(False) == pieces.SURE
    assert not any(piece.optional for piece in pieces.mutation_pieces(claims, "full", 1))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (12.3, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert report.duration(seconds) == text


def test_outcomes_are_read_while_they_are_written(tmp_path: Path) -> None:
    """A line may be half written when it is read; then it is read again."""
    state, names = State(tmp_path, "quick", 1, "tree"), ("first", "sécond", "third")
    assert state.outcomes() == {}
    text, ends = b"", []
    for name in names:
        text += f"\n{json.dumps({'test': name, 'outcome': 'passed', 'seconds': 0.1}, ensure_ascii=False)}".encode()
        ends.append(len(text))
    for written in range(len(text) + 1):
        (tmp_path / OUTCOMES).write_bytes(text[:written])
        assert list(state.outcomes()) == [name for name, end in zip(names, ends, strict=True) if end <= written]
