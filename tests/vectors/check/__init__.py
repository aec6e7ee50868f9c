"""Check test vectors against this implementation: `python -m tests.vectors`.

A JSON file is one case: inputs with all their randomness, named byte strings, and a list of operations, each
with its expected output or the name of the error that it must raise. A file may continue another one
(`base`): it starts after a given number of that file's operations. docs/protocol.md, "Test vectors",
describes the format; `stateless`, `actors`, `whole` and `evidence` contain the operations.
"""

import json as json_text
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from secagg.errors import PeerError, SecAggError
from secagg.labels import VERSION
from secagg.types import Entropy
from tests.vectors.check import actors, evidence, stateless, whole
from tests.vectors.check.session import Mismatch, Operation, Session, Values

FORMAT: Final = f"secagg vectors {VERSION}"
OPERATIONS: Final[Mapping[str, Operation]] = {
    **stateless.OPERATIONS,
    **actors.OPERATIONS,
    **whole.OPERATIONS,
    **evidence.OPERATIONS,
}


def check(directory: Path | str) -> list[tuple[str, bool, str]]:
    """(file name, whether it holds, what was checked or what differs) for every `*.json` in a folder."""
    return [(path.name, *_verdict(path)) for path in sorted(Path(directory).glob("*.json"))]


def run(path: Path | str, json: bool) -> int:
    """Print one line per file, or one JSON list. Return 0 if all hold, 1 if some do not, 2 if none exists."""
    folder = Path(path)
    if not folder.is_dir():
        print(f"secagg: {folder} is not a folder", file=sys.stderr)
        return 2
    found = check(folder)
    if not found:
        print(f"secagg: no test vectors (*.json) in {folder}", file=sys.stderr)
        return 2
    if json:
        report = [{"file": name, "ok": ok, "detail": detail} for name, ok, detail in found]
        print(json_text.dumps(report, indent=2))
    else:
        width = max(len(name) for name, _, _ in found)
        for name, ok, detail in found:
            print(f"{'ok  ' if ok else 'FAIL'} {name:{width}}  {detail}")
    return 0 if all(ok for _, ok, _ in found) else 1


def _verdict(path: Path) -> tuple[bool, str]:
    try:
        return True, f"{check_file(path)} operations"
    except Mismatch as differs:
        return False, str(differs)
    except Exception as broken:  # a vector that cannot be run has failed
        return False, f"{type(broken).__name__}: {broken}"


def check_file(path: Path) -> int:
    """Run one file and return how many operations it has; raise Mismatch at the first difference."""
    case, session, before = load(path)
    for place, step in enumerate([*before, *case["operations"]]):
        where = f"operation {place - len(before)}" if place >= len(before) else f"base operation {place}"
        try:
            _compare(step, perform(session, step))
        except Mismatch as differs:
            raise Mismatch(f"{where} ({step['op']}): {differs}") from None
    left = [tape.name for tape in session.tapes if tape.left]
    if left and not before:
        raise Mismatch(f"randomness of {left[0]} was not drawn")
    return len(case["operations"])


def load(path: Path, draw: Callable[[str], Entropy] | None = None) -> tuple[Values, Session, list[Values]]:
    """A case, the session that its operations act on, and the operations of its base to run first."""
    case = read(path)
    base = read(path.parent / case["base"]["file"]) if "base" in case else {}
    return case, session_of(case, base, draw), base.get("operations", [])[: case.get("base", {}).get("first")]


def read(path: Path) -> Values:
    case: Values = json_text.loads(path.read_text("ascii"))
    if not isinstance(case, dict) or case.get("format") != FORMAT:
        raise Mismatch(f"its format is not {FORMAT!r}")
    return case


def session_of(case: Values, base: Values, draw: Callable[[str], Entropy] | None) -> Session:
    """A session with the inputs and byte strings of the base, overridden by those of the case."""
    given: Values = {}
    for part in (base.get("given", {}), case["given"]):
        for name, value in part.items():
            both = isinstance(value, dict) and isinstance(given.get(name), dict)
            given[name] = {**given[name], **value} if both else value
    known: dict[str, bytes] = {}
    hashed: dict[str, bytes] = {}
    for part in (base.get("bytes", {}), case["bytes"]):
        for name, value in part.items():
            if isinstance(value, str):
                known[name] = bytes.fromhex(value)
            elif "sha256" in value:
                hashed[name] = bytes.fromhex(value["sha256"])
            else:
                known[name] = spliced(known, value)
    return Session(given, known, hashed, draw)


def spliced(known: Mapping[str, bytes], value: Values) -> bytes:
    """The named byte string with `drop` bytes at offset `at` replaced by `put`."""
    source, at = known[value["of"]], value["at"]
    return source[:at] + bytes.fromhex(value["put"]) + source[at + value["drop"] :]


def perform(session: Session, step: Values) -> Values:
    """Run one operation: `ok` is true or the name of the error, `out` is the output."""
    try:
        out = OPERATIONS[step["op"]](session, step["in"])
    except SecAggError as refused:
        done: Values = {"ok": type(refused).__name__}
        if isinstance(refused, PeerError) and refused.culprit is not None:
            done["culprit"] = refused.culprit
        return done
    return {"ok": True, "out": out}


def _compare(step: Values, done: Values) -> None:
    wanted = {name: value for name, value in step.items() if name in ("ok", "culprit", "out")}
    if done != wanted:
        raise Mismatch(_first_difference(wanted, done, ()))


def _first_difference(wanted: Any, got: Any, at: Sequence[str]) -> str:
    if isinstance(wanted, dict) and isinstance(got, dict):
        for name in sorted(set(wanted) | set(got)):
            if wanted.get(name) != got.get(name):
                return _first_difference(wanted.get(name), got.get(name), (*at, name))
    return f"{'.'.join(at) or 'it'} should be {wanted!r}, this implementation has {got!r}"
