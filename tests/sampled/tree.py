"""A copy of the repository in which a mutant can live, and pytest on it within limits."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDERS = ("secagg", "robust", "fl", "tests", "docs")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
KEPT = "before"  # in the copy: the changed file and the compiled code, as they were


def copy_tree(folder: Path, origin: Path = ROOT) -> None:
    """Put the packages, the tests and what the tests read into a folder, with the compiled code beside the sources.

    Nothing is shared with the origin: whoever edits it does not disturb a run.
    """
    if (folder / KEPT).is_dir():  # a run was killed while a mutant was in this copy
        restore(folder)
    for name in FOLDERS:
        shutil.copytree(origin / name, folder / name, dirs_exist_ok=True)
    for name in FILES:
        shutil.copy2(origin / name, folder)


@contextmanager
def changed(folder: Path, file: str, new: str) -> Iterator[None]:
    """The copy with another text in one file. Afterwards the file and the compiled code beside it are as before.

    numba keeps compiled code under the time of the file that defines it. Code that was compiled from the mutant, or
    that calls it, must not be found later.
    """
    path, kept = folder / file, folder / KEPT
    part = kept.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    shutil.copy2(path, part / "source")
    (part / "name").write_text(file)
    if (cache := path.parent / "__pycache__").is_dir():
        shutil.copytree(cache, part / "cache")
    part.rename(kept)
    path.write_text(new)
    try:
        yield
    finally:
        restore(folder)


def restore(folder: Path) -> None:
    """Undo what `changed` did."""
    kept = folder / KEPT
    path = folder / (kept / "name").read_text()
    shutil.copy2(kept / "source", path)
    cache = path.parent / "__pycache__"
    shutil.rmtree(cache, ignore_errors=True)
    if (kept / "cache").is_dir():
        shutil.copytree(kept / "cache", cache)
    shutil.rmtree(kept)


class Copy:
    """A copy of the repository with a process that runs tests in it."""

    def __init__(self, folder: Path, origin: Path = ROOT) -> None:
        self.folder = folder
        copy_tree(folder, origin)
        command = [sys.executable, "-m", "tests.sampled.pytest_server"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "examples"),
        }
        self._server = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, tests: Sequence[str], budget: float) -> dict[str, Any]:
        """What `pytest_server` says about these tests."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps({"tests": list(tests), "budget": budget}) + "\n")
        self._server.stdin.flush()
        if not (line := self._server.stdout.readline()):
            raise RuntimeError(f"the process that runs tests in {self.folder} ended; does another run use this folder?")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._server.communicate()
