"""One server alone: sizes of messages, what it sends, what it says when too few answer, and what it forgets."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg import MemoryJournal, Plan, Schedule, Server, Stage, UsageError, labels
from secagg.errors import TooFewSurvivors
from secagg.evidence.runs import RunRecord
from secagg.exposure import Policy
from secagg.protocol import outcome, transcript
from secagg.protocol.journal import load, record_name
from secagg.protocol.messages import (
    Bundle,
    Consistency,
    Dealing,
    KeyAdvert,
    KeyList,
    MaskedInput,
    Signatures,
    Survivors,
    Unmasking,
)
from secagg.protocol.result import BROKEN_ATOM, NO_ANSWER, Dropout
from secagg.protocol.server_state import ServerMemory, restore, save
from secagg.protocol.unmask import ENTRY
from secagg.protocol.wire import encode
from secagg.types import u32
from tests.secagg.cluster import Cluster, expected_rows, make_inputs, make_plan, signed

PLAN = make_plan(5, colluders=1, threshold=4)


def reached(stage: Stage, plan: Plan = PLAN) -> Cluster:
    """A run in which everybody has answered up to this stage, which is open."""
    cluster = Cluster(plan, make_inputs(plan))
    cluster.start()
    while cluster.server.stage < stage:
        cluster.deliver_all()
        cluster.advance()
    return cluster


def sent(cluster: Cluster, client: int, kind: type) -> Any:
    return next(message for message in reversed(cluster.sent[client]) if isinstance(message, kind))


def answered(cluster: Cluster) -> Cluster:
    """Clients have answered what the server sent, and nothing of it has arrived."""
    while cluster.flying and not cluster.flying[0].up:
        cluster.deliver()
    return cluster


# --- sizes -------------------------------------------------------------------------------------------------------


def without_last_commitment(dealing: Dealing) -> Dealing:
    return replace(dealing, commitments=dealing.commitments[:-1])


@pytest.mark.parametrize(
    "change",
    [
        without_last_commitment,
        lambda dealing: replace(dealing, commitments=(*dealing.commitments, bytes(32))),
        lambda dealing: replace(dealing, hashes=dealing.hashes[:-32]),
        lambda dealing: replace(dealing, hashes=dealing.hashes + bytes(32)),
        lambda dealing: replace(dealing, boxes=dealing.boxes[:-1]),
        lambda dealing: replace(dealing, boxes=dealing.boxes + b"x"),
    ],
)
def test_a_dealing_of_another_size_drops_its_sender(change: Callable[[Dealing], Dealing]) -> None:
    plan = make_plan(5, colluders=1, threshold=4, schedule=Schedule(name="random", size=5))
    cluster = answered(reached(Stage.SHARES, plan))
    dealing = sent(cluster, 2, Dealing)
    out = cluster.server.receive(2, change(dealing))
    assert out == Dropout(Stage.SHARES, "wrong dealing size: expected 4 boxes and 10 hashes")
    assert cluster.server.receive(2, dealing) == out  # it stays out
    assert cluster.server.receive(3, sent(cluster, 3, Dealing)) is None


def test_a_root_that_is_not_that_of_the_hashes_drops_its_dealer() -> None:
    cluster = answered(reached(Stage.SHARES))
    dealing = replace(sent(cluster, 2, Dealing), root=bytes(32))
    statement = transcript.dealing_statement(PLAN.hash, sent(cluster, 2, KeyAdvert), dealing)
    out = cluster.server.receive(2, replace(dealing, signature=signed(2, statement)))
    assert out == Dropout(Stage.SHARES, "the root that it signed is not that of its share hashes")


@pytest.mark.parametrize(("shape", "good"), [((1, 3), True), ((2, 3), False), ((1, 2), False), ((0, 0), False)])
def test_a_masked_input_has_one_vector_per_group(shape: tuple[int, int], good: bool) -> None:
    cluster = answered(reached(Stage.INPUTS))
    vectors = np.zeros(shape, np.uint32)
    view = cluster.server._views.digest(1)
    statement = transcript.view_statement(PLAN.hash, 1, view, (), transcript.vectors_hash(vectors))
    out = cluster.server.receive(1, MaskedInput(1, (), signed(1, statement), vectors))
    wrong = Dropout(Stage.INPUTS, f"its masked input has shape {shape}, expected (1, 3)")
    assert out == (None if good else wrong)


@pytest.mark.parametrize(("disputes", "good"), [((), True), ((0, 4), True), ((1,), False), ((2, 9), False)])
def test_a_client_disputes_other_dealers_only(disputes: tuple[int, ...], good: bool) -> None:
    cluster = answered(reached(Stage.INPUTS))
    vectors = np.zeros((1, 3), np.uint32)
    view = cluster.server._views.digest(1)
    statement = transcript.view_statement(PLAN.hash, 1, view, disputes, transcript.vectors_hash(vectors))
    out = cluster.server.receive(1, MaskedInput(1, disputes, signed(1, statement), vectors))
    assert out == (None if good else Dropout(Stage.INPUTS, "it disputes the shares of a client that dealt none"))


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("field", ["own", "seeds", "keys"])
def test_an_unmasking_has_no_more_bytes_than_there_are_shares(extra: int, field: str) -> None:
    """Five dealers with two secrets each: ten shares with their nonces."""
    cluster = answered(reached(Stage.UNMASKING))
    empty = Unmasking(1, b"", (), b"", (), b"", b"")
    filled: Any = {field: bytes(10 * ENTRY + extra)}
    message = replace(empty, **filled)
    message = replace(message, signature=signed(1, transcript.unmasking_statement(PLAN.hash, message)))
    out = cluster.server.receive(1, message)
    assert ENTRY == 65
    too_long = Dropout(Stage.UNMASKING, "wrong unmasking size: at most 650 bytes of shares exist")
    assert out == (too_long if extra else None)


# --- what is sent ------------------------------------------------------------------------------------------------


def test_what_a_server_sends_in_each_stage() -> None:
    cluster = reached(Stage.KEYS)
    assert dict(cluster.server.outbox()) == {}
    cluster = reached(Stage.SHARES)
    outbox = cluster.server.outbox()
    adverts = tuple(sent(cluster, v, KeyAdvert) for v in range(5))
    assert dict(outbox) == {v: KeyList(PLAN.hash, tuple(PLAN.parts.values()), adverts) for v in range(5)}
    cluster = reached(Stage.INPUTS)
    bundles = dict(cluster.server.outbox())
    assert [type(bundle) for bundle in bundles.values()] == [Bundle] * 5
    assert len({bundle.boxes for bundle in bundles.values()}) == 5  # type: ignore[union-attr]
    cluster = reached(Stage.CONSISTENCY)
    survivors = dict(cluster.server.outbox())
    assert len(set(map(id, survivors.values()))) == 1  # one for all
    first = survivors[0]
    assert isinstance(first, Survivors)
    assert ([member.id for member in first.members], first.groups) == ([0, 1, 2, 3, 4], ((0, 0),))
    cluster = reached(Stage.UNMASKING)
    signatures = cluster.server.outbox()[3]
    assert isinstance(signatures, Signatures)
    assert [one.id for one in signatures.endorsements] == [0, 1, 2, 3]  # t of the five
    assert [one.signature for one in signatures.endorsements] == [
        sent(cluster, v, Consistency).signature for v in range(4)
    ]


def test_only_clients_that_have_not_answered_get_a_message_again() -> None:
    cluster = answered(reached(Stage.SHARES))
    for v in (1, 3):
        cluster.server.receive(v, sent(cluster, v, Dealing))
    cluster.server.give_up(4, "it is ill")
    assert cluster.server.waiting_for() == (0, 2)
    assert list(cluster.server.outbox()) == [0, 2]
    assert cluster.server.dropouts == {4: Dropout(Stage.SHARES, "it is ill")}
    assert repr(cluster.server) == "<Server of 5 clients, SHARES>"


def test_an_outbox_may_have_one_receiver_or_none() -> None:
    cluster = answered(reached(Stage.CONSISTENCY))
    for v in range(4):
        cluster.server.receive(v, sent(cluster, v, Consistency))
    assert list(cluster.server.outbox()) == [4]
    assert isinstance(cluster.server.outbox()[4], Survivors)
    cluster.server.receive(4, sent(cluster, 4, Consistency))
    assert dict(cluster.server.outbox()) == {}


def test_a_client_is_given_up_until_its_input_counts() -> None:
    cluster = answered(reached(Stage.INPUTS))
    server = cluster.server
    server.receive(1, sent(cluster, 1, MaskedInput))
    gone = Dropout(Stage.INPUTS, "it is ill")
    assert (server.give_up(1, "it is ill"), server.give_up(2, "it is ill")) == (None, gone)
    assert server.give_up(2, "for another reason") == gone
    assert server.receive(2, sent(cluster, 2, MaskedInput)) == gone
    for v in (0, 3, 4):
        server.receive(v, sent(cluster, v, MaskedInput))
    server.advance()
    assert (server.give_up(2, "later"), server.give_up(3, "later")) == (gone, None)
    assert server.dropouts == {2: gone}
    with pytest.raises(UsageError, match=r"^client: client 9 is not on the roster$"):
        server.give_up(9, "unknown")


def test_what_comes_again_late_or_early() -> None:
    cluster = answered(reached(Stage.SHARES))
    server = cluster.server
    advert, dealing = sent(cluster, 1, KeyAdvert), sent(cluster, 1, Dealing)
    assert server.receive(1, advert) is None  # late: its stage is over
    assert server.receive(1, dealing) is None
    assert server.receive(1, replace(dealing, boxes=b"")) is None  # the second answer does not count
    assert server._memory.dealings[1] == dealing
    assert server.receive(2, Consistency(2, bytes(64))) == Dropout(Stage.SHARES, "Consistency came too early")
    assert server.receive(3, dealing) == Dropout(Stage.SHARES, "its message names client 1")
    reason = "KeyList is not a message to the server"
    assert server.receive(4, encode(KeyList(bytes(32), (), ()))) == Dropout(Stage.SHARES, reason)
    with pytest.raises(UsageError, match=r"^sender: client 9 is not on the roster$"):
        server.receive(9, advert)


@pytest.mark.parametrize("changes", [{"journal": 7}, {"threads": 0}, {"threads": 1.5}])
def test_a_server_says_which_argument_is_wrong(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(UsageError, match=f"^{name}: expected"):
        Server(PLAN, **changes)
    data = Server(PLAN).save()
    with pytest.raises(UsageError, match=f"^{name}: expected"):
        Server.restore(data, plan=PLAN, **changes)


def test_the_dropouts_are_a_copy() -> None:
    server = Server(PLAN, exclude=[2])
    server.dropouts.clear()  # type: ignore[attr-defined]
    assert server.dropouts == {2: Dropout(Stage.KEYS, "left out by the application")}


def test_every_stage_has_a_record_of_its_number() -> None:
    cluster = reached(Stage.DONE)
    name = cluster.server._memory.instance
    assert len(name) == 16
    found = [load(cluster.server_journal, record_name(labels.STEP_RECORD, name, u32(stage))) for stage in range(8)]
    assert found == [None, b"", b"", b"", b"", b"", None, None]


# --- too few -----------------------------------------------------------------------------------------------------

DID = {
    Stage.KEYS: "sent keys",
    Stage.SHARES: "shared keys",
    Stage.INPUTS: "sent masked inputs",
    Stage.CONSISTENCY: "signed the survivors",
    Stage.UNMASKING: "sent shares",
}


@pytest.mark.parametrize("stage", DID)
def test_t_answers_are_enough_for_a_stage_and_one_less_is_not(stage: Stage) -> None:
    cluster = answered(reached(stage)) if stage else reached(stage)
    letters = [letter for letter in cluster.flying if letter.up]
    assert len(letters) == 5
    for letter in letters[:3]:
        cluster.server.receive(letter.client, letter.data)
    with pytest.raises(TooFewSurvivors) as few:
        cluster.server.advance()
    assert str(few.value) == (
        f"3 clients {DID[stage]}, the threshold is 4: the sums stay hidden; 1 of 5 clients may drop out while 1 may "
        "collude (fewer colluders allow more dropouts)"
    )
    assert cluster.server.stage is (stage if stage >= Stage.CONSISTENCY else Stage.FAILED)
    again = answered(reached(stage)) if stage else reached(stage)
    for letter in [letter for letter in again.flying if letter.up][:4]:
        again.server.receive(letter.client, letter.data)
    again.server.advance()
    assert again.server.stage == stage + 1
    assert again.server.dropouts == {4: Dropout(stage, NO_ANSWER)}


def test_a_sparse_server_says_nothing_about_how_many_may_drop_out() -> None:
    server = Server(make_plan(12, degree=6, threshold=3, colluders=1))
    with pytest.raises(TooFewSurvivors, match=r"^0 clients sent keys, the threshold is 3: the sums stay hidden$"):
        server.advance()


# --- the end -----------------------------------------------------------------------------------------------------


def test_a_server_that_is_done_has_the_result_and_no_shares() -> None:
    cluster = reached(Stage.DONE)
    server, memory = cluster.server, cluster.server._memory
    assert (memory.sums, memory.unmaskings) == ({}, {})
    result = server.result()
    assert result.survivors == (0, 1, 2, 3, 4)
    assert result.groups[0, 0].total.tolist() == expected_rows(PLAN, cluster.inputs, range(5))[0, 0]
    assert (result.lost, result.dropouts, result.blamed, result.disputes, result.inconsistent) == ({}, {}, {}, (), ())
    record = RunRecord.from_bytes(result.record)
    assert (record.round, record.cell, record.groups(PLAN)) == (PLAN.round, 0, ((0, 0),))
    assert server.receive(0, sent(cluster, 0, Unmasking)) is None
    assert server.give_up(0, "too late") is None
    for use, says in ((server.advance, "this run is DONE"), (server.save, "nothing to save: this run is DONE")):
        with pytest.raises(UsageError, match=f"^{says}$"):
            use()


def test_a_server_without_a_result_says_so() -> None:
    server = Server(PLAN)
    with pytest.raises(UsageError, match=r"^this run has no result: it is KEYS$"):
        server.result()
    record = RunRecord.from_bytes(server.record("nobody came"))
    assert [(one.group, one.reason) for one in record.lost] == [((0, 0), b"nobody came")]
    assert record.failed == b"nobody came"
    with pytest.raises(UsageError, match=r"^why: expected str, got int$"):
        server.record(7)  # type: ignore[arg-type]


def test_only_whole_atoms_are_summed_and_the_others_are_told() -> None:
    plan = make_plan(
        8, colluders=1, threshold=5, policy=Policy(anonymity=2, min_survivors=2, max_leverage=1.0),
        schedule=Schedule(name="atoms", size=4, groupings=2, atom=2),
    )  # fmt: skip
    cluster = answered(reached(Stage.INPUTS, plan))
    gone = plan.atoms[0][0]
    for letter in [letter for letter in cluster.flying if letter.up and letter.client != gone]:
        cluster.server.receive(letter.client, letter.data)
    cluster.flying.clear()
    cluster.advance()
    result = cluster.finish()
    other = plan.atoms[0][1]
    assert result.survivors == tuple(v for v in range(8) if v not in plan.atoms[0])
    assert result.dropouts == {other: Dropout(Stage.INPUTS, BROKEN_ATOM), gone: Dropout(Stage.INPUTS, NO_ANSWER)}
    expected = expected_rows(plan, cluster.inputs, result.survivors)
    assert {group: one.total.tolist() for group, one in result.groups.items()} == expected


def memory_with(disputes: Mapping[int, tuple[int, ...]], plan: Any = PLAN) -> ServerMemory:
    from secagg.protocol.messages import Survivor

    survivors = {v: Survivor(v, disputed, bytes(32), bytes(64)) for v, disputed in disputes.items()}
    return ServerMemory(plan=plan, instance=bytes(16), survivors=survivors)


def test_a_dealer_is_blamed_if_more_peers_dispute_it_than_may_cheat() -> None:
    """One of five may collude, and 5 - 4 = 1 may hold no share: the word of two convicts."""
    assert outcome._disputed(memory_with({1: (0,), 2: (), 3: ()})) == {}
    assert outcome._disputed(memory_with({1: (0,), 2: (0, 4), 3: (4,)})) == {
        0: "2 peers hold no good share from it",
        4: "2 peers hold no good share from it",
    }
    wide = make_plan(9, colluders=1, threshold=6)  # 9 - 6 = 3 may hold none
    assert outcome._disputed(memory_with(dict.fromkeys((1, 2, 3), (0,)), wide)) == {}
    assert outcome._disputed(memory_with(dict.fromkeys((1, 2, 3, 4), (0,)), wide)) == {
        0: "4 peers hold no good share from it"
    }


def test_groups_are_doomed_if_a_dealer_vanished_and_too_few_hold_a_good_share_from_it() -> None:
    class Places:
        def places(self, dealer: int) -> dict[int, int]:
            return {v: v for v in range(5)}

    views: Any = Places()
    everybody = dict.fromkeys(range(4), ())
    assert outcome.doomed_groups(memory_with(everybody), views) == {}
    assert outcome.doomed_groups(memory_with({**everybody, 0: (4,)}), views) == {(0, 0): (4,)}  # 3 good ones of 4
    present = {**everybody, 0: (4,), 4: ()}
    assert outcome.doomed_groups(memory_with(present), views) == {}  # it is there and gives its own seed


# --- saved -------------------------------------------------------------------------------------------------------


def test_a_server_is_restored_with_its_own_plan_only() -> None:
    other = make_plan(5, colluders=1, threshold=4, round=9)
    cluster = reached(Stage.UNMASKING)
    data = cluster.server.checkpoint()
    again = Server.restore(data, MemoryJournal(), plan=PLAN)
    assert (again.stage, again.waiting_for()) == (Stage.UNMASKING, (0, 1, 2, 3, 4))
    assert again.checkpoint() == data
    with pytest.raises(UsageError, match=r"^this server was saved under another plan than the one given$"):
        Server.restore(data, plan=other)
    with pytest.raises(UsageError, match=r"^this server was saved under the plan of an agreement: give plan="):
        Server.restore(data)
    with pytest.raises(UsageError, match=r"^plan: expected Plan, got int$"):
        Server.restore(data, plan=7)  # type: ignore[arg-type]
    cluster.server.save()
    assert cluster.server.stage is Stage.FAILED


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"secagg server 1\n", r"^this saved server is of version 1, this is version 2$"),
        (b"secagg client 2\n", r"^these bytes are not a saved server$"),
        (b"secagg server 2\n", r"^this saved server is damaged: "),
    ],
)
def test_what_is_no_saved_server_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Server.restore(data)


def test_a_saved_server_with_another_number_of_sums_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ServerMemory(plan=PLAN, instance=bytes(16), sums={(0, 0): np.ones(3, np.uint32)})
    assert restore(save(memory), PLAN).sums[0, 0].tolist() == [1, 1, 1]
    monkeypatch.setattr("secagg.protocol.server_state.np.stack", lambda rows: np.zeros((2, 3), np.uint32))
    data = save(memory)
    with pytest.raises(UsageError, match=r"^this saved server is damaged: it has 2 sums for 1 groups$"):
        restore(data, PLAN)
