"""New keys for a node while a training goes on (docs/flower-operating.md). `-m long` for the keys of Flower itself."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from fl.cli import main
from fl.flower import envelope
from fl.flower.apps.member import AppNode
from fl.flower.node import STATE_KEY, KeyFileError, renew_state_key
from fl.flower.server import serve
from fl.flower.whole_client import opened
from fl.training.learner import Learner
from secagg.evidence import verify
from secagg.whole import Hello
from tests.flower.certificates import make_certificates
from tests.flower.grid import InProcessGrid
from tests.flower.runs import FAST, agreed, network_of, small, trained, whole
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
    """A server that knows of it begins the training again, from another model, and collects fresh keys for it."""
    training, folders = agreed(whole(rounds=2), tmp_path / "nodes")
    answers: list[set[bytes]] = []

    def keep(client: int, action: str, reply: Message) -> Message:
        message = envelope.unpack(reply.content).parts.get("message")
        if action == "round" and message:
            answers[-1].add(message)
        return reply

    grid = InProcessGrid(folders, after=keep)
    for out, lr in (("run", 0.1), ("again", 0.3)):
        answers.append(set())
        limits = replace(FAST, skipped=9)
        network = network_of(grid, training)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Learner, "initial", lambda self, lr=lr: np.full(650, lr, np.float32))
            serve(network, limits, tmp_path / out)
        for folder in folders:
            renew_state_key(folder)
    assert len(answers[0]) == 16
    assert answers[1] <= answers[0]  # nothing but the bytes of before
    for record in rounds_in(tmp_path / "again"):
        assert {cluster["state"] for cluster in record["clusters"]} == {"lost"}


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
    report = verify((tmp_path / "agreement.record" / "evidence").read_bytes(), threads=1)
    assert report.holds, report.problems  # no round seems to be left out
    assert not report.blamed


def test_a_node_that_was_open_before_seals_nothing_with_the_old_key(tmp_path: Path) -> None:
    """A node that trains while its key is replaced, or waits for the lock."""
    secured(tmp_path)
    folder = tmp_path / "node-2"
    node = AppNode.open(folder)
    fingerprint = node.agreement.fingerprint
    with opened(node) as member:
        member.client.receive(Hello(fingerprint, 0))
        member.save()
    (folder / "whole" / fingerprint.hex()[:32] / ".client.state.new").write_bytes(b"of a process that was killed")
    before = node.seal(0, b"secret")
    renew_state_key(folder)
    assert not list(folder.rglob("*client.state*"))
    assert AppNode.open(folder).unseal(0, before) is None
    assert AppNode.open(folder).unseal(0, node.seal(0, b"secret")) == b"secret"


def test_a_folder_without_keys_has_none_to_renew(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        renew_state_key(tmp_path)
    assert not list(tmp_path.iterdir())


def flwr(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(["flwr", *words], env=environment, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.mark.long
def test_a_new_flower_key_while_a_training_goes_on(tmp_path: Path) -> None:
    """Node 0 gets a new flower-key and a new state.key after a round."""
    certificates = make_certificates(tmp_path / "tls")
    e = whole(clients=3, rounds=6, clusters={"size": 3})
    with federation_of(e, tmp_path, certificates, ["--database", str(tmp_path / "link.db")]) as running:
        federation, environment = running.federation, running.federation.environment
        registered: list[str] = []

        def new_key(name: str) -> Path:
            key = tmp_path / name
            subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", key], check=True)
            found = re.search(
                r"SuperNode (\d+) registered", flwr(environment, "supernode", "register", f"{key}.pub", "here")
            )
            assert found
            registered.append(found[1])
            return key

        def ids() -> set[str]:
            """The nodes that are registered; Flower lists those that were unregistered too."""
            text = flwr(environment, "supernode", "list", "here", "--format", "json")
            nodes = json.loads(text[text.index("{") :])["nodes"]
            return {node["node-id"] for node in nodes if node["status"] != "unregistered"}

        keys = [new_key(f"flower-key-{number}") for number in range(3)]
        for number, folder in enumerate(running.folders):
            federation.start_node(number, folder, "--auth-supernode-private-key", str(keys[number]), simulate=True)
        running.begin((*SETTINGS, "skipped-rounds=20"))
        wait_for_rounds(running, 1)
        before = ids()
        federation.kill_node(0)
        renew_state_key(running.folders[0])
        flwr(environment, "supernode", "unregister", registered[0], "here")
        assert ids() == before - {registered[0]}
        key = new_key("flower-key-0-new")
        federation.start_node(0, running.folders[0], "--auth-supernode-private-key", str(key), simulate=True)
        running.end(1800)
    opened = [record["round"] for record in running.rounds() if not record["skipped"]]
    assert opened[0] == 1
    assert opened[-1] == e.rounds
