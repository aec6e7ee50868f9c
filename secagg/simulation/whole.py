"""Rounds of whole groups on this machine, with the same `Client` and `Server` that a distributed application uses.

Only one client's masked vectors are in memory at a time. `clear_whole` gives the same sums without cryptography, bit
for bit.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from secagg.agreement.agreement import Agreement
from secagg.arguments import each, function, has, ids, instance, keyed, raw, whole
from secagg.crypto.keys import Identity
from secagg.errors import LossWarning, SecAggError, UsageError
from secagg.protocol.noise import NoiseOf, NoiseSource
from secagg.protocol.result import NO_ANSWER, Stage
from secagg.simulation.cost import Cost
from secagg.simulation.misbehaviour import Misbehaviour
from secagg.simulation.whole_workers import Answered, Reply, Requests, Respond, forked, in_process
from secagg.types import ClientId, Entropy, GroupId, Ring32
from secagg.whole import encoding, flat, relations, transcript
from secagg.whole.client import Client
from secagg.whole.layout import layout
from secagg.whole.messages import Advert, Answer, Message, Round, decode, size
from secagg.whole.result import GroupSum, WholeResult
from secagg.whole.server import Server
from secagg.whole.store import MemoryStore, SlotStore, Store, enrol

Inputs = Mapping[ClientId, Any]
OnAnswer = Callable[[Stage, ClientId], None]


class WholeRun:
    """The clients and the server of an agreement, over several rounds.

    With `processes` > 1, the clients of each round answer in forked processes; a `store` of your own must then work
    between processes, as FileStore does. `store` keeps the slots, and spools if it has a place for them; the default
    keeps slots in memory. `earlier` are the agreements on the same data that this one names. `entropy` is for tests: it
    gives the source of random bytes of each client. `noise` gives the source of each client's noise in each round, so
    that a simulation can be repeated; by default it is fresh.

    >>> from secagg.simulation import WholeRun, make_agreement
    >>> agreement, identities = make_agreement(members=6, size=3, length=2, bound=9, rounds=2)
    >>> run = WholeRun(agreement, identities)
    >>> [len(run.round(t, {v: [v, t] for v in range(6)}).groups) for t in (0, 1)]
    [2, 2]
    """

    def __init__(
        self,
        agreement: Agreement,
        identities: Mapping[ClientId, Identity],
        *,
        processes: int = 1,
        store: Store | None = None,
        earlier: Sequence[Agreement] = (),
        entropy: Callable[[ClientId], Entropy] | None = None,
        noise: NoiseOf | None = None,
    ) -> None:
        identities = keyed("identities", identities, Identity)
        instance("agreement", agreement, Agreement)
        processes = whole("processes", processes, 1)
        for name, source in (("entropy", entropy), ("noise", noise)):
            if source is not None:
                function(name, source)
        if store is not None:
            has("store", store, "a Store", "look", "claim", "keep", "load")
        if processes > 1 and (entropy is not None or isinstance(store, MemoryStore)):
            raise UsageError("with several processes use a FileStore, and no entropy of your own")
        missing = set(agreement.terms.ids).difference(identities)
        if missing:
            raise UsageError(f"expected the identity of every member, got none for member {min(missing)}")
        self.agreement, self.server = agreement, Server(agreement)
        self._identities, self._entropy, self._earlier = identities, entropy, each("earlier", earlier, Agreement)
        self._noise = noise
        self._signatures = {v: agreement.sign(v, identities[v]) for v in agreement.terms.ids}
        self._store = store if store is not None else SlotStore()
        self._processes = processes if hasattr(os, "fork") else 1
        self._clients: dict[ClientId, Client] = {}

    def client(self, member: ClientId) -> Client:
        """A member's client; it lives as long as this run."""
        (member,) = ids("member", [member], self.agreement.terms.identities)
        if member not in self._clients:
            draw = self._entropy(member) if self._entropy else os.urandom
            identity = self._identities[member]
            threads = 1 if self._processes > 1 else None
            self._clients[member] = Client(
                self.agreement, self._signatures, member, identity, earlier=self._earlier, entropy=draw, threads=threads
            )
            enrol(self._clients[member], self._store)
        return self._clients[member]

    def round(
        self,
        round: int,
        inputs: Inputs,
        *,
        data: bytes = b"",
        context: bytes = b"",
        drop: Collection[ClientId] = (),
        misbehave: Mapping[ClientId, Misbehaviour] | None = None,
        cost: Cost | None = None,
        on_answer: OnAnswer | None = None,
    ) -> WholeResult:
        """One round. Clients in `drop` do not take part; those in `misbehave` send garbage or nothing.

        In a roll call, clients in `drop` are not present; those that misbehave are, and the sum is lost.
        """
        absent = check_members(self.agreement, drop, misbehave)
        raw("data", data), raw("context", context)
        if on_answer is not None:
            function("on_answer", on_answer)
        spent = instance("cost", Cost() if cost is None else cost, Cost)
        check_inputs(self.agreement, whole("round", round), inputs, absent, misbehave)
        spent.clients += len(layout(self.agreement, round).seats)
        self._advertise(round, drop if self.agreement.terms.roll_call else absent, cost)
        with spent.serving(Stage.INPUTS, time.thread_time):
            outbox = self.server.begin(round, data=data, context=context)
        asked = [(client, message) for client, message in outbox.items() if client not in absent]

        def respond(member: ClientId, message: Round, out: Ring32) -> Reply:
            if member in (misbehave or {}):
                return hashlib.shake_256(self.agreement.fingerprint + self._identities[member].public).digest(100)
            return self._respond(self.client(member), message, inputs[member], context, out)

        for answer in self._answers(asked, respond):
            if answer.reply is not None:
                count(cost, Stage.INPUTS, answer.seconds, answer.reply, answer.message)
                with spent.serving(Stage.INPUTS, time.thread_time):
                    self.server.receive(answer.client, answer.reply)
            if on_answer is not None:
                on_answer(Stage.INPUTS, answer.client)
            del answer  # free its vectors before the next client makes its own
        with spent.serving(Stage.INPUTS, time.perf_counter):
            return self.server.close()

    def evidence(self) -> bytes:
        """The evidence of the rounds so far (docs/evidence.md)."""
        return self.server.evidence(self._signatures)

    def _answers(self, asked: Requests, respond: Respond) -> Iterator[Answered]:
        shape = (self.agreement.terms.schedule.groupings, self.agreement.terms.length)
        if self._processes == 1 or len(asked) < 2:
            yield from in_process(asked, respond, shape)
            return
        for answer in forked(asked, respond, lambda member: self.client(member).save(), shape, self._processes):
            self._clients[answer.client] = Client.restore(
                answer.state, self.agreement, self._signatures, answer.client, self._identities[answer.client],
                earlier=self._earlier, threads=1,
            )  # fmt: skip
            yield answer

    def _respond(
        self, client: Client, message: Round, update: Any, context: bytes, out: Ring32 | None
    ) -> Answer | None:
        """A client's answer, stored; None if it refuses."""
        try:
            task = client.receive(message)
            if self._noise is not None:
                client._noise = NoiseSource(self._noise(client.me, message.round), client._threads)
            with quiet():
                pending = client.answer(task, update, context=context, out=out)  # type: ignore[arg-type]
            name = client.stored(self._store.keep(pending))
        except UsageError:
            raise
        except SecAggError:
            return None
        # audit: simulation-sends-stored-answer
        answer = pending.message if name == pending.name else decode(self._store.load(name))
        assert isinstance(answer, Answer)
        return answer

    def _advertise(self, round: int, absent: Collection[ClientId], cost: Cost | None) -> None:
        for member, hello in self.server.hello(round).items():
            if member in absent:
                continue
            start = time.process_time()
            advert = self.client(member).receive(hello)
            assert isinstance(advert, Advert)
            count(cost, Stage.KEYS, time.process_time() - start, advert, hello)
            with (cost or Cost()).serving(Stage.KEYS, time.thread_time):
                self.server.receive(member, advert)


def count(cost: Cost | None, stage: Stage, seconds: float, reply: bytes | Message, message: Message) -> None:
    """Count an exchange, if anybody wants to know: the sizes of many messages take time."""
    if cost is not None:
        sent = len(reply) if isinstance(reply, bytes) else size(reply)
        cost.answered(stage, seconds, up=sent, down=size(message))


@contextmanager
def quiet() -> Iterator[None]:
    """No LossWarning inside: a simulation would repeat it for every client and round."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossWarning)
        yield


def check_members(
    agreement: Agreement, drop: Collection[ClientId], misbehave: Mapping[ClientId, Misbehaviour] | None
) -> frozenset[ClientId]:
    """The clients that send nothing; UsageError for one that is no member or a misbehaviour that needs shares."""
    known = instance("agreement", agreement, Agreement).terms.identities
    silent = set(ids("drop", drop, known))
    for client, kind in keyed("misbehave", {} if misbehave is None else misbehave, Misbehaviour, known).items():
        if kind not in (Misbehaviour.SILENCE, Misbehaviour.GARBAGE):
            raise UsageError(f"client {client}: whole groups have no shares; expected silence or garbage, got {kind}")
        if kind is Misbehaviour.SILENCE:
            silent.add(client)
    return frozenset(silent)


def check_inputs(
    agreement: Agreement, round: int, inputs: Inputs, absent: Collection[ClientId], others: Collection[ClientId] | None
) -> None:
    """UsageError unless there is an update of every client that answers honestly."""
    if not isinstance(inputs, Mapping):
        raise UsageError(f"inputs: expected a dict of updates by client, got {type(inputs).__name__}")
    seats = layout(agreement, round).seats
    missing = [v for v in sorted(seats) if v not in inputs and v not in absent and v not in (others or ())]
    if missing:
        raise UsageError(f"inputs: expected an update of every client, got none of client {missing[0]}")


def run_whole(
    agreement: Agreement,
    round: int,
    inputs: Inputs,
    identities: Mapping[ClientId, Identity],
    *,
    data: bytes = b"",
    context: bytes = b"",
    drop: Collection[ClientId] = (),
    misbehave: Mapping[ClientId, Misbehaviour] | None = None,
    processes: int = 1,
    store: Store | None = None,
    cost: Cost | None = None,
    on_answer: OnAnswer | None = None,
    entropy: Callable[[ClientId], Entropy] | None = None,
    noise: NoiseOf | None = None,
) -> WholeResult:
    """One round with every member on this machine; `WholeRun` does several.

    >>> from secagg.simulation import make_agreement, run_whole
    >>> agreement, identities = make_agreement(members=6, size=3, length=2, bound=9)
    >>> result = run_whole(agreement, 0, {v: [v, 1] for v in range(6)}, identities)
    >>> sum(result.sum(group) for group in result.groups)
    array([15,  6])
    """
    run = WholeRun(agreement, identities, processes=processes, store=store, entropy=entropy, noise=noise)
    return run.round(
        round, inputs, data=data, context=context, drop=drop, misbehave=misbehave, cost=cost, on_answer=on_answer
    )


def clear_whole(
    agreement: Agreement,
    round: int,
    inputs: Inputs,
    drop: Collection[ClientId] = (),
    *,
    data: bytes = b"",
    context: bytes = b"",
    noise: NoiseOf | None = None,
) -> WholeResult:
    """The sums that `run_whole` would give, bit for bit (with the same noise), without cryptography.

    >>> from secagg.simulation import clear_whole, make_agreement
    >>> agreement, _ = make_agreement(members=6, size=3, length=2, bound=9)
    >>> len(clear_whole(agreement, 0, {v: [v, 1] for v in range(6)}, drop=[4]).groups)
    1
    """
    absent = check_members(agreement, drop, None)
    check_inputs(agreement, whole("round", round), inputs, absent, None)
    raw("data", data), raw("context", context)
    if noise is not None:
        function("noise", noise)
    terms, places = agreement.terms, layout(agreement, round)
    alive = [client for client in sorted(places.seats) if client not in absent]
    groups = {group: flat.summed(agreement, places, group, (), alive) for group in places.groups}
    too_few = flat.objection(terms, alive) if terms.roll_call else ""
    lost = dict.fromkeys(groups, too_few) if too_few else dict(_missing(groups, absent))
    totals: dict[GroupId, Ring32] = {}
    for client in alive:
        if all(group in lost for group in places.seats[client]):
            continue
        with quiet():
            encoded, _ = encoding.encode(terms, client, inputs[client])
            NoiseSource(noise(client, round) if noise else os.urandom, None).add_to(terms.encoding, encoded)
        for group in places.seats[client]:
            if group in totals:
                totals[group] += encoded
            elif group not in lost:
                totals[group] = encoded.copy()
    sums = {group: GroupSum(totals[group], groups[group]) for group in totals}
    opening = relations.open_sums(terms, sums, lost)
    return WholeResult(
        agreement=agreement,
        round=round,
        context=transcript.context_hash(data, context),
        groups=opening.groups,
        lost=opening.lost,
        answers=dict.fromkeys(alive, bytes(32)),
        dropouts={client: NO_ANSWER for client in sorted(places.seats) if client in absent},
        blamed={},
        inconsistent=opening.inconsistent,
        skipped=opening.skipped,
    )


def _missing(
    groups: Mapping[GroupId, tuple[ClientId, ...]], absent: Collection[ClientId]
) -> Iterator[tuple[GroupId, str]]:
    for group, members in groups.items():
        missing = [client for client in members if client in absent]
        if missing:
            yield group, "; ".join(f"client {client}: {NO_ANSWER}" for client in missing)
