"""New keys for a node while a training goes on (docs/flower-operating.md). `-m long` for the keys of Flower itself."""

import json
import subprocess
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict

from fl.cli import main
from fl.flower import envelope
from fl.flower.envelope import Envelope
from fl.flower.node import STATE_KEY, KeyFileError, Node, renew_state_key
from tests.flower.certificates import make_certificates
from tests.flower.grid import InProcessGrid
from tests.flower.runs import agreed, assert_same_model, small, trained, whole
from tests.flower.test_apps import over, run, secured
from tests.flower.test_engine import rounds_in
from tests.flower.test_kills import wait_for_rounds
from tests.flower.test_processes import SETTINGS, federation_of


def test_a_new_state_key_between_two_rounds(tmp_path: Path) -> None:
    """The node is a dropout of at most one round, and takes part again."""
    e = whole(rounds=4)
    training, folders = agreed(e, tmp_path / "nodes")
    renewed: list[bytes] = []

    def renew(client: int, action: str, reply: Message) -> Message:
        if (client, action, reply.metadata.group_id) == (2, "round", "1"):
            renewed.append((folders[2] / STATE_KEY).read_bytes())
            assert main(["flower", "identity", str(folders[2]), "--new-state-key"]) == 0
        return reply

    trained(InProcessGrid(folders, after=renew), training, tmp_path / "run")
    assert renewed
    assert (folders[2] / STATE_KEY).read_bytes() != renewed[0]
    assert (folders[2] / STATE_KEY).stat().st_mode & 0o777 == 0o600
    missing = {
        record["round"]: [entry["client"] for entry in record["dropouts"]] for record in rounds_in(tmp_path / "run")
    }
    assert missing[1] == missing[3] == missing[4] == []
    assert missing[2] in ([], [2])


def test_a_new_state_key_does_not_let_a_round_be_answered_twice(tmp_path: Path) -> None:
    """A server that knows of it asks for the same round again, with the same keys and with fresh ones."""
    training, folders = agreed(whole(rounds=2), tmp_path / "nodes")
    asked: list[Message] = []
    answers: list[bytes] = []

    def look(client: int, action: str, message: Message) -> Message:
        if (client, action, message.metadata.group_id) == (2, "round", "1"):
            asked.append(message)
        return message

    def keep(client: int, action: str, reply: Message) -> Message:
        if (client, action, reply.metadata.group_id) == (2, "round", "1"):
            answers.append(envelope.unpack(reply.content).parts["message"])
        return reply

    grid = InProcessGrid(folders, before=look, after=keep)
    trained(grid, training, tmp_path / "run")
    renew_state_key(folders[2])
    context = grid.contexts[grid.node_of(2)]

    def ask(action: str, parts: dict[str, bytes]) -> Envelope:
        content = envelope.pack(Envelope(0, parts), inside=True)
        message = Message(content, context.node_id, f"query.{action}")
        message.metadata.__dict__["_message_id"] = "again"
        return envelope.unpack(grid.app(message, context).content)

    again = ask("round", dict(envelope.unpack(asked[0].content).parts))
    assert again.refused or again.parts["message"] == answers[0]
    hello = ask("hello", {"fingerprint": training.fingerprint})
    assert hello.refused or "advert" not in hello.parts or not again.parts


def test_a_new_state_key_of_a_node_with_survivors(tmp_path: Path) -> None:
    training, folders = agreed(small(rounds=3), tmp_path / "nodes")

    def renew(client: int, action: str, reply: Message) -> Message:
        if (client, action, reply.metadata.group_id) == (2, "unmask", "1"):
            renew_state_key(folders[2])
        return reply

    trained(InProcessGrid(folders, after=renew), training, tmp_path / "run")
    missing = [[entry["client"] for entry in record["dropouts"]] for record in rounds_in(tmp_path / "run")]
    assert missing[0] == missing[2] == []
    assert missing[1] in ([], [2])


def test_a_new_state_key_of_a_node_with_an_app(tmp_path: Path) -> None:
    grid = secured(tmp_path)
    run(over(tmp_path), grid, rounds=1)
    renew_state_key(tmp_path / "node-2")
    run(over(tmp_path), grid, rounds=2)
    text = (tmp_path / "agreement.record" / "rounds.jsonl").read_text()
    records = [json.loads(line) for line in text.splitlines()]
    assert [entry["client"] for entry in records[-1]["dropouts"]] == []


def test_a_folder_without_keys_has_none_to_renew(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        renew_state_key(tmp_path)
    assert not list(tmp_path.iterdir())


def flwr(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(["flwr", *words], env=environment, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.mark.long
def test_new_keys_for_flower_and_tls_while_a_training_goes_on(tmp_path: Path) -> None:
    """Node 0 gets a new flower-key and a new state.key after a round, then the server a new certificate."""
    certificates = make_certificates(tmp_path / "tls")
    e = whole(clients=3, rounds=6, clusters={"size": 3})
    with federation_of(e, tmp_path, certificates, ["--database", str(tmp_path / "link.db")]) as running:
        federation, environment = running.federation, running.federation.environment

        def new_key(name: str) -> Path:
            key = tmp_path / name
            subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", key], check=True)
            flwr(environment, "supernode", "register", f"{key}.pub", "here")
            return key

        keys = [new_key(f"flower-key-{number}") for number in range(3)]
        for number, folder in enumerate(running.folders):
            federation.start_node(number, folder, "--auth-supernode-private-key", str(keys[number]), simulate=True)
        running.begin((*SETTINGS, "skipped-rounds=20"))
        wait_for_rounds(running, 1)
        # the flower-key and the state.key of node 0
        listed = json.loads(flwr(environment, "supernode", "list", "here", "--format", "json"))
        public = (tmp_path / "flower-key-0.pub").read_text().split()[1]
        print(listed)
        federation.kill_node(0)
        assert public
        renew_state_key(running.folders[0])
        key = new_key("flower-key-0-new")
        federation.start_node(0, running.folders[0], "--auth-supernode-private-key", str(key), simulate=True)
        running.end(1800)
    opened = [record["round"] for record in running.rounds() if not record["skipped"]]
    assert opened[0] == 1
    assert opened[-1] == e.rounds
    assert Node.open(running.folders[0]).client == 0
    assert RecordDict is not None
    _ = assert_same_model
