"""What a client saves and shows, what it hashes and adds, and the agreements that it has answered under."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secagg import Client, MemoryJournal, Plan, UsageError, labels
from secagg.protocol import enrolment, inputs, transcript
from secagg.protocol.client_state import ClientMemory, FromApplication, State, check_header, restore, save
from secagg.protocol.dealing import HeldShares
from secagg.protocol.journal import load, record_name
from secagg.protocol.messages import (
    Consistency,
    MaskedInput,
)
from secagg.protocol.wire import encode
from tests.secagg.cluster import agreement_of, identity, make_plan

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
    whole = memory()
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
