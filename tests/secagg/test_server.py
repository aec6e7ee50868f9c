"""The server's own affairs: the table of stages, what a caller may get wrong, and dealers that doom a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from secagg import Client, MemoryJournal, Plan, Policy, Schedule, Server, Stage, UsageError, encode
from secagg.local import floors_for, make_identities, make_roster, run
from secagg.messages import Dealing, ToServer
from secagg.server import CLOSE, STEPS
from tests.secagg.drbg import Drbg

N = 10


def flat_plan(n: int = N) -> tuple[Plan, dict]:
    identities = make_identities(range(n), Drbg(b"identities"))
    plan = Plan(
        training_id=bytes(32),
        round=0,
        roster=make_roster(identities),
        length=3,
        schedule=Schedule(name="random", size=n),
        training_seed=bytes(range(32)),
        bound=100,
        policy=Policy(),
    )
    return plan, identities


def garbage_boxes(_: Stage, message: ToServer) -> ToServer:
    return replace(message, boxes=bytes(len(message.boxes))) if isinstance(message, Dealing) else message


def test_every_stage_takes_one_message_and_has_one_end() -> None:
    stages = list(Stage)[:5]
    assert [stage for stage, _ in STEPS] == stages == list(CLOSE)


def test_a_dealer_of_garbage_dooms_its_row_and_is_named_before_stage_three() -> None:
    plan, identities = flat_plan()
    inputs = {v: np.full(3, v) for v in plan.ids}
    seen: dict = {}
    original = Server.advance

    def look_first(server: Server) -> object:
        if server.stage is Stage.INPUTS:
            seen.update(server.doomed_rows())
        return original(server)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "advance", look_first)
        result = run(plan, inputs, identities, tamper={3: garbage_boxes})
    assert seen == {(0, 0): (3,)}
    assert set(result.lost) == {(0, 0)}
    assert set(result.blamed) == {3}


def test_the_application_may_leave_a_client_out() -> None:
    plan, _ = flat_plan()
    server = Server(plan, exclude=[3])
    assert 3 not in server.waiting_for()
    out = server.receive(3, b"whatever it says")
    assert out is not None
    assert out.reason == "left out by the application"


@pytest.mark.parametrize("message", [None, "text", 7, {"sender": 3}])
def test_what_is_not_a_message_at_all_is_the_callers_mistake(message: object) -> None:
    plan, _ = flat_plan()
    server = Server(plan)
    with pytest.raises(UsageError, match="bytes or a message"):
        server.receive(3, message)  # type: ignore[arg-type]
    assert 3 in server.waiting_for()


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_of_bytes_is_taken(buffer: type) -> None:
    plan, identities = flat_plan()
    server = Server(plan)
    client = Client(3, identities[3], floors_for(plan), 0, MemoryJournal())
    assert server.receive(3, buffer(encode(client.hello()))) is None
    assert 3 not in server.waiting_for()


def test_a_journal_that_fails_leaves_the_stage_where_it_was() -> None:
    class Full:
        def create(self, name: str, content: bytes) -> bytes | None:
            raise OSError("disk full")

    plan, identities = flat_plan()
    server = Server(plan, Full())
    for v in plan.ids:
        server.receive(v, Client(v, identities[v], floors_for(plan), 0, MemoryJournal()).hello())
    with pytest.raises(OSError, match="disk full"):
        server.advance()
    assert server.stage is Stage.KEYS
