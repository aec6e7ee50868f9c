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
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from secagg import wire
from secagg.client import Client
from secagg.errors import SecAggError, TooFewSurvivors, UsageError
from secagg.groupings import ClientId, Row
from secagg.journal import Journal, MemoryJournal
from secagg.keys import Entropy, Identity
from secagg.memo import Memo
from secagg.messages import Message, ToServer
from secagg.plan import Floors, Member, Plan
from secagg.result import Dropout, Result, RowSum, Stage
from secagg.server import Server

Array = npt.NDArray[Any]
Inputs = Mapping[ClientId, Array] | Callable[[ClientId], Array]
Tamper = Callable[[Stage, ToServer], ToServer | bytes | None]
T = TypeVar("T")


@dataclass(slots=True)
class Meter:
    """What a run cost, by stage: seconds of all clients, seconds of the server, bytes both ways."""

    client_seconds: dict[Stage, float] = field(default_factory=dict)
    server_seconds: dict[Stage, float] = field(default_factory=dict)
    bytes_up: dict[Stage, int] = field(default_factory=dict)
    bytes_down: dict[Stage, int] = field(default_factory=dict)

    @contextmanager
    def timed(self, seconds: dict[Stage, float], stage: Stage) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start

    def count(self, sizes: dict[Stage, int], stage: Stage, message: Message | bytes) -> None:
        size = len(message) if isinstance(message, bytes) else wire.size(message)
        sizes[stage] = sizes.get(stage, 0) + size


def make_identities(ids: Collection[ClientId], entropy: Entropy = os.urandom) -> dict[ClientId, Identity]:
    """A fresh identity for every client of a simulation."""
    return {client: Identity.generate(entropy) for client in ids}


def make_roster(identities: Mapping[ClientId, Identity]) -> tuple[Member, ...]:
    """The roster that lists these identities."""
    return tuple(Member(client, identities[client].public) for client in sorted(identities))


def floors_for(plan: Plan) -> Floors:
    """Floors that just accept this plan: what simulated clients hold, because nobody attacks them here."""
    weights = plan.weights or (1,)
    return Floors(
        roster=plan.roster,
        training_id=plan.training_id,
        training_seed=plan.training_seed,
        colluders=plan.assumed_colluders,
        policy=plan.policy,
        clip=(plan.clip, plan.clip) if plan.clip is not None else (1.0, 1.0),
        weight_ratio=max(weights) / min(weights),
        groupings=plan.schedule.groupings,
        accept_semi_honest_server_only=plan.semi_honest_only,
    )


def run(
    plan: Plan,
    inputs: Inputs,
    identities: Mapping[ClientId, Identity],
    *,
    drop: Mapping[ClientId, Stage] | None = None,
    tamper: Mapping[ClientId, Tamper] | None = None,
    journal: Journal | None = None,
    meter: Meter | None = None,
    on_stage: Callable[[Stage], None] | None = None,
    entropy: Callable[[ClientId], Entropy] | None = None,
) -> Result:
    """Run a plan with every client of its roster in this process and return the server's result.

    A client in `drop` stops answering at that stage. One in `tamper` sends whatever its function makes of
    the honest message (None: nothing). `entropy` is for tests. TooFewSurvivors if the run cannot end.
    """
    meter = meter if meter is not None else Meter()
    simulation = _Simulation(plan, inputs, identities, drop or {}, tamper or {}, journal, meter, entropy)
    while simulation.server.stage < Stage.DONE:
        if on_stage is not None:
            on_stage(simulation.server.stage)
        simulation.stage()
    return simulation.server.result()


class _Simulation:
    def __init__(
        self,
        plan: Plan,
        inputs: Inputs,
        identities: Mapping[ClientId, Identity],
        drop: Mapping[ClientId, Stage],
        tamper: Mapping[ClientId, Tamper],
        journal: Journal | None,
        meter: Meter,
        entropy: Callable[[ClientId], Entropy] | None,
    ) -> None:
        unknown = (set(drop) | set(tamper)) - set(plan.ids)
        if unknown:
            raise UsageError(f"client {min(unknown)} is not on the roster")
        self.plan, self._inputs, self._drop, self._tamper, self._meter = plan, inputs, drop, tamper, meter
        journal = journal if journal is not None else MemoryJournal()
        memo, floors = Memo(), floors_for(plan)
        self.server = Server(plan, MemoryJournal())
        self._clients = {
            v: Client(
                v,
                identities[v],
                floors,
                plan.round,
                journal,
                entropy=entropy(v) if entropy else os.urandom,
                memo=memo,
            )
            for v in plan.ids
        }
        self._outbox: Mapping[ClientId, Any] = dict.fromkeys(plan.ids)

    def stage(self) -> None:
        """One stage: every client answers, then the server closes it."""
        server, meter, stage = self.server, self._meter, self.server.stage
        common: dict[int, int] = {}  # sizes of messages that are the same object for everyone
        for client in self._outbox:
            with meter.timed(meter.server_seconds, stage):
                message = self._outbox[client]
            if message is not None:
                size = common.get(id(message)) or common.setdefault(id(message), wire.size(message))
                meter.bytes_down[stage] = meter.bytes_down.get(stage, 0) + size
            if self._drop.get(client, Stage.DONE) <= stage:
                continue
            with meter.timed(meter.client_seconds, stage):
                reply = self._answer(client, stage, message)
            del message
            if reply is not None:
                meter.count(meter.bytes_up, stage, reply)
                with meter.timed(meter.server_seconds, stage):
                    server.receive(client, reply)
        with meter.timed(meter.server_seconds, stage):
            self._outbox = server.advance()

    def _answer(self, client: ClientId, stage: Stage, message: Any) -> ToServer | bytes | None:
        machine = self._clients[client]
        try:
            if stage is Stage.KEYS:
                reply: ToServer | bytes | None = machine.hello()
            elif stage is Stage.SHARES:
                reply = machine.receive(message, context=self.plan.context)
            elif stage is Stage.INPUTS:
                reply = machine.receive(message, update=self._update(client))
            else:
                reply = machine.receive(message)
        except UsageError:
            raise
        except SecAggError:
            return None  # this client refuses; for the others it is a dropout
        tamper = self._tamper.get(client)
        return tamper(stage, reply) if tamper else reply  # type: ignore[arg-type]

    def _update(self, client: ClientId) -> Array:
        return self._inputs(client) if callable(self._inputs) else self._inputs[client]


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
    totals: dict[Row, npt.NDArray[np.uint32]] = {}
    for client in alive:
        update = inputs(client) if callable(inputs) else inputs[client]
        encoded, _ = plan.encoding.encode(np.asarray(update), weight=plan.relative_weight(client))
        for row in plan.rows_of[client]:
            if row in totals:
                totals[row] += encoded
            elif row in verdict.rows:
                totals[row] = encoded.copy()
    rows = {
        row: RowSum(totals[row], tuple(v for v in plan.group(row) if v in set(alive)))
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
