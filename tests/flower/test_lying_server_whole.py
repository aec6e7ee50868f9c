"""A hostile ServerApp or SuperLink against nodes with whole groups: one answer a round, whatever it tries."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fl.flower import envelope
from fl.flower.envelope import Envelope
from fl.flower.training import Training
from fl.flower.whole_client import FOLDER, STATE
from fl.training.randomness import context
from secagg.whole import Round as RoundMessage
from secagg.whole import Server, decode, encode
from tests.flower.grid import InProcessGrid
from tests.flower.runs import NODES, agreed, whole

LENGTH = 650  # of the linear model on digits
MODEL, OTHER = (np.full(LENGTH, value, dtype="<f4").tobytes() for value in (0.0, 0.5))


class Liar:
    """A server that a test drives message by message; `links` are SuperLinks with the same node folders."""

    def __init__(self, tmp_path: Path) -> None:
        self.training: Training
        e = whole(rounds=3, data={"examples": 80}, clusters={"size": 4})
        self.training, self.folders = agreed(e, tmp_path)
        self.links = [InProcessGrid(self.folders), InProcessGrid(self.folders)]

    def ask(
        self, client: int, action: str, parts: dict[str, bytes] | None = None, round: int = 0, link: int = 0
    ) -> Envelope:
        grid = self.links[link]
        content = envelope.pack(Envelope(round, {"fingerprint": self.training.fingerprint} | (parts or {})))
        (number,) = grid.push_messages([Message(content, grid.node_of(client), f"query.{action}")])
        (reply,) = grid.pull_messages([number])
        return envelope.unpack(reply.content)

    def server(self, round: int = 0, model: bytes = MODEL, link: int = 0) -> tuple[Server, dict[int, RoundMessage]]:
        """A round with adverts of all clients, as an honest server begins it."""
        server = Server(self.training.agreement)
        server.hello(round)
        for client in range(NODES):
            assert server.receive(client, self.ask(client, "hello", round=round, link=link).parts["advert"]) is None
        bound = context(self.training.experiment, hashlib.sha256(model).digest())
        return server, dict(server.begin(round, data=model, context=bound))

    def answer(self, client: int, message: RoundMessage, link: int = 0) -> Envelope:
        return self.ask(client, "round", {"message": encode(message)}, message.round, link)


@pytest.fixture
def liar(tmp_path: Path) -> Liar:
    return Liar(tmp_path)


def test_a_replayed_round_gets_the_same_bytes_and_an_earlier_one_nothing(liar: Liar) -> None:
    _, outbox = liar.server()
    first = liar.answer(0, outbox[0])
    assert not first.refused
    assert liar.answer(0, outbox[0]).parts == first.parts
    _, later = liar.server(1)
    assert not liar.answer(0, later[0]).refused
    again = liar.answer(0, outbox[0])
    assert "is answered" in again.refused
    assert not again.parts


def test_another_model_or_other_adverts_under_the_same_round_get_the_first_answer(liar: Liar) -> None:
    """If two models were answered in one round, their difference would be the server's to choose."""
    _, outbox = liar.server()
    first = liar.answer(0, outbox[0])
    other = replace(outbox[0], data=OTHER)
    assert liar.answer(0, other).parts == first.parts
    fewer = replace(outbox[0], adverts=outbox[0].adverts[:1], groups=())
    assert liar.answer(0, fewer).parts == first.parts


def test_a_group_without_all_its_members_is_not_answered(liar: Liar) -> None:
    _, outbox = liar.server()
    message = outbox[0]
    for some in (message.adverts[:1], message.adverts[:-1]):
        found = liar.answer(0, replace(message, adverts=some))
        assert found.refused
        assert not found.parts
    swapped = replace(message.adverts[-1], key=message.adverts[0].key)
    found = liar.answer(0, replace(message, adverts=(*message.adverts[:-1], swapped)))
    assert found.refused
    assert not found.parts
    assert not liar.answer(0, message).refused  # a message that is refused changes nothing


@pytest.mark.parametrize("round", [3, 10**12, 2**63 - 1])
def test_only_the_agreed_rounds_exist(liar: Liar, round: int) -> None:
    assert "advert" not in liar.ask(0, "hello", round=round).parts
    _, outbox = liar.server()
    found = liar.answer(0, replace(outbox[0], round=round))
    assert "does not take part" in found.refused
    envelope_of_another_round = liar.ask(0, "round", {"message": encode(outbox[0])}, 1)
    assert "expected the message of round 2" in envelope_of_another_round.refused
    assert not found.parts
    assert not envelope_of_another_round.parts


def test_a_restart_between_advert_and_answer_changes_nothing(liar: Liar) -> None:
    """The node that returns has the same key, so a server cannot get two keys of one round by restarting it."""
    server, outbox = liar.server()
    before = liar.ask(0, "hello").parts["advert"]
    for grid in liar.links:
        grid.kill(0)
        grid.start(0)
    assert liar.ask(0, "hello").parts["advert"] == before
    assert server.receive(0, liar.answer(0, outbox[0]).parts["message"]) is None


def test_two_superlinks_with_the_same_node_folder_get_one_answer(liar: Liar) -> None:
    _, here = liar.server()
    there, other = liar.server(model=OTHER, link=1)
    first = liar.answer(0, here[0])
    second = liar.answer(0, other[0], link=1)
    assert second.parts == first.parts
    assert "another context" in str(there.receive(0, second.parts["message"]))
    assert "advert" not in liar.ask(0, "hello", link=1).parts  # no key for a round that is answered


def test_two_processes_that_train_for_one_round_send_the_same_answer(
    liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one trains, another SuperLink asks the same node with another model, and is faster."""
    from fl.flower import task

    train, inside = task.local_update, list[Envelope]()
    _, here = liar.server()
    _, other = liar.server(model=OTHER, link=1)

    def slow(*arguments: Any, **more: Any) -> Any:
        if not inside:
            inside.append(Envelope(0))
            inside.append(liar.answer(0, other[0], link=1))
        return train(*arguments, **more)

    monkeypatch.setattr(task, "local_update", slow)
    outer = liar.answer(0, here[0])
    assert not outer.refused
    assert outer.parts == inside[1].parts


def test_an_older_state_cannot_answer_a_round_again(liar: Liar) -> None:
    """A copy of client.state has the erased key; the journal has the slot. (Nobody may restore the journal.)"""
    _, outbox = liar.server()
    state = liar.folders[0] / FOLDER / liar.training.fingerprint.hex()[:32] / STATE
    older = state.read_bytes()
    first = liar.answer(0, outbox[0])
    state.write_bytes(older)
    assert liar.answer(0, replace(outbox[0], data=OTHER)).parts == first.parts
    state.unlink()
    assert liar.answer(0, replace(outbox[0], data=OTHER)).parts == first.parts  # recalled from the stored answer
    assert "advert" not in liar.ask(0, "hello").parts  # no second key for a round that it has answered


def test_a_node_that_has_lost_state_and_answer_does_not_answer_the_round_again(liar: Liar) -> None:
    """Only the slot in its journal is left. It gives a fresh key, because it has forgotten that it answered."""
    _, outbox = liar.server()
    assert liar.answer(0, outbox[0]).parts
    shutil.rmtree(liar.folders[0] / FOLDER)
    fresh = decode(liar.ask(0, "hello").parts["advert"])
    adverts = tuple(fresh if advert.sender == 0 else advert for advert in outbox[0].adverts)
    again = liar.answer(0, replace(outbox[0], data=OTHER, adverts=adverts))  # type: ignore[arg-type]
    assert again.refused
    assert not again.parts


def test_the_state_of_another_node_is_refused(liar: Liar) -> None:
    _, outbox = liar.server()
    mine, other = (
        folder / FOLDER / liar.training.fingerprint.hex()[:32] / STATE for folder in (liar.folders[0], liar.folders[1])
    )
    shutil.copy(other, mine)
    found = liar.answer(0, outbox[0])
    assert "not set up" in found.refused
    assert found.permanent
    assert not found.parts


@pytest.mark.parametrize("message", [b"", b"\x00" * 40, b"\x02\x22" + b"\xff" * 60])
def test_garbage_is_refused_without_a_traceback(liar: Liar, message: bytes) -> None:
    found = liar.ask(0, "round", {"message": message})
    assert found.refused
    assert "Traceback" not in found.refused
    assert not liar.ask(0, "round").parts
    assert not liar.ask(0, "deal", {"message": message, "model-hash": bytes(32)}).parts


def test_another_fingerprint_is_told_and_gets_no_key(liar: Liar) -> None:
    found = liar.ask(0, "hello", {"fingerprint": bytes(32)})
    assert "this node has the agreement" in found.refused
    assert found.permanent
    assert not found.parts


def test_a_model_of_another_length_is_refused_before_training(liar: Liar) -> None:
    _, outbox = liar.server()
    found = liar.answer(0, replace(outbox[0], data=bytes(48)))
    assert "the agreement 650 parameters" in found.refused
    assert not found.parts


def test_a_refusal_names_no_files_and_no_numbers_of_the_node(liar: Liar, monkeypatch: pytest.MonkeyPatch) -> None:
    _, outbox = liar.server()

    def fail(*_: Any, **__: Any) -> Any:
        raise ValueError("/secret/file has 17 patients")

    monkeypatch.setattr("fl.flower.task.local_update", fail)
    assert liar.answer(0, outbox[0]).refused == "ValueError on the node; its log has the details"
    monkeypatch.setattr("secagg.whole.store.FileStore.look", _broken_disk)
    found = liar.answer(1, outbox[1]).refused
    assert found == "the storage of this node failed; its own log says why"


def _broken_disk(*_: Any) -> Any:
    from secagg import JournalError

    raise JournalError("the journal could not read /secret/file")
