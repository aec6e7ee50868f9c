"""Every recorded message, replayed in every state: only the one that is due is answered, and only once."""

from collections.abc import Iterator
from itertools import product

import pytest

from secagg import PeerError, Plan, Schedule, SecAggError, Stage
from secagg.protocol.client import STEPS
from secagg.protocol.client_state import State
from secagg.protocol.messages import Bundle, KeyList, Signatures, Survivors, ToClient
from secagg.protocol.server import STEPS as SERVER_STEPS
from secagg.protocol.wire import LAYOUTS, encode
from tests.secagg.cluster import Cluster, check_outcome, make_inputs, make_plan, remembered_signatures
from tests.secagg.malicious import Puppet, World

PAIRS = Schedule(name="random", size=2)


@pytest.fixture(autouse=True)
def _fast_signatures() -> Iterator[None]:
    with remembered_signatures():
        yield


def plan_of_four() -> Plan:
    return make_plan(4, colluders=1, threshold=3, schedule=PAIRS)


def in_every_state(world: World) -> dict[State, dict[int, Puppet]]:
    """The clients of one run by the book, as they stood after each step."""
    stages = {
        State.ADVERTISED: Stage.KEYS,
        State.DEALT: Stage.SHARES,
        State.MASKED: Stage.INPUTS,
        State.SIGNED: Stage.CONSISTENCY,
        State.DONE: Stage.UNMASKING,
    }
    states = {State.NEW: World(world.plan, name=world.name).attempt()}
    for state, stage in stages.items():
        states[state] = World(world.plan, name=world.name).run_to(stage)  # the same randomness each time
    return states


def test_every_message_of_two_runs_in_every_state_of_every_client() -> None:
    plan = plan_of_four()
    this, other = World(plan, name=b"this"), World(plan, name=b"other")
    due: dict[State, dict[int, list[ToClient]]] = {
        State.ADVERTISED: {},
        State.DEALT: {},
        State.MASKED: {},
        State.SIGNED: {},
        State.DONE: {},
    }
    recorded: list[ToClient] = []
    for world in (this, other):
        for v, puppet in world.run_to(Stage.UNMASKING).items():
            recorded += puppet.heard_all
            if world is this:
                keys, bundle, survivors, signatures = puppet.heard_all
                due[State.ADVERTISED][v] = [keys]
                due[State.DEALT][v] = [keys, bundle]  # the message answered last may come again
                due[State.MASKED][v] = [bundle, survivors]
                due[State.SIGNED][v] = [survivors, signatures]
                due[State.DONE][v] = [signatures]
    views = {v: bundles[1].dealers for v, bundles in due[State.DEALT].items()}  # type: ignore[union-attr]
    unique = list({encode(message): message for message in recorded}.values())
    answered = 0
    for (state, puppets), message in product(in_every_state(this).items(), unique):
        for v, puppet in puppets.items():
            twin = puppet.fork()
            if message in due.get(state, {}).get(v, []):
                again = message == twin.heard_all[-1] if twin.heard_all else False
                before, state_before = twin.said[-1], twin.client.state
                answer = twin.tell(message)
                assert not again or encode(answer) == encode(before)
                assert (twin.client.state is state_before) == again
                answered += 1
                continue
            if state is State.DEALT and isinstance(message, Bundle) and message.dealers == views[v]:
                # Somebody else's boxes under the same U2: none opens, so it disputes everybody.
                assert twin.tell(message).disputes == tuple(w for w in plan.ids if w != v)
                continue
            with pytest.raises(SecAggError):
                twin.tell(message)
            assert twin.client.state is State.FAILED
            for again in unique:  # and a violation is permanent, whatever comes next
                with pytest.raises(PeerError, match="state FAILED"):
                    twin.tell(again)
    assert answered == 4 * 8


def test_the_tables_name_every_transition_and_no_other() -> None:
    assert set(STEPS) == {
        (State.ADVERTISED, KeyList),
        (State.DEALT, Bundle),
        (State.MASKED, Survivors),
        (State.SIGNED, Signatures),
    }
    to_server = {layout.cls for layout in LAYOUTS.values()} - {KeyList, Bundle, Survivors, Signatures}
    assert {kind for _, kind in SERVER_STEPS} == to_server
    assert len(SERVER_STEPS) == len(to_server) == 5  # one stage per message, one message per stage


def test_a_clients_own_messages_replayed_in_every_later_stage_change_nothing() -> None:
    plan = plan_of_four()
    cluster = Cluster(plan, make_inputs(plan)).start()
    seen: list[tuple[int, bytes]] = []
    while cluster.server.stage < Stage.DONE:
        while cluster.flying:
            letter = cluster.flying[0]
            cluster.deliver()
            if letter.up:
                seen.append((letter.client, letter.data))
            for sender, data in seen:
                assert cluster.server.receive(sender, data) is None
        cluster.advance()
    result = cluster.server.result()
    check_outcome(cluster, result)
    assert result.dropouts == {}


def test_messages_of_another_run_make_their_sender_a_dropout_and_hurt_nobody_else() -> None:
    """Whatever client 1 said in another run of the same plan, said again by it in each stage of this one."""
    plan = plan_of_four()
    other = Cluster(plan, make_inputs(plan), seed=b"other").start()
    other.finish()
    for stage, message in product(list(Stage)[:5], other.sent[1]):
        cluster = Cluster(plan, make_inputs(plan)).start()
        while cluster.server.stage < Stage.DONE:
            if cluster.server.stage is stage:
                cluster.server.receive(1, encode(message))
            cluster.deliver_all()
            cluster.advance()
        check_outcome(cluster, cluster.server.result(), cheaters=[1], spoilers=[1])


def test_a_message_sent_by_another_client_is_refused() -> None:
    plan = plan_of_four()
    cluster = Cluster(plan, make_inputs(plan))
    message = cluster.clients[0].hello()
    out = cluster.server.receive(1, encode(message))
    assert out is not None
    assert "names client 0" in out.reason
    assert cluster.server.receive(0, encode(message)) is None  # and its true sender is not affected
