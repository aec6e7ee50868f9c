"""The sample: which mutants a seed draws, and what is known about those that survived once."""

import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from tests.sampled.operators import Mutant, is_valid, mutants_of

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "survivors.toml"
SCOPE = (
    "secagg/protocol",
    "secagg/whole",
    "secagg/agreement",
    "secagg/codec.py",
    "secagg/exposure",
    "secagg/crypto",
    "robust",
    "fl/secure",
    "fl/reporting/records.py",
)


@dataclass(frozen=True, kw_only=True)
class Survivor:
    """An entry of the list: a mutant that once survived, and a test that kills it now or why none can."""

    file: str
    scope: str = ""
    old: str
    new: str
    which: int = 0
    killed_by: str = ""
    equivalent: str = ""

    @property
    def id(self) -> str:
        """The id of the mutant."""
        number = f" ({self.which})" if self.which else ""
        return f"{self.file}: {self.scope or 'module'}: {self.old} -> {self.new}{number}"


@cache
def survivors() -> dict[str, Survivor]:
    """The list by the ids of its mutants."""
    entries = [Survivor(**entry) for entry in tomllib.loads(LIST.read_text())["survivor"]]
    return {entry.id: entry for entry in entries}


@cache
def all_mutants(root: Path = ROOT, scope: Sequence[str] = SCOPE) -> Sequence[Mutant]:
    """Every mutant of the sources in scope."""
    files = [
        path for name in scope for path in ([root / name] if name.endswith(".py") else (root / name).rglob("*.py"))
    ]
    return [m for path in sorted(files) for m in mutants_of(str(path.relative_to(root)), path.read_text())]


def sample(seed: int, count: int, root: Path = ROOT, scope: Sequence[str] = SCOPE) -> list[Mutant]:
    """A random sample. A change of one source hardly changes it: each mutant has a rank of its own."""

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed}: {mutant.id}".encode()).digest()

    valid = (one for one in sorted(all_mutants(root, scope), key=rank) if is_valid(one, (root / one.file).read_text()))
    return list(islice(valid, count))
