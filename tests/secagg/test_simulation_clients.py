"""Clients here and in forked processes: what crosses the pipe, and how often."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg import Client, MemoryJournal, Plan, Schedule, Server, Stage
from secagg.protocol import NoCache, wire
from secagg.protocol.messages import MaskedInput
from secagg.simulation import clients
from secagg.simulation.clients import ForkedClients, InProcessClients, Scenario, start_clients
from tests.secagg.cluster import agreement_of, identities_of, make_agreement, make_inputs, make_plan, run_plan
from tests.secagg.drbg import Drbg

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def make_scenario(plan: Plan, **changes: Any) -> Scenario:
    identities, agreement = identities_of(plan), agreement_of(plan)

    def make(v: int) -> Client:
        journal = MemoryJournal()
        return Client(v, identities[v], agreement, plan.round, journal, entropy=Drbg(b"%d" % v), threads=1)

    return Scenario(plan, make, make_inputs(plan), {}, **changes)


def hellos(clients: InProcessClients | ForkedClients, plan: Plan) -> dict[int, Any]:
    return {answer.client: answer for answer in clients.answers(Stage.KEYS, ((v, None) for v in plan.ids))}


def test_one_process_is_the_callers() -> None:
    assert isinstance(start_clients(make_scenario(make_plan(3, colluders=0)), 1), InProcessClients)


def test_without_fork_everything_runs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork", raising=False)
    assert isinstance(start_clients(make_scenario(make_plan(3, colluders=0)), 4), InProcessClients)


@needs_fork
def test_every_client_answers_once_and_as_in_one_process() -> None:
    plan = make_plan(7)
    here, there = InProcessClients(make_scenario(plan)), ForkedClients(make_scenario(plan), 3)
    try:
        mine, theirs = hellos(here, plan), hellos(there, plan)
    finally:
        there.close()
    assert list(mine) == list(plan.ids)
    assert sorted(theirs) == sorted(plan.ids)
    for v in plan.ids:
        assert mine[v].reply == theirs[v].reply
        assert mine[v].sent == theirs[v].sent == len(wire.encode(mine[v].reply))
        assert mine[v].received == theirs[v].received == 0
        assert theirs[v].seconds > 0


@needs_fork
def test_a_client_stays_in_its_process_with_its_state() -> None:
    plan = make_plan(5)
    clients, server = ForkedClients(make_scenario(plan), 2), Server(plan)
    try:
        for v, answer in hellos(clients, plan).items():
            server.receive(v, answer.reply)
        outbox = server.advance()
        for answer in clients.answers(Stage.SHARES, iter(outbox.items())):
            assert server.receive(answer.client, answer.reply) is None
            assert answer.received == len(wire.encode(outbox[answer.client]))
        assert server.waiting_for() == ()
    finally:
        clients.close()


@needs_fork
def test_a_message_to_all_is_decoded_once_per_process_and_a_private_one_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan, processes, mine = make_plan(6), 2, os.getpid()
    decode = wire.decode

    def noting(data: Any) -> Any:
        message = decode(data)
        if os.getpid() != mine:
            with (tmp_path / "decoded").open("a") as notes:
                notes.write(f"{type(message).__name__}\n")
        return message

    monkeypatch.setattr(clients.wire, "decode", noting)
    run_plan(plan, make_inputs(plan), processes=processes)
    counted = Counter((tmp_path / "decoded").read_text().split())
    assert counted == {"KeyList": processes, "Bundle": 6, "Survivors": processes, "Signatures": processes}


def test_masked_vectors_are_written_to_the_given_memory() -> None:
    plan = make_plan(4)
    scenario, server = make_scenario(plan), Server(plan)
    clients = InProcessClients(scenario)
    for v, answer in hellos(clients, plan).items():
        server.receive(v, answer.reply)
    for answer in clients.answers(Stage.SHARES, iter(server.advance().items())):
        server.receive(answer.client, answer.reply)
    out = np.zeros((1, plan.length), np.uint32)
    bundle = server.advance()[0]
    reply = scenario.answer(clients._clients[0], Stage.INPUTS, bundle, out)
    assert isinstance(reply, MaskedInput)
    assert np.shares_memory(reply.vectors, out)
    assert out.any()


@needs_fork
def test_closing_twice_is_closing_once() -> None:
    clients = ForkedClients(make_scenario(make_plan(3, colluders=0)), 2)
    clients.close()
    clients.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@needs_fork
def test_a_failed_fork_ends_the_earlier_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, calls = os.fork, []

    def once() -> int:
        calls.append(1)
        if len(calls) > 1:
            raise OSError("no more processes")
        return fork()

    monkeypatch.setattr(os, "fork", once)
    with pytest.raises(OSError, match="no more processes"):
        ForkedClients(make_scenario(make_plan(4)), 3)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@needs_fork
def test_a_worker_does_not_overwrite_what_the_server_has_not_read() -> None:
    plan = make_plan(4)
    clients, server = ForkedClients(make_scenario(plan), 1), Server(plan)
    try:
        for v, answer in hellos(clients, plan).items():
            server.receive(v, answer.reply)
        for answer in clients.answers(Stage.SHARES, iter(server.advance().items())):
            server.receive(answer.client, answer.reply)
        answers = clients.answers(Stage.INPUTS, iter(server.advance().items()))
        for _ in range(3):
            first = next(answers).reply
            assert isinstance(first, MaskedInput)
            seen = first.vectors.copy()
            assert clients._workers[0].pipe.poll(30)  # by now the next client's vectors are made, too
            assert np.array_equal(first.vectors, seen)
    finally:
        clients.close()


def test_the_shared_cache_answers_as_if_there_were_none() -> None:
    one, other = make_agreement(6), make_agreement(6, name="another")
    shared, none = clients.SharedCache(), NoCache()
    for agreement, round, context in [(one, 0, b"a"), (one, 0, b"b"), (one, 1, b"b"), (other, 1, b"b"), (one, 0, b"a")]:
        first = agreement.terms.first_round
        where = (agreement, first + min(round, agreement.terms.last_round - first), 0, context)
        assert shared.plan(*where).hash == none.plan(*where).hash
    plan = make_plan(9, schedule=Schedule(name="random", size=3))
    for gone in plan.ids:
        survivors = tuple(v for v in plan.ids if v != gone)
        assert shared.verdict(plan, survivors) == none.verdict(plan, survivors)  # also who is exposed, and how much
