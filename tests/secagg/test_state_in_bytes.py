"""Saved and restored between any two messages, a run goes on as if nothing happened; and it acts once.

Two processes restored from the same bytes: real ones, with a journal in a folder. An older copy that was
used cannot act again. What storage rollback could do is at the end, and in docs/audit.md.
"""

import copy
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from secagg import (
    AlreadyUsed,
    Client,
    FileJournal,
    JournalError,
    MemoryJournal,
    PeerError,
    Plan,
    Schedule,
    SecAggError,
    Server,
    Stage,
    TooFewSurvivors,
    UsageError,
)
from secagg.exposure import Policy
from secagg.protocol import transcript
from secagg.protocol.client_state import State
from secagg.protocol.messages import Consistency, MaskedInput, ToClient, Unmasking
from secagg.protocol.wire import encode
from secagg.simulation import make_agreement
from tests.secagg.cluster import Cluster, check_outcome, copied, identity, make_inputs, make_plan, remembered_signatures
from tests.secagg.drbg import Drbg
from tests.secagg.malicious import Puppet, World

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _fast_signatures() -> Iterator[None]:
    with remembered_signatures():
        yield


def plan_of_six() -> Plan:
    return make_plan(6, colluders=1, threshold=4, schedule=Schedule(name="random", size=3, groupings=2))


def transcript_of(plan: Plan, *, restoring: bool) -> tuple[list[bytes], list[list[int]]]:
    """Everything sent in a run, and its sums; with everybody saved and restored before every message."""
    world = World(plan)
    entropy = {v: Drbg(b"entropy %d" % v) for v in plan.ids}
    journal = MemoryJournal()
    clients = {
        v: Client(v, identity(v), world.agreed, plan.round, world.journals[v], entropy=entropy[v]) for v in plan.ids
    }
    server, sent = Server(plan, journal), []

    def fresh(v: int) -> Client:
        if restoring:
            clients[v] = Client.restore(
                clients[v].save(), identity(v), world.agreed, world.journals[v], entropy=entropy[v]
            )
        return clients[v]

    def take(v: int, message: object) -> None:
        nonlocal server
        sent.append(encode(message))  # type: ignore[arg-type]
        if restoring:
            server = Server.restore(server.save(), journal, plan=plan)
        assert server.receive(v, sent[-1]) is None

    for v in plan.ids:
        take(v, fresh(v).hello())
    for stage in list(Stage)[1:5]:
        outbox = server.advance()
        for v, message in [(v, outbox[v]) for v in outbox]:
            update = world.inputs[v] if stage is Stage.INPUTS else None
            if stage is Stage.UNMASKING and v == 0:
                continue
            take(v, fresh(v).receive(message, update=update))
    if restoring:
        server = Server.restore(server.save(), journal, plan=plan)
    server.advance()
    return sent, [opened.total.tolist() for opened in server.result().groups.values()]


def test_a_run_restored_before_every_message_is_the_same_run_byte_for_byte() -> None:
    plan = plan_of_six()
    assert transcript_of(plan, restoring=True) == transcript_of(plan, restoring=False)


def test_saving_consumes_the_client_and_the_server() -> None:
    plan = plan_of_six()
    world = World(plan)
    for stage in list(Stage)[:4]:
        for v, puppet in world.run_to(stage, number=stage).items():
            if v > 1:
                break
            puppet.client.save()
            assert puppet.client.state is State.FAILED
            with pytest.raises(UsageError, match="nothing to save"):
                puppet.client.save()
            with pytest.raises(SecAggError):
                puppet.tell(world.key_list(()))
        world = World(plan)
    cluster = Cluster(plan, make_inputs(plan)).start()
    cluster.server.save()
    with pytest.raises(UsageError):
        cluster.advance()
    with pytest.raises(UsageError, match="nothing to save"):
        cluster.server.save()


def test_a_finished_or_failed_run_is_not_saved() -> None:
    world = World(plan_of_six())
    done = world.run_to(Stage.UNMASKING)[0].client
    assert done.state is State.DONE
    with pytest.raises(UsageError, match="nothing to save"):
        done.save()
    cluster = Cluster(plan_of_six(), make_inputs(plan_of_six())).start()
    cluster.finish()
    with pytest.raises(UsageError, match="nothing to save"):
        cluster.server.save()


def test_a_client_is_neither_copied_nor_pickled() -> None:
    client = World(plan_of_six()).puppet(0).client
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UsageError, match="cannot be copied or pickled"):
            duplicate(client)  # type: ignore[operator]
        with pytest.raises(UsageError):
            duplicate(identity(0))  # type: ignore[operator]


def test_saved_bytes_belong_to_one_identity_and_one_version() -> None:
    world = World(plan_of_six())
    data = world.run_to(Stage.SHARES)[0].client.save()
    with pytest.raises(UsageError, match="not in this agreement"):
        Client.restore(data, identity(1), world.agreed, MemoryJournal())
    for bad in (b"", data[:10], b"secagg server 2\n" + data[16:], data[:-1]):
        with pytest.raises(UsageError):
            Client.restore(bad, identity(0), world.agreed, MemoryJournal())
    server = Server(plan_of_six()).save()
    for bad in (b"", server[:10], data, server[:-1], server + b"\0"):
        with pytest.raises(UsageError):
            Server.restore(bad, plan=plan_of_six())
    with pytest.raises(UsageError, match=r"^this saved client is of version 1, this is version 2$"):
        Client.restore(b"secagg client 1\n" + data[16:], identity(0), world.agreed, MemoryJournal())
    with pytest.raises(UsageError, match=r"^this saved server is of version 1, this is version 2$"):
        Server.restore(b"secagg server 1\n" + server[16:])


def test_a_server_under_the_plan_of_an_agreement_is_restored_with_it() -> None:
    """The plan's bytes do not say which clients were drawn from which, and over which weights they are normalised."""
    agreement, _ = make_agreement(
        members=12, size=3, length=4, clip=1.0, groups="survivors", schedule="random", sample=6,
        policy=Policy(memory="round"),
    )  # fmt: skip
    plan, other = (agreement.plan(0, 0, context) for context in (b"", b"another"))
    data = Server(plan).save()
    assert Server.restore(data, plan=plan).plan.groupings == plan.groupings
    with pytest.raises(UsageError, match=r"give plan=agreement\.plan"):
        Server.restore(data)
    with pytest.raises(UsageError, match="another plan than the one given"):
        Server.restore(data, plan=other)


def saved_in_every_state(folder: Path) -> list[tuple[bytes, bytes]]:
    """Client 0's bytes before each of its four answers, and the message it is about to answer."""
    cases = []
    for stage in list(Stage)[1:5]:
        world = World(plan_of_six(), name=b"case %d" % stage)
        puppets = world.run_to(stage)
        message = puppets[0].heard_all[-1]
        before = World(plan_of_six(), name=b"case %d" % stage).run_to(Stage(stage - 1))[0]
        data = before.client.save()
        cases.append((data, encode(message)))
    for place, (data, message) in enumerate(cases):
        (folder / f"{place}.client").write_bytes(data)
        (folder / f"{place}.message").write_bytes(message)
    return cases


WORKER = """
import sys, time
from pathlib import Path
from secagg import Client, FileJournal, SecAggError
from secagg.exposure import Policy
from secagg.protocol.client_state import State
from tests.secagg.cluster import identity, make_inputs
from tests.secagg.malicious import World
from tests.secagg.test_state_in_bytes import plan_of_six

folder, me = Path(sys.argv[1]), sys.argv[2]
plan = plan_of_six()
floors, inputs = World(plan).agreed, make_inputs(plan)
(folder / f"ready {me}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
for place in range(4):
    journal = FileJournal(folder / f"journal {place}")
    data, message = ((folder / f"{place}.{kind}").read_bytes() for kind in ("client", "message"))
    client = Client.restore(data, identity(0), floors, journal)
    update = inputs[0] if client.state is State.DEALT else None
    try:
        client.receive(message, update=update)
        print(place, "acted", flush=True)
    except SecAggError as refusal:
        print(place, type(refusal).__name__, flush=True)
"""


def test_of_two_processes_restored_from_the_same_bytes_exactly_one_acts(tmp_path: Path) -> None:
    saved_in_every_state(tmp_path)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), str(me)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for me in range(2)
    ]
    while len(list(tmp_path.glob("ready *"))) < 2 and all(worker.poll() is None for worker in workers):
        time.sleep(0.01)
    (tmp_path / "go").touch()  # both start at the same moment
    said = [worker.communicate(timeout=120)[0].splitlines() for worker in workers]
    for place in range(4):
        answers = sorted(line.split()[1] for lines in said for line in lines if line.startswith(f"{place} "))
        assert answers == ["AlreadyUsed", "acted"]


@pytest.mark.parametrize("stage", list(Stage)[1:5])
def test_of_many_threads_restored_from_the_same_bytes_exactly_one_acts(stage: Stage, tmp_path: Path) -> None:
    plan = plan_of_six()
    world = World(plan)
    message = World(plan).run_to(stage)[0].heard_all[-1]
    data = World(plan).run_to(Stage(stage - 1))[0].client.save()

    def act(_: int) -> str:
        client = Client.restore(data, identity(0), world.agreed, FileJournal(tmp_path))
        try:
            client.receive(message, update=world.inputs[0] if client.state is State.DEALT else None)
        except AlreadyUsed:
            return "refused"
        return "acted"

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(act, range(8)))
    assert sorted(answers) == ["acted"] + ["refused"] * 7


def test_of_two_copies_of_a_new_client_exactly_one_says_hello() -> None:
    world = World(plan_of_six())
    journal = MemoryJournal()
    data = Client(0, identity(0), world.agreed, 5, journal).save()
    Client.restore(data, identity(0), world.agreed, journal).hello()
    with pytest.raises(AlreadyUsed):
        Client.restore(data, identity(0), world.agreed, journal).hello()


@pytest.mark.parametrize("stage", list(Stage)[:5])
def test_of_two_servers_restored_from_the_same_bytes_exactly_one_closes_the_stage(stage: Stage) -> None:
    plan = plan_of_six()
    cluster = Cluster(plan, make_inputs(plan)).start()
    while cluster.server.stage < stage:
        cluster.deliver_all()
        cluster.advance()
    cluster.deliver_all()
    data = cluster.server.save()
    first, second = (Server.restore(data, cluster.server_journal, plan=cluster.plan) for _ in range(2))
    first.advance()
    with pytest.raises(AlreadyUsed):
        second.advance()
    assert second.stage is Stage.FAILED
    with pytest.raises(UsageError, match="no result"):
        second.result()


@pytest.mark.parametrize("stage", list(Stage)[1:5])
def test_an_older_copy_that_was_used_cannot_act_again_even_with_another_message(stage: Stage) -> None:
    plan = plan_of_six()
    world = World(plan)
    puppet = world.run_to(Stage(stage - 1))[0]
    data = puppet.client.save()

    def restored() -> Puppet:
        puppet.client = Client.restore(data, identity(0), world.agreed, world.journals[0])
        return puppet

    other = World(plan)
    told = other.run_to(stage)[0].heard_all[-1]
    restored().tell(told)
    for message in (told, different(other, stage, told)):
        with pytest.raises(AlreadyUsed):
            restored().tell(message)
        assert puppet.client.state is State.FAILED


def different(world: World, stage: Stage, told: ToClient) -> ToClient:
    """Another good message for the same state: another U1, U2, U3 or set of signatures."""
    puppets = {p.me: p for p in world.puppets}
    if stage is Stage.SHARES:
        return world.key_list(p.said[0] for v, p in puppets.items() if v != 5)  # type: ignore[misc]
    if stage is Stage.INPUTS:
        dealings = {v: p.said[1] for v, p in puppets.items() if v != 5}
        return world.bundle(0, dealings, dict.fromkeys(puppets, world.plan.ids))  # type: ignore[arg-type]
    if stage is Stage.CONSISTENCY:
        return world.survivors(p.said[2] for v, p in puppets.items() if v != 5)  # type: ignore[misc]
    return world.signatures(p.said[3] for v, p in puppets.items() if v != 5)  # type: ignore[misc]


def test_nothing_leaves_when_the_journal_refuses() -> None:
    class Full(MemoryJournal):
        def create(self, name: str, content: bytes) -> bytes | None:
            raise OSError("no space left on device")

    world = World(plan_of_six())
    for stage in list(Stage)[1:5]:
        puppet = World(plan_of_six()).run_to(Stage(stage - 1))[0]
        message = World(plan_of_six()).run_to(stage)[0].heard_all[-1]
        puppet.client._journal = Full()
        before = puppet.client.state
        with pytest.raises(JournalError, match="no space"):
            puppet.tell(message)
        assert puppet.client.state is before  # the application may repair the journal and try again
    client = Client(0, identity(0), world.agreed, 5, Full())
    with pytest.raises(JournalError, match="no space"):
        client.hello()


def test_the_opening_is_recorded_before_it_is_signed() -> None:
    """A process that dies between the two leaves the record behind, not a signature without one."""
    world = World(plan_of_six())
    puppets = world.run_to(Stage.INPUTS)
    asked = world.survivors(p.find(MaskedInput) for p in puppets.values())
    puppet, order = puppets[0], []
    journal, sign = world.journals[0], puppet.client._identity.sign

    class Watched(MemoryJournal):
        def create(self, name: str, content: bytes) -> bytes | None:
            order.append("record" if content else "step")
            return journal.create(name, content)

    puppet.client._journal = Watched()
    object.__setattr__(puppet.client, "_identity", Watching(sign, order, puppet.client._identity.public))
    puppet.tell(asked)
    assert order == ["record", "record", "sign", "step"]  # the round, the opening


class Watching:
    """An identity that notes when it signs."""

    def __init__(self, sign: object, order: list[str], public: bytes) -> None:
        self._sign, self._order, self.public = sign, order, public

    def sign(self, message: bytes) -> bytes:
        self._order.append("sign")
        return self._sign(message)  # type: ignore[operator,no-any-return]


def test_groups_may_shrink_but_never_grow_or_change_in_a_second_run() -> None:
    """Whatever run comes after one that reached stage 3, it is another run, and is refused."""
    plan = plan_of_six()
    for absent in ({}, {5: Stage.INPUTS}):
        world = World(plan)
        world.run_to(Stage.CONSISTENCY)
        puppets = world.run_to(Stage.INPUTS, number=1, absent=absent)
        inputs = [p.find(MaskedInput) for v, p in puppets.items() if v not in absent]
        for rows in (None, ((0, 0),), ()):
            with pytest.raises(AlreadyUsed, match="opened before"):
                puppets[0].fork().tell(world.survivors(inputs, rows))


def at_stage(stage: Stage) -> Cluster:
    """A run whose server has begun a stage and whose messages of it are under way."""
    plan = plan_of_six()
    cluster = Cluster(plan, make_inputs(plan)).start()
    while cluster.server.stage < stage:
        cluster.deliver_all()
        cluster.advance()
    return cluster


def test_a_server_whose_saved_bytes_were_changed_cannot_pass_off_other_vectors() -> None:
    """The hash of a client's vectors in the saved bytes is under that client's signature."""
    cluster = at_stage(Stage.CONSISTENCY)
    saved = cluster.server.save()
    hashed = cluster.server._memory.survivors[3].vectors_hash
    assert saved.count(hashed) == 1
    cluster.server = Server.restore(saved.replace(hashed, bytes(32)), cluster.server_journal, plan=cluster.plan)
    cluster.flying.clear()
    cluster.send_again()
    cluster.deliver_all()
    assert {str(error) for error in cluster.errors.values()} == {"client 3: wrong signature"}
    assert set(cluster.errors) == set(cluster.plan.ids)


def test_a_client_whose_saved_bytes_were_changed_unmasks_no_other_vectors() -> None:
    """It holds the others' signatures of stage 3 against the inputs hash that it saved."""
    cluster = at_stage(Stage.UNMASKING)
    saved = cluster.clients[2].save()
    inputs = transcript.inputs_hash(member for _, member in sorted(cluster.server._memory.survivors.items()))
    assert saved.count(inputs) == 1
    for place, changed in ((0, saved.replace(inputs, bytes(32))), (1, saved)):
        journal = MemoryJournal()
        client = Client.restore(changed, identity(2), cluster.agreed, journal)
        (letter,) = [letter for letter in cluster.flying if letter.client == 2]
        if place:
            assert isinstance(client.receive(letter.data), Unmasking)
        else:
            with pytest.raises(PeerError, match="wrong signature"):
                client.receive(letter.data)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("stage", [Stage.CONSISTENCY, Stage.UNMASKING])
def test_lost_requests_are_sent_again_and_the_run_ends(stage: Stage, restart: bool) -> None:
    cluster = at_stage(stage)
    lost = [letter for letter in cluster.flying if letter.client in (0, 1, 2)]
    cluster.flying = [letter for letter in cluster.flying if letter not in lost]
    cluster.deliver_all()
    with pytest.raises(TooFewSurvivors):
        cluster.advance()
    assert cluster.server.stage is stage  # it stays open
    if restart:
        cluster.save_and_restore_server()
        for v in (0, 1, 2):
            cluster.save_and_restore_client(v)
    assert cluster.server.waiting_for() == (0, 1, 2)
    cluster.send_again()
    assert sorted(letter.client for letter in cluster.flying) == [0, 1, 2]
    result = cluster.finish()
    check_outcome(cluster, result)
    assert len(result.survivors) == 6


def test_a_lost_answer_of_stage_three_is_given_again_the_same() -> None:
    cluster = at_stage(Stage.CONSISTENCY)
    for _ in range(6):
        cluster.deliver()
    cluster.flying.clear()  # all six answers are lost
    cluster.send_again()
    cluster.deliver_all()
    for sent in cluster.sent.values():
        first, second = (message for message in sent if isinstance(message, Consistency))
        assert first == second
    check_outcome(cluster, cluster.finish())


def test_a_lost_answer_of_stage_four_is_resent_by_the_application_not_made_again() -> None:
    cluster = at_stage(Stage.UNMASKING)
    for _ in range(6):
        cluster.deliver()
    lost = [letter for letter in cluster.flying if letter.client < 3]
    cluster.flying = [letter for letter in cluster.flying if letter.client >= 3]
    cluster.deliver_all()
    with pytest.raises(TooFewSurvivors):
        cluster.advance()
    assert encode(cluster.clients[0].receive(cluster.server.outbox()[0])) == lost[0].data  # a duplicate
    cluster.flying = lost
    check_outcome(cluster, cluster.finish())


def test_unmasking_is_given_once_however_often_it_is_asked_for() -> None:
    cluster = at_stage(Stage.UNMASKING)
    cluster.deliver_all()
    for v in cluster.plan.ids:
        assert sum(isinstance(message, Unmasking) for message in cluster.sent[v]) == 1


def test_a_journal_put_back_to_an_older_copy_lets_an_update_be_opened_twice() -> None:
    """What a journal must never do: if the disk forgets, the difference of two openings is one client.

    This is documented, not prevented: nothing inside one machine can tell an old disk from a new one.
    """
    world = World(make_plan(5, colluders=1, threshold=4))
    world.run_to(Stage.INPUTS)
    older = {v: copied(journal) for v, journal in world.journals.items()}
    world.run_to(Stage.UNMASKING, number=1)
    world.journals.update(older)
    world.run_to(Stage.UNMASKING, number=2, absent={4: Stage.INPUTS})
    sums = {found.clients: np.array(found.value) for found in world.attacker().learned}
    exposed = sums[frozenset(range(5))] - sums[frozenset(range(4))]
    assert exposed.tolist() == world.inputs[4].tolist()
