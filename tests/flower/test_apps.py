"""Apps with Flower's own functions and strategies, plain and through secure sums."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp.typing import Mod
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Result, Strategy

import robust
from fl.errors import ConfigError, FlowerError
from fl.flower import SecureStrategy, secure_mod
from fl.flower.apps.digest import content_hash
from fl.flower.apps.member import signed_agreement
from fl.flower.status import read_status
from secagg.agreement import MemberFolder, Proposal, Signature, successor_terms, write_agreement
from secagg.simulation import agree_on
from tests.flower.app_grid import AppGrid, action_of, agree, members_of
from tests.flower.numpy_app import PARAMETERS, app_with, points, start_arrays

NODES = 6
CONFIG: dict[str, Any] = {"local-epochs": 2, "momentum": 0.5, "verbose": True}
SIZES = [len(points(i)[1]) for i in range(NODES)]


def secured(place: Path, **more: Any) -> AppGrid:
    identities = members_of(place, NODES)
    agree(place, identities, PARAMETERS, **more)
    return grid_of(place, NODES)


def grid_of(place: Path, nodes: int, mods: Sequence[Mod] = (secure_mod,)) -> AppGrid:
    config = CONFIG | {"agreement": str(place / "agreement.toml")}
    return AppGrid(app_with(list(mods)), [place / f"node-{i}" for i in range(nodes)], nodes, config=config)


def run(strategy: Strategy, grid: AppGrid, rounds: int = 2) -> Result:
    return strategy.start(
        grid=grid,  # type: ignore[arg-type]
        initial_arrays=start_arrays(),
        num_rounds=rounds,
        timeout=1.0,
        train_config=ConfigRecord({"lr": 0.1}),
    )


def over(place: Path, inner: Strategy | None = None, **more: Any) -> SecureStrategy:
    config = CONFIG | {"agreement": str(place / "agreement.toml")}
    return SecureStrategy(inner or FedAvg(), config, join_seconds=0.0, hello_seconds=1.0, **more)


def values(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([part.reshape(-1) for part in arrays.to_numpy_ndarrays()])


def test_the_same_model_and_metrics_as_without_secure_sums(tmp_path: Path) -> None:
    plain = run(FedAvg(), AppGrid(app_with([]), None, NODES))
    grid = secured(tmp_path, weights=SIZES)
    found = run(over(tmp_path), grid)
    assert np.allclose(values(found.arrays), values(plain.arrays), atol=1e-5)
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        for round, metrics in getattr(plain, kind).items():
            assert dict(getattr(found, kind)[round]) == pytest.approx(dict(metrics), abs=1e-4)
    assert [action for client, action in grid.log if client == 0] == ["hello", "train", "evaluate", "train", "evaluate"]


def test_no_reply_holds_anything_of_the_app(tmp_path: Path) -> None:
    grid = secured(tmp_path)
    run(over(tmp_path), grid, rounds=1)
    for reply in grid.replies:
        assert set(reply.content) == {"share", "parts"}
        assert set(reply.content["parts"]) <= {"member", "seat", "message"}
    lengths = [
        len(reply.content["parts"]["message"].data) for reply in grid.replies if "seat" not in reply.content["parts"]
    ]
    assert len(set(lengths)) <= 2  # an answer says how many groups and adverts it has, and nothing else by its length


@pytest.mark.parametrize("inner", [FedAdam(eta=0.1), FedMedian()])
def test_other_strategies_get_one_reply_per_group(tmp_path: Path, inner: Strategy) -> None:
    secured_grid = secured(tmp_path)
    seen: list[int] = []
    aggregate = inner.aggregate_train
    inner.aggregate_train = lambda r, replies: (seen.append(len(replies)), aggregate(r, replies))[1]  # type: ignore
    found = run(over(tmp_path, inner), secured_grid, rounds=2)
    assert seen == [2, 2]
    assert np.isfinite(values(found.arrays)).all()
    assert values(found.arrays).any()


def test_a_rule_leaves_out_a_poisoned_group(tmp_path: Path) -> None:
    """One of twelve nodes sends what it likes; the rule takes the median of four groups."""
    sent: dict[int, np.ndarray] = {}

    def poison(message: Message, context: Any, call_next: Any) -> Message:
        reply, node = call_next(message, context), int(context.node_config["partition-id"])
        if message.metadata.message_type == "train":
            sent[node] = values(reply.content["arrays"])
            if node == 3:
                reply.content["arrays"] = ArrayRecord([np.full(3, 4.0, np.float32), np.full(1, -4.0, np.float32)])
        return reply

    identities = members_of(tmp_path, 12)
    agree(tmp_path, identities, PARAMETERS, evaluate={})
    grid = grid_of(tmp_path, 12, [secure_mod, poison])
    median, mean = (values(run(over(tmp_path, rule=rule), grid, rounds=1).arrays) for rule in ("median", None))
    honest = np.stack([update for node, update in sent.items() if node != 3])
    assert (honest.min(axis=0) - 1e-5 <= median).all()
    assert (median <= honest.max(axis=0) + 1e-5).all()
    assert np.abs(mean - honest.mean(axis=0)).max() > 0.2


def test_a_rule_that_calls_another_on_too_few_groups_ends_the_training(tmp_path: Path) -> None:
    """It is a mistake in the rule; a grouping is left out only if it has too few groups for the rule itself."""

    @robust.aggregator(paper="nobody 2026", needs="n > 2f", withstands=lambda n: (n - 1) // 2)
    def calling(rows: robust.Rows) -> robust.Outcome:
        return robust.Outcome(robust.krum(rows.array(), f=5))

    identities = members_of(tmp_path, 12)
    agree(tmp_path, identities, PARAMETERS, evaluate={})
    try:
        with pytest.raises(robust.RowsError, match=r"krum needs n > 2f \+ 2: got n=4, f=5"):
            run(over(tmp_path, rule="calling"), grid_of(tmp_path, 12), rounds=1)
    finally:
        robust.AGGREGATORS.remove("calling")


def test_a_request_outside_secure_sums_is_refused(tmp_path: Path) -> None:
    grid = secured(tmp_path)
    content = RecordDict({"arrays": start_arrays(), "config": ConfigRecord({"lr": 0.1})})
    for kind in ("train", "evaluate", "query.data"):
        (reply,) = grid.send_and_receive([Message(content, 1000, kind)])
        assert "answers only inside secure sums" in str(reply.content["share"]["refused"])
        assert not reply.content["parts"]


def test_a_named_function_of_the_app_cannot_be_called(tmp_path: Path) -> None:
    """Not even with the envelope of a round that secure aggregation would answer."""
    grid = secured(tmp_path)

    def ask_for_data(client: int, message: Message) -> Message:
        if action_of(message) == "train" and client == 0:
            return Message(message.content, message.metadata.dst_node_id, "query.data")
        return message

    grid.before = ask_for_data
    run(over(tmp_path), grid, rounds=1)
    line = json.loads((tmp_path / "agreement.record" / "rounds.jsonl").read_text().splitlines()[0])
    assert line["dropouts"][0]["why"].startswith("it refused: this node answers no 'query'")
    assert (line["opened"], line["groups"]) == (1, 2)


def test_another_model_for_one_node_opens_nothing_of_its_group(tmp_path: Path) -> None:
    grid = secured(tmp_path)

    def other_model(client: int, message: Message) -> Message:
        if action_of(message) == "train" and client == 0:
            message.content["arrays"] = ArrayRecord([np.ones(3, np.float32), np.zeros(1, np.float32)])
        return message

    grid.before = other_model
    run(over(tmp_path), grid, rounds=1)
    line = json.loads((tmp_path / "agreement.record" / "rounds.jsonl").read_text().splitlines()[0])
    assert (line["opened"], line["groups"]) == (1, 2)
    assert "another context" in line["dropouts"][0]["why"]


def test_an_app_gets_nothing_of_a_server_that_the_hash_leaves_out(tmp_path: Path) -> None:
    """Flower's group id is a text that a server chooses for each message, often the number of the round."""
    seen: list[str] = []

    def look(message: Message, context: Any, call_next: Any) -> Message:
        seen.append(message.metadata.group_id)
        return call_next(message, context)  # type: ignore[no-any-return]

    def grouped(client: int, message: Message) -> Message:
        message.metadata.group_id = str(client)
        return message

    identities = members_of(tmp_path, NODES)
    agree(tmp_path, identities, PARAMETERS, evaluate={})
    grid = grid_of(tmp_path, NODES, [secure_mod, look])
    grid.before = grouped
    run(over(tmp_path), grid, rounds=1)
    assert seen == [""] * NODES


def test_another_run_configuration_for_its_mates_opens_nothing_of_a_node(tmp_path: Path) -> None:
    """With no local epochs for the others, the sum would be the update of the one."""
    grid = secured(tmp_path)
    for client in range(1, NODES):
        grid.contexts[1000 + client].run_config["local-epochs"] = 0
    with pytest.raises(FlowerError, match="another context"):
        run(over(tmp_path, skips=1), grid, rounds=1)


def test_a_configuration_without_an_agreement_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'expected agreement = "FILE" in the run configuration'):
        SecureStrategy(FedAvg(), {})


def test_a_lost_node_loses_its_group_and_comes_back(tmp_path: Path) -> None:
    grid = secured(tmp_path, evaluate={})
    rounds: list[int] = []

    def drop(client: int, message: Message) -> Message | None:
        if action_of(message) == "train" and client == 2:
            rounds.append(1)
            if len(rounds) == 1:
                grid.start(2)  # it restarts and has lost its keys
                return None
        return message

    grid.before = drop
    run(over(tmp_path), grid, rounds=3)
    lines = [json.loads(line) for line in (tmp_path / "agreement.record" / "rounds.jsonl").read_text().splitlines()]
    assert [(line["opened"], line["groups"]) for line in lines] == [(1, 2), (2, 2), (2, 2)]
    assert lines[0]["dropouts"][0] == {"client": 2, "name": "node-2", "why": "it did not answer in time"}


def test_a_second_run_goes_on_with_the_next_round(tmp_path: Path) -> None:
    grid = secured(tmp_path, evaluate={}, rounds=3)
    first = run(over(tmp_path), grid, rounds=2)
    for client in range(NODES):
        grid.start(client)  # a new run has new contexts
    second = run(over(tmp_path), grid, rounds=1)
    assert np.allclose(
        values(second.arrays), values(run(FedAvg(), AppGrid(app_with([]), None, NODES), 1).arrays), atol=0.5
    )
    assert first.arrays is not None
    with pytest.raises(ConfigError, match="has 3 rounds, and all are used"):
        run(over(tmp_path), grid, rounds=1)


def test_a_second_server_at_the_same_time_is_refused(tmp_path: Path) -> None:
    """Two servers would ask for the same rounds, and each would cut the evidence of the other."""
    secured(tmp_path)
    path = tmp_path / "agreement.toml"
    code = f"""
from pathlib import Path
from fl.errors import RecordError
from fl.flower.apps import ledger, member
from fl.reporting import records
records.PATIENCE = 0
try:
    ledger.Ledger(Path({str(tmp_path / "agreement.record")!r}), member.signed_agreement(Path({str(path)!r}))[0])
except RecordError as error:
    print(error)
"""
    strategy = over(tmp_path)
    assert over(tmp_path)._ledger.next == strategy._ledger.next  # in one process there may be several
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "another process is training in" in other.stdout


def test_a_line_that_a_kill_has_cut_does_not_spoil_the_status(tmp_path: Path) -> None:
    grid = secured(tmp_path, evaluate={})
    run(over(tmp_path), grid, rounds=1)
    with (tmp_path / "agreement.record" / "rounds.jsonl").open("a") as file:
        file.write('{"time": 1.0, "rou')
    run(over(tmp_path), grid, rounds=1)
    assert [one.opened for one in read_status(tmp_path / "agreement.record").rounds] == [2, 2]


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"train": {}}, r"train/train_loss: the agreement has no such metric"),
        ({"train": {"train_loss": 20.0, "other": 1.0}}, r"train/other: the app did not return it"),
        ({"train": {"train_loss[2]": 20.0}}, r"returned a number, the agreement has a list of 2 numbers"),
    ],
)
def test_a_mistake_stops_the_training_with_the_reason(tmp_path: Path, terms: dict[str, Any], why: str) -> None:
    grid = secured(tmp_path, **terms)
    with pytest.raises(FlowerError, match=why):
        run(over(tmp_path), grid, rounds=20)


def test_another_agreement_at_a_node_is_named(tmp_path: Path) -> None:
    grid = secured(tmp_path)
    other = tmp_path / "other"
    agree(other, members_of(other, NODES), PARAMETERS)
    (tmp_path / "node-1" / "agreement.toml").write_text((tmp_path / "agreement.toml").read_text())
    grid.folders = [tmp_path / "node-0", other / "node-1", *(tmp_path / f"node-{i}" for i in range(2, NODES))]
    grid.start(1)
    with pytest.raises(FlowerError, match=r"node 1001: it refused: another agreement: this node signed [0-9a-f]{16}"):
        run(over(tmp_path), grid)


def test_a_node_that_is_no_member_does_not_count(tmp_path: Path) -> None:
    grid = secured(tmp_path)
    members_of(tmp_path / "more", 1)
    (tmp_path / "more" / "node-0" / "agreement.toml").write_text((tmp_path / "agreement.toml").read_text())
    grid.folders = [*grid.folders, tmp_path / "more" / "node-0"]  # type: ignore[misc]
    grid.nodes += 1
    grid.start(NODES)
    strategy = over(tmp_path)
    run(strategy, grid, rounds=1)
    assert "not set up" in strategy._seats.strangers[1000 + NODES]
    assert sorted(strategy._seats.connected) == list(range(NODES))


def test_nobody_takes_the_seat_of_another(tmp_path: Path) -> None:
    """The proof of node 1, sent from node 0, is not accepted."""
    grid = secured(tmp_path)
    proofs: dict[int, RecordDict] = {}

    def swap(client: int, reply: Message) -> Message:
        if action_of(reply) == "hello":
            proofs[client] = reply.content
            if client == 2:
                reply.content = proofs[1]
        return reply

    grid.after = swap
    strategy = over(tmp_path)
    run(strategy, grid, rounds=1)
    assert 1002 in strategy._seats.strangers
    assert strategy._seats.connected[1] == 1001


def test_a_repeated_request_gets_the_same_bytes(tmp_path: Path) -> None:
    grid = secured(tmp_path, evaluate={})
    answers: list[bytes] = []

    def twice(client: int, message: Message) -> Message:
        if action_of(message) == "train" and client == 0 and not answers:
            for _ in range(2):
                again = Message(RecordDict(dict(message.content)), 1000, "train")
                again.metadata.__dict__["_message_id"] = "again"
                answers.append(grid.app(again, grid.contexts[1000]).content["parts"]["message"].data)
        return message

    grid.before = twice
    run(over(tmp_path), grid, rounds=1)
    assert len(answers) == 2
    assert answers[0] == answers[1]


def test_a_node_that_restarts_after_its_answer_sends_the_same_bytes(tmp_path: Path) -> None:
    """Also if it gets another model then: the app does not even see it."""
    grid = secured(tmp_path, evaluate={})
    answers: list[bytes] = []

    def restarted(client: int, message: Message) -> Message:
        if action_of(message) == "train" and client == 0 and not answers:
            for value in (0.0, 1.0):
                content = RecordDict(dict(message.content))
                content["arrays"] = ArrayRecord([np.full(3, value, np.float32), np.zeros(1, np.float32)])
                again = Message(content, 1000, "train")
                again.metadata.__dict__["_message_id"] = "again"
                answers.append(grid.app(again, grid.contexts[1000]).content["parts"]["message"].data)
                grid.start(0)
        return message

    grid.before = restarted
    run(over(tmp_path), grid, rounds=1)
    assert len(answers) == 2
    assert answers[0] == answers[1]


def test_the_order_of_arrays_is_part_of_what_a_node_got() -> None:
    """An app that takes the arrays one after the other would get another model."""
    one, two = np.zeros(2, np.float32), np.ones(2, np.float32)
    contents = [
        RecordDict({"arrays": ArrayRecord({name: Array(arrays[name]) for name in arrays})})
        for arrays in ({"a": one, "b": two}, {"b": two, "a": one}, {"a": two, "b": one})
    ]
    contents += [RecordDict({"config": ConfigRecord(pairs)}) for pairs in ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
    assert len({content_hash("train", content, {}) for content in contents}) == len(contents)
    first = contents[0]
    assert content_hash("train", first, {"x": 1, "y": 2}) == content_hash("train", first, {"y": 2, "x": 1})


def test_flower_brings_records_in_the_order_in_which_they_were_sent() -> None:
    """Otherwise nodes and server would not agree on the hash."""
    names = ["z", *map(str, range(12)), "a"]
    arrays = ArrayRecord({name: Array(np.full(2, i, np.float32)) for i, name in enumerate(names)})
    config = ConfigRecord({name: i for i, name in enumerate(names)})
    children = {array.object_id: array for array in arrays.values()}
    came = {"z": ArrayRecord.inflate(arrays.deflate(), children), "a": ConfigRecord.inflate(config.deflate())}
    sent = RecordDict({"z": arrays, "a": config})
    found = RecordDict.inflate(sent.deflate(), {record.object_id: record for record in came.values()})
    assert content_hash("train", found, {}) == content_hash("train", sent, {})


def test_a_node_with_a_budget_does_not_answer_without_noise(tmp_path: Path) -> None:
    grid = secured(tmp_path)
    (tmp_path / "node-0" / "floors.toml").write_text("budget = { epsilon = 2.0, delta = 1e-6 }\n")
    strategy = over(tmp_path)
    run(strategy, grid, rounds=1)
    assert sorted(strategy._seats.connected) == list(range(1, NODES))
    assert "noise" in strategy._seats.strangers[1000]


def test_a_refusal_of_the_storage_names_no_files_of_the_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = secured(tmp_path)
    (tmp_path / "node-0" / "journal").write_text("a file where a folder should be")
    strategy = over(tmp_path)
    run(strategy, grid, rounds=1)
    assert strategy._seats.strangers[1000] == "it refused: the storage of this node failed; its own log says why"
    assert str(tmp_path / "node-0") in capsys.readouterr().err


def test_a_metric_may_be_a_list(tmp_path: Path) -> None:
    def listed(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        (metrics,) = reply.content.metric_records.values()
        metrics["sizes"] = [1.0, float(context.node_config["partition-id"])]
        return reply

    identities = members_of(tmp_path, NODES)
    agree(tmp_path, identities, PARAMETERS, train={"train_loss": 20.0, "sizes[2]": 100.0}, evaluate={})
    found = run(over(tmp_path), grid_of(tmp_path, NODES, [secure_mod, listed]), rounds=1)
    assert found.train_metrics_clientapp[1]["sizes"] == pytest.approx([1.0, 2.5], abs=1e-3)


def test_members_that_are_not_drawn_wait(tmp_path: Path) -> None:
    """The agreement may draw one of the two groups for each round."""
    grid = secured(tmp_path, evaluate={}, sample=3)
    strategy = over(tmp_path)
    run(strategy, grid, rounds=3)
    lines = [json.loads(line) for line in (tmp_path / "agreement.record" / "rounds.jsonl").read_text().splitlines()]
    assert [(len(line["answered"]), line["opened"], line["dropouts"]) for line in lines] == [(3, 1, [])] * 3
    assert len(strategy._seats.connected) == NODES


def test_an_inner_strategy_that_wants_more_nodes_does_not_wait(tmp_path: Path) -> None:
    """The agreement says who takes part."""
    grid = secured(tmp_path, evaluate={})
    found = run(over(tmp_path, FedAvg(min_available_nodes=50, min_train_nodes=20)), grid, rounds=1)
    assert values(found.arrays).any()


def test_simulations_are_refused_at_once(tmp_path: Path) -> None:
    class InMemoryGrid(AppGrid):
        pass

    secured(tmp_path)
    with pytest.raises(ConfigError, match=r"share flower try .* simulate with `share train`"):
        run(over(tmp_path), InMemoryGrid(app_with([]), None, NODES))


def test_a_model_of_another_size_is_refused(tmp_path: Path) -> None:
    identities = members_of(tmp_path, NODES)
    agree(tmp_path, identities, 5)
    grid = grid_of(tmp_path, NODES)
    with pytest.raises(ConfigError, match="the model has 4 values, but the agreement has 5"):
        run(over(tmp_path), grid)


def test_an_agreement_that_one_member_did_not_sign_is_refused(tmp_path: Path) -> None:
    path = agree(tmp_path, members_of(tmp_path, 3), 4)
    _, signatures = signed_agreement(path)
    path.write_text(path.read_text().replace(signatures[2].hex(), signatures[1].hex()))
    with pytest.raises(ConfigError, match=r"--check"):
        signed_agreement(path)


def test_a_successor_without_a_member_goes_on(tmp_path: Path) -> None:
    """A leaver takes its group along. The others go on under the successor, which their journals accept."""
    identities = members_of(tmp_path, 9)
    agree(tmp_path, identities, PARAMETERS, evaluate={})
    grid = grid_of(tmp_path, 9)
    run(over(tmp_path), grid, rounds=1)
    before, _ = signed_agreement(tmp_path / "agreement.toml")
    terms = successor_terms(before, [4], name="without 4")
    after = agree_on(terms, {i: identities[i] for i in terms.ids})
    signed = Proposal.of(after).add(Signature(i, after.sign(i, identities[i])) for i in terms.ids)
    for folder in (tmp_path, *(tmp_path / f"node-{i}" for i in terms.ids)):
        (folder / "agreement.toml").write_text(write_agreement(signed))
    grid.contexts = {node: context for node, context in grid.contexts.items() if node - 1000 in terms.ids}
    with pytest.raises(FlowerError, match="predecessors"):  # nobody has kept the earlier agreement yet
        run(over(tmp_path, record=tmp_path / "second"), grid, rounds=1)
    for i in terms.ids:
        MemberFolder(tmp_path / f"node-{i}").keep_agreements([before])
    run(over(tmp_path, record=tmp_path / "second"), grid, rounds=1)
    line = json.loads((tmp_path / "second" / "rounds.jsonl").read_text().splitlines()[-1])
    assert (line["opened"], line["answered"]) == (2, list(terms.ids))
