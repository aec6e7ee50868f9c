"""Whether a test fails on a mutant: the tests that are most likely to fail run first, within a budget of time."""

import re
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests import json_lines
from tests.sampled.draw import survivors
from tests.sampled.operators import Mutant
from tests.sampled.pytest_server import BROKEN, ENDLESS, TOO_LONG
from tests.sampled.reached import Reached
from tests.sampled.related import Related
from tests.sampled.tree import Copy, changed

KILLERS = 6  # tests that killed other mutants of the same file, to begin with
TESTS, MORE = 60, 300  # that reach the mutant: first, and in all; importing the files of many takes long
FILES = 14  # related test files for a mutant that no test is known to reach
ORDINARY = (0, 2, 5)  # exit codes of pytest: all passed, stopped, nothing to run
WRONG_NAMES = 4  # the exit code of pytest for a test that it does not find, and for settings that it cannot use
NO_END = "does not end: "
DECLARED = re.compile(r"@dataclass\(|\bfield\(.*\)")  # runs at import: no test is known to reach it
DECLARATIONS = "tests/test_dataclasses.py"  # the tests of all of them


@dataclass(frozen=True)
class Verdict:
    """What came out for one mutant."""

    id: str
    operator: str
    verdict: str  # killed, survived, no test, no verdict
    by: str  # the test that failed, or what ran
    seconds: float  # of processor time in tests


class Verdicts:
    """The verdicts so far, one line of JSON each. A killed run is continued from here."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        found = [Verdict(**entry) for entry in json_lines.read(path)]
        self.known = {one.id: one for one in found}
        self.first = {one.id: one for one in reversed(found)}  # before survivors were run again

    def add(self, verdict: Verdict) -> None:
        with self._lock:
            self.known[verdict.id] = verdict
            self.first.setdefault(verdict.id, verdict)
            json_lines.append(self._path, asdict(verdict))

    def killers(self, mutant: Mutant) -> list[str]:
        """Tests that killed mutants of the same function, then of the same file."""
        with self._lock:
            killed = [one for one in self.known.values() if one.verdict == "killed" and one.by.startswith("tests/")]
        near = [one.by for one in killed if one.id.startswith(f"{mutant.file}: {mutant.name or 'module'}: ")]
        same = [one.by for one in reversed(killed) if one.id.startswith(f"{mutant.file}: ")]
        return list(dict.fromkeys(near + same))[:KILLERS]


class Sound:
    """Tests that pass without a mutant. Only these can kill."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    def unsound(self) -> list[str]:
        return [test for test, good in self._known.items() if not good]

    def holds(self, test: str, copy: Copy) -> bool:
        """Whether a test exists and passes on the unchanged copy; for a whole file, whether its first test does."""
        if test not in self._known:
            answer = copy.run([test], 0.0)
            self._known[test] = answer["code"] in ORDINARY and not answer["failed"]
        return self._known[test]

    def ends_soon(self, test: str, copy: Copy, mutant: Mutant) -> bool:
        """Whether a test stays far below the limit without the mutant, even if the changed file is compiled again."""
        with changed(copy.folder, mutant.file, (copy.folder / mutant.file).read_text()):
            answer = copy.run([test], 0.0)
        good = answer["code"] in ORDINARY and not answer["failed"] and sum(answer["ran"].values()) < ENDLESS / 4
        self._known[test] = good
        return good


@dataclass(frozen=True)
class Judge:
    """Decides about one mutant at a time."""

    reached: Reached
    related: Related
    verdicts: Verdicts
    sound: Sound
    budget: float
    most: int = MORE  # tests that reach the mutant
    listed: bool = False  # run only the tests that `survivors.toml` names

    def judge(self, mutant: Mutant, copy: Copy) -> Verdict:
        """Run tests on a copy with this mutant in it. What fails there must pass on the copy without it."""
        while True:
            found, last = self._run(mutant, copy)
            if found.verdict != "killed" or self._is_its_doing(found.by, last, mutant, copy):
                return found
            if not {found.by.removeprefix(NO_END), *last} & set(self.sound.unsound()):
                return replace(found, verdict="no verdict", by=f"{found.by}, also without the mutant")

    def _is_its_doing(self, by: str, last: Sequence[str], mutant: Mutant, copy: Copy) -> bool:
        """Whether the unchanged copy does better."""
        if by.startswith(NO_END):
            return self.sound.ends_soon(by.removeprefix(NO_END), copy, mutant)
        if by.startswith("tests/"):
            return self.sound.holds(by, copy)
        if by == f"exit {WRONG_NAMES}":  # a test that was renamed since, unless nothing can be collected any more
            held = [self.sound.holds(test, copy) for test in last if not test.startswith("-")]
            return all(held)
        return copy.run(last, self.budget)["code"] in (*ORDINARY, 1)

    def _steps(self, mutant: Mutant) -> list[list[str]]:
        listed = survivors().get(mutant.id)
        first = [listed.killed_by] if listed and listed.killed_by else []
        if self.listed:
            return [first] if first else []
        if DECLARED.search(mutant.old_line):
            first.append(DECLARATIONS)
        killers = self.verdicts.killers(mutant)
        reached = self.reached.tests(mutant)
        reach = set(reached)
        first += [test for test in killers if not reached or test.partition("[")[0] in reach]
        rest = reached[: self.most] or self.related.tests(mutant.file)[:FILES]
        cut = TESTS if reached else 3
        unsound = self.sound.unsound()
        steps = ([test for test in step if test not in unsound] for step in (first, rest[:cut], rest[cut:]))
        return [step for step in steps if step]

    def _run(self, mutant: Mutant, copy: Copy) -> tuple[Verdict, Sequence[str]]:
        """A verdict, and the tests that led to it."""

        def verdict(kind: str, by: str) -> tuple[Verdict, Sequence[str]]:
            return Verdict(mutant.id, mutant.operator, kind, by, round(seconds, 2)), tests

        source, seconds, ran, steps = (copy.folder / mutant.file).read_text(), 0.0, 0, self._steps(mutant)
        left_out, tests = [f"--deselect={test}" for test in self.sound.unsound()], list[str]()
        with changed(copy.folder, mutant.file, mutant.applied(source)):
            for step in steps:
                tests = [*step, *left_out]
                answer = copy.run(tests, self.budget - seconds)
                seconds += sum(answer["ran"].values())
                ran += len(answer["ran"])
                if answer["code"] == TOO_LONG and answer["failed"]:
                    return verdict("killed", NO_END + answer["failed"])
                if answer["code"] == BROKEN:
                    return verdict("no verdict", "see pytest.log of the copy")
                if answer["failed"]:
                    return verdict("killed", answer["failed"])
                if answer["code"] not in ORDINARY:
                    # An import that never ends, a crash of the interpreter, or settings of pytest that name something
                    # that cannot be imported.
                    return verdict("killed", f"exit {answer['code']}")
                if answer["stopped"]:
                    break
        return verdict("survived" if ran else "no test", f"{ran} tests of {sum(map(len, steps))} names")
