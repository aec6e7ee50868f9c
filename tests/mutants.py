"""Mutants that a reviewer or a tool made, with the test that kills each one.

    python -m tests.mutants              # all of tests/mutants.toml
    python -m tests.mutants robust nnm   # the mutants whose item, file or test contains all these words

`tests/mutations.py` disables the checks that carry a mark. This list has what is no check: a default, an order, a
count, a second pass. An entry names the file, the text to replace (it must occur once) and the new text, and the test
that fails. An entry without `killed_by` says why the mutant is equivalent or no longer possible. Each mutant is applied
in a copy of the tree.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "mutants.toml"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One entry of the list."""

    item: str
    file: str = ""
    old: str = ""
    new: str = ""
    killed_by: str = ""
    reason: str = ""

    def applied(self, source: str) -> str:
        """The source with the change; ValueError if its text does not occur exactly once."""
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"{self.item}: the text to replace occurs {count} times in {self.file}, expected once")
        return source.replace(self.old, self.new)


@cache
def mutants() -> Sequence[Mutant]:
    """All entries, in the order of the file."""
    return [Mutant(**entry) for entry in tomllib.loads(LIST.read_text())["mutant"]]


def verdict(mutant: Mutant, folder: Path) -> str:
    """'killed', or what happened instead."""
    path = folder / mutant.file
    before, times = path.read_text(), (path.stat().st_atime, path.stat().st_mtime)
    path.write_text(mutant.applied(before))
    try:
        done = run_tests([mutant.killed_by], folder)
    finally:
        path.write_text(before)
        os.utime(path, times)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    if done.returncode == 1 and failed:
        return "killed"
    return "SURVIVED" if done.returncode == 0 else f"NO VERDICT (exit {done.returncode})\n{done.stdout[-800:]}"


def run_tests(tests: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run tests on the copy, in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def main(words: Sequence[str]) -> int:
    chosen = [
        one for one in mutants() if one.killed_by and all(w in f"{one.item} {one.file} {one.killed_by}" for w in words)
    ]
    if not chosen:
        print(f"no mutant has all of these words: {' '.join(words)}\n{__doc__}")
        return 2
    bad = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in ("secagg", "robust", "fl", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("vectors"))
        (folder / "tests" / "vectors").symlink_to(ROOT / "tests" / "vectors")
        for name in ("docs", "README.md"):
            (folder / name).symlink_to(ROOT / name)
        shutil.copy2(ROOT / "pyproject.toml", folder)
        if (before := run_tests(sorted({one.killed_by for one in chosen}), folder)).returncode:
            print(f"the tests fail without any mutant:\n{before.stdout[-3000:]}")
            return 2
        for one in chosen:
            found = verdict(one, folder)
            bad += not found.startswith("killed")
            print(f"{one.item} [{one.file}]: {found}", flush=True)
    print(f"\n{len(chosen) - bad} of {len(chosen)} mutants are killed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
