"""Whole runs: what all clients and the server cost, stage by stage, with and without dropouts.

Every client runs in full and checks every signature, share and proof. Clients of one process share only public work
that is the same for all: the decoded plan, common messages and the audit of the survivors (`SharedCache`).
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.agreement.agreement import Agreement
from secagg.crypto import prg
from secagg.crypto.keys import Identity
from secagg.kernels.threads import cores
from secagg.protocol.result import Result, Stage
from secagg.simulation import Cost, clear, run
from secagg.types import ClientId
from tests.benchmarks.secagg.report import Bar, Table
from tests.benchmarks.secagg.work import Rates, Size, Work

STAGES: Final = tuple(Stage)[:5]
PERCENTS: Final = (0, 10, 30)  # drop out after sharing: the most expensive moment for the server
POOL: Final = 16  # different updates; more would only fill memory

# Bonawitz et al. 2017, Fig. 8: 100,000 entries, Java, one thread. (clients, percent dropped) -> milliseconds
# of one client, which they give without dropouts only, and milliseconds of the server.
PUBLISHED: Final[Mapping[tuple[int, int], tuple[float, float]]] = {
    (500, 0): (849, 2018),
    (500, 10): (849, 62_239),
    (500, 30): (849, 143_389),
    (1000, 0): (1699, 4887),
    (1000, 10): (1699, 180_875),
    (1000, 30): (1699, 413_767),
}
TIMES_FASTER: Final = {(500, 10): 30.0, (1000, 30): 30.0}  # our bounds for the server

OnProgress = Callable[[float], None]
Updates = Mapping[ClientId, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The cost of one run. Figures by stage follow STAGES; client figures are sums over all clients."""

    size: Size
    seconds: float  # from the first key to the sums, clients and server on this machine
    cpu_seconds: float  # of clients and server together, with moving messages between processes
    client_seconds: tuple[float, ...]
    server_seconds: tuple[float, ...]
    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]

    @property
    def client_ms(self) -> float:
        """Milliseconds of the mean client, over all stages."""
        return 1e3 * sum(self.client_seconds) / self.size.clients

    @property
    def server_ms(self) -> float:
        return 1e3 * sum(self.server_seconds)


def measure_run(size: Size, *, processes: int | None = None, on_progress: OnProgress = lambda fraction: None) -> Run:
    """Measure one complete run. AssertionError if its sums are not exact."""
    updates, agreed = make_updates(size), size.agreement()
    result, measured = run_once(size, updates, agreed, processes=processes, on_progress=on_progress)
    expected = clear(agreed[0], updates, drop=size.drop())
    exact = set(result.groups) == set(expected.groups) and all(
        np.array_equal(opened.total, expected.groups[row].total) for row, opened in result.groups.items()
    )
    if not exact:
        raise AssertionError(f"{size}: the sums are not exact")
    return measured


def make_updates(size: Size) -> Updates:
    """Make an update with numbers in [-1, 1) for every client."""
    pool = [
        prg.mask(k.to_bytes(prg.MASK_KEY_BYTES, "little"), size.length).view(np.int32).astype(np.float32)
        * np.float32(2.0**-31)
        for k in range(POOL)
    ]
    return {client: pool[client % POOL] for client in range(size.clients)}


def run_once(
    size: Size,
    updates: Updates,
    agreed: tuple[Agreement, Mapping[ClientId, Identity]],
    *,
    processes: int | None = None,
    on_progress: OnProgress = lambda fraction: None,
) -> tuple[Result, Run]:
    """Measure one run without comparing its sums, and return its result too. Making the agreement does not count."""
    cost, answers, processes = Cost(), _Answers(size, on_progress), processes or cores()
    cpu, start = cpu_seconds(), time.perf_counter()
    result = run(agreed[0], updates, agreed[1], drop=size.drop(), processes=processes, cost=cost, on_answer=answers.one)
    return result, Run(
        size=size,
        seconds=time.perf_counter() - start,
        cpu_seconds=cpu_seconds() - cpu,
        client_seconds=tuple(cost.client_seconds.get(stage, 0.0) for stage in STAGES),
        server_seconds=tuple(cost.server_seconds.get(stage, 0.0) for stage in STAGES),
        bytes_up=tuple(cost.bytes_up.get(stage, 0) for stage in STAGES),
        bytes_down=tuple(cost.bytes_down.get(stage, 0) for stage in STAGES),
    )


def cpu_seconds() -> float:
    """CPU time of this process and of its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Answers:
    """Turns counted answers into a fraction of the run; stages are weighted by their cost."""

    _WEIGHTS: Final = (0.02, 0.38, 0.2, 0.24, 0.16)

    def __init__(self, size: Size, on_progress: OnProgress) -> None:
        stay = size.clients - size.dropped
        self._expected = (size.clients, size.clients, stay, stay, stay)
        self._counts = [0] * len(STAGES)
        self._on_progress = on_progress

    def one(self, stage: Stage, client: ClientId) -> None:
        self._counts[stage] += 1
        shares = zip(self._WEIGHTS, self._counts, self._expected, strict=True)
        self._on_progress(sum(weight * count / expected for weight, count, expected in shares))


def run_table(runs: Sequence[Run], rates: Rates) -> Table:
    """One line per run, with the published figures and this machine's floor."""
    rows = []
    for one in runs:
        size = one.size
        theirs = PUBLISHED.get((size.clients, size.percent)) if size.length == 100_000 else None
        floor = rates.floor(Work.of(size))
        rows.append(
            (
                str(size.clients),
                f"{size.percent}%",
                f"{one.client_ms:,.0f}",
                f"{theirs[0]:,.0f}" if theirs else "",
                f"{one.server_ms:,.0f}",
                f"{theirs[1]:,.0f}" if theirs else "",
                f"{theirs[1] / one.server_ms:.0f}x" if theirs else "",
                f"{one.seconds:.1f}",
                f"{one.cpu_seconds:.1f}",
                f"{floor:.1f}",
            )
        )
    return Table(
        name="runs",
        title=f"Whole runs, {runs[0].size.length:,} numbers, dropouts after sharing",
        header=("clients", "dropped", "client ms", "2017", "server ms", "2017", "faster", "all, s", "CPU s", "floor s"),
        rows=tuple(rows),
        notes=(
            "client: CPU time of the mean client. server: CPU time while it receives messages, clock time on "
            "all cores while it closes a stage. 2017: Bonawitz et al., Fig. 8 (Java, one thread). all: from "
            f"the first key to the sum, every client and the server on {cores()} cores. floor: CPU time of "
            "the signatures, agreements, masks, hashes and passes over vectors alone.",
        ),
    )


def stage_table(runs: Sequence[Run]) -> Table:
    """Time and bytes by stage: per client, and of the server."""
    rows = []
    for one in runs:
        for place, stage in enumerate(STAGES):
            n = one.size.clients
            rows.append(
                (
                    f"{n}, {one.size.percent}%" if place == 0 else "",
                    stage.name.lower(),
                    f"{1e3 * one.client_seconds[place] / n:.1f}",
                    f"{1e3 * one.server_seconds[place]:,.1f}",
                    f"{one.bytes_up[place] / n / 1e3:,.1f}",
                    f"{one.bytes_down[place] / n / 1e3:,.1f}",
                )
            )
    return Table(
        name="stages",
        title="By stage",
        header=("clients, dropped", "stage", "client ms", "server ms", "kB sent", "kB received"),
        rows=tuple(rows),
        notes=("client and bytes: the mean over all clients, dropouts included.",),
    )


def bars(runs: Sequence[Run]) -> list[Bar]:
    found = []
    for one in runs:
        key = (one.size.clients, one.size.percent)
        if key in TIMES_FASTER and one.size.length == 100_000:
            found.append(
                Bar(
                    name=f"server, {key[0]} clients, {key[1]}% dropped: times faster than published",
                    value=PUBLISHED[key][1] / one.server_ms,
                    bound=TIMES_FASTER[key],
                )
            )
    return found
