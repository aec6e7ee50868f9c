"""Rounds of the network service on loopback: a hub and its sites in processes of their own.

    python -m tests.benchmarks net                          # all four bars
    python -m tests.benchmarks net --only 10-whole          # 10 sites with whole groups
    python -m tests.benchmarks net --only 100-survivors     # 100 sites in ten processes

Vectors of 50,000 floats and a histogram of 64 counts. Wall seconds of a round once everybody is connected (the median
of several), the CPU seconds of hub and sites for one round, and the load of the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from secagg import Policy, warm_up
from secagg.agreement import read_agreement, write_agreement
from secagg.crypto.segments import Segment
from secagg.net import Hub, Settings, Site
from tests.net.common import make_world

LENGTH, BINS = 50_000, 64


@dataclass(frozen=True)
class Bar:
    name: str
    sites: int
    processes: int
    groups: str
    most: float  # seconds of wall time on two quiet cores


BARS = (
    Bar("10-whole", 10, 10, "whole", 0.5),
    Bar("10-survivors", 10, 10, "survivors", 1.0),
    Bar("100-whole", 100, 10, "whole", 6.0),
    Bar("100-survivors", 100, 10, "survivors", 20.0),
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--only", choices=[bar.name for bar in BARS], help="measure one bar")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the first (5)")


def values(member: int, round: int) -> dict[str, Any]:
    generator = np.random.default_rng(1000 * round + member)
    floats = np.round(generator.normal(0, 0.2, LENGTH).clip(-1, 1) * 2**12) / 2**12  # sums of these are exact
    return {"model": floats, "histogram": generator.integers(0, 100, BINS)}


async def play_sites(place: Path, members: list[int], port: int) -> None:
    """Some sites in this process, until the hub says that it is over."""
    proposal = read_agreement((place / "study.toml").read_text())

    async def one(member: int) -> None:
        source = lambda round, data: values(member, round)  # noqa: E731
        async with Site(proposal, place / str(member), source, hubs=[f"https://127.0.0.1:{port}"]) as site:
            await site.run()

    warm_up()
    await asyncio.gather(*map(one, members))
    times = os.times()
    print(json.dumps({"cpu": times.user + times.system}))


async def play_hub(place: Path, bar: Bar, rounds: int) -> tuple[list[float], float]:
    """Seconds of each round, and CPU seconds of the hub for all of them."""
    proposal = read_agreement((place / "study.toml").read_text())
    warm_up()
    async with Hub(proposal, place / "hub", settings=Settings(listen="127.0.0.1:0")) as hub:
        members = [list(range(first, bar.sites, bar.processes)) for first in range(bar.processes)]
        command = [sys.executable, "-m", "tests.benchmarks.net", str(place), str(hub.port)]
        sites = [subprocess.Popen([*command, json.dumps(some)], stdout=subprocess.PIPE, text=True) for some in members]
        try:
            await hub.round()  # everybody connects and loads its code
            before, seconds = os.times(), []
            for _ in range(rounds):
                began = time.monotonic()
                outcome = await hub.round()
                seconds.append(time.monotonic() - began)
                sums = outcome.sum()
                assert len(outcome.members[0, 0]) == bar.sites
                every = [values(member, outcome.round) for member in range(bar.sites)]
                assert np.allclose(sums["model"], sum(one["model"] for one in every), rtol=0, atol=bar.sites * 2**-20)
                assert np.array_equal(sums["histogram"], sum(one["histogram"] for one in every))
            after = os.times()
            await hub.finish()
            for site in sites:
                await asyncio.to_thread(site.communicate, timeout=60)
        finally:
            for site in sites:
                site.kill()
    return seconds, after.user + after.system - before.user - before.system


def measure(bar: Bar, rounds: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        segments = (
            Segment(name="model", shape=(LENGTH,), clip=1.0),
            Segment(name="histogram", shape=(BINS,), bound=100),
        )
        policy = Policy(anonymity=2, memory="round")
        proposal = make_world(
            place, bar.sites, rounds=rounds + 1, groups=bar.groups, policy=policy, change={"segments": segments}
        )
        (place / "study.toml").write_text(write_agreement(proposal))
        load = os.getloadavg()[0]
        seconds, cpu = asyncio.run(play_hub(place, bar, rounds))
    median = statistics.median(seconds)
    met = median <= bar.most
    print(
        f"{bar.name}: d={LENGTH}+{BINS}: median {median:.2f} s of wall time a round (least {min(seconds):.2f}, "
        f"bar {bar.most}), hub {cpu / rounds:.2f} s CPU a round with its checks here, load {load:.1f}: "
        f"{'met' if met else 'MISSED'}",
        flush=True,
    )
    return met


def main(options: Namespace) -> int:
    """1 if a bar is missed."""
    chosen = [bar for bar in BARS if options.only in (None, bar.name)]
    met = [measure(replace(bar), options.rounds) for bar in chosen]
    return 0 if all(met) else 1


if __name__ == "__main__":
    asyncio.run(play_sites(Path(sys.argv[1]), json.loads(sys.argv[3]), int(sys.argv[2])))
