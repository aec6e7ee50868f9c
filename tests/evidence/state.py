"""What a run has found so far, kept in a folder: a killed run continues from here."""

import hashlib
import json
import subprocess
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests import json_lines
from tests.evidence.outcomes import OUTCOMES

ROOT = Path(__file__).parents[2]
SOURCES = ("secagg", "robust", "fl", "tests", "docs", "pyproject.toml", "README.md")


class OtherTreeError(Exception):
    """The folder has evidence of other sources, or of another effort or seed."""


@dataclass(frozen=True)
class Result:
    """What came out of one piece of work."""

    part: str  # mutation, mutant, generated, hostile, fuzz, sampled
    name: str
    good: bool
    said: str  # the verdict, or the counts
    seconds: float
    more: dict[str, Any] = field(default_factory=dict)  # mutation: claim and mark; runs: seeds


def tree_hash(root: Path = ROOT) -> str:
    """SHA-256 over the names and bytes of all sources: evidence is about exactly these."""
    digest = hashlib.sha256()
    for name in SOURCES:
        for path in [root / name] if (root / name).is_file() else sorted((root / name).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(root)).encode() + b"\0")
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def commit(root: Path = ROOT) -> str:
    """The commit, with a note if files differ from it; empty outside a repository."""

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    found = git("rev-parse", "HEAD")
    return f"{found}, with local changes" if found and git("status", "--porcelain") else found


class State:
    """The files of a run: `run.json`, `suite.jsonl`, `results.jsonl`."""

    def __init__(self, folder: Path, effort: str, seed: int, tree: str) -> None:
        self.folder, self._lock = folder, threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {"effort": effort, "seed": seed, "tree": tree}
        path = folder / "run.json"
        if not path.is_file():
            path.write_text(json.dumps({**wanted, "started": time.time(), "spent": 0.0}))
        self.run: dict[str, Any] = json.loads(path.read_text())
        different = [name for name, value in wanted.items() if self.run[name] != value]
        if different:
            raise OtherTreeError(
                f"{folder} has evidence with another {' and another '.join(different)}: choose a new folder with --out,"
                " or delete this one"
            )
        self.before = float(self.run["spent"])  # seconds of earlier sessions
        self._start = time.monotonic()
        self._outcomes: dict[str, dict[str, Any]] = {}
        self._read = 0  # bytes
        self.results = {(one.part, one.name): one for one in map(as_result, json_lines.read(folder / "results.jsonl"))}

    @property
    def spent(self) -> float:
        """Seconds of all sessions."""
        return self.before + time.monotonic() - self._start

    def add(self, result: Result) -> None:
        with self._lock:
            self.results[result.part, result.name] = result
            json_lines.append(self.folder / "results.jsonl", asdict(result))
            self.keep()

    def keep(self, **more: Any) -> None:
        """Write the time that was spent, and what else belongs to the run."""
        with self._lock:
            self.run |= {**more, "spent": round(self.spent, 1)}
            part = self.folder / "run.json.part"
            part.write_text(json.dumps(self.run))
            part.rename(self.folder / "run.json")

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """Outcome and seconds of every test; of several runs of one test, the last. Only what is new is read."""
        new, self._read = json_lines.read_from(self.folder / OUTCOMES, self._read)
        self._outcomes |= {one["test"]: one for one in new}
        return self._outcomes


def as_result(entry: dict[str, Any]) -> Result:
    return Result(**entry)
