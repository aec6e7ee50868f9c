"""Whether a test fails on a mutant: the tests that are most likely to fail run first, within a budget of time."""

import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from tests import json_lines
from tests.sampled.draw import survivors
from tests.sampled.operators import Mutant
from tests.sampled.pytest_server import BROKEN, TOO_LONG
from tests.sampled.related import Related
from tests.sampled.tree import Copy, changed

KILLERS = 6  # tests that killed other mutants of the same file, to begin with
FILES = 14  # related test files of one run; importing all takes long, and a mutant that lives so long has few chances


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
        self.known = {one.id: one for one in (Verdict(**entry) for entry in json_lines.read(path))}

    def add(self, verdict: Verdict) -> None:
        with self._lock:
            self.known[verdict.id] = verdict
            json_lines.append(self._path, asdict(verdict))

    def killers(self, mutant: Mutant) -> list[str]:
        """Tests that killed mutants of the same function, then of the same file."""
        with self._lock:
            killed = [one for one in self.known.values() if one.verdict == "killed" and "::" in one.by]
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
        """Whether a test passes on the unchanged copy; for a whole file, whether its first test does."""
        if test not in self._known:
            self._known[test] = not copy.run([test] if "::" in test or test.endswith(".py") else [], 0.0)["failed"]
        return self._known[test]


@dataclass(frozen=True)
class Judge:
    """Decides about one mutant at a time."""

    related: Related
    verdicts: Verdicts
    sound: Sound
    budget: float
    files: int  # how many related test files run; with 0 only the test that `survivors.toml` names

    def judge(self, mutant: Mutant, copy: Copy) -> Verdict:
        """Run tests on a copy with this mutant in it. A test that fails must pass on the copy without it."""
        while True:
            found = self._run(mutant, copy)
            if found.verdict != "killed" or not found.by.startswith("tests/") or self.sound.holds(found.by, copy):
                return found

    def _steps(self, mutant: Mutant) -> list[list[str]]:
        listed = survivors().get(mutant.id)
        first = [listed.killed_by] if listed and listed.killed_by else []
        first += self.verdicts.killers(mutant) if self.files else []
        rest = self.related.tests(mutant.file)[: self.files]
        return [step for step in (first, rest[:3], rest[3:]) if step]

    def _run(self, mutant: Mutant, copy: Copy) -> Verdict:
        def verdict(kind: str, by: str) -> Verdict:
            return Verdict(mutant.id, mutant.operator, kind, by, round(seconds, 2))

        source, seconds, ran, steps = (copy.folder / mutant.file).read_text(), 0.0, 0, self._steps(mutant)
        left_out = [f"--deselect={test}" for test in self.sound.unsound()]
        with changed(copy.folder, mutant.file, mutant.applied(source)):
            for step in steps:
                answer = copy.run([*step, *left_out], self.budget - seconds)
                seconds += sum(answer["ran"].values())
                ran += len(answer["ran"])
                if answer["code"] == TOO_LONG:
                    return verdict("killed", "a test that does not end")
                if answer["code"] == BROKEN:
                    return verdict("no verdict", "see pytest.log of the copy")
                if answer["failed"]:
                    return verdict("killed", answer["failed"])
                if answer["code"] not in (0, 2, 5):
                    # A crash of the interpreter, or settings of pytest that name something that cannot be imported.
                    return verdict("killed", f"exit {answer['code']}")
                if answer["stopped"]:
                    break
        return verdict("survived" if ran else "no test", f"{ran} tests of {sum(map(len, steps))} files and killers")
