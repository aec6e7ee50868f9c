"""What a client refuses, leaves out, erases and repeats, whatever the server sends."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.keys import LOW_ORDER_POINTS, AgreementKey, Identity
from secagg.errors import AlreadyUsed, PeerError, SecAggError, UsageError, WireError
from secagg.whole import (
    Answer,
    Client,
    Hello,
    MemoryStore,
    Pending,
    Resend,
    Round,
    Server,
    State,
    Task,
    decode,
    encode,
    respond,
    transcript,
)  # fmt: skip
from secagg.whole import client as client_module
from secagg.whole.client_state import Giving, Repeated, Stored, Update
from secagg.whole.masking import mask_keys
from tests.secagg.whole.cast import Cast, agreed, update_of, with_advert

PAIRS: dict[str, Any] = {}
CROSSED = {"members": 9, "size": 3, "schedule": "transversal", "groupings": 2}


def asked(**settings: Any) -> tuple[Cast, Round]:
    """A cast whose member 0 has advertised, and the server's message to it."""
    cast = Cast(**settings)
    return cast, cast.begin()[0]


# --- who may be a client ------------------------------------------------------------------------------


def test_a_client_needs_the_identity_of_its_member() -> None:
    cast = Cast()
    for member, identity in ((0, Identity.generate()), (1, cast.identities[0]), (77, cast.identities[0])):
        with pytest.raises(UsageError, match="is not a member of the agreement"):
            Client(cast.agreement, cast.signatures, member, identity)


def test_a_client_needs_the_signatures_of_all_members() -> None:
    cast = Cast(name="never signed by all")
    for wrong in ({5: bytes(64)}, {5: cast.signatures[4]}):
        with pytest.raises(PeerError, match="client 5: wrong signature"):
            Client(cast.agreement, {**cast.signatures, **wrong}, 0, cast.identities[0])
    missing = {v: signature for v, signature in cast.signatures.items() if v != 5}
    with pytest.raises(PeerError, match="client 5"):
        Client(cast.agreement, missing, 0, cast.identities[0])


def test_clients_and_servers_are_for_whole_groups() -> None:
    agreement, identities = agreed(groups="survivors")
    signatures = {v: agreement.sign(v, identity) for v, identity in identities.items()}
    with pytest.raises(UsageError, match="survivors"):
        Client(agreement, signatures, 0, identities[0])
    with pytest.raises(UsageError, match="survivors"):
        Server(agreement)


def test_a_client_is_neither_copied_nor_pickled_and_shows_no_key() -> None:
    cast = Cast()
    cast.hello(0)
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UsageError, match="copied or pickled"):
            act(cast.clients[0])
    key = cast.clients[0]._memory.keys[0]
    shown = repr((cast.clients[0], cast.clients[0]._memory, key))
    assert repr(key.private)[2:-1] not in shown
    assert "private" not in shown


# --- the message belongs to this agreement, a round of it, and a free slot ------------------------------


@pytest.mark.parametrize("kind", [Hello, Round])
def test_messages_of_other_agreements_and_rounds_are_refused(kind: type) -> None:
    cast, message = asked()
    hello = Hello(cast.agreement.fingerprint, 0)
    right: Any = hello if kind is Hello else message
    client = cast.clients[0]
    with pytest.raises(PeerError, match="another agreement"):
        client.receive(replace(right, fingerprint=bytes(32)))
    with pytest.raises(PeerError, match="round 8 is not in the agreement: 0 to 7"):
        client.receive(replace(right, round=8))
    with pytest.raises(WireError):
        client.receive(encode(right) + b"\0")
    with pytest.raises(PeerError, match="expected a Hello or a Round, got Advert"):
        client.receive(encode(cast.hello(0)))
    client.receive(encode(right))


def test_a_client_that_is_not_drawn_takes_no_part() -> None:
    cast = Cast(members=8, sample=4, schedule="random", size=2)
    seated = set(cast.agreement.groups(0)[0, 0]) | set(cast.agreement.groups(0)[0, 1])
    for member in sorted(set(range(8)) - seated):
        with pytest.raises(PeerError, match="I am not drawn for round 0"):
            cast.hello(member)


def test_a_round_before_the_last_answered_one_is_refused() -> None:
    cast = Cast()
    first = cast.begin(0)[0]
    cast.server.close()
    cast.round(1)
    with pytest.raises(PeerError, match="asks for round 0, but round 1 is answered"):
        cast.clients[0].receive(first)
    with pytest.raises(PeerError, match="asks for an advert of round 1, but 1 is answered"):
        cast.hello(0, 1)


def test_a_repeated_round_gets_the_stored_bytes_again_and_never_another_update() -> None:
    cast, message = asked()
    answer = cast.answer(0, message)
    other = with_advert(replace(message, data=b"another model"), cast.advert(cast.mates(0)[0], 0))
    for again in (message, other, encode(message)):
        resend = cast.clients[0].receive(again)
        assert isinstance(resend, Resend)
        assert cast.stores[0].load(resend.name) == encode(answer)
        with pytest.raises(UsageError, match="no round waits"):
            cast.clients[0].answer(cast.clients[0].task, np.zeros(5, np.int64))
    assert cast.clients[0].state is State.IDLE


def test_two_clients_from_the_same_bytes_give_one_answer() -> None:
    """Both hold the key of the round; the slot decides, and the second sends the first one's bytes."""
    cast, message = asked()
    saved, store = cast.clients[0].save(), MemoryStore()
    first, second = cast.restore(0, saved), cast.restore(0, saved)
    pendings = []
    for client, value in ((first, 1), (second, 2)):
        client.receive(message)
        pendings.append(client.answer(client.task, np.full(5, value)))
    assert first.stored(store.keep(pendings[0])) == pendings[0].name
    assert second.stored(store.keep(pendings[1])) == pendings[0].name
    assert store.load(pendings[0].name) == encode(pendings[0].message)
    late = cast.restore(0, saved)
    late.receive(message)
    assert b"".join(respond(late, store, late.task, np.full(5, 3))) == encode(pendings[0].message)
    assert late.answered == 0
    assert late._memory.last == second._memory.last == first._memory.last


def test_a_filled_slot_is_found_before_anything_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    cast, message = asked()
    saved = cast.clients[0].save()
    answer = cast.answer(0, message)
    late = cast.restore(0, saved)
    late.receive(message)
    monkeypatch.setattr(client_module, "masked", None)
    assert b"".join(respond(late, cast.stores[0], late.task, np.full(5, 3))) == encode(answer)
    assert isinstance(late.receive(message), Resend)


def test_stored_without_anything_pending_needs_a_record() -> None:
    cast, message = asked()
    cast.clients[0].receive(message)
    with pytest.raises(UsageError, match="nothing is pending"):
        cast.clients[0].stored(None)


# --- my own key, the mates' keys ------------------------------------------------------------------------


def test_my_own_advert_must_be_the_one_that_i_sent() -> None:
    cast, message = asked()
    missing = replace(message, adverts=tuple(a for a in message.adverts if a.sender != 0))
    for wrong in (with_advert(message, cast.advert(0, 0)), missing):
        with pytest.raises(PeerError, match="an advert under my id that I did not send"):
            cast.clients[0].receive(wrong)
    with pytest.raises(PeerError, match="I have no key for round 0"):
        cast.new_client(0).receive(message)


def test_adverts_are_listed_once_and_in_order() -> None:
    cast, message = asked()
    for adverts in (message.adverts[::-1], message.adverts + message.adverts[-1:]):
        with pytest.raises(PeerError, match="in the order of ids, one per client"):
            cast.clients[0].receive(replace(message, adverts=adverts))


def low_order(cast: Cast, mate: int) -> Any:
    return [cast.advert(mate, 0, point) for point in sorted(LOW_ORDER_POINTS)]


def not_canonical(cast: Cast, mate: int) -> Any:
    return [cast.advert(mate, 0, (2**255 - 19 + 9).to_bytes(32, "little"))]


def unsigned(cast: Cast, mate: int) -> Any:
    right = cast.hello(mate)
    return [replace(right, key=AgreementKey.generate().public), replace(right, signature=bytes(64))]


def of_another_round(cast: Cast, mate: int) -> Any:
    later = cast.advert(mate, 1)
    return [later, replace(later, round=0)]


def of_another_agreement(cast: Cast, mate: int) -> Any:
    other = Cast(name="other")
    statement = transcript.advert_statement(other.agreement.fingerprint, cast.hello(mate))
    return [replace(cast.hello(mate), signature=cast.identities[mate].sign(statement))]


@pytest.mark.parametrize("bad", [low_order, not_canonical, unsigned, of_another_round, of_another_agreement])
def test_a_group_with_a_bad_advert_is_left_out_whole(bad: Callable[[Cast, int], Any]) -> None:
    """The other grouping is answered; the bad group is not masked with fewer mates."""
    for which in range(len(bad(Cast(**CROSSED), 1))):
        cast, message = asked(**CROSSED)
        mate = cast.mates(0)[0]
        changed = with_advert(message, bad(cast, mate)[which])
        answer = cast.answer(0, changed)
        groups = cast.groups()
        assert answer.groups == tuple(g for g in sorted(groups) if 0 in groups[g] and mate not in groups[g])
        assert len(answer.vectors) == len(answer.groups) == 1
        assert set(cast.clients[0].left_out) == {g for g in groups if {0, mate} <= set(groups[g])}


def test_a_group_without_an_advert_of_each_member_is_left_out() -> None:
    cast, message = asked(**CROSSED)
    mate = cast.mates(0)[0]
    answer = cast.answer(0, replace(message, adverts=tuple(a for a in message.adverts if a.sender != mate)))
    assert all(mate not in cast.groups()[group] for group in answer.groups)
    assert cast.clients[0].left_out.popitem()[1] == f"client {mate}: no advert"  # type: ignore[attr-defined]


def test_nothing_is_sent_if_no_group_is_left_and_a_better_message_may_follow() -> None:
    cast, message = asked()
    client, mate = cast.clients[0], cast.mates(0)[0]
    client.receive(with_advert(message, cast.advert(mate, 0, bytes(32))))
    with pytest.raises(PeerError, match="no group of round 0 can be answered: low-order"):
        client.answer(client.task, np.zeros(5, np.int64))
    client.receive(replace(message, groups=()))
    with pytest.raises(PeerError, match="the server did not list it"):
        client.answer(client.task, np.zeros(5, np.int64))
    assert cast.answer(0, message).groups


# --- masks ----------------------------------------------------------------------------------------------


def test_a_mask_key_binds_everything_and_is_the_same_from_both_ends() -> None:
    cast = Cast()
    a, b = AgreementKey.generate(), AgreementKey.generate()
    low, high = cast.advert(0, 0, a.public), cast.advert(1, 0, b.public)
    secret = a.agree(b.public)

    def key(fingerprint: bytes = bytes(32), round: int = 0, context: bytes = bytes(32), grouping: int = 0,
            me: Any = low, mate: Any = high) -> bytes:  # fmt: skip
        return mask_keys(fingerprint, round, context, me, [(grouping, mate)], {mate.sender: secret}).tobytes()

    others = [
        key(fingerprint=bytes(31) + b"\1"),
        key(round=1),
        key(context=bytes(31) + b"\1"),
        key(grouping=1),
        key(me=replace(low, sender=2)),
        key(mate=replace(high, sender=2)),
        key(me=replace(low, key=bytes(32))),
        key(mate=replace(high, key=bytes(32))),
    ]
    assert len({key(), *others}) == 9
    assert key() == key(me=high, mate=low)


@given(st.binary(max_size=4), st.binary(max_size=4), st.binary(max_size=4), st.binary(max_size=4))
def test_contexts_are_equal_only_if_data_and_context_are(a: bytes, b: bytes, c: bytes, d: bytes) -> None:
    assert (transcript.context_hash(a, b) == transcript.context_hash(c, d)) == ((a, b) == (c, d))


def test_every_mate_adds_a_mask() -> None:
    """In a group of three, what is left after the mask of one mate is removed still hides the update."""
    cast = Cast(members=3, size=3)
    answers = {member: cast.answer(member, message) for member, message in cast.begin().items()}
    plain = {v: update_of(cast.agreement, v, 0).astype(np.uint32) for v in answers}
    masks = {v: answers[v].vectors[0] - plain[v] for v in answers}
    assert not (masks[0] + masks[1] + masks[2]).any()
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (masks[a] + masks[b]).all()


def test_mates_with_different_models_give_no_sum() -> None:
    """Otherwise a server that shows each member another model learns m sums of m updates."""
    cast = Cast(members=3, size=3)
    box = cast.begin(data=b"model")
    answers = [cast.answer(v, replace(m, data=b"model %d" % (v == 2))) for v, m in box.items()]
    total = sum(answer.vectors[0] for answer in answers)
    assert (total != sum(update_of(cast.agreement, v, 0) for v in range(3)).astype(np.uint32)).all()
    assert len({answer.context for answer in answers}) == 2


def test_equivocated_adverts_give_no_sum() -> None:
    """A server that holds the key that it shows for client 2 still needs the masks between 0 and 1."""
    cast = Cast(members=3, size=3)
    box = cast.begin()
    answers = {0: cast.answer(0, with_advert(box[0], cast.advert(2, 0)))}
    answers |= {v: cast.answer(v, box[v]) for v in (1, 2)}
    total = sum(answer.vectors[0] for answer in answers.values())
    assert (total != sum(update_of(cast.agreement, v, 0) for v in range(3)).astype(np.uint32)).all()
    assert cast.server.receive(0, answers[0]) == "it saw other adverts than those of this round"


# --- storing, erasing ---------------------------------------------------------------------------------


def test_keys_up_to_the_round_are_erased_once_the_slot_is_claimed_and_not_before() -> None:
    cast, message = asked()
    client = cast.clients[0]
    client.receive(message)
    pending = client.answer(client.task, np.zeros(5, np.int64))
    assert [key.round for key in client._memory.keys] == [0]
    with pytest.raises(UsageError, match="call stored"):
        client.save()
    client.stored(cast.stores[0].keep(pending))
    assert [key.round for key in client._memory.keys] == [1, 2, 3]
    assert not client._pairs
    assert client.pending is None
    assert client.task is None


def test_a_skipped_round_is_erased_with_the_next_answer() -> None:
    cast = Cast()
    cast.round(0)
    cast.begin(1)
    cast.server.close()
    cast.answer(0, cast.begin(2)[0])
    assert [key.round for key in cast.clients[0]._memory.keys] == [3, 4, 5]


def test_a_saved_client_goes_on_and_belongs_to_its_agreement() -> None:
    cast = Cast()
    cast.round(0)
    saved = cast.clients[0].save()
    cast.clients[0] = cast.restore(0, saved)
    assert not cast.round(1).lost
    with pytest.raises(UsageError, match="belongs to another agreement"):
        Cast(name="other").restore(0, saved)
    with pytest.raises(UsageError, match="is client 0, expected client 1"):
        cast.restore(1, saved)
    for damaged in (b"", saved[:-1], saved + b"\0", b"x" + saved):
        with pytest.raises(UsageError, match=r"not a saved client|damaged"):
            cast.restore(0, damaged)


def test_an_update_that_does_not_encode_changes_nothing() -> None:
    cast, message = asked()
    cast.clients[0].receive(message)
    for wrong in (np.zeros(4, np.int64), np.full(5, 1001), np.zeros(5)):
        with pytest.raises(UsageError):
            cast.clients[0].answer(cast.clients[0].task, wrong)
    assert cast.clients[0].state is State.ASKED
    assert cast.answer(0, message).groups


def test_another_round_message_takes_the_place_of_one_that_waits_for_its_update() -> None:
    cast, message = asked()
    client = cast.clients[0]
    client.receive(message)
    task = client.receive(replace(message, data=b"newer"))
    assert isinstance(task, Task)
    pending = client.answer(client.task, np.zeros(5, np.int64))
    assert isinstance(pending.message, Answer)
    assert pending.message.context == transcript.context_hash(b"newer", b"")


# --- the state machine ----------------------------------------------------------------------------------


def test_every_event_in_every_state_is_handled_or_refused_without_a_change() -> None:
    cast = Cast()
    message = cast.begin(0)[0]
    cast.answer(0, message)
    cast.server.close()
    later = cast.begin(1)[0] if cast.server.receive(0, cast.hello(0, 1)) is None else message
    saved = cast.clients[0].save()

    def in_state(state: State) -> Client:
        client = cast.restore(0, saved)
        if state > State.IDLE:
            client.receive(later)
        if state > State.ASKED:
            client.answer(client.task, np.zeros(5, np.int64))
        return client

    events: dict[type, Callable[[Client], Any]] = {
        Hello: lambda c: c.receive(Hello(cast.agreement.fingerprint, 2)),
        Round: lambda c: c.receive(later),
        Repeated: lambda c: c.receive(message),
        Update: lambda c: c.answer(c.task, np.zeros(5, np.int64)),
        Giving: lambda c: c.release(1),
        Stored: lambda c: c.stored(b"answer " + bytes(32)),
    }
    for state in State:
        for event, act in events.items():
            client = in_state(state)
            assert client.state is state
            step = client_module.STEPS.get((state, event))
            if step is None:
                with pytest.raises(UsageError, match=r"call stored\(\) first|waits for|pass a Round"):
                    act(client)
                assert client.state is state
            else:
                act(client)
                assert client.state is step[1]


def test_threads_of_one_client_give_one_answer() -> None:
    cast, message = asked(length=20000)
    client = cast.clients[0]

    def attempt(value: int) -> Pending | None:
        try:
            client.receive(message)
            return client.answer(client.task, np.full(20000, value))
        except (UsageError, SecAggError):
            return None

    with ThreadPoolExecutor(8) as pool:
        pendings = [pending for pending in pool.map(attempt, range(8)) if pending is not None]
    assert len(pendings) == 1


# --- messages ---------------------------------------------------------------------------------------------


def test_messages_come_back_from_their_bytes() -> None:
    cast = Cast(**CROSSED)
    box = cast.begin(data=b"model")
    answer = cast.answer(0, box[0])
    release = cast.new_client(1).release(3).message
    for message in (Hello(bytes(32), 3), cast.hello(1), box[0], release):
        assert decode(encode(message)) == message
    found = decode(encode(answer))
    assert isinstance(found, Answer)
    assert encode(found) == encode(answer)
    assert np.array_equal(found.vectors, answer.vectors)
    for data in (encode(answer), encode(box[0])):
        for cut in (1, 2, 40, len(data) - 1):
            with pytest.raises(WireError):
                decode(data[:cut])
        with pytest.raises(WireError):
            decode(data + b"\0")
        with pytest.raises(WireError, match="wire version"):
            decode(b"\7" + data[1:])


# --- releases -----------------------------------------------------------------------------------------------


def test_a_release_and_an_answer_exclude_each_other_in_one_slot() -> None:
    cast, message = asked()
    saved, store = cast.clients[0].save(), MemoryStore()
    first, second = cast.restore(0, saved), cast.restore(0, saved)
    released = first.release(0)
    first.stored(store.keep(released))
    with pytest.raises(PeerError, match="round 0 is released"):
        first.receive(message)
    second.receive(message)
    pending = second.answer(second.task, np.zeros(5, np.int64))
    with pytest.raises(AlreadyUsed, match="answered or released before"):
        second.stored(store.keep(pending))
    assert second.state is State.IDLE
    with pytest.raises(PeerError, match="round 0 is released"):
        second.receive(message)
    third = cast.restore(0, saved)
    third.receive(message)
    with pytest.raises(AlreadyUsed):
        respond(third, store, third.task, np.zeros(5, np.int64))


def test_an_answered_round_is_not_released_but_a_missed_one_may_be() -> None:
    cast = Cast()
    cast.round(0)
    cast.round(2, absent=())
    client = cast.clients[0]
    for round, allowed in ((0, False), (2, False), (1, True), (4, True)):
        pending = client.release(round)
        if allowed:
            client.stored(cast.stores[0].keep(pending))
        else:
            with pytest.raises(AlreadyUsed):
                client.stored(cast.stores[0].keep(pending))
    assert client.answered == 4
    with pytest.raises(UsageError, match="not in the agreement"):
        client.release(8)
