"""The pieces of work beside the suite: what each one runs, and how much of it an effort asks for."""

import ctypes
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

from tests import mutants, mutations
from tests.evidence.state import ROOT, Result
from tests.secagg import fuzz

BLOCK = 100  # generated runs per piece
RUNS = {"quick": 1, "full": 100}  # blocks of each kind of generated runs
INPUTS = {"quick": 1000, "full": 1_000_000}  # mutated inputs per decoder
FUZZ = {"survivors' rounds": "", "whole groups": "whole", "agreements and evidence": "evidence", "network": "net"}
SURE = 6  # mutations that `quick` runs even if the suite has used all the time


@dataclass(frozen=True)
class Piece:
    """One piece of work. `optional` ones run only while there is time."""

    part: str
    name: str
    act: Callable[[Path], tuple[bool, str]]  # gets a copy of the tree; whether it held, and what to say
    optional: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def run(self, copy: Path) -> Result:
        start = time.monotonic()
        try:
            good, said = self.act(copy)
        except Exception as failure:  # an evidence run reports every failure and goes on
            good, said = False, f"no verdict: {type(failure).__name__}: {failure}"
        return Result(self.part, self.name, good, said, round(time.monotonic() - start, 1), self.more)


def disabled(claim: mutations.Claim, mark: mutations.Mark) -> Callable[[Path], tuple[bool, str]]:
    def act(copy: Path) -> tuple[bool, str]:
        verdict = mutations.verdict_of(claim, mark, copy)
        return verdict == "killed", verdict

    return act


def reviewed(mutant: mutants.Mutant) -> Callable[[Path], tuple[bool, str]]:
    def act(copy: Path) -> tuple[bool, str]:
        verdict = mutants.verdict(mutant, copy)
        return verdict == "killed", verdict

    return act


_running: set[subprocess.Popen[str]] = set()


def end_with_parent() -> None:
    """In the child: get a signal when this process ends, however it ends (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def stop_programs() -> None:
    """End the programs that run: some of them take hours."""
    for process in list(_running):
        process.terminate()


def program(*words: str, again: Sequence[str] = ()) -> Callable[[Path], tuple[bool, str]]:
    """Runs `python -m WORDS` on the sources themselves; with `again`, a second time with these words if it fails."""

    def run(words: Sequence[str]) -> tuple[bool, str]:
        command = [sys.executable, "-m", *words]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=PIPE, stderr=PIPE, text=True, preexec_fn=end_with_parent
        ) as process:
            _running.add(process)
            try:
                out, errors = process.communicate()
            finally:
                _running.discard(process)
        good = process.returncode == 0
        return good, out.strip() if good else f"{out[-500:]}\n{errors[-1500:]}".strip()

    def act(_: Path) -> tuple[bool, str]:
        good, said = run(words)
        return run([*words, *again]) if again and not good else (good, said)

    return act


def mutation_pieces(claims: Sequence[mutations.Claim], effort: str, seed: int) -> list[Piece]:
    """A piece per claim and mark. For `quick`, in an order drawn with the seed, and all but the first optional."""
    pairs = [(claim, mark) for claim in claims for mark in claim.marks]
    if effort == "quick":
        random.Random(seed).shuffle(pairs)
    return [
        Piece(
            "mutation",
            f"{claim.id} at {mark.file}:{mark.line}",
            disabled(claim, mark),
            optional=effort == "quick" and number >= SURE,
            more={"claim": claim.id, "file": mark.file, "line": mark.line},
        )
        for number, (claim, mark) in enumerate(pairs)
    ]


def mutant_pieces(listed: Sequence[mutants.Mutant], effort: str, seed: int) -> list[Piece]:
    chosen = [one for one in listed if one.killed_by]
    if effort == "quick":
        random.Random(seed).shuffle(chosen)
    return [
        Piece("mutant", one.item, reviewed(one), optional=effort == "quick", more={"file": one.file}) for one in chosen
    ]


def run_pieces(effort: str, seed: int) -> list[Piece]:
    """Generated runs and fuzzing, with seeds that the suite does not use."""
    found = []
    for block in range(RUNS[effort]):
        first = 1_000_000 + seed % 1_000_000 * 100_000 + block * BLOCK
        more = {"first seed": first, "last seed": first + BLOCK - 1}
        words = str(first), str(first + BLOCK - 1)
        name = f"seeds {first} to {first + BLOCK - 1}"
        found.append(Piece("generated", name, program("tests.secagg.generated", *words), more=more))
        found.append(Piece("hostile", name, program("tests.secagg.whole.hostile", *words), more=more))
    for what, kind in FUZZ.items():
        # A million inputs take long, so that each decoder is a piece of its own.
        groups: list[list[str]] = [[]] if effort == "quick" else [[name] for name in fuzz.names(kind)]
        for names in groups:
            words = (str(INPUTS[effort]), *names, "--seed", str(seed + 2), *([f"--{kind}"] if kind else []))
            more = {"first seed": seed + 2, "inputs per decoder": INPUTS[effort]}
            name = f"{what}: {names[0] if names else 'all decoders'}"
            found.append(Piece("fuzz", name, program("tests.secagg.fuzz", *words), more=more))
    return found


def sampled_piece(folder: Path, seed: int) -> Piece:
    """Mutants drawn at random, survivors a second time with all their tests. The runner keeps its own state."""
    words = ("tests.sampled", "--out", str(folder.resolve()), "--seed", str(seed))
    return Piece("sampled", f"300 mutants of seed {seed}", program(*words, again=["--again"]), more={"seed": seed})


def pieces(effort: str, seed: int, folder: Path) -> list[Piece]:
    """Everything beside the suite, in the order in which it runs."""
    found = run_pieces(effort, seed)
    checks = mutation_pieces(mutations.claims(), effort, seed)
    others = mutant_pieces(mutants.mutants(), effort, seed)
    if effort == "quick":  # one of the reviewer's after every five of the register
        for place, piece in enumerate(others):
            checks.insert(min(SURE + 6 * place, len(checks)), piece)
        return found + checks
    return [*found, *checks, *others, sampled_piece(folder / "sampled", seed)]
