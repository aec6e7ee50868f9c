"""What a server refuses, discards and reports, whatever the clients send."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.crypto.keys import AgreementKey
from secagg.errors import UsageError
from secagg.evidence import verify
from secagg.whole import Advert, Answer, Hello, Release, Server, Stage, encode
from secagg.whole import server as server_module
from secagg.whole.layout import layout
from tests.secagg.whole.cast import Cast, update_of

CROSSED = {"members": 9, "size": 3, "schedule": "transversal", "groupings": 2}


def sums_are_right(cast: Cast, result: Any) -> bool:
    round = result.round
    return all(
        (result.sum(group) == sum(update_of(cast.agreement, v, round) for v in opened.members)).all()
        for group, opened in result.groups.items()
    )


# --- adverts ---------------------------------------------------------------------------------------------


def test_adverts_are_checked_before_they_are_kept() -> None:
    cast = Cast()
    right = cast.hello(0)
    bad = [
        (replace(right, signature=bytes(64)), "client 0: wrong signature"),
        (replace(right, key=AgreementKey.generate().public), "client 0: wrong signature"),
        (cast.advert(0, 0, bytes(32)), "low-order X25519 key"),
        (cast.advert(0, 4), "its advert is for round 4, more than 3 rounds ahead"),
        (cast.advert(1, 0), "its message names client 1"),
        (Hello(cast.agreement.fingerprint, 0), "Hello is not a message to the server"),
    ]
    for advert, reason in bad:
        assert cast.server.receive(0, encode(advert)) == reason
        assert 0 in cast.server.hello(0)
    assert cast.server.receive(0, right) is None
    assert set(cast.server.hello(0)) == {1, 2, 3, 4, 5}


def test_an_advert_of_a_client_that_is_not_drawn_or_of_no_round_is_refused() -> None:
    cast = Cast(members=8, sample=4, schedule="random", size=2, rounds=2)
    outside = min(set(range(8)) - set(layout(cast.agreement, 0).seats))
    assert cast.server.receive(outside, cast.advert(outside, 0)) == "it is not drawn for round 0"
    assert cast.server.receive(outside, cast.advert(outside, 2)) == "it is not drawn for round 2"


def test_a_new_advert_replaces_the_old_one_until_the_round_begins() -> None:
    cast = Cast()
    cast.server.receive(0, cast.advert(0, 0))
    cast.begin(0, absent=[0])
    assert cast.server.receive(0, cast.hello(0)) is None  # too late: the first stays, and client 0 cannot answer
    shown = {a.sender: a for message in cast.server.outbox().values() for a in message.adverts}
    assert shown[0] != cast.hello(0)


def test_a_stranger_and_a_message_of_no_kind_are_the_callers_mistake() -> None:
    cast = Cast()
    with pytest.raises(UsageError, match="client 77 is not on the roster"):
        cast.server.receive(77, b"")
    with pytest.raises(UsageError, match="expected bytes or a message class"):
        cast.server.receive(0, "text")  # type: ignore[arg-type]


# --- answers ---------------------------------------------------------------------------------------------


def other_context(cast: Cast, answer: Answer) -> Answer:
    return cast.signed(answer, context=bytes(32))


def other_adverts(cast: Cast, answer: Answer) -> Answer:
    return cast.signed(answer, seen=(bytes(32), *answer.seen[1:]))


def omitted_group(cast: Cast, answer: Answer) -> Answer:
    return cast.signed(answer, groups=answer.groups[:1], seen=answer.seen[:1], vectors=answer.vectors[:1])


def fewer_vectors(cast: Cast, answer: Answer) -> Answer:
    return cast.signed(answer, vectors=answer.vectors[:1])


def longer_vectors(cast: Cast, answer: Answer) -> Answer:
    return cast.signed(answer, vectors=np.hstack([answer.vectors, answer.vectors]))


def other_round(cast: Cast, answer: Answer) -> Answer:
    return cast.signed(answer, round=1)


def changed_vectors(cast: Cast, answer: Answer) -> Answer:
    return replace(answer, vectors=answer.vectors + np.uint32(1))


def exchanged_vectors(cast: Cast, answer: Answer) -> Answer:
    return replace(answer, vectors=answer.vectors[::-1].copy())


def changed_chain(cast: Cast, answer: Answer) -> Answer:
    return replace(answer, previous=bytes(31) + b"\1")


def anothers_answer(cast: Cast, answer: Answer) -> Answer:
    return replace(answer, sender=(answer.sender + 1) % 9)


def foreign_advert(cast: Cast, answer: Answer) -> Answer:
    return cast.signed(answer, adverts=(cast.advert(8, 1),))


def bad_advert(cast: Cast, answer: Answer) -> Answer:
    return cast.signed(answer, adverts=(replace(answer.adverts[0], signature=bytes(64)),))


def garbage(cast: Cast, answer: Answer) -> bytes:
    return encode(answer)[:-1]


BAD: dict[Callable[[Cast, Answer], Any], str] = {
    other_context: "another context",
    other_adverts: "it saw other adverts",
    omitted_group: "its answer has groups",
    fewer_vectors: "vectors of shape",
    longer_vectors: "vectors of shape",
    other_round: "its answer is of round 1, expected 0",
    changed_vectors: "wrong signature",
    exchanged_vectors: "wrong signature",
    changed_chain: "wrong signature",
    anothers_answer: "its message names client",
    foreign_advert: "brings an advert of client 8",
    bad_advert: "wrong signature",
    garbage: "bytes too early",
}


@pytest.mark.parametrize("change", BAD, ids=lambda change: change.__name__)
def test_a_bad_answer_is_discarded_whole_and_spoils_only_its_own_groups(change: Callable[[Cast, Answer], Any]) -> None:
    cast = Cast(**CROSSED)
    result = cast.round(change=lambda answer: change(cast, answer), only=[4])
    assert BAD[change] in result.dropouts[4]
    assert 4 not in result.answers
    assert set(result.lost) == {group for group, members in cast.groups().items() if 4 in members}
    assert all(f"client 4: {result.dropouts[4]}" == why for why in result.lost.values())
    assert result.blamed == {}
    assert sums_are_right(cast, result)


def test_a_good_answer_after_a_bad_message_counts() -> None:
    cast = Cast()
    for member, message in cast.begin().items():
        answer = cast.answer(member, message)
        assert cast.server.receive(member, b"\1") is not None
        assert cast.server.receive(member, encode(answer)) is None
    result = cast.server.close()
    assert (result.dropouts, result.lost) == ({}, {})
    assert sums_are_right(cast, result)


def test_the_same_answer_twice_counts_once_and_two_different_ones_convict() -> None:
    cast = Cast()
    for member, message in cast.begin().items():
        answer = cast.answer(member, message)
        for _ in range(2):
            assert cast.server.receive(member, answer) is None
        if member == 2:
            cast.server.receive(member, cast.signed(answer, vectors=answer.vectors + np.uint32(1)))
        if member == 3:  # not signed by its sender: no evidence
            cast.server.receive(member, replace(answer, vectors=answer.vectors + np.uint32(1)))
    assert cast.server.waiting_for() == ()
    result = cast.server.close()
    assert result.blamed == {2: "it signed two different answers for round 0"}
    assert sums_are_right(cast, result)
    assert cast.round(1).blamed == result.blamed


def test_an_answer_and_a_release_of_the_same_round_convict() -> None:
    cast = Cast()
    result_of = {}
    for member, message in cast.begin().items():
        result_of[member] = cast.server.receive(member, cast.answer(member, message))
    other = cast.new_client(1).release(0).message
    assert cast.server.receive(1, other) is None
    assert cast.server.close().blamed == {1: "it signed an answer and a release of round 0"}
    report = verify(cast.server.evidence(cast.signatures))  # the record has the proof
    assert report.holds, report.problems
    assert report.blamed == {1: "it signed an answer and a release of round 0"}


def test_a_late_answer_brings_only_its_adverts() -> None:
    cast = Cast()
    box = cast.begin()
    late = cast.answer(0, box[0])
    for member in list(box)[1:]:
        cast.server.receive(member, cast.answer(member, box[member]))
    result = cast.server.close()
    assert result.dropouts == {0: "it did not answer in time"}
    assert 0 in cast.server.hello(1)
    assert cast.server.receive(0, encode(late)) is None
    assert 0 not in cast.server.hello(1)


def test_half_added_vectors_lose_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    cast = Cast(**CROSSED)
    box = cast.begin()
    answers = {member: cast.answer(member, message) for member, message in box.items()}
    first = next(iter(answers))
    mate = cast.mates(first)[0]
    cast.server.receive(first, answers.pop(first))

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server_module.np, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cast.server.receive(mate, answers[mate])
    monkeypatch.undo()
    for member, answer in answers.items():
        cast.server.receive(member, answer)
    result = cast.server.close()
    assert set(result.lost) == {group for group, members in cast.groups().items() if mate in members}
    assert all("was not added completely" in why for why in result.lost.values())
    assert sums_are_right(cast, result)


def test_answers_from_many_threads_give_the_right_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """An addition that takes its time loses what another thread adds meanwhile, unless one waits for the other."""

    def slow_add(a: Any, b: Any, out: Any) -> None:
        total = a + b
        time.sleep(0.005)
        out[:] = total

    cast = Cast(members=8, size=8)
    box = cast.begin()
    answers = [encode(cast.answer(member, message, np.full(5, member))) for member, message in box.items()]
    monkeypatch.setattr(server_module.np, "add", slow_add)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(cast.server.receive, box, answers)) == [None] * 8
    monkeypatch.undo()
    assert (cast.server.close().sum((0, 0)) == sum(range(8))).all()


# --- sums held against what honest members can send ------------------------------------------------------


def test_a_sum_out_of_range_is_discarded_and_names_the_group_only() -> None:
    cast = Cast()

    def large(answer: Answer) -> Answer:
        vectors = answer.vectors.copy()
        vectors[0, 2] += np.uint32(3000)  # honest: at most 2 * 1000
        return cast.signed(answer, vectors=vectors)

    result = cast.round(change=large, only=[3])
    [group] = [group for group, members in cast.groups().items() if 3 in members]
    assert set(result.lost) == {group}
    assert "larger than honest members can reach" in result.lost[group]
    assert (result.blamed, result.dropouts) == ({}, {})


def test_different_vectors_in_different_groupings_are_found() -> None:
    cast = Cast(**CROSSED)

    def split(answer: Answer) -> Answer:
        vectors = answer.vectors.copy()
        vectors[1, 0] += np.uint32(1)
        return cast.signed(answer, vectors=vectors)

    result = cast.round(change=split, only=[3])
    assert len(result.inconsistent) == 1
    assert set(result.inconsistent[0]) == set(result.groups)
    assert (result.lost, result.blamed) == ({}, {})
    assert cast.round(1).inconsistent == ()


# --- rounds in order, state in bytes --------------------------------------------------------------------


def test_rounds_go_up_and_one_is_open_at_a_time() -> None:
    cast = Cast()
    with pytest.raises(UsageError, match="no round is open"):
        cast.server.close()
    with pytest.raises(UsageError, match="round 8 is not in the agreement"):
        cast.server.begin(8)
    cast.begin(2)
    with pytest.raises(UsageError, match="round 2 is not closed"):
        cast.server.begin(3)
    cast.server.close()
    for round in (0, 1, 2):
        with pytest.raises(UsageError, match="is over"):
            cast.server.begin(round)
        with pytest.raises(UsageError, match="is over"):
            cast.server.hello(round)
    assert cast.server.stage is Stage.IDLE


def test_a_server_goes_on_from_its_bytes_at_any_moment() -> None:
    cast = Cast(**CROSSED)

    def again() -> None:
        data = cast.server.save()
        cast.server = Server.restore(data, cast.agreement)
        assert cast.server.save() == data

    again()
    for round in range(2):
        for member in cast.server.hello(round):
            cast.server.receive(member, cast.hello(member, round))
            again()
        for member, message in cast.server.begin(round, data=b"model").items():
            again()
            assert cast.server.outbox()[member] == message
            if member == 5:
                cast.server.receive(member, b"\1")
            else:
                cast.server.receive(member, cast.answer(member, message))
        again()
        result = cast.server.close()
        assert set(result.dropouts) == {5}
        assert result.groups
        assert sums_are_right(cast, result)
    saved = cast.server.save()
    with pytest.raises(UsageError, match="another agreement"):
        Server.restore(saved, Cast().agreement)
    for damaged in (b"", saved[:-1], saved + b"\0"):
        with pytest.raises(UsageError, match=r"not a saved server|damaged"):
            Server.restore(damaged, cast.agreement)


def test_the_table_has_every_message_to_the_server_in_every_stage() -> None:
    assert set(server_module.STEPS) == {(stage, kind) for stage in Stage for kind in (Advert, Answer, Release)}
