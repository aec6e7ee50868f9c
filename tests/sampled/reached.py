"""Which tests reach a mutant: recorded by one run of the suite under a tracer (`tracer.py`).

A compiled function and a constant of a module are not traced. For these, the tests count that reach a line which names
them, and so on from the function around that line. What nobody reaches that way has the tests that import it
(`related.py`).
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, cached_property
from math import inf
from os import environ
from pathlib import Path

from coverage import CoverageData

from tests.sampled.operators import Mutant
from tests.sampled.tracer import FOLDER
from tests.sampled.tree import ROOT, copy_tree

STEP = 0.25  # seconds of processor time: tests that differ by less are ordered by how much else they run
DEFINED = re.compile(r"def (test_\w+)\(")
DEPTH = 5  # calls between a compiled function and one that is traced


def record(folder: Path, root: Path = ROOT) -> None:
    """Run the suite on a copy of the tree, traced; later only the test files that are new or changed since."""
    known = {path: set(_test_files(path).items()) for path in _recordings(folder)}
    todo = [file for file in _test_files(root).items() if not any(file in files for files in known.values())]
    if not todo:
        return
    print(f"recording which test reaches which line: {len(todo)} test files under a tracer", flush=True)
    copy = folder / str(len(known))
    copy_tree(copy, root)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "tests.sampled.tracer", "-p", "no:cacheprovider"]
    command += sorted(file for file, _ in todo) if known else []
    with (copy / "trace.log").open("w") as log:
        subprocess.run(command, cwd=copy, env={**environ, "PYTHONPATH": str(copy)}, stdout=log, stderr=log, check=False)
    if not list((copy / FOLDER).glob("costs.*")):
        raise RuntimeError(f"the traced run recorded nothing; see {copy / 'trace.log'}")
    (copy / FOLDER / "done").touch()


def _recordings(folder: Path) -> list[Path]:
    return sorted(path.parents[1] for path in folder.glob(f"*/{FOLDER}/done"))


def _test_files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in (root / "tests").rglob("test_*.py")}


class Reached:
    """What the traced runs of a folder recorded."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self._all = [Recording(one, root) for one in _recordings(folder)]
        self._names = {(file, name) for file, text in _test_files(root).items() for name in DEFINED.findall(text)}

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that reach a mutant: first those that run its line, then those that may.

        The quickest come first, of these those that run least else.
        """
        found = [one.tests(mutant) for one in self._all]
        sure, perhaps = set().union(*(one for one, _ in found)), set().union(*(more for _, more in found))
        names = [test for test in sure | perhaps if self._exists(test)]
        return sorted(names, key=lambda test: (test not in sure, *min(one.order(test) for one in self._all), test))

    def _exists(self, test: str) -> bool:
        """Whether the test is still there: a recording may be older than the tests."""
        file, _, name = test.partition("::")
        return (file, name.rpartition("::")[2]) in self._names


class Recording:
    """What one traced run recorded. The sources of its copy say which lines are meant."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder, self._root = folder, root
        self._data = [CoverageData(basename=str(path)) for path in sorted((folder / FOLDER).glob("lines.*"))]
        for data in self._data:
            data.read()

    def tests(self, mutant: Mutant) -> tuple[set[str], set[str]]:
        """The tests of this run that reach a mutant, and tests that may, where its line is not known or not traced."""
        source = self._folder / mutant.file
        text, now = source.read_text() if source.exists() else "", (self._root / mutant.file).read_text()
        lines, scope = self._lines(mutant.file), _scope(text, mutant.name) if mutant.name else range(0)
        place = mutant.lines if text == now else _moved(text, now, scope, mutant)
        if found := {test for line in place for test in lines.get(line, ())}:
            return found, set()
        return set(), {test for line in scope for test in lines.get(line, ())} or self._by_name(mutant)

    def order(self, test: str) -> tuple[float, int]:
        """What a test costs, in steps, and how many lines it runs. What this run did not have comes last."""
        return int(self._costs[test] / STEP) if test in self._costs else inf, self._breadth.get(test, 0)

    def _by_name(self, mutant: Mutant) -> set[str]:
        """The tests that reach a line which names what is changed."""
        names = set(mutant.name.split(".")) if mutant.name else _assigned(mutant)  # with the functions around it
        seen = set(names)
        for _ in range(DEPTH):
            found, around = set[str](), set[str]()
            for file, users in self._users.items():
                for name in names & users.keys():
                    for line, function in users[name]:
                        found.update(self._lines(file).get(line, ()))
                        around.add(function)
            if found:
                return found
            names = around - seen - {""}
            seen |= names
        return set()

    @cached_property
    def _users(self) -> dict[str, dict[str, list[tuple[int, str]]]]:
        """For each traced file, the lines that name something, and the functions around them."""
        users: dict[str, dict[str, list[tuple[int, str]]]] = {}
        for file in self._files:
            named = users.setdefault(file, {})
            for name, line, function in _uses(ast.parse((self._folder / file).read_text()), ""):
                named.setdefault(name, []).append((line, function))
        return users

    @cached_property
    def _files(self) -> list[str]:
        found = {Path(file).relative_to(self._folder) for data in self._data for file in data.measured_files()}
        return sorted(map(str, found))

    @cache  # noqa: B019  # one object lives as long as the run
    def _lines(self, file: str) -> dict[int, set[str]]:
        """The tests of each line; what runs at import has none."""
        lines: dict[int, set[str]] = {}
        for data in self._data:
            for line, tests in data.contexts_by_lineno(str(self._folder / file)).items():
                lines.setdefault(line, set()).update(test for test in tests if test)
        return lines

    @cached_property
    def _breadth(self) -> dict[str, int]:
        """How many lines each test runs."""
        count: dict[str, int] = {}
        for file in self._files:
            for tests in self._lines(file).values():
                for test in tests:
                    count[test] = count.get(test, 0) + 1
        return count

    @cached_property
    def _costs(self) -> dict[str, float]:
        costs: dict[str, float] = {}
        for path in (self._folder / FOLDER).glob("costs.*.json"):
            for test, seconds in json.loads(path.read_text()).items():
                costs[test] = costs.get(test, 0.0) + seconds
        return costs


def _scope(source: str, name: str) -> range:
    """The lines in the body of a function or class."""

    def found(nodes: list[ast.stmt], path: list[str]) -> range:
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == path[0]:
                if path[1:]:
                    return found(node.body, path[1:])
                return range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
        return range(0)

    return found(ast.parse(source).body, name.split("."))


def _moved(text: str, now: str, scope: range, mutant: Mutant) -> range:
    """The lines of a mutant in another source whose function is the same; none if it differs."""
    here = _scope(now, mutant.name) if mutant.name else range(0)
    lines, before = now.splitlines(), text.splitlines()
    if lines[here.start - 1 : here.stop - 1] != before[scope.start - 1 : scope.stop - 1]:
        return range(0)
    shift = scope.start - here.start
    return range(mutant.lines.start + shift, mutant.lines.stop + shift)


def _assigned(mutant: Mutant) -> set[str]:
    """The names that a statement of a module assigns, as far as one line shows them."""
    target = mutant.old_line.partition(":" if ": Final" in mutant.old_line else "=")[0]
    return {word for word in target.replace(",", " ").split() if word.isidentifier()}


def _uses(node: ast.AST, function: str) -> Iterator[tuple[str, int, str]]:
    """Each name that is read, its line, and the innermost function around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name):
            yield child.id, child.lineno, function
        elif isinstance(child, ast.Attribute):
            yield child.attr, child.lineno, function
        inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield from _uses(child, inside)
