"""A lying server against the real client app: it gets refusals, and never a second opening."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fl.errors import ConfigError
from fl.flower import envelope
from fl.flower.envelope import Envelope
from fl.flower.training import Training
from fl.secure.layout import segments_of
from fl.training.randomness import context
from secagg.agreement.plan import Plan
from secagg.exposure.schedules import Schedule
from secagg.protocol.messages import Survivors
from secagg.protocol.server import Server
from secagg.protocol.wire import encode
from tests.flower.grid import InProcessGrid
from tests.flower.runs import NODES, agreed, small

LENGTH = 650  # of the linear model on digits
MODEL = np.zeros(LENGTH, dtype="<f4").tobytes()
MODEL_HASH = hashlib.sha256(MODEL).digest()


class Liar:
    """A server that a test drives message by message."""

    def __init__(self, tmp_path: Path) -> None:
        self.training: Training
        self.training, self.folders = agreed(small(rounds=2), tmp_path)
        self.grid = InProcessGrid(self.folders)

    def ask(self, client: int, action: str, parts: dict[str, bytes], round: int = 0) -> Envelope:
        node = self.grid.node_of(client)
        parts = {"fingerprint": self.training.fingerprint, **parts}
        message = Message(envelope.pack(Envelope(round, parts)), node, f"query.{action}")
        (number,) = self.grid.push_messages([message])
        (reply,) = self.grid.pull_messages([number])
        return envelope.unpack(reply.content)

    def plan(self, **changes: Any) -> Plan:
        bound = context(self.training.experiment, MODEL_HASH)
        return replace(self.training.agreement.plan(0, 0, bound), **changes)

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
        ({"threshold": 5, "colluders": 1}, "thresholds"),
        ({"threshold": 8}, "thresholds"),
        ({"colluders": 1}, "thresholds"),
        ({"schedule": Schedule(name="random", size=2)}, "schedule"),
        ({"schedule": Schedule(name="random", size=4, groupings=2)}, "schedule"),
        ({"training_seed": b"s" * 32}, "seed"),
        ({"training_id": b"t" * 32}, "agreement"),
        ({"segments": segments_of(LENGTH, 1.0, 4)}, "vector"),
        ({"weights": (1, 2, 3, 4, 5, 6, 7, 8)}, "weights"),
        ({"round": 1}, "round"),
        ({"context": b"another model"}, "context"),
    ],
)
def test_a_plan_that_was_not_agreed_is_refused(liar: Liar, change: dict[str, Any], word: str) -> None:
    if "schedule" in change and change["schedule"].size == 2:
        change = {**change, "policy": replace(liar.plan().policy, anonymity=2)}
    adverts = [liar.ask(client, "hello", {}).parts["advert"] for client in range(NODES)]
    server = Server(liar.plan())
    for client, advert in enumerate(adverts):
        server.receive(client, advert)
    key_list = server.advance()[0]
    other = liar.plan(**change)
    forged = replace(key_list, plan=other.hash, parts=tuple(other.parts.values()))  # type: ignore[call-arg]
    answer = liar.ask(0, "deal", {"message": encode(forged), "model-hash": MODEL_HASH})
    assert "plan refused" in answer.refused
    assert word in answer.refused
    assert not answer.parts


def test_a_client_refuses_another_model_than_the_others_got(liar: Liar) -> None:
    server, answers = liar.dealt(liar.plan())
    for client, answer in answers.items():
        server.receive(client, answer.parts["message"])
    other = np.ones(LENGTH, dtype="<f4").tobytes()
    answer = liar.ask(0, "mask", {"message": encode(server.advance()[0]), "model": other})
    assert "not the model" in answer.refused
    assert not answer.parts


def test_a_model_of_another_length_is_refused_before_training(liar: Liar) -> None:
    """The nodes bind the hash of whatever model the server names; the agreement says how long it is."""
    model = np.zeros(12, dtype="<f4").tobytes()
    model_hash = hashlib.sha256(model).digest()
    server = Server(liar.plan(context=context(liar.training.experiment, model_hash)))
    for client in range(NODES):
        server.receive(client, liar.ask(client, "hello", {}).parts["advert"])
    outbox = server.advance()
    for client in outbox:
        parts = {"message": encode(outbox[client]), "model-hash": model_hash}
        server.receive(client, liar.ask(client, "deal", parts).parts["message"])
    answer = liar.ask(0, "mask", {"message": encode(server.advance()[0]), "model": model})
    assert "the agreement 650 parameters" in answer.refused
    assert not answer.parts


def test_a_client_never_sends_both_kinds_of_share(liar: Liar) -> None:
    """A U3 without a client asks for its mask key, a U3 with it for its seeds. Never both are sent."""
    server = liar.masked()
    honest = server.advance()[0]
    assert isinstance(honest, Survivors)
    without = Survivors(honest.members[:-1], honest.groups)
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
    liar.grid.contexts[node].state = RecordDict(held)  # the state that a second process would start from
    second = liar.ask(0, "mask", parts)
    assert not first.refused
    assert "already taken" in second.refused
    assert not second.parts


def test_the_saved_state_of_another_node_is_refused(liar: Liar) -> None:
    liar.ask(0, "hello", {})
    liar.ask(1, "hello", {})
    mine, other = (liar.grid.contexts[liar.grid.node_of(client)].state for client in (0, 1))
    mine["share"] = other["share"]
    answer = liar.ask(0, "deal", {"message": b"", "model-hash": MODEL_HASH})
    assert answer.refused
    assert not answer.parts


def test_an_update_is_opened_once_even_if_the_round_is_run_again(liar: Liar) -> None:
    """After the signatures, no client signs in another run of the same round."""
    server = liar.masked()
    outbox = server.advance()
    for client in outbox:
        assert not liar.ask(client, "sign", {"message": encode(outbox[client])}).refused
    again = liar.masked()  # with fresh keys and the same plan, dealing and masking are allowed
    outbox = again.advance()
    answers = [liar.ask(client, "sign", {"message": encode(outbox[client])}) for client in outbox]
    assert all("opened before" in answer.refused for answer in answers)


@pytest.mark.parametrize("action", ["deal", "mask", "sign", "unmask"])
def test_garbage_is_refused_without_a_traceback(liar: Liar, action: str) -> None:
    liar.ask(0, "hello", {})
    for parts in ({}, {"message": b"\x00" * 40}, {"message": b"x", "model-hash": b"y", "model": b"z"}):
        answer = liar.ask(0, action, parts)
        assert answer.refused
        assert not answer.parts
        assert "Traceback" not in answer.refused


@pytest.mark.parametrize("faults", [{"byzantine": 1, "attack": {"protocol": "garbage"}}, {"dropout": {"rate": 0.1}}])
def test_simulated_faults_need_the_consent_of_the_operator(tmp_path: Path, faults: dict[str, Any]) -> None:
    training, folders = agreed(small(**faults), tmp_path, simulate=False)
    grid = InProcessGrid(folders, simulate=False)
    message = Message(envelope.pack(Envelope(0, {"fingerprint": training.fingerprint})), grid.node_of(0), "query.hello")
    (number,) = grid.push_messages([message])
    (reply,) = grid.pull_messages([number])
    assert "not set up" in envelope.unpack(reply.content).refused
    assert not training.simulated


def test_the_state_between_messages_is_encrypted(liar: Liar) -> None:
    """The context holds ciphertext: no key and no seed."""
    liar.dealt(liar.plan())
    for client in range(NODES):
        state = liar.grid.contexts[liar.grid.node_of(client)].state["share"]
        kept = b"".join(value for value in state.values() if isinstance(value, bytes))
        assert b"secagg client" not in kept
        assert liar.training.agreement.terms.identities[client] not in kept
        key = bytes.fromhex((liar.folders[client] / "identity.key").read_text())
        assert key not in kept


@pytest.mark.parametrize("round", [2, 10**12, 2**63 - 1])
def test_only_the_agreed_rounds_exist(liar: Liar, round: int) -> None:
    """If a server could name any round, it would search for one whose clusters suit it."""
    answer = liar.ask(0, "hello", {}, round)
    assert "advert" not in answer.parts
    assert liar.training.plan_of(0, round) is None
    for action in ("deal", "mask", "sign", "unmask"):
        refused = liar.ask(0, action, {"message": b"x", "model-hash": MODEL_HASH, "model": MODEL}, round)
        assert refused.refused
        assert not refused.parts


def test_the_number_of_rounds_is_part_of_the_agreement(liar: Liar) -> None:
    with pytest.raises(ConfigError, match="last_round"):
        replace(liar.training, experiment=liar.training.experiment.replace(rounds=3))


def test_keys_that_everybody_knows_need_the_consent_of_the_operator(tmp_path: Path) -> None:
    training, folders = agreed(small(), tmp_path)
    assert training.simulated
    for simulate in (False, True):
        grid = InProcessGrid(folders, simulate=simulate)
        message = Message(
            envelope.pack(Envelope(0, {"fingerprint": training.fingerprint})), grid.node_of(0), "query.hello"
        )
        (number,) = grid.push_messages([message])
        (reply,) = grid.pull_messages([number])
        assert ("not set up" in envelope.unpack(reply.content).refused) is not simulate


def test_a_refusal_ends_the_round_for_the_server(liar: Liar) -> None:
    server = liar.masked()
    honest = server.advance()[0]
    assert isinstance(honest, Survivors)
    lie = Survivors(honest.members[:-4], honest.groups)
    assert liar.ask(0, "sign", {"message": encode(lie)}).refused
    assert "no keys" in liar.ask(0, "sign", {"message": encode(honest)}).refused


def test_a_refusal_does_not_name_files_of_the_node(tmp_path: Path) -> None:
    training, folders = agreed(small(), tmp_path)
    (folders[0] / "identity.key").chmod(0o644)
    grid = InProcessGrid(folders)
    message = Message(envelope.pack(Envelope(0, {"fingerprint": training.fingerprint})), grid.node_of(0), "query.hello")
    (number,) = grid.push_messages([message])
    (reply,) = grid.pull_messages([number])
    refused = envelope.unpack(reply.content).refused
    assert refused
    assert str(tmp_path) not in refused
    assert "identity" not in refused
