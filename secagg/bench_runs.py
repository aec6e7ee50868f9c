"""Whole runs: what every client and the server cost, stage by stage, with and without dropouts.

Every client is executed, in full: no client is simulated by a lighter one and no verification is left out.
The published figures are those of Bonawitz et al. 2017, Fig. 8 (100,000 entries of 62 bits, Java, one thread,
Xeon E5-1650 v3, network not counted), the only ones by stage for the same protocol at these sizes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg import prg
from secagg.groupings import ClientId, Schedule
from secagg.local import Meter, clear, make_identities, make_roster, run
from secagg.parallel import cores
from secagg.plan import Plan
from secagg.result import Stage

STAGES: Final = tuple(Stage)[:5]
LENGTH: Final = 100_000
DROPOUTS: Final = (0, 10, 30)  # percent, gone after sharing: the dearest moment for the server

# (clients, dropouts in percent): milliseconds of one client, milliseconds of the server.
PUBLISHED: Final[Mapping[tuple[int, int], tuple[float, float]]] = {
    (500, 0): (849, 2018),
    (500, 10): (849, 62_239),
    (500, 30): (849, 143_389),
    (1000, 0): (1699, 4887),
    (1000, 10): (1699, 180_875),
    (1000, 30): (1699, 413_767),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run cost. Client figures are sums over all clients; `by stage` in the order of STAGES."""

    clients: int
    length: int
    groupings: int
    dropped: int
    threshold: int
    seconds: float  # from the first key to the sum, all parties on this machine
    client_seconds: tuple[float, ...]
    server_seconds: tuple[float, ...]
    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]

    @property
    def one_client_ms(self) -> float:
        """The mean client, over all its stages."""
        return 1e3 * sum(self.client_seconds) / self.clients

    @property
    def server_ms(self) -> float:
        return 1e3 * sum(self.server_seconds)


def measure_run(
    clients: int,
    *,
    length: int = LENGTH,
    percent: int = 0,
    processes: int | None = None,
    on_stage: Callable[[Stage], None] | None = None,
) -> Run:
    """One flat sum with real cryptography for everyone. AssertionError if the sum is not exact."""
    identities = make_identities(range(clients))
    plan = Plan(
        training_id=os.urandom(32),
        round=0,
        roster=make_roster(identities),
        length=length,
        schedule=Schedule(name="random", size=clients),
        training_seed=os.urandom(32),
        clip=1.0,
    )
    dropped = clients * percent // 100
    drop = dict.fromkeys(plan.ids[:: max(1, clients // max(1, dropped))][:dropped], Stage.INPUTS)
    meter = Meter()
    start = time.perf_counter()
    result = run(
        plan,
        lambda v: update(v, length),
        identities,
        drop=drop,
        processes=processes or cores(),
        meter=meter,
        on_stage=on_stage,
    )
    seconds = time.perf_counter() - start
    expected = clear(plan, lambda v: update(v, length), drop=drop)
    if not np.array_equal(result.rows[0, 0].total, expected.rows[0, 0].total):
        raise AssertionError(f"the sum of {clients} clients is not exact")
    return Run(
        clients=clients,
        length=length,
        groupings=1,
        dropped=dropped,
        threshold=plan.t,
        seconds=seconds,
        client_seconds=tuple(meter.client_seconds.get(stage, 0.0) for stage in STAGES),
        server_seconds=tuple(meter.server_seconds.get(stage, 0.0) for stage in STAGES),
        bytes_up=tuple(meter.bytes_up.get(stage, 0) for stage in STAGES),
        bytes_down=tuple(meter.bytes_down.get(stage, 0) for stage in STAGES),
    )


def update(client: ClientId, length: int) -> npt.NDArray[np.float32]:
    """A client's vector: numbers in [-1, 1), made when asked for, so that none has to be kept."""
    key = client.to_bytes(prg.KEY_BYTES, "little")
    return prg.expand(key, length).view(np.int32).astype(np.float32) * np.float32(2.0**-31)
