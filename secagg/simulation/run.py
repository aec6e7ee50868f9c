"""One whole run on this machine, with the same `Client` and `Server` that a distributed application uses.

`run` handles one client after the other, so only one client's masked vectors are in memory at a time. Memory grows with
the group sums (R * c * d), not with R * n * d. `clear` gives the same result without cryptography, bit for bit.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from secagg.agreement.plan import Member, Plan
from secagg.arguments import ids, instance, keyed, whole
from secagg.crypto.keys import Identity
from secagg.errors import TooFewSurvivors, UsageError
from secagg.protocol.client import Client
from secagg.protocol.journal import Journal, MemoryJournal, check_journal
from secagg.protocol.messages import ToClient
from secagg.protocol.result import BROKEN_ATOM, Dropout, GroupSum, Result, Stage
from secagg.protocol.server import Server
from secagg.simulation.clients import Clients, Inputs, Requests, Scenario, SharedCache, Tamper, start_clients
from secagg.simulation.cost import Cost
from secagg.simulation.misbehaviour import Misbehaviour
from secagg.simulation.one_plan import OnePlan
from secagg.types import ClientId, Entropy, GroupId, Ring32

Outbox = Mapping[ClientId, ToClient | None]
Drop = Mapping[ClientId, Stage]  # the stage at which a client stops answering


def make_identities(clients: Collection[ClientId], entropy: Entropy = os.urandom) -> dict[ClientId, Identity]:
    """A fresh identity for every client of a simulation.

    >>> sorted(make_identities(range(3)))
    [0, 1, 2]
    """
    return {client: Identity.generate(entropy) for client in ids("clients", clients)}


def make_roster(identities: Mapping[ClientId, Identity]) -> tuple[Member, ...]:
    """The roster that lists these identities.

    >>> [member.id for member in make_roster(make_identities([7, 2]))]
    [2, 7]
    """
    known = keyed("identities", identities, Identity)
    return tuple(Member(client, known[client].public) for client in sorted(known))


def _identities(identities: Mapping[ClientId, Identity], clients: Collection[ClientId]) -> dict[ClientId, Identity]:
    known = keyed("identities", identities, Identity)
    missing = [client for client in clients if client not in known]
    if missing:
        raise UsageError(f"identities: expected one of every client, got none of client {missing[0]}")
    return known


def _check_inputs(plan: Plan, inputs: Inputs, drop: Drop | None) -> None:
    if not isinstance(inputs, Mapping):
        raise UsageError(f"inputs: expected a dict of updates by client, got {type(inputs).__name__}")
    stops = keyed("drop", drop or {}, Stage, plan.identities)
    missing = [v for v in plan.ids if v not in inputs and stops.get(v, Stage.DONE) > Stage.INPUTS]
    if missing:
        raise UsageError(f"inputs: expected an update of every client, got none of client {missing[0]}")


def run(
    plan: Plan,
    inputs: Inputs,
    identities: Mapping[ClientId, Identity],
    *,
    drop: Drop | None = None,
    misbehave: Mapping[ClientId, Misbehaviour] | None = None,
    tamper: Mapping[ClientId, Tamper] | None = None,
    processes: int = 1,
    journal: Journal | None = None,
    cost: Cost | None = None,
    on_stage: Callable[[Stage], None] | None = None,
    on_answer: Callable[[Stage, ClientId], None] | None = None,
    entropy: Callable[[ClientId], Entropy] | None = None,
) -> Result:
    """Run a plan with every client of its roster on this machine and return the server's result.

    `inputs` maps a client to its update. A client in `drop` stops answering at that stage; one in
    `misbehave` breaks the protocol in that way. With `processes` > 1 the clients live in forked processes; a
    `journal` of your own must then work between processes, as FileJournal does. `cost` adds up what the run
    costs. `on_stage` and `on_answer` report progress, in this process. If a client has dealt unusable shares and does
    not send its vector, the run is repeated without it, before anybody signs what is opened.

    `tamper` and `entropy` are for tests: functions that replace a client's honest message and its random
    bytes. They run in the process that holds the client. Raises TooFewSurvivors if the run cannot finish.

    >>> from secagg import Schedule
    >>> identities = make_identities(range(4))
    >>> plan = Plan(training_id=bytes(32), training_seed=bytes(32), round=0, roster=make_roster(identities),
    ...             length=2, schedule=Schedule(name="random", size=4), bound=9)
    >>> run(plan, {v: [v, 1] for v in range(4)}, identities, drop={3: Stage.INPUTS}).sum()
    array([3, 3])
    """
    identities = _identities(identities, instance("plan", plan, Plan).ids)
    _check_inputs(plan, inputs, drop)
    misbehave = keyed("misbehave", misbehave or {}, Misbehaviour, plan.identities)
    ids("tamper", tamper or {}, plan.identities)
    processes = whole("processes", processes, 1)
    if journal is not None:
        check_journal(journal)
    drop = _earlier(drop, {v: Stage.INPUTS for v, kind in misbehave.items() if kind is Misbehaviour.SILENCE})
    replies = {v: partial(kind.reply, plan=plan, identity=identities[v]) for v, kind in misbehave.items()}
    if processes > 1 and isinstance(journal, MemoryJournal):
        raise UsageError("a MemoryJournal cannot be shared between processes; use a FileJournal")
    cost = cost if cost is not None else Cost()
    cost.clients += len(plan.roster)
    cache, agreed, records = SharedCache(), OnePlan(plan), journal or MemoryJournal()
    threads = 1 if processes > 1 else None

    def make(v: ClientId) -> Client:
        draw = entropy(v) if entropy else os.urandom
        return Client(v, identities[v], agreed, plan.round, records, entropy=draw, cache=cache, threads=threads)

    scenario, exclude = Scenario(plan, make, inputs, {**replies, **(tamper or {})}), frozenset[ClientId]()
    while True:
        clients, server = start_clients(scenario, processes), Server(plan, exclude=exclude)
        outbox: Outbox = dict.fromkeys(v for v in plan.ids if v not in exclude)
        try:
            while server.stage < Stage.DONE:
                if on_stage is not None:
                    on_stage(server.stage)
                _run_stage(server, clients, outbox, drop, cost, on_answer)
                doomed = server.doomed_groups() if server.stage is Stage.INPUTS else {}
                if doomed:
                    break
                with cost.serving(server.stage, time.perf_counter):
                    outbox = server.advance()
        finally:
            clients.close()
        if server.stage is Stage.DONE:
            return server.result()
        exclude = exclude.union(*doomed.values())  # repeat without the dealers of unusable shares that vanished


def _run_stage(
    server: Server,
    clients: Clients,
    outbox: Outbox,
    drop: Drop,
    cost: Cost,
    on_answer: Callable[[Stage, ClientId], None] | None,
) -> None:
    """Deliver the server's messages and the answers of the clients that are present."""
    stage = server.stage

    def requests() -> Requests:
        for client in outbox:
            if drop.get(client, Stage.DONE) > stage:
                with cost.serving(stage, time.thread_time):
                    message = outbox[client]  # made now: one message in memory at a time
                yield client, message

    for answer in clients.answers(stage, requests()):
        cost.answered(stage, answer.seconds, up=answer.sent, down=answer.received)
        if answer.reply is not None:
            with cost.serving(stage, time.thread_time):
                server.receive(answer.client, answer.reply)
        if on_answer is not None:
            on_answer(stage, answer.client)
        del answer  # free its vectors before the next client makes its own


def clear(
    plan: Plan, inputs: Inputs, *, drop: Drop | None = None, misbehave: Mapping[ClientId, Misbehaviour] | None = None
) -> Result:
    """The sums that `run` would give, bit for bit, with the same encoding and audit but no cryptography.

    A client that misbehaves counts as a dropout here, where `run` may blame it instead.

    >>> from secagg import Schedule
    >>> plan = Plan(training_id=bytes(32), training_seed=bytes(32), round=0,
    ...             roster=make_roster(make_identities(range(4))), length=2,
    ...             schedule=Schedule(name="random", size=4), bound=9)
    >>> clear(plan, {v: [v, 1] for v in range(4)}, drop={3: Stage.INPUTS}).sum()
    array([3, 3])
    """
    _check_inputs(instance("plan", plan, Plan), inputs, drop)
    misbehave = keyed("misbehave", misbehave or {}, Misbehaviour, plan.identities)
    drop = _earlier(drop, {v: kind.unusable_from for v, kind in misbehave.items()})
    alive, dropouts = _clear_survivors(plan, drop)
    verdict = plan.audit(alive)
    totals: dict[GroupId, Ring32] = {}
    for client in alive:
        encoded, _ = plan.encoding.encode(inputs[client], weight=plan.relative_weight(client))
        for group in plan.groups_of[client]:
            if group in totals:
                totals[group] += encoded
            elif group in verdict.opened:
                totals[group] = encoded.copy()
    dealers = {v for v, kind in misbehave.items() if kind is Misbehaviour.BROKEN_BOXES}
    broken = {v for v in dealers if drop.get(v, Stage.DONE) in (Stage.CONSISTENCY, Stage.UNMASKING)}
    opened = sorted(verdict.opened)
    lost = {g: "a client in it vanished, its shares are useless" for g in opened if broken.intersection(plan.group(g))}
    present = frozenset(alive)
    members = {g: tuple(v for v in plan.group(g) if v in present) for g in opened}
    return Result(
        plan=plan,
        survivors=tuple(alive),
        groups={g: GroupSum(totals[g], members[g]) for g in opened if g not in lost},
        closed=verdict.closed,
        lost=lost,
        dropouts=dropouts,
        blamed={},
        verdict=verdict,
    )


def _clear_survivors(plan: Plan, drop: Drop) -> tuple[list[ClientId], dict[ClientId, Dropout]]:
    """The clients whose inputs are summed, and why the others are not among them."""
    signed = [v for v in plan.ids if drop.get(v, Stage.DONE) > Stage.INPUTS]
    alive = list(plan.summed(signed))
    dropouts = {v: Dropout(stage, "it did not answer in time") for v, stage in drop.items()}
    for v in plan.in_broken_atoms(signed):
        dropouts.setdefault(v, Dropout(Stage.INPUTS, BROKEN_ATOM))
    for stage in (Stage.INPUTS, Stage.CONSISTENCY, Stage.UNMASKING):
        count = sum(drop.get(v, Stage.DONE) > stage for v in signed)
        if count < plan.t:
            raise TooFewSurvivors(f"{count} clients survive {stage.name}, the threshold is {plan.t}")
    return alive, dropouts


def _earlier(drop: Drop | None, other: Drop) -> dict[ClientId, Stage]:
    """Both mappings together; a client in both stops at the earlier stage, and DONE is no dropout."""
    both = dict(drop or {})
    for client, stage in other.items():
        if stage < Stage.DONE:
            both[client] = min(stage, both.get(client, Stage.DONE))
    return both
