"""One client alone: its arguments, the records in its journal, answers again, and what it forgets."""

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secagg import Client, MemoryJournal, Plan, Schedule, Stage, UsageError, labels
from secagg.errors import JournalError, PeerError, PlanRefused, TooFewSurvivors
from secagg.privacy.budget import Charge
from secagg.protocol import NoCache, check_advert, client_checks, transcript
from secagg.protocol.client_state import State
from secagg.protocol.journal import load, record_name
from secagg.protocol.masking import encoded_update
from secagg.protocol.messages import (
    Bundle,
    Dealer,
    Dealing,
    Endorsement,
    KeyAdvert,
    MaskedInput,
    Signatures,
    Survivor,
    Survivors,
    Unmasking,
)
from secagg.protocol.wire import encode
from secagg.types import u32
from tests.secagg.cluster import agreement_of, identity, make_agreement, make_inputs, make_plan, plan_from, signed
from tests.secagg.drbg import Drbg
from tests.secagg.malicious import World

PLAN = make_plan(4, colluders=1, threshold=3, context=b"model")


def client_of(plan: Plan = PLAN, me: int = 0, **options: Any) -> Client:
    return Client(me, identity(me), agreement_of(plan), plan.round, MemoryJournal(), **options)


def step_record(client: Client, number: int) -> str:
    return record_name(labels.STEP_RECORD, client._memory.instance, u32(number))


# --- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"round": -1}, r"^round: expected a whole number from 0 to 9223372036854775807, got -1$"),
        ({"me": -1}, r"^me: expected a whole number from 0 to 4294967295, got -1$"),
        ({"me": 2**32}, r"^me: expected a whole number from 0 to 4294967295, got 4294967296$"),
        ({"me": 1}, r"^client 1 with this identity is not in this agreement$"),
        ({"identity": b"key"}, r"^identity: expected Identity, got bytes$"),
        ({"agreement": 7}, r"^agreement: expected an Agreement, got int$"),
        ({"journal": {}}, r"^journal: expected a Journal with create\(\), got \{\}$"),
        ({"entropy": b"seed"}, r"^entropy: expected a function, got bytes$"),
        ({"cache": SimpleNamespace(plan=1)}, r"^cache: expected a Cache with plan and verdict, got SimpleNamespace$"),
        ({"cache": SimpleNamespace(verdict=1)}, r"^cache: expected a Cache with plan and verdict"),
        ({"threads": 0}, r"^threads: expected a whole number"),
        ({"budget": 7}, r"budget"),
    ],
)
def test_a_client_says_which_argument_is_wrong(changes: dict[str, Any], says: str) -> None:
    arguments = {
        "me": 0, "identity": identity(0), "agreement": agreement_of(PLAN), "round": PLAN.round,
        "journal": MemoryJournal(),
    }  # fmt: skip
    with pytest.raises(UsageError, match=says):
        Client(**{**arguments, **changes})
    if "round" not in changes and "me" not in changes:
        client = client_of()
        client.hello()
        arguments = {"data": client.save(), "identity": identity(0), "agreement": agreement_of(PLAN),
                     "journal": MemoryJournal()}  # fmt: skip
        with pytest.raises(UsageError, match=says):
            Client.restore(**{**arguments, **changes})


def test_a_client_draws_a_name_for_its_records_and_two_keys() -> None:
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return Drbg(b"%d" % len(asked))(count)

    client = client_of(entropy=entropy)
    assert asked == [16, 32, 32]
    assert repr(client) == "<Client 0, NEW>"
    assert (client.me, client.state, client.clipped, client.spent) == (0, State.NEW, 0, Charge())
    with pytest.raises(UsageError, match=r"^no plan was accepted yet$"):
        _ = client.plan


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_client_is_not_copied(duplicate: Any) -> None:
    with pytest.raises(UsageError, match=r"^a client cannot be copied or pickled; use save\(\), once$"):
        duplicate(client_of())


def test_what_is_no_message_is_the_callers_mistake_and_ends_nothing() -> None:
    client = client_of()
    client.hello()
    for message in (7, "text", client_of().hello()):
        with pytest.raises(UsageError, match=r"^expected bytes or a message class, got (int|str|KeyAdvert)$"):
            client.receive(message)  # type: ignore[arg-type]
    assert client.state is State.ADVERTISED


def test_an_agreement_has_plans_whoever_asks() -> None:
    with pytest.raises(UsageError, match=r"^agreed: expected an Agreement, got int$"):
        NoCache().plan(7, 0, 0, b"")  # type: ignore[arg-type]
    assert NoCache().plan(agreement_of(PLAN), PLAN.round, 0, b"model").hash == PLAN.hash
    with pytest.raises(UsageError, match=r"^plan: expected Plan, got int$"):
        NoCache().verdict(7, ())  # type: ignore[arg-type]


def test_an_advert_is_judged_by_a_plan_and_of_a_member() -> None:
    advert = client_of().hello()
    check_advert(PLAN, advert)
    with pytest.raises(UsageError, match=r"^plan: expected Plan, got int$"):
        check_advert(7, advert)  # type: ignore[arg-type]
    with pytest.raises(PeerError, match=r"^client 9 is not on the roster$"):
        check_advert(PLAN, KeyAdvert(9, advert.channel, advert.mask, advert.signature))


@pytest.mark.parametrize(
    ("out", "good"),
    [
        (np.zeros((2, 3), np.uint32), True),
        (np.zeros((3, 2), np.uint32), False),
        (np.zeros((2, 3), np.int32), False),
        (np.zeros((2, 6), np.uint32)[:, ::2], False),
        (np.frombuffer(bytes(24), np.uint32).reshape(2, 3), False),  # read-only
    ],
)
def test_masked_vectors_go_to_writable_words_of_their_shape(out: Any, good: bool) -> None:
    plan = make_plan(6, schedule=Schedule(name="random", size=3, groupings=2))
    noise: Any = SimpleNamespace(add_to=lambda encoding, encoded: None)
    update = make_inputs(plan)[0]
    if good:
        encoded, clipped = encoded_update(plan, 0, update, out, noise)
        assert (encoded.tolist(), clipped) == (update.tolist(), 0)
    else:
        with pytest.raises(UsageError, match=r"^out must be writable, contiguous uint32 of shape \(2, 3\)$"):
            encoded_update(plan, 0, update, out, noise)
    with pytest.raises(UsageError, match=r"^pass the update with the Bundle: receive\(bundle, update=...\)$"):
        encoded_update(plan, 0, None, None, noise)


# --- one step after the other ------------------------------------------------------------------------------------


def test_every_step_has_a_record_of_its_number() -> None:
    world = World(PLAN)
    client = world.run_to(Stage.UNMASKING)[0].client
    journal = client._journal
    assert [load(journal, step_record(client, number)) for number in range(8)] == [None, *[b""] * 5, None, None]
    assert client._memory.step == 5
    name = record_name(
        labels.UPDATE_RECORD, identity(0).public, agreement_of(PLAN).fingerprint, PLAN.round.to_bytes(8, "little")
    )
    assert load(journal, name) == PLAN.hash
    first = record_name(labels.AGREEMENT_RECORD, identity(0).public, (0).to_bytes(8, "little"))
    assert load(journal, first) == agreement_of(PLAN).fingerprint


def test_a_client_holds_a_share_of_every_dealer_in_order() -> None:
    world = World(PLAN)
    puppets = world.run_to(Stage.SHARES)
    assert [held.dealer for held in puppets[2].client._memory.held] == [2]
    puppets = World(PLAN).run_to(Stage.INPUTS)
    for me, puppet in puppets.items():
        held = puppet.client._memory.held
        assert [one.dealer for one in held] == [0, 1, 2, 3]
        assert len(held[me].shares) == 33 * (len(PLAN.groupings) + 1)


def test_the_same_message_gets_the_same_answer_until_the_next_and_after_the_end() -> None:
    world = World(PLAN)
    puppet = world.run_to(Stage.UNMASKING)[1]
    answer = puppet.find(Unmasking)
    assert puppet.client.state is State.DONE
    assert puppet.client.receive(encode(puppet.heard(Signatures))) is answer
    with pytest.raises(PeerError, match=r"^Survivors not expected in state DONE$"):
        puppet.client.receive(puppet.heard(Survivors))
    assert puppet.client.state.name == "FAILED"
    with pytest.raises(PeerError, match=r"^Signatures not expected in state FAILED$"):
        puppet.client.receive(puppet.heard(Signatures))


def test_masked_vectors_are_given_again_unless_they_lie_in_the_callers_memory() -> None:
    world = World(PLAN)
    puppets = world.run_to(Stage.INPUTS)
    bundle = puppets[0].heard(Bundle)
    assert puppets[0].client.receive(bundle) is puppets[0].find(MaskedInput)
    other = World(PLAN, name=b"other")
    puppets = other.run_to(Stage.SHARES)
    dealings = {v: p.find(Dealing) for v, p in puppets.items()}
    bundle = other.bundle(0, dealings, dict.fromkeys(dealings, PLAN.ids))
    out = np.zeros((1, 3), np.uint32)
    sent = puppets[0].client.receive(bundle, update=other.inputs[0], context=b"model", out=out)
    assert isinstance(sent, MaskedInput)
    assert np.shares_memory(sent.vectors, out)
    with pytest.raises(UsageError, match=r"^this message was answered; send that answer again, its masked vectors are"):
        puppets[0].client.receive(bundle)
    assert puppets[0].client.state is State.MASKED


@pytest.mark.parametrize("fails", [False, True])
def test_a_client_forgets_its_secrets_at_the_end(fails: bool) -> None:
    puppet = World(PLAN).run_to(Stage.CONSISTENCY if fails else Stage.UNMASKING)[0]
    client = puppet.client
    if fails:
        with pytest.raises(PeerError):
            client.receive(b"no message")
    memory = client._memory
    assert (memory.channel, memory.mask, memory.seeds, memory.held) == (b"", b"", (), ())
    assert client._agreed == {}
    assert not {"_channel_key", "_mask_key"} & client.__dict__.keys()
    with pytest.raises(UsageError, match=f"^nothing to save: this run is {client.state.name}$"):
        client.checkpoint()


class Broken(MemoryJournal):
    """Cannot store steps as long as it is broken."""

    broken = False

    def create(self, name: str, content: bytes) -> bytes | None:
        if self.broken and content == b"":
            raise OSError(28, "No space left on device")
        return super().create(name, content)


def test_a_journal_that_was_repaired_lets_the_run_go_on() -> None:
    world, journal = World(PLAN), Broken()
    world.journals[0] = journal
    puppets = world.attempt()
    journal.broken = True
    with pytest.raises(JournalError, match="No space left on device"):
        puppets[0].hello()
    assert puppets[0].client.state is State.NEW
    journal.broken = False
    adverts = [p.hello() for p in puppets.values()]
    journal.broken = True
    with pytest.raises(JournalError, match="No space left on device"):
        puppets[0].tell(world.key_list(adverts))
    assert puppets[0].client.state.name == "ADVERTISED"
    journal.broken = False
    assert isinstance(puppets[0].tell(world.key_list(adverts)), Dealing)
    assert puppets[0].client.plan.hash == PLAN.hash


def test_the_first_group_that_the_audit_closes_is_named() -> None:
    plan = make_plan(6, schedule=Schedule(name="random", size=3))
    world = World(plan)
    puppets = world.run_to(Stage.INPUTS)
    masked = [p.find(MaskedInput) for p in puppets.values()]
    asked = world.survivors(masked, rows=[(0, 0), (0, 7), (3, 1)])
    with pytest.raises(PeerError, match=r"open group \(0, 7\), which my audit closes: the plan has no such group$"):
        puppets[0].tell(asked)


@pytest.mark.parametrize(("more", "accepted"), [(0.0, True), (-1e-9, False)])
def test_a_sparse_plan_may_have_just_the_risk_that_is_accepted(more: float, accepted: bool) -> None:
    plan = make_plan(16, degree=6, threshold=4, colluders=5)
    risk = plan.sparse_risk(0)
    assert 0 < risk < plan.sparse_risk(1)
    same = plan_from(make_agreement(16, degree=6, threshold=4, colluders=5, sparse_risk=risk * (1 + more)))
    world = World(same)
    adverts = [world.puppet(v).hello() for v in same.peers(0)]
    puppet = next(p for p in world.puppets if p.me == 0)
    if accepted:
        puppet.tell(world.key_list(adverts))
    else:
        with pytest.raises(PlanRefused, match="its neighbourhoods are too small for the colluders that it assumes"):
            puppet.tell(world.key_list(adverts))


# --- what a client demands of messages ---------------------------------------------------------------------------


def test_a_key_list_of_exactly_t_clients_is_enough() -> None:
    adverts = [client_of(me=v).hello() for v in range(4)]
    keys = (adverts[0].channel, adverts[0].mask)
    assert client_checks.check_adverts(PLAN, 0, keys, adverts[:3]) == dict(enumerate(adverts[:3]))
    for few in (2, 1):
        with pytest.raises(TooFewSurvivors, match=f"^{few} clients sent keys, the threshold is 3$"):
            client_checks.check_adverts(PLAN, 0, keys, adverts[:few])


def test_exactly_t_dealers_are_enough() -> None:
    adverts: Any = {v: SimpleNamespace(id=v) for v in range(4)}
    dealers = [Dealer(v, (bytes(32),), bytes(32)) for v in range(4)]
    assert client_checks.check_dealers(PLAN, dealers[0], adverts, Bundle(tuple(dealers[:3]), b"", b"")) == {
        v: adverts[v] for v in range(3)
    }
    for few in (2, 1):
        with pytest.raises(TooFewSurvivors, match=f"^{few} clients shared keys, the threshold is 3$"):
            client_checks.check_dealers(PLAN, dealers[0], adverts, Bundle(tuple(dealers[:few]), b"", b""))


def test_t_signatures_are_enough_and_the_rest_is_not_read() -> None:
    statement = b"what they sign"
    good = [Endorsement(v, signed(v, statement)) for v in range(4)]
    bad = Endorsement(3, bytes(64))
    client_checks.check_endorsements(PLAN, 0, range(4), statement, Signatures((*good[:3], bad)))
    with pytest.raises(PeerError, match=r"^client 3: wrong signature$"):
        client_checks.check_endorsements(PLAN, 0, range(4), statement, Signatures((*good[:2], bad)))
    for few in (2, 1, 0):
        with pytest.raises(TooFewSurvivors, match=f"^{few} clients signed the opening, the threshold is 3$"):
            client_checks.check_endorsements(PLAN, 0, range(4), statement, Signatures(tuple(good[:few])))


def sparse_survivors(risk: float, alive: int, broken: int = -1) -> Any:
    """Survivors of a sparse plan of 10 whose risk is a tenth per dropout, checked by client 1."""
    view = b"view of client 1".ljust(32)
    plan: Any = SimpleNamespace(
        semi_honest_only=True, ids=tuple(range(10)), t=3, hash=bytes(32), sparse_risk=lambda gone: gone / 10,
        identities={v: identity(v).public for v in range(10)},
    )  # fmt: skip
    members = []
    for v in range(alive):
        mine = v == 1 and v != broken
        statement = transcript.view_statement(plan.hash, v, view, (), bytes(32))
        members.append(Survivor(v, (), bytes(32), signed(v, statement) if mine else bytes(64)))
    dealers = [Dealer(v, (), bytes(32)) for v in range(5)]
    return client_checks.check_survivors(plan, 1, dealers, view, risk, Survivors(tuple(members), ()))


def test_a_sparse_client_checks_the_risk_of_dropouts_and_its_own_entry_alone() -> None:
    assert sparse_survivors(0.3, 7) == tuple(range(7))
    with pytest.raises(PeerError, match=r"^too many dropouts: the sparse graph may be disconnected$"):
        sparse_survivors(0.299, 7)
    with pytest.raises(PeerError, match=r"^client 1: wrong signature$"):
        sparse_survivors(1.0, 7, broken=1)
    with pytest.raises(TooFewSurvivors, match=r"^2 clients survive, the threshold is 3$"):
        sparse_survivors(1.0, 2)
