"""Hypothesis state machines: honest parties on an unreliable network, and honest clients of a malicious server."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from secagg import Client, PeerError, Schedule, SecAggError, Stage, TooFewSurvivors
from secagg.protocol.client_state import State
from secagg.protocol.messages import (
    Consistency,
    Dealing,
    KeyAdvert,
    KeyList,
    MaskedInput,
    Survivor,
    Survivors,
    ToClient,
)
from secagg.protocol.wire import decode, encode
from tests.secagg.cluster import (
    Cluster,
    both_kinds,
    check_outcome,
    identity,
    make_inputs,
    make_plan,
    remembered_signatures,
)
from tests.secagg.drbg import Drbg
from tests.secagg.malicious import Puppet, World


@pytest.fixture(autouse=True, scope="module")
def _fast_signatures() -> Iterator[None]:
    with remembered_signatures():
        yield


# n, threshold, colluders, group size, groupings
SHAPES = [(3, 2, 0, 3, 1), (4, 3, 1, 4, 1), (4, 3, 0, 2, 1), (5, 4, 1, 5, 1), (6, 4, 1, 3, 2)]


class AnySchedule(RuleBasedStateMachine):
    """Honest clients and an honest server with an unreliable network, and restarts from saved bytes.

    A client is affected if one of its messages is lost or damaged, or if a message is delivered to it twice. If
    at most n - t clients are affected, the run must end with exact sums. `affected` may contain clients that
    are in fact not affected.
    """

    @initialize(shape=st.sampled_from(SHAPES), patient=st.booleans(), seed=st.integers(0, 1000))
    def start(self, shape: tuple[int, int, int, int, int], patient: bool, seed: int) -> None:
        n, t, colluders, size, groupings = shape
        schedule = Schedule(name="random", size=size, groupings=groupings)
        self.plan = make_plan(n, threshold=t, colluders=colluders, schedule=schedule)
        self.cluster = Cluster(self.plan, make_inputs(self.plan, seed), seed=b"%d" % seed).start()
        self.patient = patient  # whether the network affects at most n - t clients
        self.affected: set[int] = set()
        self.liars: set[int] = set()
        self.spoilers: set[int] = set()
        self.too_few = False

    def may_be_affected(self, client: int) -> bool:
        return not self.patient or len(self.affected | {client}) <= len(self.plan.ids) - self.plan.t

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.cluster.flying) - 1), label="letter")

    @precondition(lambda self: self.cluster.flying)
    @rule(data=st.data())
    def deliver_one_out_of_order(self, data: st.DataObject) -> None:
        self.cluster.deliver(self.pick(data))

    @precondition(lambda self: self.cluster.flying)
    @rule()
    def deliver_all_in_order(self) -> None:
        self.cluster.deliver_all()

    @precondition(lambda self: self.cluster.flying)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        place = self.pick(data)
        client = self.cluster.flying[place].client
        if self.may_be_affected(client):
            self.affected.add(client)
            self.cluster.drop(place)

    @precondition(lambda self: self.cluster.flying)
    @rule(data=st.data())
    def delay(self, data: st.DataObject) -> None:
        self.cluster.delay(self.pick(data))

    @precondition(lambda self: self.cluster.flying)
    @rule(data=st.data())
    def duplicate(self, data: st.DataObject) -> None:
        place = self.pick(data)
        letter = self.cluster.flying[place]
        if letter.up:
            self.cluster.duplicate(place)
        elif self.may_be_affected(letter.client):  # a client that gets a message twice may give up
            self.affected.add(letter.client)
            self.cluster.duplicate(place)

    @precondition(lambda self: self.cluster.flying)
    @rule(data=st.data(), bit=st.integers(0, 7))
    def corrupt(self, data: st.DataObject, bit: int) -> None:
        place = self.pick(data)
        letter = self.cluster.flying[place]
        if not self.may_be_affected(letter.client):
            return
        at = data.draw(st.integers(0, len(letter.data) - 1), label="byte")
        self.affected.add(letter.client)
        if letter.up and letter.data[1] == 5:
            self.liars.add(letter.client)
        if letter.data[1] in (3, 4):
            self.spoilers.add(letter.client)
        self.cluster.corrupt(place, lambda b: b[:at] + bytes([b[at] ^ 1 << bit]) + b[at + 1 :])

    @rule(data=st.data())
    def save_and_restore_a_client(self, data: st.DataObject) -> None:
        self.cluster.save_and_restore_client(data.draw(st.sampled_from(self.plan.ids)))

    @rule()
    def save_and_restore_the_server(self) -> None:
        self.cluster.save_and_restore_server()

    @precondition(lambda self: not self.cluster.flying and self.cluster.server.stage < Stage.DONE)
    @rule()
    def close_the_stage(self) -> None:
        try:
            self.cluster.advance()
        except TooFewSurvivors:
            self.too_few = True
            assert not self.patient

    @precondition(lambda self: self.cluster.flying and not self.patient)
    @rule()
    def close_the_stage_before_everything_arrived(self) -> None:
        if self.cluster.server.stage < Stage.DONE:
            self.affected |= {letter.client for letter in self.cluster.flying}
            try:
                self.cluster.advance()
            except TooFewSurvivors:
                self.too_few = True

    @precondition(lambda self: Stage.CONSISTENCY <= self.cluster.server.stage <= Stage.UNMASKING)
    @rule()
    def ask_again(self) -> None:
        """The server resumes: clients that have not answered are asked again."""
        waiting = set(self.cluster.server.waiting_for())
        if all(self.may_be_affected(client) for client in waiting) and (
            not self.patient or len(self.affected | waiting) <= len(self.plan.ids) - self.plan.t
        ):
            self.affected |= waiting
            self.cluster.send_again()

    @invariant()
    def no_client_sends_both_kinds_of_shares(self) -> None:
        if hasattr(self, "cluster"):
            for sent in self.cluster.sent.values():
                assert not both_kinds(sent)

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        try:
            cluster.finish() if cluster.server.stage < Stage.DONE else None
        except TooFewSurvivors:
            assert not self.patient
            return
        self.no_client_sends_both_kinds_of_shares()
        if cluster.server.stage is Stage.FAILED:
            assert self.too_few
            return
        check_outcome(
            cluster,
            cluster.server.result(),
            cheaters=self.affected,
            liars=self.liars,
            spoilers=self.spoilers | self.liars,
        )


class AnyServer(RuleBasedStateMachine):
    """Honest clients of a malicious server that mixes messages of several attempts.

    Two of the rules follow the protocol, so that the other rules find clients in every state.
    """

    @initialize(
        shape=st.sampled_from([(4, 3, 1, 4, 1), (4, 3, 1, 2, 1), (5, 4, 1, 2, 1), (4, 3, 0, 2, 2), (5, 3, 0, 4, 1)]),
        collusion=st.booleans(),
    )
    def start(self, shape: tuple[int, int, int, int, int], collusion: bool) -> None:
        n, t, colluders, size, groupings = shape
        plan = make_plan(
            n,
            threshold=t,
            colluders=colluders,
            schedule=Schedule(name="random", size=size, groupings=groupings),
            length=2,
        )
        self.world = World(plan, colluders=[n - 1] if collusion and colluders else [])
        self.attempts: list[dict[int, Puppet]] = []
        self.recorded: list[ToClient] = []
        self.disks: list[tuple[Puppet, bytes]] = []
        self.saves = 0
        self.new_attempt()

    # honest steps

    @precondition(lambda self: len(self.attempts) < 4)
    @rule()
    def new_attempt(self) -> None:
        attempt = self.world.attempt(len(self.attempts))
        self.attempts.append(attempt)
        for puppet in attempt.values():
            puppet.hello()

    @rule(data=st.data(), times=st.integers(1, 4))
    def follow_the_protocol(self, data: st.DataObject, times: int) -> None:
        """Send each client of one attempt the honest message for its state."""
        attempt = data.draw(st.sampled_from(self.attempts))
        for _ in range(times):
            for puppet in attempt.values():
                message = self.honest_message(attempt, puppet)
                if message is not None:
                    self.send(puppet, message)

    def honest_message(self, attempt: dict[int, Puppet], puppet: Puppet) -> ToClient | None:
        world, ids = self.world, self.world.plan.ids
        state = puppet.client.state
        if state is State.ADVERTISED:
            return world.key_list(p.find(KeyAdvert) for p in attempt.values())
        dealings = {v: p.find(Dealing) for v, p in attempt.items() if self.said(p, Dealing)}
        if state is State.DEALT:
            if len(dealings) < world.plan.t:
                return None
            return world.bundle(puppet.me, dealings, {v: self.dealt_to(p) for v, p in attempt.items() if v in dealings})
        inputs = [p.find(MaskedInput) for p in attempt.values() if self.said(p, MaskedInput)]
        if state is State.MASKED:
            return world.survivors(inputs) if len(inputs) >= world.plan.t else None
        if state is State.SIGNED:
            made = [p.find(Consistency) for p in attempt.values() if self.said(p, Consistency)]
            return world.signatures(made) if len(made) <= len(ids) else None
        return None

    # attacks

    def a_client(self, data: st.DataObject, *states: State) -> Puppet | None:
        honest = [p for a in self.attempts for p in a.values() if p.me in self.world.honest]
        ready = [p for p in honest if p.client.state in states]
        return data.draw(st.sampled_from(ready)) if ready else None

    def everybody(self) -> list[Puppet]:
        return [p for attempt in self.attempts for p in attempt.values()]

    def said(self, puppet: Puppet, kind: type) -> bool:
        return any(isinstance(message, kind) for message in puppet.said)

    def dealt_to(self, puppet: Puppet) -> list[int]:
        return [advert.sender for advert in puppet.heard(KeyList).adverts]

    def some(self, data: st.DataObject, kind: type, me: Puppet) -> dict[int, Puppet]:
        """For each id, one puppet that has sent a message of this kind; up to three ids are left out.

        The puppets are from the same attempt as `me` or, in one of four cases, from any attempt.
        """
        ids = self.world.plan.ids
        missing = data.draw(
            st.one_of(
                st.just(set()), st.sampled_from(ids).map(lambda v: {v}), st.sets(st.sampled_from(ids), max_size=3)
            )
        )
        mixed = data.draw(st.integers(0, 3)) == 0
        mine = next(a for a in self.attempts if a[me.me] is me)
        chosen: dict[int, Puppet] = {}
        for v in ids:
            speakers = [p for p in (self.everybody() if mixed else mine.values()) if p.me == v]
            speakers = [p for p in speakers if self.said(p, kind)]
            if v not in missing and speakers:
                chosen[v] = me if me in speakers else data.draw(st.sampled_from(speakers))
        return chosen

    def lie(self, data: st.DataObject, puppet: Puppet) -> None:
        """Send the kind of message that this client expects, with parts from any attempt."""
        world, state = self.world, puppet.client.state
        if state is State.ADVERTISED:
            chosen = self.some(data, KeyAdvert, puppet)
            self.send(puppet, world.key_list(p.find(KeyAdvert) for p in chosen.values()))
        elif state is State.DEALT:
            chosen = self.some(data, Dealing, puppet)
            dealings = {v: p.find(Dealing) for v, p in chosen.items()}
            dealt_to = {v: self.dealt_to(p) for v, p in chosen.items()}
            self.send(puppet, world.bundle(puppet.me, dealings, dealt_to))
        elif state is State.MASKED or (state is State.SIGNED and data.draw(st.booleans())):
            members: list[MaskedInput | Survivor] = []
            for v, p in self.some(data, MaskedInput, puppet).items():
                collude = v in world.colluders
                view = world.view_of(puppet)
                members.append(world.collude_on_view(v, view) if collude else p.find(MaskedInput))
            rows = [(r, g) for r, grouping in enumerate(world.plan.groupings) for g in range(len(grouping))]
            wanted = data.draw(st.none() | st.lists(st.sampled_from(rows), unique=True).map(sorted))
            self.send(puppet, world.survivors(members, wanted))
        elif state is State.SIGNED:
            made = []
            for v, p in self.some(data, Consistency, puppet).items():
                if v in world.colluders:
                    asked = puppet.heard(Survivors)
                    made.append(world.collude_on_opening(v, world.view_of(puppet), asked))
                else:
                    made.append(p.find(Consistency))
            self.send(puppet, world.signatures(made))

    @rule(data=st.data())
    def lie_to_a_client(self, data: st.DataObject) -> None:
        puppet = self.a_client(data, State.ADVERTISED, State.DEALT, State.MASKED, State.SIGNED)
        if puppet:
            self.lie(data, puppet)

    @rule(
        data=st.data(),
        when=st.sampled_from([State.ADVERTISED, State.DEALT, State.MASKED, State.SIGNED]),
        everybody=st.booleans(),
    )
    def follow_the_protocol_except_for_a_lie(self, data: st.DataObject, when: State, everybody: bool) -> None:
        """Continue one attempt honestly, except for a lie to one honest client (or to all) in one state."""
        attempt = data.draw(st.sampled_from(self.attempts))
        one = data.draw(st.sampled_from(self.world.honest))
        victims = self.world.honest if everybody else (one,)
        for _ in range(4):
            for v, puppet in attempt.items():
                if puppet.client.state is when and v in victims:
                    self.lie(data, puppet)
                elif (message := self.honest_message(attempt, puppet)) is not None:
                    self.send(puppet, message)

    @precondition(lambda self: self.recorded)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        puppet = self.a_client(data, *State)
        message = data.draw(st.sampled_from(self.recorded))
        if puppet:
            self.send(puppet, message)

    @precondition(lambda self: self.recorded)
    @rule(data=st.data(), bit=st.integers(0, 7))
    def replay_damaged(self, data: st.DataObject, bit: int) -> None:
        puppet = self.a_client(data, State.ADVERTISED, State.DEALT, State.MASKED, State.SIGNED)
        raw = encode(data.draw(st.sampled_from(self.recorded)))
        at = data.draw(st.integers(0, len(raw) - 1))
        try:
            message = decode(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])
        except PeerError:
            return
        if puppet and not isinstance(message, KeyAdvert | Dealing | MaskedInput | Consistency):
            self.send(puppet, message)  # type: ignore[arg-type]

    @rule(data=st.data(), go_on=st.booleans())
    def save_a_client(self, data: st.DataObject, go_on: bool) -> None:
        """Save a client and, if `go_on`, restore it at once. Another rule may restore an older copy later."""
        puppet = self.a_client(data, State.ADVERTISED, State.DEALT, State.MASKED, State.SIGNED)
        if puppet:
            self.disks.append((puppet, puppet.client.save()))
            if go_on:
                self.restore_copy(len(self.disks) - 1)

    @precondition(lambda self: self.disks)
    @rule(data=st.data())
    def restore_an_old_copy(self, data: st.DataObject) -> None:
        self.restore_copy(data.draw(st.integers(0, len(self.disks) - 1)))

    def restore_copy(self, which: int) -> None:
        puppet, data = self.disks[which]
        self.saves += 1
        puppet.client = Client.restore(
            data,
            identity(puppet.me),
            self.world.agreed,
            self.world.journals[puppet.me],
            entropy=Drbg(b"restored %d" % self.saves),
            cache=self.world.cache,
        )

    def send(self, puppet: Puppet, message: ToClient) -> None:
        """Deliver the message. A client may refuse it, but must then send nothing."""
        self.recorded.append(message)
        before = list(puppet.said)
        try:
            puppet.tell(message)
        except SecAggError:
            assert puppet.said == before
        except (AttributeError, StopIteration) as bug:  # pragma: no cover - do not hide an error of the test helpers
            raise AssertionError(bug) from bug

    # what must always hold

    @invariant()
    def no_secret_reaches_the_threshold_in_both_kinds(self) -> None:
        if hasattr(self, "world"):
            for puppet in self.everybody():
                assert not both_kinds(puppet.said)
            self.attacker = self.world.attacker()
            assert not self.attacker.both_kinds()

    @invariant()
    def the_server_learns_only_the_agreed_sums(self) -> None:
        if hasattr(self, "world"):
            attacker = self.world.attacker()
            assert attacker.more_than_agreed() == []
            assert all(attacker.is_right(found) for found in attacker.learned)

    @invariant()
    def each_client_signs_one_opening_of_its_update(self) -> None:
        if hasattr(self, "world"):
            for v in self.world.honest:
                signed = set()
                for puppet in [p for p in self.everybody() if p.me == v]:
                    signed |= {message.signature for message in puppet.said if isinstance(message, Consistency)}
                assert len(signed) <= 1


FEW = settings(
    deadline=None,
    max_examples=25,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
MANY = settings(FEW, max_examples=2000, stateful_step_count=60)


class TestAnySchedule(AnySchedule.TestCase):
    settings = FEW


class TestAnyServer(AnyServer.TestCase):
    settings = FEW


@pytest.mark.long
class TestManySchedules(AnySchedule.TestCase):
    settings = MANY


@pytest.mark.long
class TestManyServers(AnyServer.TestCase):
    settings = MANY


def test_the_state_machines_reach_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both machines finish if all steps are honest. Otherwise their invariants would test too little."""
    machine = AnyServer()
    machine.start((4, 3, 1, 2, 1), True)
    for _ in range(4):
        for puppet in machine.attempts[0].values():
            message = machine.honest_message(machine.attempts[0], puppet)
            assert message is not None
            machine.send(puppet, message)
    assert {puppet.client.state for puppet in machine.attempts[0].values()} == {State.DONE}
    machine.the_server_learns_only_the_agreed_sums()
    assert len(machine.world.attacker().learned) == 2

    network: Any = AnySchedule()
    network.start((4, 3, 0, 2, 1), True, 0)
    network.teardown()
    assert network.cluster.server.stage is Stage.DONE
