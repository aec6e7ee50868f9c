"""Rounds while processes are killed with SIGKILL at random and started again.

    python -m tests.net.kill --rounds 200 --every 3 --groups whole
    python -m tests.net.kill --rounds 200 --every 3 --groups survivors

Prints one JSON object: rounds, kills, sums that were wrong (none), rounds that were opened twice for different members
(none), rounds in which everything stayed closed, what `secagg verify` says of the evidence, what is wrong with the
hub's statement about it, and the hub's memory in MB.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from secagg import Policy, warm_up
from secagg.agreement import MemberFolder, Proposal
from secagg.evidence import check_envelope, verify
from secagg.net import Deadlines, Hub, Settings, Site
from tests.net.common import expected, make_world, vector
from tests.net.processes import free_port

MEMBERS, LENGTH = 4, 200
PATIENT = Deadlines(gather=4, answers=15, keys=4, shares=4, inputs=15, consistency=8, unmasking=8)


def memory() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def killed(place: Path) -> int:
    """How many processes were killed so far: one byte for each in a file."""
    path = place / "kills"
    return path.stat().st_size if path.exists() else 0


async def play_hub(place: Path, proposal: Proposal, port: int, rounds: int, least: int) -> None:
    """Run rounds until so many are over in the folder's whole life; a line in outcomes.jsonl for each.

    The last round waits until `least` processes were killed: a fast machine would be done before.
    """
    settings = Settings(listen=f"127.0.0.1:{port}", poll=5.0, deadlines=PATIENT)
    async with Hub(proposal, place / "hub", settings=settings) as hub:
        while hub.next_round < rounds:
            while hub.next_round == rounds - 1 and killed(place) < least:
                await asyncio.sleep(0.02)
            outcome = await hub.round()
            row = {"round": outcome.round, "sums": {}, "lost": list(outcome.lost.values()), "memory": memory()}
            for group, members in outcome.members.items():
                row["sums"][str(group)] = [list(members), np.asarray(outcome.sum(group)).tolist()]
            with (place / "outcomes.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
        await hub.finish()


async def play_site(place: Path, proposal: Proposal, member: int) -> None:
    settings = Settings(poll=5.0, retry_most=0.5)
    source = lambda round, data: vector(member, round, LENGTH)  # noqa: E731
    async with Site(proposal, place / str(member), source, settings=settings) as site:
        await site.run()


def start(work: Callable[[], Any]) -> int:
    """Do this in a new process; its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        asyncio.run(work())
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def run(rounds: int, every: float, groups: str, seed: int, most: float, least: int) -> dict[str, Any]:
    """All rounds, with a kill about every so many seconds, and so many at least."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        place, port = Path(folder), free_port()
        policy, more = Policy(anonymity=2, memory="round"), {"colluders": 1} if groups == "survivors" else {}
        if groups == "whole":
            more = {"roll_call": True}
        proposal = make_world(
            place, MEMBERS, port=port, length=LENGTH, clip=256.0, rounds=rounds, groups=groups, policy=policy, **more
        )
        works: dict[str, Callable[[], Any]] = {"hub": lambda: play_hub(place, proposal, port, rounds, least)}
        works |= {str(v): lambda v=v: play_site(place, proposal, v) for v in range(MEMBERS)}  # type: ignore[misc]
        warm_up()  # before the processes fork
        running = {start(work): name for name, work in works.items()}
        done: set[str] = set()
        began = time.monotonic()
        next_kill = 0.0
        while "hub" not in done:
            if time.monotonic() - began > most:
                break
            child, status = os.waitpid(-1, os.WNOHANG)
            if child:
                name = running.pop(child)
                if status == 0:
                    done.add(name)
                elif os.WIFSIGNALED(status):
                    running[start(works[name])] = name
                else:
                    raise SystemExit(f"{name} ended with status {status}: a file stops a restart?")
            if not next_kill and (place / "outcomes.jsonl").exists():
                next_kill = time.monotonic() + every / 2
            if next_kill and time.monotonic() >= next_kill and running:
                os.kill(draw.choice(sorted(running)), signal.SIGKILL)
                with (place / "kills").open("ab") as file:
                    file.write(b"k")
                next_kill = time.monotonic() + every * (0.5 + draw.random())
            time.sleep(0.02)
        for child in running:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return summary(place, rounds, finished="hub" in done) | {"seconds": round(time.monotonic() - began, 1)}


def summary(place: Path, rounds: int, *, finished: bool) -> dict[str, Any]:
    rows = [json.loads(line) for line in (place / "outcomes.jsonl").read_text().splitlines()]
    seen: dict[tuple[int, str], Any] = {}
    wrong = twice = closed = 0
    for row in rows:
        closed += not row["sums"]
        for group, (members, found) in row["sums"].items():
            wrong += not np.allclose(found, expected(members, row["round"], LENGTH), rtol=0, atol=1e-4)
            twice += seen.setdefault((row["round"], group), members) != members
    data = next((place / "hub").rglob("evidence")).read_bytes()
    report, statement = verify(data, threads=1), next((place / "hub").rglob("evidence.intoto.json")).read_text()
    stored = {json.loads(path.read_text())["round"] for path in (place / "hub").rglob("round-*.json")}
    megabytes = [row["memory"] for row in rows]
    return {
        "finished": finished,
        "rounds": len({row["round"] for row in rows} | stored),
        "kills": killed(place),
        "wrong": wrong,
        "twice": twice,
        "closed": closed,
        "evidence": [report.rounds, list(report.problems)],
        "statement": check_envelope(statement, data, MemberFolder(place / "hub").identity.public),
        "memory": [round(min(megabytes), 1), round(max(megabytes), 1)],
    }


def main(words: list[str]) -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=float, default=3.0)
    parser.add_argument("--groups", choices=["whole", "survivors"], default="whole")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=float, default=3600.0, help="seconds after which it stops")
    parser.add_argument("--least", type=int, default=0, help="kills that the last round waits for")
    options = parser.parse_args(words)
    found = run(options.rounds, options.every, options.groups, options.seed, options.most, options.least)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
