"""A server that lies, driven through the real client app: it gets refusals, and no second opening."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fl.flower import envelope
from fl.flower.enrolment import Enrolment
from fl.flower.envelope import Envelope
from fl.training.randomness import context
from secagg.exposure.schedules import Schedule
from secagg.protocol.messages import Survivors
from secagg.protocol.plan import Plan
from secagg.protocol.server import Server
from secagg.protocol.wire import encode
from tests.flower.grid import InProcessGrid
from tests.flower.runs import NODES, enrolled, small

LENGTH = 650  # of the linear model on digits
MODEL = np.zeros(LENGTH, dtype="<f4").tobytes()
MODEL_HASH = hashlib.sha256(MODEL).digest()


class Liar:
    """A server that speaks to every node by hand."""

    def __init__(self, tmp_path: Path) -> None:
        self.enrolment: Enrolment
        self.enrolment, self.folders = enrolled(small(rounds=2), tmp_path)
        self.grid = InProcessGrid(self.folders)

    def ask(self, client: int, action: str, parts: dict[str, bytes], round: int = 0) -> Envelope:
        node = self.grid.node_of(client)
        message = Message(envelope.pack(Envelope(round, parts)), node, f"query.{action}")
        (number,) = self.grid.push_messages([message])
        (reply,) = self.grid.pull_messages([number])
        return envelope.unpack(reply.content)

    def plan(self, **changes: Any) -> Plan:
        bound = context(self.enrolment.experiment, MODEL_HASH)
        plan = self.enrolment.plan_of(0, 0, LENGTH, bound)
        assert plan is not None
        return replace(plan, **changes)

    def dealt(self, plan: Plan) -> tuple[Server, dict[int, Envelope]]:
        server = Server(plan)
        for client in range(NODES):
            server.receive(client, self.ask(client, "hello", {}).parts["advert"])
        outbox = server.advance()
        parts = {c: {"message": encode(outbox[c]), "model-hash": MODEL_HASH} for c in outbox}
        return server, {client: self.ask(client, "deal", part) for client, part in parts.items()}

    def masked(self) -> Server:
        server, answers = self.dealt(self.plan())
        for client, answer in answers.items():
            server.receive(client, answer.parts["message"])
        outbox = server.advance()
        for client in outbox:
            answer = self.ask(client, "mask", {"message": encode(outbox[client]), "model": MODEL})
            assert not answer.refused
            server.receive(client, answer.parts["message"])
        return server


@pytest.fixture
def liar(tmp_path: Path) -> Liar:
    return Liar(tmp_path)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"threshold": 5, "colluders": 1}, "threshold"),
        ({"threshold": 8}, "threshold"),
        ({"colluders": 1}, "colluders"),
        ({"schedule": Schedule(name="random", size=2)}, "schedule"),
        ({"schedule": Schedule(name="random", size=4, groupings=2)}, "schedule"),
        ({"training_seed": b"s" * 32}, "training_seed"),
        ({"training_id": b"t" * 32}, "training_id"),
        ({"clip": 1.0}, "clip"),
        ({"weights": (1, 2, 3, 4, 5, 6, 7, 8)}, "weights"),
        ({"round": 1}, "round"),
        ({"context": b"another model"}, "context"),
    ],
)
def test_a_plan_that_was_not_enrolled_is_refused(liar: Liar, change: dict[str, Any], word: str) -> None:
    if "schedule" in change and change["schedule"].size == 2:
        change = {**change, "policy": replace(liar.plan().policy, anonymity=2)}
    adverts = [liar.ask(client, "hello", {}).parts["advert"] for client in range(NODES)]
    server = Server(liar.plan())
    for client, advert in enumerate(adverts):
        server.receive(client, advert)
    key_list = server.advance()[0]
    forged = replace(key_list, plan=liar.plan(**change).to_bytes())  # type: ignore[call-arg]
    answer = liar.ask(0, "deal", {"message": encode(forged), "model-hash": MODEL_HASH})
    assert "plan refused" in answer.refused
    assert word in answer.refused
    assert not answer.parts


def test_one_client_is_not_given_another_model_than_the_others(liar: Liar) -> None:
    server, answers = liar.dealt(liar.plan())
    for client, answer in answers.items():
        server.receive(client, answer.parts["message"])
    other = np.ones(LENGTH, dtype="<f4").tobytes()
    answer = liar.ask(0, "mask", {"message": encode(server.advance()[0]), "model": other})
    assert "not the model" in answer.refused
    assert not answer.parts


def test_a_model_of_another_length_is_refused_where_the_node_trains(tmp_path: Path) -> None:
    liar = Liar(tmp_path)
    model = np.zeros(12, dtype="<f4").tobytes()
    model_hash = hashlib.sha256(model).digest()
    plan = liar.enrolment.plan_of(0, 0, 12, context(liar.enrolment.experiment, model_hash))
    assert plan is not None
    server = Server(plan)
    for client in range(NODES):
        server.receive(client, liar.ask(client, "hello", {}).parts["advert"])
    outbox = server.advance()
    for client in outbox:
        parts = {"message": encode(outbox[client]), "model-hash": model_hash}
        server.receive(client, liar.ask(client, "deal", parts).parts["message"])
    answer = liar.ask(0, "mask", {"message": encode(server.advance()[0]), "model": model})
    assert "parameters" in answer.refused
    assert not answer.parts


def test_both_kinds_of_share_are_never_given(liar: Liar) -> None:
    """U3 without a client asks for its mask key, U3 with it for its seeds: one or the other, never both."""
    server = liar.masked()
    honest = server.advance()[0]
    assert isinstance(honest, Survivors)
    without = Survivors(honest.members[:-1], honest.rows)
    answers = [liar.ask(client, "sign", {"message": encode(honest)}) for client in range(NODES)]
    again = [liar.ask(client, "sign", {"message": encode(without)}) for client in range(NODES - 1)]
    assert not any(answer.refused for answer in answers)
    assert all(answer.refused and not answer.parts for answer in again)


def test_fewer_signatures_than_the_threshold_open_nothing(liar: Liar) -> None:
    server = liar.masked()
    outbox = server.advance()
    for client in outbox:
        server.receive(client, liar.ask(client, "sign", {"message": encode(outbox[client])}).parts["message"])
    signatures = server.advance()[0]
    few = replace(signatures, endorsements=signatures.endorsements[:4])  # type: ignore[call-arg, union-attr]
    answer = liar.ask(0, "unmask", {"message": encode(few)})
    assert "threshold" in answer.refused
    assert not answer.parts


def test_two_handlers_from_the_same_state_cannot_both_answer(liar: Liar) -> None:
    server, answers = liar.dealt(liar.plan())
    for client, answer in answers.items():
        server.receive(client, answer.parts["message"])
    outbox = server.advance()
    node = liar.grid.node_of(0)
    held = dict(liar.grid.contexts[node].state.items())
    parts = {"message": encode(outbox[0]), "model": MODEL}
    first = liar.ask(0, "mask", parts)
    liar.grid.contexts[node].state = RecordDict(held)  # what a second process would have been given
    second = liar.ask(0, "mask", parts)
    assert not first.refused
    assert "already taken" in second.refused
    assert not second.parts


def test_a_state_that_was_tampered_with_is_not_used(liar: Liar) -> None:
    liar.ask(0, "hello", {})
    liar.ask(1, "hello", {})
    mine, other = (liar.grid.contexts[liar.grid.node_of(client)].state for client in (0, 1))
    mine["share"] = other["share"]
    answer = liar.ask(0, "deal", {"message": b"", "model-hash": MODEL_HASH})
    assert answer.refused
    assert not answer.parts


def test_an_update_is_opened_once_even_if_the_round_is_run_again(liar: Liar) -> None:
    """After the signatures, another run of the same round finds nobody who signs."""
    server = liar.masked()
    outbox = server.advance()
    for client in outbox:
        assert not liar.ask(client, "sign", {"message": encode(outbox[client])}).refused
    again = liar.masked()  # fresh keys, the same plan: dealing and masking are allowed
    outbox = again.advance()
    answers = [liar.ask(client, "sign", {"message": encode(outbox[client])}) for client in outbox]
    assert all("opened before" in answer.refused for answer in answers)


@pytest.mark.parametrize("action", ["deal", "mask", "sign", "unmask"])
def test_garbage_is_refused_in_words(liar: Liar, action: str) -> None:
    liar.ask(0, "hello", {})
    for parts in ({}, {"message": b"\x00" * 40}, {"message": b"x", "model-hash": b"y", "model": b"z"}):
        answer = liar.ask(0, action, parts)
        assert answer.refused
        assert not answer.parts
        assert "Traceback" not in answer.refused


def test_simulated_faults_need_the_nodes_own_consent(tmp_path: Path) -> None:
    enrolment, folders = enrolled(small(byzantine=1, attack={"protocol": "garbage"}), tmp_path)
    grid = InProcessGrid(folders, simulate=False)
    message = Message(envelope.pack(Envelope(0)), grid.node_of(0), "query.hello")
    (number,) = grid.push_messages([message])
    (reply,) = grid.pull_messages([number])
    assert "not set up" in envelope.unpack(reply.content).refused
    assert enrolment.experiment.byzantine == 1


def test_what_is_kept_between_messages_tells_nothing(liar: Liar) -> None:
    """The context holds ciphertext: no key, no seed, and nothing of another size for another secret."""
    liar.dealt(liar.plan())
    for client in range(NODES):
        state = liar.grid.contexts[liar.grid.node_of(client)].state["share"]
        kept = b"".join(value for value in state.values() if isinstance(value, bytes))
        assert b"secagg client" not in kept
        assert liar.enrolment.members[client].identity not in kept
        key = bytes.fromhex((liar.folders[client] / "identity.key").read_text())
        assert key not in kept


@pytest.mark.parametrize("round", [2, 10**12, 2**63 - 1])
def test_there_are_no_rounds_but_the_enrolled_ones(liar: Liar, round: int) -> None:
    """A server that may name any round would look for one whose clusters suit it."""
    answer = liar.ask(0, "hello", {}, round)
    assert "advert" not in answer.parts
    assert liar.enrolment.plan_of(0, round) is None
    for action in ("deal", "mask", "sign", "unmask"):
        refused = liar.ask(0, action, {"message": b"x", "model-hash": MODEL_HASH, "model": MODEL}, round)
        assert refused.refused
        assert not refused.parts


def test_the_number_of_rounds_is_agreed_on(liar: Liar) -> None:
    longer = replace(liar.enrolment, experiment=liar.enrolment.experiment.replace(rounds=3))
    assert longer.training_id != liar.enrolment.training_id


def test_a_refused_request_is_not_tried_again_with_a_better_lie(liar: Liar) -> None:
    server = liar.masked()
    honest = server.advance()[0]
    assert isinstance(honest, Survivors)
    lie = Survivors(honest.members[:-4], honest.rows)
    assert liar.ask(0, "sign", {"message": encode(lie)}).refused
    assert "no keys" in liar.ask(0, "sign", {"message": encode(honest)}).refused


def test_a_refusal_tells_nothing_of_the_nodes_own_files(tmp_path: Path) -> None:
    _, folders = enrolled(small(), tmp_path)
    (folders[0] / "identity.key").chmod(0o644)
    grid = InProcessGrid(folders)
    message = Message(envelope.pack(Envelope(0)), grid.node_of(0), "query.hello")
    (number,) = grid.push_messages([message])
    (reply,) = grid.pull_messages([number])
    told = envelope.unpack(reply.content).refused
    assert told
    assert str(tmp_path) not in told
    assert "identity" not in told
