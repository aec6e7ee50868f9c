"""The server alone: the table of stages, mistakes of the caller, and dealers that doom a group."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from secagg import Client, JournalError, MemoryJournal, Plan, Policy, Server, Stage, UsageError, encode
from secagg.protocol import transcript, unmask
from secagg.protocol.dealing import box_bytes
from secagg.protocol.messages import Dealing, ToServer
from secagg.protocol.server import CLOSE, STEPS
from secagg.protocol.suspects import Suspects
from tests.secagg.cluster import Cluster, agreement_of, expected_rows, identity, make_inputs, make_plan, run_plan

N = 10


def flat_plan(n: int = N, **changes: Any) -> Plan:
    return make_plan(n, bound=100, policy=Policy(), **changes)


def client_of(plan: Plan, me: int) -> Client:
    return Client(me, identity(me), agreement_of(plan), plan.round, MemoryJournal())


def garbage_boxes(_: Stage, message: ToServer) -> ToServer:
    return replace(message, boxes=bytes(len(message.boxes))) if isinstance(message, Dealing) else message


def test_every_stage_takes_one_message_and_has_one_end() -> None:
    stages = list(Stage)[:5]
    assert [stage for stage, _ in STEPS] == stages == list(CLOSE)


def silent_from(stage: Stage, message: ToServer, *, at: Stage) -> ToServer | None:
    return None if stage >= at else garbage_boxes(stage, message)


def test_a_dealer_of_garbage_that_stays_loses_nothing_and_is_blamed() -> None:
    plan = flat_plan()
    result = run_plan(plan, {v: np.full(3, v) for v in plan.ids}, tamper={3: garbage_boxes})
    assert result.sum().tolist() == [sum(plan.ids)] * 3
    assert not result.lost
    assert set(result.blamed) == {3}


def test_a_dealer_of_garbage_that_vanishes_is_named_before_stage_three_and_the_run_repeated_without_it() -> None:
    plan = flat_plan()
    inputs = {v: np.full(3, v) for v in plan.ids}
    seen: list = []
    original = Server.doomed_groups

    def look(server: Server) -> object:
        seen.append(original(server))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "doomed_groups", look)
        result = run_plan(plan, inputs, tamper={3: partial(silent_from, at=Stage.INPUTS)})
    assert seen == [{(0, 0): (3,)}, {}]
    assert result.sum().tolist() == [sum(plan.ids) - 3] * 3
    assert result.dropouts[3].reason == "left out by the application"


def test_a_silent_dealer_loses_the_sum_only_by_vanishing_and_is_among_the_suspects() -> None:
    """Finding 4: n - t bad boxes, silence at stage 4. The sum was lost and nobody named."""
    plan = flat_plan()

    def cheat(stage: Stage, message: ToServer) -> ToServer | None:
        if isinstance(message, Dealing):
            boxes, size = bytearray(message.boxes), box_bytes(plan)
            for k in range(len(plan.ids) - plan.t):
                boxes[k * size] ^= 1
            return replace(message, boxes=bytes(boxes))
        return message if stage < last else None

    inputs = {v: np.full(3, v) for v in plan.ids}
    last = Stage.DONE
    assert run_plan(plan, inputs, tamper={5: cheat}).sum().tolist() == [sum(plan.ids)] * 3
    last = Stage.UNMASKING
    result = run_plan(plan, inputs, tamper={5: cheat})
    assert set(result.lost) == {(0, 0)}
    assert {dealer for dealer, _ in result.disputes} == {5}
    suspects = Suspects(most=2)
    suspects.learn(result)
    assert 5 in suspects.excluded(1)
    assert len(suspects.excluded(1)) == 2
    again = flat_plan(round=plan.round + 1)
    left = dict.fromkeys(suspects.excluded(1), Stage.KEYS)
    assert run_plan(again, inputs, drop=left).sum().tolist() == [sum(set(plan.ids) - set(left))] * 3


def test_the_application_may_leave_a_client_out() -> None:
    plan = flat_plan()
    server = Server(plan, exclude=[3])
    assert 3 not in server.waiting_for()
    out = server.receive(3, b"whatever it says")
    assert out is not None
    assert out.reason == "left out by the application"


@pytest.mark.parametrize("message", [None, "text", 7, {"sender": 3}])
def test_what_is_not_a_message_at_all_is_the_callers_mistake(message: object) -> None:
    plan = flat_plan()
    server = Server(plan)
    with pytest.raises(UsageError, match="bytes or a message"):
        server.receive(3, message)  # type: ignore[arg-type]
    assert 3 in server.waiting_for()


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_of_bytes_is_taken(buffer: type) -> None:
    plan = flat_plan()
    server = Server(plan)
    client = client_of(plan, 3)
    assert server.receive(3, buffer(encode(client.hello()))) is None
    assert 3 not in server.waiting_for()


def test_a_journal_that_fails_leaves_the_stage_where_it_was() -> None:
    class Full(MemoryJournal):
        def create(self, name: str, content: bytes) -> bytes | None:
            raise OSError("disk full")

    plan = flat_plan()
    server = Server(plan, Full())
    for v in plan.ids:
        server.receive(v, client_of(plan, v).hello())
    with pytest.raises(JournalError, match="disk full"):
        server.advance()
    assert server.stage is Stage.KEYS


class OnceFull(MemoryJournal):
    """A disk that is full when a stage is to begin, and not any more when it is tried again."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    def create(self, name: str, content: bytes) -> bytes | None:
        if self.full:
            self.full = False
            raise OSError("no space left on device")
        return super().create(name, content)


def delivered(stage: Stage) -> tuple[Cluster, OnceFull]:
    """A run whose clients have answered in this stage, one of ten having left; and its server's journal."""
    plan = make_plan(10, length=20)
    cluster, journal = Cluster(plan, make_inputs(plan)), OnceFull()
    cluster.server = Server(plan, journal)
    cluster.start()
    while cluster.server.stage < stage:
        cluster.deliver_all()
        cluster.advance()
        if cluster.server.stage is Stage.INPUTS:
            cluster.drop(0)
    cluster.deliver_all()
    return cluster, journal


def assert_lost_for_good(server: Server) -> None:
    assert server.stage is Stage.FAILED
    for use in (server.advance, server.result, server.save):
        with pytest.raises(UsageError):
            use()


def test_sums_whose_masks_are_half_off_are_never_taken_for_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, journal = delivered(Stage.UNMASKING)
    saved = cluster.server.save()
    cluster.server = Server.restore(saved, journal, plan=cluster.plan)
    real = unmask.add_masks

    def interrupted(*args: object, **options: object) -> None:
        real(*args, **options)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(unmask, "add_masks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cluster.server.advance()
    monkeypatch.undo()
    assert_lost_for_good(cluster.server)
    cluster.server = Server.restore(saved, journal, plan=cluster.plan)  # what was saved before is whole
    result = cluster.finish()
    for row, total in expected_rows(cluster.plan, cluster.inputs, result.survivors).items():
        assert np.array_equal(result.groups[row].total, total)


def test_vectors_are_hashed_once_and_without_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _ = delivered(Stage.SHARES)
    cluster.advance()
    while not cluster.flying[0].up:
        cluster.deliver()
    hashed = []
    real = transcript.vectors_hash

    def watched(vectors: Any, threads: int | None = None) -> bytes:
        hashed.append((cluster.server._lock._is_owned(), threads))  # type: ignore[attr-defined]
        return real(vectors, threads)

    monkeypatch.setattr(transcript, "vectors_hash", watched)
    monkeypatch.setattr(cluster.server, "_threads", 2)
    letters = [(letter.client, letter.data) for letter in cluster.flying]
    for _ in range(2):  # the second time, nothing is hashed
        for v, data in letters:
            assert cluster.server.receive(v, data) is None
    assert hashed == [(False, 2)] * len(letters)
    assert len(cluster.server._memory.survivors) == len(letters)


def test_an_input_that_comes_while_its_stage_begins_is_hashed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the stage and the lock, another thread may have closed the stage before."""
    cluster, _ = delivered(Stage.SHARES)
    monkeypatch.setattr(Server, "_awaits_input", lambda *_: False)
    result = cluster.finish()
    assert not result.dropouts
    for row, total in expected_rows(cluster.plan, cluster.inputs, result.survivors).items():
        assert np.array_equal(result.groups[row].total, total)


def test_a_vector_that_is_half_added_is_never_taken_for_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _ = delivered(Stage.SHARES)
    cluster.advance()
    while not (cluster.flying[0].up and cluster.flying[0].client == 3):
        cluster.deliver()
    monkeypatch.setattr("secagg.protocol.messages.Survivor", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cluster.deliver()
    monkeypatch.undo()
    assert_lost_for_good(cluster.server)


@pytest.mark.parametrize("stage", [Stage.INPUTS, Stage.UNMASKING])
def test_a_stage_that_changed_the_sums_is_not_closed_twice(stage: Stage) -> None:
    cluster, journal = delivered(stage)
    journal.full = True
    with pytest.raises(JournalError, match="no space"):
        cluster.server.advance()
    assert_lost_for_good(cluster.server)


@pytest.mark.parametrize("stage", [Stage.KEYS, Stage.SHARES, Stage.CONSISTENCY])
def test_another_stage_may_be_closed_again_when_there_is_space(stage: Stage) -> None:
    cluster, journal = delivered(stage)
    journal.full = True
    with pytest.raises(JournalError, match="no space"):
        cluster.server.advance()
    result = cluster.finish()
    assert result.lost == {}
    for row, total in expected_rows(cluster.plan, cluster.inputs, result.survivors).items():
        assert np.array_equal(result.groups[row].total, total)


def test_the_last_stage_uses_as_many_threads_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _ = delivered(Stage.UNMASKING)
    used = []
    monkeypatch.setattr(cluster.server, "_threads", 3)
    real_masks, real_spread = unmask.add_masks, unmask.spread
    monkeypatch.setattr(
        unmask, "add_masks", lambda *a, threads: used.append(threads) or real_masks(*a, threads=threads)
    )
    monkeypatch.setattr(
        unmask, "spread", lambda *a, step, threads: used.append(threads) or real_spread(*a, step=step, threads=threads)
    )
    cluster.server.advance()
    assert used == [3, 3]
    assert Server(cluster.plan, threads=2)._threads == 2
