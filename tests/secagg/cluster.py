"""Real Clients and a real Server, joined by a network that the test controls.

Everything travels as bytes and may be delivered, dropped, delayed, duplicated, reordered or corrupted, and
every machine may be saved and restored at any moment. Here everybody keeps to the protocol;
`malicious.py` is where the server does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg import (
    Agreement,
    Identity,
    Member,
    MemoryJournal,
    PeerError,
    Plan,
    Policy,
    Result,
    Schedule,
    SecAggError,
    Server,
    Stage,
    Terms,
)
from secagg.crypto import Segment
from secagg.exposure.audit import Verdict
from secagg.protocol import client as client_module
from secagg.protocol import client_checks, dealing, server
from secagg.protocol.cache import Agreed
from secagg.protocol.client import Client
from secagg.protocol.client_state import ClientMemory, State
from secagg.protocol.messages import ToClient, ToServer, Unmasking
from secagg.protocol.result import BROKEN_ATOM, TOO_LARGE
from secagg.protocol.wire import encode
from secagg.simulation import agree_on, clear, run
from secagg.simulation.clients import SharedCache
from tests.secagg.drbg import Drbg

Vector = npt.NDArray[np.int64]
LOOSE = Policy(min_survivors=2, anonymity=2, max_leverage=1.0, memory="round")


@cache
def identity(client_id: int) -> Identity:
    """The same identity for the same id in every test: this test is not about making one."""
    return Identity.generate(Drbg(b"identity %d" % client_id))


@cache
def signed(client_id: int, statement: bytes) -> bytes:
    """A signature that a test makes for a client, each once."""
    return identity(client_id).sign(statement)


def identities_of(plan: Plan) -> dict[int, Identity]:
    return {member.id: identity(member.id) for member in agreement_of(plan).terms.members}


class SmallGraphTerms(Terms):
    """Terms that allow sparse graphs of a few clients, which are too small to be safe."""

    def _check_sparse(self, cell: int) -> None:
        pass


class SmallGraphs(Agreement):
    """An agreement whose clients go on however many dropouts a sparse graph has."""

    sparse_risk = 1.0


def agreement_of(plan: Plan) -> Agreement:
    """The agreement that a plan of `plan_from` follows from."""
    agreement = plan.__dict__["agreement"]
    assert isinstance(agreement, Agreement)
    return agreement


def make_agreement(n: int, **changes: Any) -> Agreement:
    """An agreement of members 0..n-1 on one round: a flat sum of exact integers by default.

    `seed` gives the members' contributions, `length`, `clip` and `bound` the only segment, `weights` those of members.
    `last_round` adds rounds after `round`.
    """
    settings: dict[str, Any] = {
        "name": "training",
        "round": 5,
        "length": 3,
        "schedule": Schedule(name="random", size=n),
        "seed": b"seed",
        "bound": None if changes.get("clip") else 10**6,
        "clip": None,
        "segments": (),
        "weights": (1,) * n,
        "policy": LOOSE,
        "sparse_risk": 1.0,
    }
    settings |= changes
    take = settings.pop
    round, weights, length, clip, bound = (take(name) for name in ("round", "weights", "length", "clip", "bound"))
    segments = take("segments") or (Segment(shape=(length,), clip=clip, bound=bound),)
    members = tuple(Member(v, identity(v).public, weight=weights[v]) for v in range(n))
    return _agreed(members=members, segments=segments, first_round=round, **{"last_round": round, **settings})


@lru_cache(maxsize=512)
def _agreed(*, seed: bytes, sparse_risk: float, **settings: Any) -> Agreement:
    terms = SmallGraphTerms(groups="survivors", **settings)
    made = agree_on(terms, {member.id: identity(member.id) for member in terms.members}, Drbg(seed))
    if not terms.degree or sparse_risk == Agreement.sparse_risk:
        return made
    kind = type("Sparse", (SmallGraphs,), {"sparse_risk": sparse_risk})
    return kind(terms=terms, origin=made.origin)


def plan_from(agreement: Agreement, context: bytes = b"", later: int = 0) -> Plan:
    """The plan of an agreement's first round, or of a later one; `agreement_of` finds the agreement again."""
    plan = agreement.plan(agreement.terms.first_round + later, 0, context)
    plan.__dict__["agreement"] = agreement
    return plan


def make_plan(n: int, *, context: bytes = b"", **changes: Any) -> Plan:
    """The plan of the first round of `make_agreement`."""
    return plan_from(make_agreement(n, **changes), context)


def run_plan(plan: Plan, inputs: Mapping[int, Any], **options: Any) -> Result:
    """`run` of the agreement, round and context of this plan, with the tests' identities."""
    agreement = agreement_of(plan)
    return run(agreement, inputs, identities_of(plan), round=plan.round, context=plan.context, **options)


def sends_other_vectors(monkeypatch: pytest.MonkeyPatch, who: int, change: Callable[[Any], Any]) -> None:
    """Make one client sign and send other masked vectors than the protocol wants, from here on."""
    honest = client_module.masked_vectors

    def lie(plan: Plan, memory: ClientMemory, *rest: Any, **options: Any) -> Any:
        vectors = honest(plan, memory, *rest, **options)
        if memory.me == who:
            vectors[:] = change(vectors)
        return vectors

    monkeypatch.setattr(client_module, "masked_vectors", lie)


def clear_plan(plan: Plan, inputs: Mapping[int, Any], **options: Any) -> Result:
    """`clear` of the agreement, round and context of this plan."""
    return clear(agreement_of(plan), inputs, round=plan.round, context=plan.context, **options)


def make_inputs(plan: Plan, seed: int = 0) -> dict[int, Vector]:
    """Vectors in which one can see every client's part of a sum: 1000 * id + small noise."""
    rng = np.random.default_rng(seed)
    return {v: 1000 * (v + 1) + rng.integers(0, 100, plan.length) for v in plan.ids}


def expected_rows(
    plan: Plan, inputs: Mapping[int, Vector], survivors: Collection[int]
) -> dict[tuple[int, int], list[int]]:
    """The plain sums of every group over the survivors."""
    rows = {}
    for r, grouping in enumerate(plan.groupings):
        for g, group in enumerate(grouping):
            alive = [inputs[v] for v in group if v in set(survivors)]
            rows[r, g] = np.sum(alive, axis=0).tolist() if alive else [0] * plan.length
    return rows


@contextmanager
def remembered_signatures() -> Iterator[None]:
    """Each (key, signature, statement) is verified once. Same answers, a fraction of the time."""
    modules = (client_checks, dealing, server)
    originals = [module.verify for module in modules]
    known: dict[tuple[bytes, bytes, bytes], str | None] = {}

    def remembering(verify: Callable[..., None]) -> Callable[..., None]:
        def check(public: bytes, signature: bytes, message: bytes, *, signer: int) -> None:
            key = (public, bytes(signature), message)
            if key not in known:
                try:
                    verify(public, signature, message, signer=signer)
                    known[key] = None
                except PeerError as bad:
                    known[key] = str(bad)
            refused = known[key]
            if refused is not None:
                raise PeerError(refused, culprit=signer)

        return check

    for module, original in zip(modules, originals, strict=True):
        module.verify = remembering(original)
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            module.verify = original


def copied(journal: MemoryJournal) -> MemoryJournal:
    """A journal with the same records: the disk as it was, for a test that tries several futures."""
    twin = MemoryJournal()
    twin._records = dict(journal._records)
    return twin


class WideCache(SharedCache):
    """Remembers every plan and verdict, where `SharedCache` remembers only the last."""

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[tuple[bytes, int, int, bytes], Plan] = {}
        self._verdicts: dict[tuple[bytes, tuple[int, ...]], Verdict] = {}

    def plan(self, agreed: Agreed, round: int, cell: int, context: bytes) -> Plan:
        key = (agreed.fingerprint, round, cell, context)
        if key not in self._plans:
            self._plans[key] = agreed.plan(round, cell, context)
        return self._plans[key]

    def verdict(self, plan: Plan, survivors: tuple[int, ...]) -> Verdict:
        if (plan.hash, survivors) not in self._verdicts:
            self._verdicts[plan.hash, survivors] = super().verdict(plan, survivors)
        return self._verdicts[plan.hash, survivors]


@dataclass(slots=True)
class Envelope:
    """One message under way, as bytes. `client` is its receiver, or its sender if it is `up`."""

    up: bool
    client: int
    data: bytes
    touched: bool = False  # whether the network changed it


Cheat = Callable[["Cluster", int, ToServer], list[bytes]]  # what a cheater sends instead of its message


class Cluster:
    """All clients of a plan and its server, with the messages between them in the test's hands."""

    def __init__(
        self,
        plan: Plan,
        inputs: Mapping[int, Vector],
        *,
        seed: bytes = b"",
        agreed: Agreement | None = None,
        contexts: Mapping[int, bytes] | None = None,
        journals: Mapping[int, MemoryJournal] | None = None,
        cheats: Mapping[int, Cheat] | None = None,
        cache: SharedCache | None = None,
    ) -> None:
        self.plan, self.inputs, self.seed = plan, dict(inputs), seed
        self.agreed = agreed or agreement_of(plan)
        self.contexts, self.cheats = contexts or {}, cheats or {}
        self.journals = dict(journals) if journals else {v: MemoryJournal() for v in plan.ids}
        self.server_journal = MemoryJournal()
        self.server = Server(plan, self.server_journal)
        self._restored = 0
        self.clients = {
            v: Client(
                v,
                identity(v),
                self.agreed,
                plan.round,
                self.journals[v],
                entropy=Drbg(seed + b"client %d" % v),
                cache=cache,
            )
            for v in plan.ids
        }
        self.flying: list[Envelope] = []
        self.sent: dict[int, list[ToServer]] = {v: [] for v in plan.ids}
        self.errors: dict[int, SecAggError] = {}

    # every client's part

    def hello(self, client_id: int) -> None:
        self._up(client_id, self.clients[client_id].hello())

    def _up(self, client_id: int, message: ToServer) -> None:
        if client_id in self.cheats:
            letters = self.cheats[client_id](self, client_id, message)
            self.flying.extend(Envelope(True, client_id, data) for data in letters)
            return
        self.sent[client_id].append(message)
        self.flying.append(Envelope(True, client_id, encode(message)))

    def give(self, client_id: int, data: bytes) -> None:
        """One message to a client; what it answers flies back, what it refuses is noted."""
        machine = self.clients[client_id]
        try:
            reply = machine.receive(
                data,
                update=self.inputs[client_id] if machine.state is State.DEALT else None,
                context=self.contexts.get(client_id, self.plan.context),
            )
        except SecAggError as refusal:
            self.errors.setdefault(client_id, refusal)
            return
        self._up(client_id, reply)

    # the network's part

    def deliver(self, place: int = 0) -> None:
        letter = self.flying.pop(place)
        if letter.up:
            self.server.receive(letter.client, letter.data)
        else:
            self.give(letter.client, letter.data)

    def drop(self, place: int) -> None:
        self.flying.pop(place)

    def delay(self, place: int) -> None:
        self.flying.append(self.flying.pop(place))

    def duplicate(self, place: int) -> None:
        letter = self.flying[place]
        self.flying.append(Envelope(letter.up, letter.client, letter.data, letter.touched))

    def corrupt(self, place: int, change: Callable[[bytes], bytes]) -> None:
        letter = self.flying[place]
        changed = change(letter.data)
        letter.touched |= changed != letter.data
        letter.data = changed

    def deliver_all(self) -> None:
        while self.flying:
            self.deliver()

    # the server's part

    def advance(self) -> None:
        """Close the server's stage and put its messages into the network."""
        self._down(self.server.advance())

    def send_again(self) -> None:
        """What the server's clients have not answered yet, once more."""
        self._down(self.server.outbox())

    def _down(self, outbox: Mapping[int, ToClient]) -> None:
        self.flying.extend(Envelope(False, v, encode(outbox[v])) for v in outbox)

    def finish(self) -> Any:
        """Lockstep to the end from wherever the run is."""
        while self.server.stage < Stage.DONE:
            self.deliver_all()
            self.advance()
        return self.server.result()

    def start(self, absent: Collection[int] = ()) -> Cluster:
        for v in self.plan.ids:
            if v not in absent:
                self.hello(v)
        return self

    # storage

    def save_and_restore_client(self, client_id: int) -> None:
        machine = self.clients[client_id]
        if machine.state in (State.FAILED, State.DONE):
            return
        self._restored += 1
        self.clients[client_id] = Client.restore(
            machine.save(),
            identity(client_id),
            self.agreed,
            self.journals[client_id],
            entropy=Drbg(self.seed + b"restored %d" % self._restored),
        )

    def save_and_restore_server(self) -> None:
        if self.server.stage < Stage.DONE:
            self.server = Server.restore(self.server.save(), self.server_journal, plan=self.plan)


def both_kinds(sent: Iterable[ToServer]) -> set[int]:
    """The peers of whom one client gave both kinds of share, over everything that it ever sent."""
    seeds: set[int] = set()
    keys: set[int] = set()
    for message in sent:
        if isinstance(message, Unmasking):
            seeds |= set(message.seed_owners)
            keys |= set(message.key_owners)
    return seeds & keys


def check_outcome(
    cluster: Cluster,
    result: Result,
    *,
    cheaters: Collection[int] = (),
    absent: Collection[int] = (),
    liars: Collection[int] = (),
    spoilers: Collection[int] = (),
) -> None:
    """What must hold of every result with any cheaters: exact or not returned, and no honest client blamed.

    `liars` did not follow stage 2, `spoilers` dealt shares that do not fit together; both are cheaters.
    """
    plan, survivors = cluster.plan, set(result.survivors)
    assert not set(result.blamed) - set(cheaters)
    weak = {v for v, out in result.dropouts.items() if out.reason == BROKEN_ATOM}
    assert not set(result.dropouts) - set(cheaters) - set(absent) - weak
    assert not set(cluster.errors) - set(cheaters)
    assert set(plan.ids) - set(cheaters) - set(absent) - weak <= survivors
    assert result.groups.keys() | result.lost.keys() == result.verdict.opened
    assert not result.groups.keys() & result.lost.keys()
    for row, opened in result.groups.items():
        members = [v for v in plan.group(row) if v in survivors]
        assert opened.members == tuple(members)
        if not set(members) & set(liars):
            assert opened.total.tolist() == encoded_sum(plan, cluster.inputs, members)
    for row, reason in result.lost.items():  # a wrong secret must not reach a sum: it would be out of range
        assert reason != TOO_LARGE or set(plan.group(row)) & set(liars)
    helpers = survivors - set(cheaters) - set(absent)
    for row in result.lost if len(helpers) >= plan.t else ():
        assert set(plan.group(row)) & {*spoilers, *liars}


def encoded_sum(plan: Plan, inputs: Mapping[int, Any], members: Iterable[int]) -> list[int]:
    """The sum in the ring of what these clients encode: the truth that a group is compared with."""
    total = np.zeros(plan.length, np.uint32)
    for v in members:
        total += plan.encoding.encode(inputs[v], weight=plan.relative_weight(v))[0]
    return [int(x) for x in total]
