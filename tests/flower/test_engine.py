"""Whole trainings in one process, with the real apps on both sides and all kinds of dropouts."""

import json
import math
import sys
from pathlib import Path
from subprocess import run as run_process
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.flower import envelope
from fl.flower.client import ANSWERED
from fl.flower.deadlines import Deadlines
from fl.flower.envelope import Envelope
from fl.flower.node import Node
from fl.flower.survivors import SurvivorRounds
from fl.reporting.progress import Progress
from secagg import Stage
from tests.flower.grid import InProcessGrid, broken
from tests.flower.runs import FAST, NODES, actions, agreed, assert_same_model, network_of, small, trained


def rounds_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def train_over_flower(e: Experiment, tmp_path: Path, **hooks: Any) -> tuple[InProcessGrid, Path]:
    training, folders = agreed(e, tmp_path / "nodes")
    grid = InProcessGrid(folders, **hooks)
    trained(grid, training, tmp_path / "run")
    return grid, tmp_path / "run"


def test_flower_gives_the_model_of_a_simulation_in_four_exchanges_per_round(tmp_path: Path) -> None:
    e = small(rounds=3)
    grid, out = train_over_flower(e, tmp_path)
    assert_same_model(out, e)
    records = rounds_in(out)
    assert [record["exchanges"] for record in records] == [5, 4, 4]  # the first round collects keys
    expected = ["hello", *["deal", "mask", "sign", "unmask"] * 3]
    assert all(actions(grid, client) == expected for client in range(NODES))
    for folder, context in zip(grid.folders, grid.contexts.values(), strict=True):
        kept = context.state["share"]
        assert isinstance(kept, ConfigRecord)
        for key, sealed in kept.items():  # no secret is left: only answers that the server already has
            content = Node.open(folder).unseal(int(key), sealed)  # type: ignore[arg-type]
            assert content is not None
            assert content.startswith(ANSWERED)
    assert records[0]["exposure"]["exposed"] == []
    assert records[0]["cryptography"]["client_seconds"].keys() >= {"shares", "inputs", "unmasking"}


def test_flower_gives_the_model_of_a_simulation_with_dropouts(tmp_path: Path) -> None:
    """In each round, two clients stop at another stage; they are back in the next."""
    stages = ["keys", "shares", "inputs", "consistency", "unmasking"]
    pairs = [[1, 6], [2, 7], [1, 5], [0, 6], [3, 4]]
    schedule = [{"round": t + 1, "clients": pairs[t], "stage": stage} for t, stage in enumerate(stages)]
    e = small(rounds=5, dropout={"schedule": schedule})
    _, out = train_over_flower(e, tmp_path)
    assert_same_model(out, e)
    dropouts = [sorted(entry["client"] for entry in record["dropouts"]) for record in rounds_in(out)]
    assert dropouts == pairs


def test_flower_gives_the_model_of_a_simulation_with_weights_and_a_label_flip(tmp_path: Path) -> None:
    e = small(
        clients=9,
        byzantine=2,
        data={"name": "digits", "examples": 333, "test_examples": 100, "partition": "dirichlet", "alpha": 5.0},
        clusters={"size": 3, "groupings": 2, "schedule": "transversal"},
        attack={"name": "label-flip"},
        privacy={"weight_ratio": 4.0, "audit": "report-even-if-exposed"},
        aggregation={"rule": "median"},
    )
    _, out = train_over_flower(e, tmp_path)
    assert_same_model(out, e)


def test_flower_gives_the_model_of_a_simulation_with_cells_and_samples(tmp_path: Path) -> None:
    e = small(
        clients=16,
        participation=0.75,
        clusters={"size": 3, "cell": 6},
        data={"name": "digits", "examples": 320, "test_examples": 50},
    )
    _, out = train_over_flower(e, tmp_path)
    assert_same_model(out, e)
    assert len({cluster["cell"] for cluster in rounds_in(out)[0]["clusters"]}) == 2


@pytest.mark.parametrize("deed", ["garbage", "wrong-shares", "broken-boxes", "silence"])
def test_a_misbehaving_node_is_named_and_does_not_stop_the_others(tmp_path: Path, deed: str) -> None:
    e = small(byzantine=1, attack={"protocol": deed}, rounds=1)
    _, out = train_over_flower(e, tmp_path)
    assert_same_model(out, e)
    (record,) = rounds_in(out)
    named = {str(entry["client"]) for entry in record["dropouts"]} | set(record["blamed"])
    assert len(named) == 1


def test_a_node_that_cheated_is_left_out_and_the_record_says_so(tmp_path: Path) -> None:
    e = small(byzantine=1, attack={"protocol": "wrong-shares"}, rounds=3)
    grid, out = train_over_flower(e, tmp_path)
    first, *later = rounds_in(out)
    ((cheater, why),) = first["blamed"].items()
    assert not first["dropouts"]
    for record in later:
        assert record["dropouts"] == [{"client": int(cheater), "stage": "keys", "why": f"it was caught: {why}"}]
        assert not record["blamed"]
    assert actions(grid, int(cheater)).count("deal") == 1
    assert_same_model(out, e)


def test_suspects_sit_out_a_while_and_the_record_of_the_rounds_says_who_they_are(tmp_path: Path) -> None:
    training, _ = agreed(small(), tmp_path / "nodes")
    engine = SurvivorRounds(network_of(InProcessGrid([]), training), FAST, tmp_path / "secure", Progress())
    training.cohort.suspects.remember({"round": 1, "blamed": {"6": "gave a wrong share"}, "disputes": [[1, 4]]})
    left = engine._left_out(1, range(NODES))
    assert {client: out.stage for client, out in left.items()} == dict.fromkeys((1, 4, 6), Stage.KEYS)
    assert "gave a wrong share" in left[6].reason
    assert "up to round 2" in left[1].reason
    assert set(engine._left_out(2, range(NODES))) == {6}
    assert set(engine._left_out(1, range(3))) == {1}


def test_a_killed_node_is_a_dropout_and_takes_part_in_the_next_round(tmp_path: Path) -> None:
    """In each round, two nodes are killed in another stage and return at once, without their state."""
    stages = ("deal", "mask", "sign", "unmask")
    training, folders = agreed(small(rounds=5), tmp_path / "nodes")
    grid = InProcessGrid(folders)
    killed: list[tuple[int, int]] = []

    def before(client: int, action: str, message: Message) -> Message | None:
        t = int(message.metadata.group_id) - 1
        if client in (2, 5) and (t, client) not in killed and stages[t : t + 1] == (action,):
            killed.append((t, client))
            grid.kill(client)
            grid.start(client)
            return None
        return message

    grid.before = before
    trained(grid, training, tmp_path / "run")
    *hit, last = rounds_in(tmp_path / "run")
    assert len(killed) == 8
    assert [{entry["client"] for entry in record["dropouts"]} for record in hit] == [{2, 5}] * 4
    assert not any(record["skipped"] for record in hit)
    assert last["dropouts"] == []
    assert all(actions(grid, client)[-4:] == list(stages) for client in (2, 5))


def test_a_malformed_reply_makes_a_dropout_with_a_reason(tmp_path: Path) -> None:
    def after(client: int, action: str, reply: Message) -> Message | None:
        if action != "mask":
            return reply
        if client == 0:
            return broken(reply)
        if client == 3:
            return Message(RecordDict({"other": ConfigRecord({"x": 1})}), reply_to=reply)
        return reply

    _, out = train_over_flower(small(rounds=1), tmp_path, after=after)
    (record,) = rounds_in(out)
    why = {entry["client"]: entry["why"] for entry in record["dropouts"]}
    assert "Flower reports error" in why[0]
    assert "not a message of SHARE" in why[3]
    assert not record["skipped"]


def test_a_silent_node_is_a_dropout_after_the_deadline(tmp_path: Path) -> None:
    def before(client: int, action: str, message: Message) -> Message | None:
        return None if (client, action) == (4, "sign") else message

    _, out = train_over_flower(small(rounds=1), tmp_path, before=before)
    (record,) = rounds_in(out)
    assert [entry["client"] for entry in record["dropouts"]] == [4]
    assert not record["skipped"]


def test_a_run_that_fails_before_anybody_signed_is_repeated_with_the_same_plan(tmp_path: Path) -> None:
    failed: list[int] = []

    def before(client: int, action: str, message: Message) -> Message | None:
        if action == "mask" and client < 4 and client not in failed:
            failed.append(client)
            return None
        return message

    e = small(rounds=1)
    grid, out = train_over_flower(e, tmp_path, before=before)
    assert_same_model(out, e)
    assert not rounds_in(out)[0]["skipped"]
    assert actions(grid, 7) == ["hello", "deal", "mask", "hello", "deal", "mask", "sign", "unmask"]


def test_a_run_that_reached_signatures_is_resumed_and_never_repeated(tmp_path: Path) -> None:
    late: list[int] = []

    def before(client: int, action: str, message: Message) -> Message | None:
        if action == "sign" and client < 4 and client not in late:
            late.append(client)
            return None
        return message

    e = small(rounds=1)
    grid, out = train_over_flower(e, tmp_path, before=before)
    assert_same_model(out, e)
    assert [actions(grid, client).count("mask") for client in range(NODES)] == [1] * NODES


@pytest.mark.parametrize("stage", ["deal", "mask", "sign", "unmask"])
def test_a_round_that_cannot_finish_is_skipped_and_training_continues(tmp_path: Path, stage: str) -> None:
    seen: dict[int, int] = {}

    def before(client: int, action: str, message: Message) -> Message | None:
        if action == stage and client < 4 and seen.setdefault(client, 0) < 2:
            seen[client] += 1
            return None
        return message

    grid, out = train_over_flower(small(rounds=2), tmp_path, before=before)
    first, second = rounds_in(out)
    assert "round skipped" in first["skipped"]
    assert not second["skipped"]
    openings = [actions(grid, client).count("unmask") for client in range(NODES)]
    assert max(openings) <= 3  # the request may be repeated, but the journal refuses a second opening


def test_a_restarted_server_continues_from_its_checkpoint(tmp_path: Path) -> None:
    e = small(rounds=3)
    training, folders = agreed(e, tmp_path / "nodes")

    class PowerCutError(Exception):
        pass

    def before(client: int, action: str, message: Message) -> Message | None:
        if action == "mask" and message.metadata.group_id == "2":
            raise PowerCutError
        return message

    with pytest.raises(PowerCutError):
        trained(InProcessGrid(folders, before=before), training, tmp_path / "run")
    assert len(rounds_in(tmp_path / "run")) == 1
    trained(InProcessGrid(folders), training, tmp_path / "run")  # the nodes have lost their state as well
    assert_same_model(tmp_path / "run", e)


def test_a_restarted_server_resumes_a_run_that_reached_signatures(tmp_path: Path) -> None:
    e = small(rounds=2)
    training, folders = agreed(e, tmp_path / "nodes")
    grid = InProcessGrid(folders)

    class PowerCutError(Exception):
        pass

    def before(client: int, action: str, message: Message) -> Message | None:
        if (client, action) == (6, "sign"):
            raise PowerCutError
        return message

    grid.before = before
    with pytest.raises(PowerCutError):
        trained(grid, training, tmp_path / "run")
    grid.before = lambda client, action, message: message
    trained(grid, training, tmp_path / "run")  # the nodes have kept their state
    assert_same_model(tmp_path / "run", e)
    assert [actions(grid, client).count("mask") for client in range(NODES)] == [2] * NODES

    # If the nodes have lost it as well, the round is skipped: no node opens it a second time.
    other = tmp_path / "other"
    training, folders = agreed(e, other / "nodes")
    with pytest.raises(PowerCutError):
        trained(InProcessGrid(folders, before=before), training, other / "run")
    trained(InProcessGrid(folders), training, other / "run")
    first, second = rounds_in(other / "run")
    assert "resumed" in first["skipped"]
    assert not second["skipped"]


def test_an_unknown_node_is_rejected_and_a_missing_one_is_a_dropout(tmp_path: Path) -> None:
    e = small(rounds=1)
    training, folders = agreed(e, tmp_path / "nodes", simulate=False)
    others, strangers = agreed(e, tmp_path / "others", simulate=False)
    grid = InProcessGrid([*folders[:7], strangers[7]])
    network = trained(grid, training, tmp_path / "run")
    assert list(network.nodes) == list(range(7))
    assert list(network.strangers) == [grid.node_of(7)]
    (record,) = rounds_in(tmp_path / "run")
    assert [entry["client"] for entry in record["dropouts"]] == [7]
    assert not record["skipped"]
    assert others.fingerprint != training.fingerprint


def test_a_copied_advert_does_not_move_a_client_to_another_node(tmp_path: Path) -> None:
    e = small(rounds=1)
    training, folders = agreed(e, tmp_path / "nodes")
    grid = InProcessGrid(folders)
    stolen: list[Message] = []

    def after(client: int, action: str, reply: Message) -> Message | None:
        if action == "hello" and client == 0:
            stolen.append(reply)
        if action == "hello" and client == 7:  # client 7 claims to be client 0
            copy = envelope.unpack(stolen[0].content)
            return Message(envelope.pack(copy), reply_to=reply)
        return reply

    grid.after = after
    network = network_of(grid, training)
    network.assemble(0, range(NODES), lambda: False, seconds=1.0, patience=1.0)
    assert network.nodes[0] == grid.node_of(0)
    assert 7 not in network.nodes


def test_deadlines_are_positive() -> None:
    with pytest.raises(ConfigError):
        Deadlines(stage=0.0)
    assert FAST.tries == 2


GOOD = Envelope(3, {"message": b"x"}, 0.5, "no", 0.75)


def test_an_envelope_arrives_as_it_was_packed() -> None:
    assert envelope.unpack(envelope.pack(GOOD)) == GOOD
    inside = envelope.pack(GOOD, inside=True)
    assert envelope.unpack(inside) == GOOD
    assert "parts" not in inside
    large = Envelope(3, {"message": bytes(envelope.MOST_INSIDE + 1)})
    assert envelope.unpack(envelope.pack(large, inside=True)) == large
    inside["share"]["part:message"] = "text"  # type: ignore[index, call-overload]
    with pytest.raises(envelope.MalformedError):
        envelope.unpack(inside)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("round", "3"),
        ("round", -1),
        ("round", True),
        ("seconds", 1),
        ("seconds", -0.5),
        ("seconds", math.nan),
        ("clock", "soon"),
        ("clock", math.inf),
        ("clock", 1e308),
        ("refused", 7),
    ],
)
def test_an_envelope_with_a_wrong_value_is_refused(name: str, value: Any) -> None:
    content = envelope.pack(GOOD)
    content["share"][name] = value  # type: ignore[index, call-overload]
    with pytest.raises(envelope.MalformedError):
        envelope.unpack(content)


def test_an_envelope_needs_its_values() -> None:
    content = envelope.pack(GOOD)
    del content["share"]
    with pytest.raises(envelope.MalformedError):
        envelope.unpack(content)
    with pytest.raises(envelope.MalformedError):
        envelope.unpack(RecordDict({"share": ConfigRecord({"round": 3}), "parts": ConfigRecord({"round": 3})}))
    with pytest.raises(envelope.MalformedError):
        envelope.unpack(RecordDict({"parts": ConfigRecord({"round": 3})}))


def test_a_peer_cannot_write_control_characters_into_records() -> None:
    received = envelope.unpack(envelope.pack(Envelope(0, refused="\x1b[31mred\nline")))
    assert received.refused.isprintable()


def test_the_client_app_does_not_import_torch() -> None:
    code = "import sys, fl.flower.simulation_client; print('torch' in sys.modules)"
    done = run_process([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("words", ["\U0001f600" * 300, "no " * 500])
def test_a_long_refusal_makes_a_dropout(tmp_path: Path, words: str) -> None:
    def after(client: int, action: str, reply: Message) -> Message | None:
        if (client, action) != (2, "mask"):
            return reply
        content = envelope.pack(Envelope(0))
        content["share"]["refused"] = words  # type: ignore[index, call-overload]
        return Message(content, reply_to=reply)

    _, out = train_over_flower(small(rounds=1), tmp_path, after=after)
    (record,) = rounds_in(out)
    assert [entry["client"] for entry in record["dropouts"]] == [2]
    assert not record["skipped"]


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_an_impossible_duration_makes_a_dropout(tmp_path: Path, seconds: float) -> None:
    def after(client: int, action: str, reply: Message) -> Message | None:
        if (client, action) == (2, "deal"):
            reply.content["share"]["seconds"] = seconds  # type: ignore[index, call-overload]
        return reply

    _, out = train_over_flower(small(rounds=1), tmp_path, after=after)
    (record,) = rounds_in(out)
    assert {entry["client"]: entry["why"] for entry in record["dropouts"]}.keys() == {2}


def test_an_answer_that_flower_cannot_decode_affects_only_its_sender(tmp_path: Path) -> None:
    e = small(rounds=1)
    training, folders = agreed(e, tmp_path / "nodes")
    poisoned: set[str] = set()

    class Poisoned(InProcessGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            if poisoned & set(message_ids):
                raise RuntimeError("DecodeError, as Flower raises it")
            return super().pull_messages(message_ids)

    def after(client: int, action: str, reply: Message) -> Message | None:
        if (client, action) == (5, "deal"):
            poisoned.add(reply.metadata.reply_to_message_id)
        return reply

    trained(Poisoned(folders, after=after), training, tmp_path / "run")
    (record,) = rounds_in(tmp_path / "run")
    assert [(entry["client"], entry["why"]) for entry in record["dropouts"]] == [(5, "Flower cannot decode its answer")]


def test_a_message_that_could_not_be_sent_makes_a_dropout(tmp_path: Path) -> None:
    e = small(rounds=1)
    training, folders = agreed(e, tmp_path / "nodes")

    class Full(InProcessGrid):
        def push_messages(self, messages: Any) -> list[str]:
            (message,) = messages
            if message.metadata.message_type == "query.deal" and self.client_of[message.metadata.dst_node_id] == 1:
                return [""]  # as Flower returns in this case
            return super().push_messages([message])

    trained(Full(folders), training, tmp_path / "run")
    assert [entry["client"] for entry in rounds_in(tmp_path / "run")[0]["dropouts"]] == [1]


def test_shares_that_were_lost_in_transit_are_sent_again(tmp_path: Path) -> None:
    lost: dict[int, bytes] = {}
    again: dict[int, bytes] = {}

    def after(client: int, action: str, reply: Message) -> Message | None:
        if action == "unmask" and client < 4:
            message = envelope.unpack(reply.content).parts["message"]
            if client not in lost:
                lost[client] = message
                return None
            again.setdefault(client, message)
        return reply

    e = small(rounds=2)
    _, out = train_over_flower(e, tmp_path, after=after)
    assert_same_model(out, e)
    assert {client: again[client] for client in range(4)} == lost
    assert [record["skipped"] for record in rounds_in(out)] == ["", ""]


def test_the_reason_of_a_late_dropout_is_recorded(tmp_path: Path) -> None:
    def after(client: int, action: str, reply: Message) -> Message | None:
        return broken(reply) if (client, action) == (3, "sign") else reply

    _, out = train_over_flower(small(rounds=1), tmp_path, after=after)
    (entry,) = rounds_in(out)[0]["dropouts"]
    assert (entry["client"], entry["stage"]) == (3, "consistency")
    assert "Flower reports error" in entry["why"]


def test_a_node_whose_agreement_came_late_joins_in_the_next_round(tmp_path: Path) -> None:
    e = small(rounds=2)
    training, folders = agreed(e, tmp_path / "nodes")
    content = (folders[3] / "training.toml").read_bytes()
    (folders[3] / "training.toml").unlink()

    def before(client: int, action: str, message: Message) -> Message | None:
        if action == "deal":
            (folders[3] / "training.toml").write_bytes(content)
        return message

    trained(InProcessGrid(folders, before=before), training, tmp_path / "run")
    first, second = rounds_in(tmp_path / "run")
    assert [entry["client"] for entry in first["dropouts"]] == [3]
    assert second["dropouts"] == []


def test_the_record_of_another_training_is_not_continued(tmp_path: Path) -> None:
    e = small(rounds=1)
    training, folders = agreed(e, tmp_path / "nodes", simulate=False)
    trained(InProcessGrid(folders), training, tmp_path / "run")
    other, others = agreed(e, tmp_path / "others", simulate=False)  # the same experiment, other members
    with pytest.raises(ConfigError, match="another training"):
        trained(InProcessGrid(others), other, tmp_path / "run")
