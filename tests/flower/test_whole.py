"""Whole groups in one process, with the real apps on both sides: one exchange a round, restarts, mistakes."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fl.config.schema import Experiment
from fl.flower import envelope
from fl.flower.deadlines import Deadlines
from fl.flower.node import Node
from fl.flower.server import Hopeless, serve
from fl.flower.whole_client import FOLDER, STATE, opened
from secagg.cli.main import main as secagg_command
from secagg.evidence import Evidence
from secagg.whole import Answer, Server, Stage, decode
from tests.flower.grid import InProcessGrid, broken
from tests.flower.runs import FAST, NODES, actions, agreed, assert_same_model, network_of, trained, whole
from tests.flower.test_engine import rounds_in, train_over_flower


class PowerCutError(Exception):
    pass


def summary_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def set_up(e: Experiment, place: Path, **hooks: Any) -> tuple[Any, InProcessGrid]:
    training, folders = agreed(e, place / "nodes")
    return training, InProcessGrid(folders, **hooks)


def test_a_round_is_one_exchange_and_gives_the_model_of_a_simulation(tmp_path: Path) -> None:
    e = whole(rounds=3)
    grid, out = train_over_flower(e, tmp_path)
    assert_same_model(out, e)
    records = rounds_in(out)
    assert [record["exchanges"] for record in records] == [2, 1, 1]  # the first round finds the nodes
    assert all(actions(grid, client) == ["hello", "round", "round", "round"] for client in range(NODES))
    assert all(not record["dropouts"] and not record["exposure"]["exposed"] for record in records)
    assert not any("share" in context.state for context in grid.contexts.values())  # nothing is kept by Flower
    assert secagg_command(["verify", str(out / "evidence-1")]) == 0


def test_the_last_answers_of_a_recorded_round_are_kept(tmp_path: Path) -> None:
    """So that after a restart no client can name a false predecessor and void the evidence."""
    _, out = train_over_flower(whole(rounds=2), tmp_path)
    agreement = Evidence.from_bytes((out / "evidence-1").read_bytes()).agreement
    memory = Server.restore((out / "secure" / "server.state").read_bytes(), agreement)._memory
    assert (memory.rounds, memory.stage) == ((1,), Stage.IDLE)
    assert set(memory.last) == set(range(NODES))
    assert memory.unsure == set()


def test_with_dropouts_weights_samples_and_a_label_flip_it_is_the_same_model(tmp_path: Path) -> None:
    e = whole(
        clients=12,
        byzantine=1,
        participation=0.75,
        data={"name": "digits", "examples": 333, "test_examples": 50, "partition": "dirichlet", "alpha": 5.0},
        clusters={"size": 3},
        attack={"name": "label-flip"},
        privacy={"weight_ratio": 1.5},
        dropout={"schedule": [{"round": 1, "clients": [1, 6], "stage": "inputs"}]},
    )
    _, out = train_over_flower(e, tmp_path)
    assert_same_model(out, e)


@pytest.mark.parametrize("deed", ["garbage", "silence"])
def test_a_misbehaving_node_loses_its_own_clusters_only(tmp_path: Path, deed: str) -> None:
    e = whole(byzantine=1, attack={"protocol": deed}, rounds=1)
    _, out = train_over_flower(e, tmp_path)
    assert_same_model(out, e)
    (record,) = rounds_in(out)
    assert len(record["dropouts"]) == 1
    assert sorted(cluster["state"] for cluster in record["clusters"]) == ["lost", "opened"]


def test_a_node_that_restarts_keeps_its_keys_and_answers_the_same_round(tmp_path: Path) -> None:
    """One is killed before it answers, one after its answer was stored and before it arrived."""
    e = whole(rounds=2)
    training, grid = set_up(e, tmp_path)
    restarted: list[int] = []
    first: list[bytes] = []

    def restart(client: int) -> None:
        restarted.append(client)
        grid.kill(client)
        grid.start(client)

    def before(client: int, action: str, message: Message) -> Message | None:
        if (client, action) == (2, "round") and 2 not in restarted:
            restart(2)
            return None
        return message

    def after(client: int, action: str, reply: Message) -> Message | None:
        if (client, action) == (5, "round"):
            first.append(envelope.unpack(reply.content).parts["message"])
            if 5 not in restarted:
                restart(5)
                return None
        return reply

    grid.before, grid.after = before, after
    trained(grid, training, tmp_path / "run", Deadlines(join=5.0, stage=5.0, training=30.0))
    assert sorted(restarted) == [2, 5]
    assert_same_model(tmp_path / "run", e)
    assert [record["dropouts"] for record in rounds_in(tmp_path / "run")] == [[], []]
    assert [record["exchanges"] for record in rounds_in(tmp_path / "run")] == [2, 1]
    assert first[0] == first[1]  # the same answer, byte for byte
    assert actions(grid, 0) == ["hello", "round", "round"]
    assert actions(grid, 2).count("hello") == actions(grid, 5).count("hello") == 2


@pytest.mark.parametrize("moment", ["answers", "record"])
def test_a_restarted_server_asks_for_the_same_round_again(tmp_path: Path, moment: str) -> None:
    """It is stopped while it collects answers, or after it has opened the sums and before they are recorded."""
    e = whole(rounds=2, clients=6, clusters={"size": 3})
    training, grid = set_up(e, tmp_path)
    answers: dict[tuple[int, int], set[bytes]] = {}

    def after(client: int, action: str, reply: Message) -> Message | None:
        if action == "round":
            answer = decode(envelope.unpack(reply.content).parts["message"])
            assert isinstance(answer, Answer)
            answers.setdefault((client, answer.round), set()).add(answer.signature)
            if moment == "answers" and (client, answer.round) == (4, 1):
                raise PowerCutError
        return reply

    grid.after = after
    with pytest.MonkeyPatch.context() as patch:
        if moment == "record":
            patch.setattr("fl.training.round.describe", lambda *_: (_ for _ in ()).throw(PowerCutError))
        with pytest.raises(PowerCutError):
            trained(grid, training, tmp_path / "run")
    grid.after = lambda client, action, reply: after(client, action, reply) if client != 4 else reply
    trained(grid, training, tmp_path / "run")  # another run of Flower: the nodes are found again
    assert_same_model(tmp_path / "run", e)
    assert all(len(found) == 1 for found in answers.values())
    assert [record["dropouts"] for record in rounds_in(tmp_path / "run")] == [[], []]
    assert secagg_command(["verify", str(tmp_path / "run" / "evidence-1")]) == 0


def test_a_round_that_was_begun_with_another_model_is_not_begun_again(tmp_path: Path) -> None:
    training, grid = set_up(whole(rounds=1), tmp_path)

    def cut(client: int, action: str, message: Message) -> Message | None:
        if action == "round":
            raise PowerCutError
        return message

    grid.before = cut
    with pytest.raises(PowerCutError):
        trained(grid, training, tmp_path / "run")
    grid.before = lambda client, action, message: message
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl.training.learner.Learner.initial", lambda self: _changed(self))
        trained(grid, training, tmp_path / "run")
    (record,) = rounds_in(tmp_path / "run")
    assert "another model" in record["dropouts"][0]["why"]
    assert record["skipped"]


def _changed(learner: Any) -> Any:
    from fl.training.models import flatten

    return flatten(learner.task.build()) + 1


def test_a_malformed_reply_makes_a_dropout_that_is_asked_for_a_new_key_if_it_refused(tmp_path: Path) -> None:
    def after(client: int, action: str, reply: Message) -> Message | None:
        return broken(reply) if (client, action, reply.metadata.group_id) == (0, "round", "1") else reply

    e = whole(rounds=2)
    training, grid = set_up(e, tmp_path, after=after)
    state = grid.folders[7] / FOLDER / training.fingerprint.hex()[:32] / STATE

    def before(client: int, action: str, message: Message) -> Message | None:
        if (client, action, message.metadata.group_id) == (7, "round", "1"):
            state.unlink()  # as if the keys of its adverts were lost
        return message

    grid.before = before
    trained(grid, training, tmp_path / "run")
    first, second = rounds_in(tmp_path / "run")
    why = {entry["client"]: entry["why"] for entry in first["dropouts"]}
    assert "Flower reports error" in why[0]
    assert "no key for round" in why[7]
    assert second["dropouts"] == []
    assert actions(grid, 7) == ["hello", "round", "hello", "round"]
    assert actions(grid, 1) == ["hello", "round", "round"]


def test_a_node_with_another_agreement_is_told_so_and_the_training_stops(tmp_path: Path) -> None:
    e = whole(rounds=4, clusters={"size": 8})
    training, folders = agreed(e, tmp_path / "nodes", simulate=False)
    other, strangers = agreed(e, tmp_path / "others", simulate=False)
    grid = InProcessGrid([*folders[:7], strangers[7]])
    network = network_of(grid, training)
    serve(network, FAST, tmp_path / "run")
    (why,) = network.strangers.values()
    assert other.fingerprint.hex()[:16] in why
    assert training.fingerprint.hex()[:16] in why
    assert len(rounds_in(tmp_path / "run")) == 1
    assert why in summary_in(tmp_path / "run")["stopped"]


def test_a_wrong_number_of_examples_stops_the_training_with_that_reason(tmp_path: Path) -> None:
    e = whole(rounds=2, clients=4, clusters={"size": 4})
    training, grid = set_up(e, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl.flower.task.prepare", lambda e: _shorter(e))
        trained(grid, training, tmp_path / "run")
    assert len(rounds_in(tmp_path / "run")) == 1
    assert "the number of its examples" in summary_in(tmp_path / "run")["stopped"]
    trained(grid, training, tmp_path / "run")  # mended: the same command goes on, without the round that was lost
    assert len(rounds_in(tmp_path / "run")) == 2
    assert not any(record["skipped"] for record in rounds_in(tmp_path / "run")[1:])


def _shorter(e: Experiment) -> Any:
    from dataclasses import replace

    from fl.training.loop import prepare

    data = prepare(e)
    return replace(data, clients=tuple(rows[:-1] for rows in data.clients))


def test_rounds_without_a_sum_stop_the_training_after_a_while(tmp_path: Path) -> None:
    def before(client: int, action: str, message: Message) -> Message | None:
        return None if (client, action) == (4, "round") else message

    e = whole(rounds=9, clients=5, clusters={"size": 5}, data={"examples": 80})
    training, grid = set_up(e, tmp_path, before=before)
    trained(grid, training, tmp_path / "run", Deadlines(join=0.5, stage=0.5, training=0.3, skipped=2))
    assert len(rounds_in(tmp_path / "run")) == 2
    assert (
        "2 rounds in a row opened no sum: client 4: it did not answer in time"
        in summary_in(tmp_path / "run")["stopped"]
    )


def test_a_training_that_opens_sums_is_not_stopped_because_nodes_refuse() -> None:
    """What skips its rounds is the rule or the server's step, and that is what the reason says."""
    network: Any = SimpleNamespace(strangers={}, mistaken=[], refused={1: "not set up"})
    record = {"skipped": "lower server_lr", "groupings": [{"opened": 3}], "dropouts": []}
    stop, x = Hopeless(network, 2), np.zeros(1, dtype=np.float32)
    assert [stop(record, x) for _ in range(2)] == ["", "2 rounds in a row: lower server_lr"]
    closed = {**record, "groupings": [{"opened": 0}]}
    assert stop(closed, x) == "no sum was opened, and nodes refuse every round: client 1: not set up"


def test_the_state_on_disk_is_sealed_and_has_no_key_of_a_round_that_is_over(tmp_path: Path) -> None:
    e = whole(rounds=2, clients=3, clusters={"size": 3})
    training, grid = set_up(e, tmp_path)
    trained(grid, training, tmp_path / "run")
    for folder in grid.folders:
        node = Node.open(folder)
        with opened(node) as member:
            assert member.client.answered == 1
            state = folder / FOLDER / training.fingerprint.hex()[:32] / STATE
            assert member.client.save() not in state.read_bytes()
            assert state.stat().st_mode & 0o077 == 0
