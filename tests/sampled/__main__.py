"""Run a random sample of ordinary mutants.

    python -m tests.sampled --out FOLDER                     # 300 mutants; the same command continues a killed run
    python -m tests.sampled --out FOLDER --seed 7 --count 50
    python -m tests.sampled --out FOLDER --again             # survivors once more, with all tests that reach them
    python -m tests.sampled --out FOLDER --list              # the verdicts so far
    python -m tests.sampled --out FOLDER --listed            # only tests/survivors.toml: each test kills its mutant

A mutant is one ordinary change of one source (`operators.py`). Tests run in a copy of the tree, those first that are
most likely to fail (`judge.py`). `tests/survivors.toml` says what became of survivors.
"""

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tests.sampled.draw import all_mutants, sample, survivors
from tests.sampled.judge import MORE, Judge, Sound, Verdicts
from tests.sampled.operators import Mutant
from tests.sampled.reached import Reached, record
from tests.sampled.related import Related
from tests.sampled.tree import ROOT, Copy


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sampled", description="Mutants drawn with a seed.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the copies and the verdicts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of tests per mutant (default 40)")
    parser.add_argument("--again", action="store_true", help="run survivors again, with a budget of 1200 s")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose id contains this text, drawn or not")
    parser.add_argument("--listed", action="store_true", help="run the mutants of survivors.toml with their tests")
    parser.add_argument("--list", action="store_true", help="print the verdicts so far and stop")
    return parser.parse_args(words)


def run(todo: Sequence[Mutant], verdicts: Verdicts, options: argparse.Namespace) -> None:
    """Judge mutants, several at a time, and keep each verdict at once."""
    budget = 1200.0 if options.again else options.budget
    record(options.out / "traced")
    copies: Queue[Copy] = Queue()
    for number in range(options.workers):
        copies.put(Copy(options.out / f"tree{number}"))
    reached, printing = Reached(options.out / "traced"), threading.Lock()
    most = sys.maxsize if options.again else MORE
    judge = Judge(reached, Related(ROOT), verdicts, Sound(), budget, most, options.listed)

    def one(mutant: Mutant) -> None:
        copy, start = copies.get(), time.monotonic()
        try:
            verdict = judge.judge(mutant, copy)
        finally:
            copies.put(copy)
        verdicts.add(verdict)
        with printing:
            print(f"{verdict.verdict:10} {time.monotonic() - start:5.0f} s  {mutant.id}  [{verdict.by}]", flush=True)

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(one, todo))
    while not copies.empty():
        copies.get().close()


def drawn(options: argparse.Namespace) -> list[Mutant]:
    """The mutants that a command is about."""
    if options.listed:
        killed = {one.id for one in survivors().values() if one.killed_by}
        return [one for one in all_mutants() if one.id in killed and options.only in one.id]
    if options.only:
        return [one for one in all_mutants() if options.only in one.id]
    return sample(options.seed, options.count)


def summary(chosen: Sequence[Mutant], verdicts: Verdicts) -> tuple[str, bool]:
    """The figures of a sample as text, and whether at least 95% of the mutants that are not equivalent died."""
    judged = [verdicts.known[mutant.id] for mutant in chosen if mutant.id in verdicts.known]
    at_first = sum(verdicts.first[one.id].verdict == "killed" for one in judged)
    killed = [one for one in judged if one.verdict == "killed"]
    alive = [one for one in judged if one.verdict != "killed"]
    equivalent = [one for one in alive if one.id in survivors() and survivors()[one.id].equivalent]
    gaps = [one for one in alive if one not in equivalent]
    lines = [f"{one.verdict:10} {one.id}  [{one.by}]" for one in gaps]
    lines += [f"equivalent {one.id}: {survivors()[one.id].equivalent}" for one in equivalent]
    counted = len(judged) - len(equivalent)
    share = len(killed) / counted if counted else 0.0
    lines.append(
        f"{len(judged)} of {len(chosen)} mutants judged: {len(killed)} killed, {len(equivalent)} equivalent,"
        f" {len(gaps)} alive; {share:.1%} of those that are not equivalent died ({at_first} of all at their first run)"
    )
    return "\n".join(lines), len(judged) == len(chosen) and share >= 0.95


def main(words: Sequence[str]) -> int:
    options = arguments(words)
    options.out.mkdir(parents=True, exist_ok=True)
    verdicts = Verdicts(options.out / "verdicts.jsonl")
    chosen = drawn(options)
    todo = [one for one in chosen if one.id not in verdicts.known]
    if options.listed:
        todo = chosen
    elif options.again:
        alive = [one for one in chosen if one.id in verdicts.known and verdicts.known[one.id].verdict != "killed"]
        todo = [one for one in alive if not (one.id in survivors() and survivors()[one.id].equivalent)]
    if todo and not options.list:
        run(todo, verdicts, options)
    text, good = summary(chosen, verdicts)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
