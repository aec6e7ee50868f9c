"""One run of an agreement on this machine, with the same `Client` and `Server` that a distributed application uses.

`run` handles one client after the other, so only one client's masked vectors are in memory at a time. Memory grows with
the group sums (R * c * d), not with R * n * d. `clear` gives the same result without cryptography, bit for bit.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from secagg.agreement.agreement import Agreement
from secagg.agreement.plan import Member, Plan
from secagg.arguments import function, ids, instance, keyed, whole
from secagg.crypto.keys import Identity
from secagg.errors import TooFewSurvivors, UsageError
from secagg.protocol.client import Client
from secagg.protocol.journal import Journal, MemoryJournal, check_journal
from secagg.protocol.messages import ToClient
from secagg.protocol.noise import NoiseOf, NoiseSource
from secagg.protocol.result import BROKEN_ATOM, Dropout, GroupSum, Result, Stage
from secagg.protocol.server import Server
from secagg.simulation.clients import Clients, Inputs, Requests, Scenario, SharedCache, Tamper, start_clients
from secagg.simulation.cost import Cost
from secagg.simulation.misbehaviour import Misbehaviour
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
        raise UsageError(f"identities: expected one of every member, got none of member {missing[0]}")
    return known


def _plan(agreement: Agreement, round: int | None, cell: int, context: bytes) -> Plan:
    """The plan of a simulated run; by default of the agreement's first round."""
    first = instance("agreement", agreement, Agreement).terms.first_round
    return agreement.plan(first if round is None else round, cell, context)


def _check_inputs(plan: Plan, inputs: Inputs, drop: Drop | None, left_out: Collection[ClientId]) -> None:
    if not isinstance(inputs, Mapping):
        raise UsageError(f"inputs: expected a dict of updates by client, got {type(inputs).__name__}")
    stops = keyed("drop", {} if drop is None else drop, Stage, plan.identities)
    asked = [v for v in plan.ids if v not in left_out and stops.get(v, Stage.DONE) > Stage.INPUTS]
    missing = [v for v in asked if v not in inputs]
    if missing:
        raise UsageError(f"inputs: expected an update of every client, got none of client {missing[0]}")


def run(
    agreement: Agreement,
    inputs: Inputs,
    identities: Mapping[ClientId, Identity],
    *,
    round: int | None = None,
    cell: int = 0,
    context: bytes = b"",
    drop: Drop | None = None,
    misbehave: Mapping[ClientId, Misbehaviour] | None = None,
    exclude: Collection[ClientId] = (),
    tamper: Mapping[ClientId, Tamper] | None = None,
    processes: int = 1,
    journal: Journal | None = None,
    cost: Cost | None = None,
    on_stage: Callable[[Stage], None] | None = None,
    on_answer: Callable[[Stage, ClientId], None] | None = None,
    entropy: Callable[[ClientId], Entropy] | None = None,
    noise: NoiseOf | None = None,
) -> Result:
    """Run one cell of a round with every client on this machine and return the server's result.

    The agreement has groups = "survivors"; clients and server derive the plan from it, the round (by default its
    first), the cell and the context. `inputs` maps a client to its update. A client in `drop` stops answering at that
    stage; one in `misbehave` breaks the protocol in that way; those in `exclude` are not asked (`Suspects`). With
    `processes` > 1 the clients live in forked processes; a `journal` of your own must then work between processes, as
    FileJournal does. `cost` adds up what the run costs. `on_stage` and `on_answer` report progress, in this process. If
    a client has dealt unusable shares and does not send its vector, the run is repeated without it, before anybody
    signs what is opened.

    `noise` gives the source of each client's noise in a round, for simulations that are repeated (default: fresh).
    `tamper` and `entropy` are for tests: functions that replace a client's honest message and its random
    bytes. They run in the process that holds the client. Raises TooFewSurvivors if the run cannot finish.

    >>> from secagg.simulation import make_agreement
    >>> agreement, identities = make_agreement(members=4, size=4, length=2, bound=9, groups="survivors")
    >>> run(agreement, {v: [v, 1] for v in range(4)}, identities, drop={3: Stage.INPUTS}).sum()
    array([3, 3])
    """
    plan = _plan(agreement, round, cell, context)
    identities = _identities(identities, plan.ids)
    left_out = frozenset(ids("exclude", exclude, plan.identities))
    _check_inputs(plan, inputs, drop, left_out)
    misbehave = keyed("misbehave", {} if misbehave is None else misbehave, Misbehaviour, plan.identities)
    _check_functions(plan, tamper, on_stage, on_answer, entropy, noise)
    processes, cost = whole("processes", processes, 1), instance("cost", Cost() if cost is None else cost, Cost)
    records = _journal(journal, processes)
    drop = _earlier(drop, {v: Stage.INPUTS for v, kind in misbehave.items() if kind is Misbehaviour.SILENCE})
    replies = {v: partial(kind.reply, plan=plan, identity=identities[v]) for v, kind in misbehave.items()}
    cost.clients += len(plan.roster)
    client = partial(_client, SharedCache(), agreement, identities, plan.round, records, entropy, noise)
    make = partial(client, 1 if processes > 1 else None)
    scenario = Scenario(plan, make, inputs, {**replies, **(tamper or {})})
    return _run_until_done(scenario, processes, left_out, drop, cost, on_stage, on_answer)


def _journal(journal: Journal | None, processes: int) -> Journal:
    """The caller's journal, or a new one that forgets."""
    if journal is None:
        return MemoryJournal()
    check_journal(journal)
    if processes > 1 and isinstance(journal, MemoryJournal):
        raise UsageError("a MemoryJournal cannot be shared between processes; use a FileJournal")
    return journal


def _client(
    cache: SharedCache,
    agreement: Agreement,
    identities: Mapping[ClientId, Identity],
    round: int,
    journal: Journal,
    entropy: Callable[[ClientId], Entropy] | None,
    noise: NoiseOf | None,
    threads: int | None,
    v: ClientId,
) -> Client:
    """One simulated client, with the random bytes and the noise that the caller gives."""
    draw = entropy(v) if entropy else os.urandom
    made = Client(v, identities[v], agreement, round, journal, entropy=draw, cache=cache, threads=threads)
    if noise is not None:
        made._noise = NoiseSource(noise(v, round), threads)
    return made


def _run_until_done(
    scenario: Scenario,
    processes: int,
    left_out: frozenset[ClientId],
    drop: Drop,
    cost: Cost,
    on_stage: Callable[[Stage], None] | None,
    on_answer: Callable[[Stage, ClientId], None] | None,
) -> Result:
    """Run all stages, and again without the dealers of unusable shares that vanished."""
    plan = scenario.plan
    while True:
        clients, server = start_clients(scenario, processes), Server(plan, exclude=left_out)
        outbox: Outbox = dict.fromkeys(v for v in plan.ids if v not in left_out)
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
        left_out = left_out.union(*doomed.values())


def _check_functions(plan: Plan, tamper: Mapping[ClientId, Tamper] | None, *others: object) -> None:
    for client, change in keyed("tamper", {} if tamper is None else tamper, object, plan.identities).items():
        function(f"tamper[{client}]", change)
    for name, other in zip(("on_stage", "on_answer", "entropy", "noise"), others, strict=True):
        if other is not None:
            function(name, other)


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
    agreement: Agreement,
    inputs: Inputs,
    *,
    round: int | None = None,
    cell: int = 0,
    context: bytes = b"",
    drop: Drop | None = None,
    misbehave: Mapping[ClientId, Misbehaviour] | None = None,
    exclude: Collection[ClientId] = (),
    noise: NoiseOf | None = None,
) -> Result:
    """The sums that `run` would give with the same noise, bit for bit: the same encoding and audit, no cryptography.

    The same clients are blamed and in dispute, so that whoever leaves them out later gets the same sums again.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=4, size=4, length=2, bound=9, groups="survivors")
    >>> clear(agreement, {v: [v, 1] for v in range(4)}, drop={3: Stage.INPUTS}).sum()
    array([3, 3])
    """
    plan = _plan(agreement, round, cell, context)
    _check_functions(plan, None, None, None, None, noise)
    left_out = frozenset(ids("exclude", exclude, plan.identities))
    _check_inputs(plan, inputs, drop, left_out)
    misbehave = keyed("misbehave", {} if misbehave is None else misbehave, Misbehaviour, plan.identities)
    misbehave = {v: kind for v, kind in misbehave.items() if v not in left_out}
    stops = _earlier(drop, dict.fromkeys(left_out, Stage.KEYS))
    quiet = {v: kind for v, kind in misbehave.items() if kind.unusable_from <= Stage.INPUTS}
    drop = _earlier(stops, {v: kind.unusable_from for v, kind in quiet.items()})
    alive, dropouts = _clear_survivors(plan, drop)
    dropouts |= {v: Dropout(Stage.KEYS, "left out by the application") for v in left_out}
    verdict = plan.audit(alive)
    totals: dict[GroupId, Ring32] = {}
    for client in alive:
        encoded, _ = plan.encoding.encode(inputs[client], weight=plan.relative_weight(client))
        NoiseSource(noise(client, plan.round) if noise else os.urandom, None).add_to(plan.encoding, encoded)
        for group in plan.groups_of[client]:
            if group in totals:
                totals[group] += encoded
            elif group in verdict.opened:
                totals[group] = encoded.copy()
    dealers = {v for v, kind in misbehave.items() if kind is Misbehaviour.BROKEN_BOXES}
    broken = {v for v in dealers if drop.get(v, Stage.DONE) in (Stage.CONSISTENCY, Stage.UNMASKING)}
    present, opened = frozenset(alive), sorted(verdict.opened)
    broken |= _without_shares(plan, misbehave, drop) - dealers
    lost = {g: "a client in it vanished, its shares are useless" for g in opened if broken.intersection(plan.group(g))}
    members = {g: tuple(v for v in plan.group(g) if v in present) for g in opened}
    blamed, disputes = _clear_blame(plan, misbehave, stops)
    return Result(
        plan=plan,
        survivors=tuple(alive),
        groups={g: GroupSum(totals[g], members[g]) for g in opened if g not in lost},
        closed=verdict.closed,
        lost=lost,
        dropouts=dropouts,
        blamed=blamed,
        disputes=disputes,
        verdict=verdict,
    )


def _without_shares(plan: Plan, misbehave: Mapping[ClientId, Misbehaviour], drop: Drop) -> set[ClientId]:
    """The clients that vanished after they dealt shares, if fewer than t clients give good ones."""
    liars = {v for v, kind in misbehave.items() if kind is Misbehaviour.WRONG_SHARES}
    good = {v for v in plan.ids if drop.get(v, Stage.DONE) > Stage.UNMASKING} - liars
    vanished = {v for v, stage in drop.items() if stage in (Stage.INPUTS, Stage.CONSISTENCY, Stage.UNMASKING)}
    return {v for v in vanished if len(good.intersection(plan.peers(v))) < plan.t}


def _clear_blame(
    plan: Plan, misbehave: Mapping[ClientId, Misbehaviour], stops: Drop
) -> tuple[dict[ClientId, str], tuple[tuple[ClientId, ClientId], ...]]:
    """Who would be blamed, and who would be in dispute with whom."""
    signed = {v for v in plan.ids if stops.get(v, Stage.DONE) > Stage.INPUTS}
    signed -= {v for v, kind in misbehave.items() if kind.unusable_from <= Stage.INPUTS}
    may_cheat, blamed, disputes = max(plan.assumed_colluders, plan.holders - plan.t), dict[ClientId, str](), []
    for client, kind in sorted(misbehave.items()):
        if client in signed and kind is Misbehaviour.BROKEN_BOXES:
            peers = signed.intersection(plan.peers(client)) - {client}
            disputes += [(client, peer) for peer in peers]
            if len(peers) > may_cheat:
                blamed[client] = f"{len(peers)} peers hold no good share from it"
        if kind is Misbehaviour.WRONG_SHARES and stops.get(client, Stage.DONE) > Stage.UNMASKING:
            blamed[client] = f"client {client} gave wrong shares"
    return blamed, tuple(sorted(disputes))


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
