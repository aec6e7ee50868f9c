"""What a client saves and shows, what it hashes and masks, its agreements, and what it has spent."""

import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secagg import Client, MemoryJournal, Plan, Schedule, Stage, UsageError, labels
from secagg.errors import JournalError
from secagg.privacy.budget import Charge
from secagg.protocol import enrolment, inputs, ledger, transcript
from secagg.protocol.client_state import ClientMemory, FromApplication, State, check_header, restore, save
from secagg.protocol.dealing import HeldShares
from secagg.protocol.journal import load, record_name
from secagg.protocol.masking import masked_vectors
from secagg.protocol.messages import Consistency, Dealing, MaskedInput
from secagg.protocol.wire import encode
from tests.secagg.cluster import agreement_of, identity, make_plan
from tests.secagg.malicious import World

PLAN = make_plan(4, colluders=1, threshold=3, context=b"model")


def client_of(plan: Plan = PLAN, me: int = 0, **options: Any) -> Client:
    return Client(me, identity(me), agreement_of(plan), plan.round, MemoryJournal(), **options)


# --- what is saved and shown -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"secagg client 1\nrest", r"^this saved client is of version 1, this is version 2$"),
        (b"secagg client 7\n", r"^this saved client is of version 7, this is version 2$"),
        (b"secagg client x\n", r"^these bytes are not a saved client$"),
        (b"secagg server 2\n", r"^these bytes are not a saved client$"),
        (b"secagg 2", r"^these bytes are not a saved client$"),
        (b"", r"^these bytes are not a saved client$"),
        (b"secagg client 2\n", r"^this saved client is damaged: "),
        (b"secagg client 2\n\x09", r"^this saved client is damaged: "),
    ],
)
def test_what_is_no_saved_client_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        restore(data)


def test_a_header_that_fits_is_no_error() -> None:
    check_header(b"secagg client 2\nrest", b"secagg client 2\n", "client")


def memory() -> ClientMemory:
    secret = b"secret".ljust(32)
    return ClientMemory(me=3, round=4, agreement=bytes(32), instance=bytes(16), channel=secret, mask=secret)


def test_a_new_memory_is_empty_and_is_saved_as_it_is() -> None:
    new = memory()
    assert (new.state, new.step, new.clipped, new.inputs) == (State.NEW, 0, 0, bytes(32))
    assert restore(save(new)) == new
    assert {one.name: one.value for one in State} == {  # as saved bytes hold them
        "FAILED": 0, "NEW": 1, "ADVERTISED": 2, "DEALT": 3, "MASKED": 4, "SIGNED": 5, "DONE": 6,
    }  # fmt: skip


def test_a_saved_client_with_a_damaged_answer_or_state_is_refused() -> None:
    wrong = memory()
    wrong.state = 9  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"^this saved client is damaged: 9 is not a valid State$"):
        restore(save(wrong))
    client = client_of()
    client.hello()
    client._memory.answer = b"\x02\x08"
    with pytest.raises(UsageError, match=r"^this saved client is damaged: "):
        Client.restore(save(client._memory), identity(0), agreement_of(PLAN), MemoryJournal())


def test_nothing_that_a_client_remembers_shows_a_secret() -> None:
    secret = b"a secret of 32 bytes".ljust(32)
    held = HeldShares(2, secret, secret)
    whole = restore(save(memory()))
    whole.channel = whole.mask = whole.answer = secret
    whole.seeds, whole.held = (secret,), (held,)
    given = FromApplication(b"context", (np.array([77_777], np.uint32), 5), None)
    for shown in (repr(held), repr(whole), repr(given)):
        assert "a secret" not in shown
        assert "77777" not in shown
    assert repr(held) == "HeldShares(dealer=2)"
    assert repr(given) == "FromApplication(context=b'context', out=None)"
    for name in ("channel", "mask", "seeds", "held", "answer"):
        assert f" {name}=" not in repr(whole)


# --- masked inputs and agreements --------------------------------------------------------------------------------


def test_the_hash_of_vectors_is_taken_of_masked_inputs_of_the_right_shape_only() -> None:
    out, inside = 2, 1  # a client that was left out at random sends nothing
    plan: Any = SimpleNamespace(groups_of={inside: ((0, 1),), out: ()}, length=3)
    assert (inputs.shape_of(plan, inside), inputs.shape_of(plan, out)) == ((1, 3), (0, 0))

    def masked(shape: tuple[int, int]) -> MaskedInput:
        return MaskedInput(inside, (), bytes(64), np.arange(shape[0] * shape[1], dtype=np.uint32).reshape(shape))

    right = masked((1, 3))
    expected = transcript.vectors_hash(right.vectors)
    assert inputs.hash_of(plan, inside, right, None) == inputs.hash_of(plan, inside, encode(right), None) == expected
    for wrong in (masked((1, 2)), masked((2, 3)), b"no message", Consistency(inside, bytes(64))):
        assert inputs.hash_of(plan, inside, wrong, None) == b""
    assert inputs.hash_of(plan, out, masked((0, 0)), None) == transcript.vectors_hash(masked((0, 0)).vectors)


def test_vectors_are_added_at_their_places() -> None:
    sums: dict[tuple[int, int], Any] = {}
    first = np.array([[1, 2], [3, 2**32 - 1]], np.uint32)
    inputs.add(sums, [(0, 1), (1, 0)], first)
    inputs.add(sums, [(0, 1), (1, 1)], first)
    assert {place: total.tolist() for place, total in sums.items()} == {
        (0, 1): [2, 4],
        (1, 0): [3, 2**32 - 1],
        (1, 1): [3, 2**32 - 1],
    }
    assert first.tolist() == [[1, 2], [3, 2**32 - 1]]


@pytest.mark.parametrize(
    ("enforced", "memory", "refused"), [(True, "training", True), (True, "round", False), (False, "training", False)]
)
def test_an_agreement_that_names_no_earlier_one_is_refused_if_promises_hold_over_all(
    enforced: bool, memory: str, refused: bool
) -> None:
    policy = SimpleNamespace(enforced=enforced, memory=memory)
    made: Any = [
        SimpleNamespace(fingerprint=bytes([k]) * 32, terms=SimpleNamespace(policy=policy, predecessors=()))
        for k in b"ab"
    ]
    journal, me = MemoryJournal(), identity(0).public
    enrolment.enrol_survivors(journal, made[0], me)
    enrolment.enrol_survivors(journal, made[0], me)
    names = [record_name(labels.AGREEMENT_RECORD, me, number.to_bytes(8, "little")) for number in range(3)]
    assert [load(journal, name) for name in names] == [b"a" * 32, None, None]
    if refused:
        with pytest.raises(UsageError, match="does not name it"):
            enrolment.enrol_survivors(journal, made[1], me)
        made[1].terms.predecessors = (b"a" * 32,)
    enrolment.enrol_survivors(journal, made[1], me)
    assert [load(journal, name) for name in names] == [b"a" * 32, b"b" * 32, None]


# --- the ledger --------------------------------------------------------------------------------------------------


def entries(journal: MemoryJournal) -> list[tuple[int, ...]]:
    """The chain of totals as it is stored: charge and total of each entry, numbered from 0."""
    found = []
    for number in range(9):
        record = load(journal, record_name(labels.LEDGER_RECORD, number.to_bytes(8, "little")))
        if record is None:
            break
        assert len(record) == 32 + 4 * 8
        found.append(tuple(int.from_bytes(record[at : at + 8], "little") for at in range(32, 64, 8)))
    return found


def test_what_is_paid_and_settled_is_a_chain_of_totals() -> None:
    journal = MemoryJournal()
    for _ in range(2):
        ledger.pay(journal, b"round 1", Charge(50, 30), None)
    ledger.pay(journal, b"round 2", Charge(7, 3), None)
    for _ in range(2):
        ledger.settle(journal, b"round 1", Charge(50, 30), Charge(50, 10))  # less in one of the two is enough
    assert entries(journal) == [(50, 30, 50, 30), (7, 3, 57, 33), (50, 10, 57, 13)]
    ledger.settle(journal, b"round 2", Charge(7, 3), Charge(2, 3))
    assert entries(journal)[3:] == [(2, 3, 52, 13)]
    assert ledger.spent(journal) == Charge(52, 13)
    for charge in (Charge(8, 0), Charge(0, 4)):
        ledger.settle(journal, b"round 2", Charge(7, 3), charge)
    ledger.settle(journal, b"round 3", Charge(7, 3), Charge(0, 0))  # was not paid
    assert len(entries(journal)) == 4
    paid = hashlib.sha256(
        labels.CHARGE_RECORD + b"\0" + (7).to_bytes(8, "little") + (3).to_bytes(8, "little") + b"round 2"
    ).digest()
    expected = paid + b"".join(number.to_bytes(8, "little") for number in (7, 3, 0, 0))
    assert load(journal, record_name(labels.CHARGE_RECORD, paid)) == expected


def test_a_ledger_says_which_argument_is_wrong() -> None:
    good: dict[str, Any] = {"journal": MemoryJournal(), "subject": b"round", "charge": Charge(1, 1), "budget": None}
    for changes, says in (
        ({"journal": 7}, r"^journal: expected a Journal with create\(\), got 7$"),
        ({"subject": "round"}, r"^subject: expected bytes, got str$"),
        ({"charge": 7}, r"^charge: expected Charge, got int$"),
        ({"budget": 7}, r"^budget: expected Budget, got int$"),
    ):
        with pytest.raises(UsageError, match=says):
            ledger.pay(**{**good, **changes})
    with pytest.raises(UsageError, match=r"^journal: expected a Journal"):
        ledger.spent(7)  # type: ignore[arg-type]
    assert ledger.spent(MemoryJournal()) == Charge(0, 0)


def test_a_ledger_that_is_damaged_is_told() -> None:
    journal = MemoryJournal()
    journal.create(record_name(labels.LEDGER_RECORD, bytes(8)), b"damaged")
    with pytest.raises(JournalError, match=r"^the ledger of this journal is damaged \(.*\); nothing was sent$"):
        ledger.spent(journal)
    for field in range(4):  # a charge or a total that cannot be
        journal, numbers = MemoryJournal(), [1, 1, 1, 1]
        numbers[field] = 2**64 - 1
        record = bytes(32) + b"".join(number.to_bytes(8, "little") for number in numbers)
        journal.create(record_name(labels.LEDGER_RECORD, bytes(8)), record)
        with pytest.raises(JournalError, match="the ledger of this journal is damaged"):
            ledger.spent(journal)


# --- masked vectors ----------------------------------------------------------------------------------------------


def test_masked_vectors_are_the_same_in_the_callers_memory() -> None:
    """Two vectors of one value: more rows than columns."""
    plan = make_plan(6, length=1, schedule=Schedule(name="random", size=3, groupings=2))
    world = World(plan)
    puppets = world.run_to(Stage.SHARES)
    dealings = {v: p.find(Dealing) for v, p in puppets.items()}
    bundle = world.bundle(0, dealings, dict.fromkeys(dealings, plan.ids))
    twin, out = puppets[0].fork(), np.zeros((2, 1), np.uint32)
    own: Any = puppets[0].client.receive(bundle, update=world.inputs[0])
    given: Any = twin.client.receive(bundle, update=world.inputs[0], out=out)
    assert own.vectors.shape == (2, 1)
    assert own.vectors.tolist() == given.vectors.tolist() == out.tolist()
    assert np.shares_memory(given.vectors, out)


@pytest.mark.parametrize("out", [None, np.zeros((2, 3), np.uint32)])
def test_a_client_that_was_left_out_masks_nothing(out: Any) -> None:
    plan: Any = SimpleNamespace(groups_of={3: ()}, groupings=((), ()), length=3, hash=bytes(32))
    assert masked_vectors(plan, memory(), {}, np.zeros(3, np.uint32), out=out).shape == (0, 0)
