"""A whole run in one process: real cryptography, no network. For tests, simulations and the impatient.

    from secagg import secure_sum
    secure_sum([[1, 2], [3, 4], [5, 6], [7, 8]], drop=[3])   # array([ 9, 12])

`run` drives the same `Client` and `Server` that a distributed application would, one client after the
other, so that only one client's masked vectors are alive at a time: memory grows with the rows (R * c * d),
never with R * n * d. `clear` gives the same result without cryptography, bit for bit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from secagg.crypto.keys import Identity
from secagg.errors import TooFewSurvivors, UsageError
from secagg.protocol.client import Client
from secagg.protocol.floors import Floors
from secagg.protocol.journal import Journal, MemoryJournal
from secagg.protocol.messages import ToClient
from secagg.protocol.plan import Member, Plan
from secagg.protocol.result import Dropout, Result, RowSum, Stage
from secagg.protocol.server import Server
from secagg.simulation.cache import SharedCache
from secagg.simulation.clients import Answer, Cast, Inputs, Tamper, forked
from secagg.types import ClientId, Entropy, GroupId


@dataclass(slots=True)
class Meter:
    """What a run cost, by stage: seconds of all clients, seconds of the server, bytes both ways.

    Clients are counted in CPU time, and so is the server while it takes their messages, because they share
    the cores; while it closes a stage it has all cores to itself, and the clock is counted.
    """

    client_seconds: dict[Stage, float] = field(default_factory=dict)
    server_seconds: dict[Stage, float] = field(default_factory=dict)
    bytes_up: dict[Stage, int] = field(default_factory=dict)
    bytes_down: dict[Stage, int] = field(default_factory=dict)

    @contextmanager
    def serving(self, stage: Stage, clock: Callable[[], float]) -> Iterator[None]:
        """Count the time inside, by this clock, as the server's."""
        start = clock()
        try:
            yield
        finally:
            self.server_seconds[stage] = self.server_seconds.get(stage, 0.0) + clock() - start

    def answered(self, stage: Stage, answer: Answer) -> None:
        """Count one client's answer."""
        self.client_seconds[stage] = self.client_seconds.get(stage, 0.0) + answer.seconds
        self.bytes_up[stage] = self.bytes_up.get(stage, 0) + answer.sent
        self.bytes_down[stage] = self.bytes_down.get(stage, 0) + answer.received


def make_identities(ids: Collection[ClientId], entropy: Entropy = os.urandom) -> dict[ClientId, Identity]:
    """A fresh identity for every client of a simulation."""
    return {client: Identity.generate(entropy) for client in ids}


def make_roster(identities: Mapping[ClientId, Identity]) -> tuple[Member, ...]:
    """The roster that lists these identities."""
    return tuple(Member(client, identities[client].public) for client in sorted(identities))


def run(
    plan: Plan,
    inputs: Inputs,
    identities: Mapping[ClientId, Identity],
    *,
    drop: Mapping[ClientId, Stage] | None = None,
    tamper: Mapping[ClientId, Tamper] | None = None,
    processes: int = 1,
    journal: Journal | None = None,
    meter: Meter | None = None,
    on_stage: Callable[[Stage], None] | None = None,
    on_answer: Callable[[Stage, ClientId], None] | None = None,
    entropy: Callable[[ClientId], Entropy] | None = None,
) -> Result:
    """Run a plan with every client of its roster on this machine and return the server's result.

    A client in `drop` stops answering at that stage. One in `tamper` sends whatever its function makes of
    the honest message (None: nothing). With `processes` > 1 the clients live in forked processes; a
    `journal` of your own must then work between processes, as FileJournal does. `on_stage` and `on_answer`
    are told how far the run is. `entropy` is for tests. TooFewSurvivors if the run cannot end.
    """
    drop, tamper = drop or {}, tamper or {}
    unknown = (set(drop) | set(tamper)) - set(plan.ids)
    if unknown:
        raise UsageError(f"client {min(unknown)} is not on the roster")
    if processes > 1 and isinstance(journal, MemoryJournal):
        raise UsageError("a MemoryJournal cannot be shared between processes; use a FileJournal")
    meter = meter if meter is not None else Meter()
    cache, floors, records = SharedCache(), Floors.for_plan(plan), journal or MemoryJournal()

    def make(v: ClientId) -> Client:
        draw = entropy(v) if entropy else os.urandom
        threads = 1 if processes > 1 else None
        return Client(
            v, identities[v], floors, plan.round, records, entropy=draw, cache=cache, threads=threads
        )

    clients = forked(Cast(plan, make, inputs, tamper), processes)
    server = Server(plan)
    outbox: Mapping[ClientId, ToClient | None] = dict.fromkeys(plan.ids)
    try:
        while server.stage < Stage.DONE:
            stage = server.stage
            if on_stage is not None:
                on_stage(stage)
            present = (v for v in outbox if drop.get(v, Stage.DONE) > stage)
            for answer in clients.answers(stage, _requests(outbox, present, stage, meter)):
                meter.answered(stage, answer)
                if answer.reply is not None:
                    with meter.serving(stage, time.thread_time):
                        server.receive(answer.client, answer.reply)
                if on_answer is not None:
                    on_answer(stage, answer.client)
                del answer  # and with it the vectors, before the next client makes its own
            with meter.serving(stage, time.perf_counter):
                outbox = server.advance()
    finally:
        clients.close()
    return server.result()


def _requests(
    outbox: Mapping[ClientId, ToClient | None], receivers: Iterator[ClientId], stage: Stage, meter: Meter
) -> Iterator[tuple[ClientId, ToClient | None]]:
    """What the server sends, made one at a time."""
    for client in receivers:
        with meter.serving(stage, time.thread_time):
            message = outbox[client]
        yield client, message


def clear(plan: Plan, inputs: Inputs, *, drop: Mapping[ClientId, Stage] | None = None) -> Result:
    """The result that `run` would give, bit for bit, with the same encoding and audit but no cryptography."""
    drop = drop or {}
    early = {v: s for v, s in drop.items() if s <= Stage.INPUTS}
    alive = [v for v in plan.ids if v not in early]
    dropouts = {v: Dropout(stage, "it did not answer in time") for v, stage in drop.items()}
    for v in plan.too_few_in_atom(alive):
        alive.remove(v)
        dropouts[v] = Dropout(Stage.INPUTS, "too few of its atom survive to hide it")
    for stage in (Stage.INPUTS, Stage.CONSISTENCY, Stage.UNMASKING):
        count = sum(v not in drop or drop[v] > stage for v in alive)
        if count < plan.t:
            raise TooFewSurvivors(f"{count} clients survive {stage.name}, the threshold is {plan.t}")
    verdict = plan.audit(alive)
    totals: dict[GroupId, npt.NDArray[np.uint32]] = {}
    for client in alive:
        update = inputs(client) if callable(inputs) else inputs[client]
        encoded, _ = plan.encoding.encode(np.asarray(update), weight=plan.relative_weight(client))
        for row in plan.rows_of[client]:
            if row in totals:
                totals[row] += encoded
            elif row in verdict.rows:
                totals[row] = encoded.copy()
    present = frozenset(alive)
    rows = {
        row: RowSum(totals[row], tuple(v for v in plan.group(row) if v in present))
        for row in sorted(verdict.rows)
    }
    return Result(
        plan=plan,
        survivors=tuple(alive),
        rows=rows,
        closed=verdict.closed,
        lost={},
        dropouts=dropouts,
        blamed={},
        verdict=verdict,
    )
