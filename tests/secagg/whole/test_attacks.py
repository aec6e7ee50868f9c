"""Attacks on whole groups by a server, by clients and by time, each with the check that stops it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.errors import PeerError, UsageError
from secagg.exposure.audit import Policy
from secagg.simulation.whole import WholeRun
from secagg.whole import (
    Answer,
    FileStore,
    Hello,
    MemoryStore,
    Release,
    Round,
    Server,
    Stage,
    Task,
    encode,
    respond,
    server_state,
    transcript,
)
from tests.secagg.whole.cast import Cast, update_of

ROUND = Policy(min_survivors=2, anonymity=2, max_leverage=1.0, memory="round")
TRAINING = replace(ROUND, memory="training")
FLAT = {"members": 4, "size": 4, "policy": ROUND}


def signed_release(cast: Cast, member: int, round: int) -> Release:
    """A release that the member's client knows nothing of."""
    unsigned = Release(member, round, b"")
    statement = transcript.release_statement(cast.agreement.fingerprint, unsigned)
    return replace(unsigned, signature=cast.identities[member].sign(statement))


# --- releases over rounds -----------------------------------------------------------------------------------


def release_attack(cast: Cast) -> Any:
    """Round 0 with everybody, round 1 without client 3, all updates the same: what the difference shows."""
    updates = {v: np.arange(5) + 100 * v for v in cast.clients}
    sums = []
    for round in (0, 1):
        if round == 1:
            cast.server.receive(3, signed_release(cast, 3, 1))
        for member, message in cast.begin(round, absent=[3] if round else []).items():
            if round == 0 or member != 3:
                cast.server.receive(member, cast.answer(member, message, updates[member]))
        result = cast.server.close()
        sums.append(result.sum() if result.groups else None)
    return sums


def test_a_release_in_a_flat_sum_of_several_rounds_would_show_an_update() -> None:
    """With memory = "round" the agreement says so, and the difference is client 3's update."""
    first, second = release_attack(Cast(**FLAT))
    assert (first - second == np.arange(5) + 300).all()


@pytest.mark.parametrize("rounds", [1, 8])
def test_with_memory_over_the_training_no_release_is_made_sent_or_accepted(rounds: int) -> None:
    cast = Cast(**FLAT | {"policy": TRAINING, "rounds": rounds})
    last = rounds - 1
    forged = signed_release(cast, 3, last)
    with pytest.raises(UsageError, match="the agreement has no releases"):
        cast.clients[3].release(last)
    refusal = cast.server.receive(3, signed_release(cast, 3, 0))
    assert refusal is not None
    assert "no releases" in refusal
    message = cast.begin(0)[0]
    with pytest.raises(PeerError, match="the agreement has no releases"):
        cast.clients[0].receive(replace(message, releases=(replace(forged, round=0),)))


def test_a_server_without_the_check_still_gets_no_sum_without_the_released_member() -> None:
    cast = Cast(**FLAT | {"policy": TRAINING})
    first, second = release_attack(cast)
    assert first is not None
    assert second is None


def test_a_release_does_not_leave_a_sum_that_one_heavy_member_dominates() -> None:
    """Weights 1, 1, 1, 9, 9: with both heavy members each has leverage 0.49; alone, one would have 0.96."""
    policy = replace(ROUND, max_leverage=0.5)
    cast = Cast(members=5, size=5, policy=policy, weights=(1, 1, 1, 9, 9), bound=None, clip=1.0)
    cast.server.receive(4, signed_release(cast, 4, 0))
    for member, message in cast.begin(absent=[4]).items():
        cast.server.receive(member, cast.answer(member, message, np.zeros(5)))
    assert cast.server.close().groups == {}
    equal = Cast(members=5, size=5, policy=policy, weights=(1, 1, 1, 9, 9), bound=None, clip=1.0)
    equal.server.receive(0, signed_release(equal, 0, 0))
    for member, message in equal.begin(absent=[0]).items():
        equal.server.receive(member, equal.answer(member, message, np.zeros(5)))
    assert equal.server.close().groups[0, 0].members == (1, 2, 3, 4)


# --- misbehaving clients against the server ----------------------------------------------------------------


def test_a_released_client_cannot_add_to_the_sum_of_the_others() -> None:
    cast = Cast(**FLAT)
    cast.hello(3)
    cast.server.receive(3, signed_release(cast, 3, 0))
    answers = {}
    for member, message in cast.begin(absent=[3]).items():
        answers[member] = cast.answer(member, message)
        cast.server.receive(member, answers[member])
    poison = cast.signed(answers[0], sender=3, adverts=(), vectors=np.full((1, 5), 7, np.uint32))
    assert cast.server.receive(3, poison) == "it is in no sum of round 0"
    result = cast.server.close()
    assert (result.sum() == sum(update_of(cast.agreement, v, 0) for v in (0, 1, 2))).all()


def test_releases_of_many_rounds_do_not_fill_the_servers_memory() -> None:
    cast = Cast(**FLAT | {"rounds": 10**9})
    outcomes = [cast.server.receive(3, signed_release(cast, 3, round)) for round in range(50)]
    assert sum(outcome is None for outcome in outcomes) == 4
    assert outcomes[4] == "its release is for round 4, more than 3 rounds ahead"
    assert len(cast.server.save()) < 1000


def test_a_long_list_of_groups_does_not_stop_the_server_from_saving() -> None:
    cast = Cast()
    answer = cast.answer(0, cast.begin()[0])
    many = tuple((r, 2**32 - 1) for r in range(1024))
    reason = cast.server.receive(0, cast.signed(answer, groups=many))
    assert reason is not None
    assert len(reason) > 10_000
    again = Server.restore(cast.server.save(), cast.agreement)
    assert again.dropouts[0] == reason[:1000]


def test_an_answer_that_came_before_its_round_is_not_added_without_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server was restored to the time before the round; answers arrive while it begins the round again."""
    cast = Cast()
    for member in cast.clients:
        cast.server.receive(member, cast.hello(member))
    early = cast.server.save()
    answers = {member: cast.answer(member, message) for member, message in cast.server.begin(0).items()}
    cast.server = Server.restore(early, cast.agreement)
    checked = Server._checked_hashes

    def begun_meanwhile(server: Server, answer: Answer) -> tuple[bytes, bytes]:
        hashes = checked(server, answer)
        if server.stage is Stage.IDLE:
            server.begin(0)
        return hashes

    monkeypatch.setattr(Server, "_checked_hashes", begun_meanwhile)
    forged = replace(answers[0], vectors=np.zeros_like(answers[0].vectors))
    assert cast.server.receive(0, forged) == "its answer came before the round began"
    for member, answer in answers.items():
        assert cast.server.receive(member, answer) is None
        assert cast.server.receive(member, answer) is None
    result = cast.server.close()
    assert result.blamed == {}
    assert len(result.groups) == 3
    for group, opened in result.groups.items():
        assert (result.sum(group) == sum(update_of(cast.agreement, v, 0) for v in opened.members)).all()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rounds": ()}, "does not say which"),
        ({"rounds": (99,)}, "a round that is not in the agreement"),
        ({"adverts": {}}, "lacks an advert"),
        ({"dropouts": {77: "?"}}, "a client that is not a member"),
        ({"complete": ((0, 77),)}, "a group that the round does not have"),
        ({"sums": {}}, "answers without a sum"),
        ({"answers": {}}, "a sum without answers"),
    ],
)
def test_a_saved_server_that_contradicts_its_agreement_is_refused(change: dict[str, Any], why: str) -> None:
    cast = Cast()
    cast.server.receive(0, cast.answer(0, cast.begin()[0]))
    assert Server.restore(cast.server.save(), cast.agreement).stage is Stage.OPEN
    for name, value in change.items():
        setattr(cast.server._memory, name, value)
    with pytest.raises(UsageError, match=why):
        Server.restore(server_state.save(cast.server._memory), cast.agreement)


def test_a_saved_server_with_sums_of_another_length_is_refused() -> None:
    cast = Cast()
    cast.server.receive(0, cast.answer(0, cast.begin()[0]))
    memory = cast.server._memory
    memory.sums = {group: np.zeros(4, np.uint32) for group in memory.sums}
    with pytest.raises(UsageError, match="wrong length"):
        Server.restore(server_state.save(memory), cast.agreement)


# --- an update and the data that it was computed from ----------------------------------------------------------


@pytest.mark.parametrize("between", ["nothing", "hello", "next round"])
def test_an_update_is_not_masked_under_data_that_it_was_not_computed_from(between: str) -> None:
    """While a client computes from data that only it was sent, the server sends the data of its mates."""
    cast = Cast()
    client, message = cast.clients[0], cast.begin()[0]
    alone = client.receive(replace(message, data=b"a model for this client only"))
    if between == "hello":
        client.receive(Hello(cast.agreement.fingerprint, 0))
    if between == "next round":
        cast.server.close()
        message = cast.begin(1)[0]
    everybody = client.receive(replace(message, data=b"the model of all"))
    assert isinstance(alone, Task)
    assert isinstance(everybody, Task)
    with pytest.raises(UsageError, match="not for the task that waits"):
        client.answer(alone, np.zeros(5, np.int64))
    with pytest.raises(UsageError, match="not for the task that waits"):
        respond(client, cast.stores[0], alone, np.zeros(5, np.int64))
    assert client.answer(everybody, np.zeros(5, np.int64)).round == everybody.round


def test_a_task_is_the_same_if_only_adverts_changed() -> None:
    cast = Cast(members=4, size=4)
    message = cast.begin()[0]
    task = cast.clients[0].receive(message)
    cast.clients[0].receive(replace(message, adverts=(message.adverts[0], cast.advert(1, 0), *message.adverts[2:])))
    assert isinstance(task, Task)
    assert cast.clients[0].answer(task, np.zeros(5, np.int64)).message.groups == ((0, 0),)  # type: ignore[union-attr]


# --- several processes, one store --------------------------------------------------------------------------------


def test_processes_that_share_saved_bytes_and_a_store_send_one_answer(tmp_path: Path) -> None:
    """Eight processes are restored from one client; half of them are sent other data, and each has another update."""
    cast = Cast()
    message = cast.begin()[0]
    saved = cast.clients[0].save()
    children = []
    for number in range(8):
        children.append(os.fork())
        if children[-1] == 0:
            code = 1
            try:
                client = cast.restore(0, saved)
                task = client.receive(replace(message, data=b"model %d" % (number % 2)))
                assert isinstance(task, Task)
                sent = b"".join(respond(client, FileStore(tmp_path / "store"), task, np.full(5, number)))
                (tmp_path / f"sent {number}").write_bytes(sent)
                code = 0
            finally:
                os._exit(code)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert len({(tmp_path / f"sent {number}").read_bytes() for number in range(8)}) == 1


# --- one answer per round, in a simulation too ---------------------------------------------------------------


def test_a_second_simulation_with_the_same_store_sends_the_first_answers_again() -> None:
    cast, store = Cast(), MemoryStore()
    seen: list[bytes] = []
    receive = Server.receive

    def watched(server: Server, sender: int, message: Any) -> Any:
        if isinstance(message, (Answer, bytes)):
            seen.append(message if isinstance(message, bytes) else encode(message))
        return receive(server, sender, message)

    for value in (1, 2):
        run = WholeRun(cast.agreement, cast.identities, store=store)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Server, "receive", watched)
            run.round(0, {v: np.full(5, value) for v in cast.clients})
    assert len(seen) == 12
    assert sorted(seen[:6]) == sorted(seen[6:])


def test_a_message_type_that_clients_send_is_not_for_clients() -> None:
    cast = Cast()
    message = cast.begin()[0]
    assert isinstance(message, Round)
    with pytest.raises(PeerError, match="expected a Hello or a Round"):
        cast.clients[0].receive(encode(cast.advert(1, 0)))
