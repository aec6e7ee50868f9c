"""Which test files are about a module: read from the imports, without running anything.

A test file is related to the modules that it imports itself (rank 0), to those that the helpers of the tests which it
imports import (rank 1), and to what these modules import (rank 2 and more). A name that a package exports counts for
the module that defines it. Recording which test runs which line would be more exact, but costs a run of the whole suite
under a tracer, and says nothing about compiled functions.
"""

import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

PACKAGES = ("secagg", "robust", "fl")
# What these run happens in other processes, or is no behaviour of a module.
LEFT_OUT = ("tests/net/", "tests/flower/", "tests/benchmarks/", "tests/sampled/", "tests/evidence/")
ABOUT_THE_TREE = ("layers", "mutations", "mutants", "wheel", "readme", "kernel_caches")


class Related:
    """The imports of a tree."""

    def __init__(self, root: Path) -> None:
        self._root = root
        folders = [root / name for name in (*PACKAGES, "tests")]
        self._files = [str(path.relative_to(root)) for folder in folders for path in sorted(folder.rglob("*.py"))]
        self._trees = {file: ast.parse((root / file).read_text()) for file in self._files}

    def tests(self, file: str) -> list[str]:
        """The test files that are related to a module, the most specific first."""
        path = Path(file)

        def order(name: str) -> tuple[bool, int, bool, bool, int, str]:
            ranks, test = self._ranks[name], Path(name)
            near = path.stem not in test.stem, path.parent.name != test.parent.name
            return name in self._slow, ranks[file], *near, len(ranks), name

        return sorted((name for name, ranks in self._ranks.items() if file in ranks), key=order)

    @cached_property
    def _slow(self) -> set[str]:
        """Test files that start processes: these import and compile everything again."""
        names = [name for name in self._files if name.startswith("tests/")]
        return {name for name in names if "import subprocess" in (self._root / name).read_text()}

    @cached_property
    def _ranks(self) -> dict[str, dict[str, int]]:
        """For each test file, the modules that it is related to, with their ranks."""
        tests = [name for name in self._files if Path(name).name.startswith("test_")]
        out = (*LEFT_OUT, *(f"tests/test_{name}.py" for name in ABOUT_THE_TREE))
        return {name: self._reached(name) for name in tests if not name.startswith(out)}

    def _reached(self, test_file: str) -> dict[str, int]:
        seen, frontier, rank = {test_file: -1}, {test_file}, 0
        while frontier:
            new = {file for one in frontier for file in self._imports[one] if file not in seen}
            seen |= dict.fromkeys(new, rank)
            frontier, rank = new, rank + 1
        return {file: rank for file, rank in seen.items() if not file.startswith("tests/")}

    @cached_property
    def _imports(self) -> dict[str, set[str]]:
        return {file: set(self._imported(file)) for file in self._files}

    def _imported(self, file: str) -> Iterator[str]:
        for node in ast.walk(self._trees[file]):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if found := self._defines(node.module, alias.name):
                        yield found
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if found := self._file(alias.name):
                        yield found

    def _file(self, module: str) -> str | None:
        path = module.replace(".", "/")
        return next((one for one in (f"{path}.py", f"{path}/__init__.py") if one in self._trees), None)

    def _defines(self, module: str, name: str) -> str | None:
        """The file that defines a name that is imported from a module."""
        if inner := self._file(f"{module}.{name}"):
            return inner
        file = self._file(module)
        if file and file.endswith("__init__.py"):
            for node in ast.walk(self._trees[file]):
                if isinstance(node, ast.ImportFrom) and node.module and node.module != module:
                    for alias in node.names:
                        if (alias.asname or alias.name) == name:
                            return self._defines(node.module, alias.name)
        return file
