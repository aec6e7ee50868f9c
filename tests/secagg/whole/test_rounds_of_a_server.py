"""What a server keeps from round to round, what it forgets, and what it tells."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.errors import UsageError, WireError
from secagg.evidence import verify
from secagg.exposure.audit import Policy
from secagg.simulation import make_agreement
from secagg.whole import Answer, Release, Server, Stage, WholeResult, decode, encode, transcript
from secagg.whole import layout as layout_module
from secagg.whole import server as module
from secagg.whole.flat import objection
from secagg.whole.layout import layout
from tests.secagg.whole.cast import Cast, update_of

ROUND = Policy(min_survivors=2, anonymity=2, max_leverage=1.0, memory="round")
FLAT: dict[str, Any] = {"members": 5, "size": 5, "policy": ROUND}


def release_of(cast: Cast, member: int, round: int = 0) -> Release:
    message = cast.new_client(member).release(round).message
    assert isinstance(message, Release)
    return message


def answers(cast: Cast, round: int = 0, **given: Any) -> dict[int, Answer]:
    return {member: cast.answer(member, message) for member, message in cast.begin(round, **given).items()}


# --- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, -1, 1.5, "1"])
def test_a_server_has_a_number_of_threads_that_can_be(threads: Any) -> None:
    cast = Cast()
    saved = cast.server.save()
    with pytest.raises(UsageError, match="threads"):
        Server(cast.agreement, threads=threads)
    with pytest.raises(UsageError, match="threads"):
        Server.restore(saved, cast.agreement, threads=threads)


def test_a_server_is_of_an_agreement_with_whole_groups() -> None:
    saved = Cast().server.save()
    with pytest.raises(UsageError, match=r"^agreement: expected Agreement, got int$"):
        Server(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^agreement: expected Agreement, got int$"):
        Server.restore(saved, 3)  # type: ignore[arg-type]
    survivors, _ = make_agreement(members=4, size=2, length=1, clip=1.0, groups="survivors", colluders=0, policy=ROUND)
    with pytest.raises(UsageError, match=r"^this agreement has groups = 'survivors': use secagg.protocol.Server$"):
        Server(survivors)


def test_reasons_are_of_members_and_texts() -> None:
    cast = Cast()
    cast.begin()
    with pytest.raises(UsageError, match=r"^client: client 9 is not on the roster$"):
        cast.server.give_up(9, "gone")
    with pytest.raises(UsageError, match=r"^reason: expected str, got int$"):
        cast.server.give_up(0, 5)  # type: ignore[arg-type]


def test_the_data_of_a_round_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_DATA", 5)
    cast = Cast()
    with pytest.raises(UsageError, match=r"^data has 6 bytes, at most 5 are allowed$"):
        cast.server.begin(0, data=bytes(6))
    message = cast.begin(0, data=bytes(5))[0]
    assert message.data == bytes(5)
    sent = encode(message)
    place = 2 + 32 + 8  # version and type, fingerprint, round
    assert sent[place : place + 9] == (5).to_bytes(4, "little") + bytes(5)
    for count, problem in ((2**30 + 1, f"count {2**30 + 1} exceeds the limit {2**30}"), (2**30, "bytes too early")):
        with pytest.raises(WireError, match=problem):
            decode(sent[:place] + count.to_bytes(4, "little") + sent[place + 4 :])


def test_who_is_present_is_for_a_roll_call() -> None:
    cast = Cast()
    with pytest.raises(
        UsageError, match=r"^present: only for an agreement with roll_call; otherwise a group is summed"
    ):
        cast.server.begin(0, present=[0, 1])


# --- what is told --------------------------------------------------------------------------------------------------


def test_the_first_reason_stays_and_is_at_most_a_thousand_characters_long() -> None:
    cast = Cast()
    cast.server.give_up(0, "too early")  # no round is open
    assert cast.server.dropouts == {}
    box = cast.begin()
    cast.server.give_up(0, "a" * 1000)
    cast.server.give_up(1, "b" * 1001)
    cast.server.give_up(0, "later")
    assert cast.server.dropouts == {0: "a" * 1000, 1: "b" * 1000}
    cast.server.dropouts[5] = "changed outside"  # type: ignore[index]
    cast.server.receive(2, cast.answer(2, box[2]))
    cast.server.give_up(2, "it has answered")
    assert set(cast.server.dropouts) == {0, 1}
    cast.server.receive(0, cast.answer(0, box[0]))  # an answer after all
    assert set(cast.server.dropouts) == {1}


def test_everybody_that_does_not_answer_is_a_dropout() -> None:
    cast = Cast()
    box = cast.begin(absent=[5])
    mates = cast.mates(5)
    assert cast.server.dropouts == {5: "it sent no advert"}
    assert cast.server.waiting_for() == tuple(sorted(box)) == tuple(v for v in range(6) if v not in (5, *mates))
    for member in list(box)[1:]:
        cast.server.receive(member, cast.answer(member, box[member]))
    assert cast.server.waiting_for() == (next(iter(box)),)
    result = cast.server.close()
    assert result.dropouts == {next(iter(box)): "it did not answer in time", 5: "it sent no advert"}
    assert list(result.answers) == list(box)[1:]
    assert result.answered == tuple(list(box)[1:])
    missing = {group: [v for v in members if v in result.dropouts] for group, members in cast.groups().items()}
    assert result.lost == {
        group: "; ".join(f"client {v}: {result.dropouts[v]}" for v in gone) for group, gone in missing.items() if gone
    }


def test_blame_is_by_id_and_stays() -> None:
    cast = Cast()
    for member, answer in answers(cast).items():
        cast.server.receive(member, answer)
        if member in (1, 4):
            cast.server.receive(member, cast.signed(answer, vectors=answer.vectors + np.uint32(1)))
    assert list(cast.server.blamed) == [1, 4]
    assert cast.server.close().blamed == dict.fromkeys((1, 4), "it signed two different answers for round 0")
    cast.begin(1)
    assert list(cast.server.blamed) == [1, 4]


def test_a_sum_that_is_not_open_says_why() -> None:
    cast = Cast()
    result = cast.round(absent=[0])
    [lost] = result.lost
    with pytest.raises(UsageError, match=rf"^group \({lost[0]}, {lost[1]}\) has no sum: client 0: it sent no advert$"):
        result.sum(lost)
    with pytest.raises(UsageError, match=r"^group \(7, 7\) has no sum: the agreement has no such group in this round$"):
        result.mean((7, 7))
    assert isinstance(result, WholeResult)


# --- from round to round -------------------------------------------------------------------------------------------


def test_adverts_and_releases_of_earlier_rounds_are_forgotten() -> None:
    cast = Cast(**FLAT)
    cast.server.receive(4, release_of(cast, 4, 1))
    for round in (0, 1, 2):
        cast.begin(round, absent=[4] if round == 1 else [])
        memory = cast.server._memory
        assert min(memory.adverts) == round
        assert min(memory.releases, default=round) >= round
        cast.server.close()
    assert cast.server._memory.releases == {}


def test_an_advert_may_come_three_rounds_ahead_of_the_next() -> None:
    cast = Cast(rounds=20)
    for last in (3, 8):
        assert cast.server.receive(0, cast.advert(0, last)) is None
        told = f"its advert is for round {last + 1}, more than 3 rounds ahead"
        assert cast.server.receive(0, cast.advert(0, last + 1)) == told
        cast.server.hello(5)
    cast.begin(6)
    assert cast.server.receive(0, cast.advert(0, 10)) is None
    assert cast.server.receive(0, cast.advert(0, 11)) is not None
    assert cast.server.receive(0, cast.advert(0, 6)) is None  # late: it is not taken
    assert cast.server._memory.adverts[6][0].key != cast.advert(0, 6).key


def test_a_release_may_come_three_rounds_ahead_of_the_next() -> None:
    cast = Cast(**FLAT)
    assert cast.server.receive(0, release_of(cast, 0, 3)) is None
    told = "its release is for round 4, more than 3 rounds ahead"
    assert cast.server.receive(0, release_of(cast, 0, 4)) == told


def test_a_release_of_the_open_round_counts_against_an_answer_only() -> None:
    cast = Cast(**FLAT)
    got = answers(cast)
    cast.server.receive(0, got[0])
    assert cast.server.receive(1, release_of(cast, 1)) is None  # it has not answered: nothing to hold against it
    assert cast.server.blamed == {}
    assert cast.server.receive(0, release_of(cast, 0)) is None
    assert cast.server.blamed == {0: "it signed an answer and a release of round 0"}
    for member in (1, 2, 3, 4):
        cast.server.receive(member, got[member])
    assert cast.server.close().groups[0, 0].members == (0, 1, 2, 3, 4)
    cast.begin(1)
    assert cast.server.receive(2, release_of(cast, 2, 0)) is None  # of a round that is over
    assert list(cast.server.blamed) == [0]


def test_an_answer_after_a_release_is_not_added_and_convicts() -> None:
    cast = Cast(**FLAT)
    for member in cast.server.hello(0):
        cast.server.receive(member, cast.hello(member))
    cast.server.receive(3, release_of(cast, 3))
    box = cast.server.begin(0)
    assert sorted(box) == [0, 1, 2, 4]
    for message in box.values():
        assert [release.sender for release in message.releases] == [3]
    for member, message in box.items():
        cast.server.receive(member, cast.answer(member, message))
    result = cast.server.close()
    assert result.groups[0, 0].members == (0, 1, 2, 4)
    assert (result.sum() == sum(update_of(cast.agreement, v, 0) for v in (0, 1, 2, 4))).all()


def test_releases_are_shown_by_id_and_only_in_flat_sums() -> None:
    flat = Cast(**FLAT)
    for member in (4, 1):
        flat.server.receive(member, release_of(flat, member))
    box = flat.begin(absent=[1, 4])
    assert {tuple(release.sender for release in message.releases) for message in box.values()} == {(1, 4)}
    pairs = Cast()
    pairs.server.receive(4, release_of(pairs, 4))
    assert {message.releases for message in pairs.begin(absent=[4]).values()} == {()}
    assert pairs.server.dropouts == {}


def test_a_closed_round_leaves_no_sums_and_its_record() -> None:
    cast = Cast()
    first = cast.round(0)
    memory = cast.server._memory
    assert (memory.sums, memory.data, memory.complete, memory.present, memory.stage) == ({}, b"", (), (), Stage.IDLE)
    assert cast.server.outbox() == {}
    second = cast.round(1)
    again = Server.restore(cast.server.save(), cast.agreement)
    assert again.evidence(cast.signatures, earlier=[first.record, second.record]) == cast.server.evidence(
        cast.signatures
    )
    with pytest.raises(UsageError, match="earlier"):
        cast.server.evidence(cast.signatures, earlier=[1])  # type: ignore[list-item]


def test_an_answer_before_the_round_brings_its_adverts_and_nothing_else() -> None:
    cast = Cast()
    answer = answers(cast)[0]
    other = Server(cast.agreement)
    assert other.receive(0, answer) is None
    assert [round for round, adverts in sorted(other._memory.adverts.items()) if 0 in adverts] == [1, 2, 3]
    foreign = cast.signed(answer, adverts=(cast.advert(1, 1),))
    assert other.receive(0, foreign) == "its answer brings an advert of client 1"


def test_an_answer_that_was_hashed_before_the_round_began_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing is done without the lock: the round may begin meanwhile."""
    cast = Cast()
    answer = answers(cast)[0]
    cast.server.close()
    other = Server(cast.agreement)
    real = other._checked_hashes

    def begun_meanwhile(given: Answer) -> Any:
        found = real(given)
        for member in other.hello(0):
            other.receive(member, cast.new_client(member).receive(other.hello(0)[member]))  # type: ignore[arg-type]
        other.begin(0)
        return found

    monkeypatch.setattr(other, "_checked_hashes", begun_meanwhile)
    assert other.receive(0, answer) == "its answer came before the round began"


def test_a_round_that_is_not_in_the_agreement_is_refused_everywhere() -> None:
    server = Cast().server
    for call in (server.present, server.hello, server.begin):
        with pytest.raises(UsageError, match=r"^round 8 is not in the agreement$"):
            call(8)


def test_an_answer_of_another_round_is_told_before_anything_is_hashed() -> None:
    cast = Cast()
    answer = answers(cast)[0]
    assert cast.server.receive(0, replace(answer, round=1)) == "its answer is of round 1, expected 0"


def test_an_empty_answer_of_a_member_without_a_complete_group_does_not_count() -> None:
    cast = Cast()
    mate = cast.mates(5)[0]
    box = cast.begin(absent=[5])
    assert mate not in box
    answer = cast.answer(next(iter(box)), box[next(iter(box))])
    empty = cast.signed(answer, sender=mate, groups=(), seen=(), adverts=(), vectors=np.empty((0, 5), np.uint32))
    assert cast.server.receive(mate, empty) == "it is in no sum of round 0"
    assert mate not in cast.server.close().answers


def test_an_answer_for_a_sum_that_the_sender_has_left_spoils_nothing() -> None:
    """A member releases the round and signs an answer for the sum of the others. The evidence still holds."""
    cast = Cast(**FLAT)
    cast.server.receive(3, release_of(cast, 3))
    got = answers(cast, absent=[3])
    foreign = cast.signed(got[0], sender=3, adverts=())
    assert cast.server.receive(3, foreign) == "it is in no sum of round 0"
    for member, answer in got.items():
        assert cast.server.receive(member, answer) is None
    result = cast.server.close()
    assert (result.groups[0, 0].members, result.blamed) == ((0, 1, 2, 4), {})
    assert (result.sum() == sum(update_of(cast.agreement, v, 0) for v in (0, 1, 2, 4))).all()
    report = verify(cast.server.evidence(cast.signatures))
    assert report.holds, report.problems


def test_an_answer_of_a_released_member_convicts_it_with_proof() -> None:
    """In pairs, a member that has sent an advert stays in its group."""
    cast = Cast()
    for member in cast.server.hello(0):
        cast.server.receive(member, cast.hello(member))
    cast.server.receive(3, release_of(cast, 3))
    for member, message in cast.server.begin(0).items():
        told = cast.server.receive(member, cast.answer(member, message))
        assert told == ("it answered a round that it had released" if member == 3 else None)
    result = cast.server.close()
    assert result.blamed == {3: "it signed an answer and a release of round 0"}
    assert set(result.lost) == {group for group, members in cast.groups().items() if 3 in members}
    report = verify(cast.server.evidence(cast.signatures))
    assert report.holds, report.problems
    assert report.blamed == result.blamed


def test_a_sum_that_was_half_added_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    cast = Cast()
    got = answers(cast)
    (mate,) = cast.mates(0)
    cast.server.receive(0, got[0])
    assert len(cast.server._memory.sums) == 1

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cast.server.receive(mate, got[mate])
    assert cast.server._memory.sums == {}
    assert list(cast.server._memory.spoiled.values()) == [f"the answer of client {mate} was not added completely"]


def test_the_adverts_of_a_group_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cast = Cast()
    got, hashed, real = answers(cast), list[Any](), transcript.adverts_hash

    def counted(*given: Any) -> bytes:
        hashed.append(given[2])
        return real(*given)

    monkeypatch.setattr(transcript, "adverts_hash", counted)
    for member, answer in got.items():
        assert cast.server.receive(member, answer) is None
    assert sorted(hashed) == sorted(cast.groups())


def test_too_few_present_members_are_sent_nothing_and_the_result_says_so() -> None:
    policy = Policy(min_survivors=3, anonymity=3, max_leverage=1.0, memory="round")
    cast = Cast(members=5, size=5, roll_call=True, policy=policy)
    assert cast.begin(absent=[2, 3, 4]) == {}
    assert cast.server._memory.complete == ()
    told = "too few members were present: 2 members are summed, and the agreement asks for 3"
    assert cast.server.close().lost == {(0, 0): told}


def test_the_first_group_is_meant_if_none_is_named() -> None:
    cast = Cast()
    assert cast.server.agreement is cast.agreement
    result = cast.round()
    assert (result.sum() == result.sum((0, 0))).all()
    assert (result.mean() == result.mean((0, 0))).all()
    assert len({result.mean(group).tobytes() for group in result.groups}) == 3


# --- layouts and flat sums -----------------------------------------------------------------------------------------


def test_sixteen_layouts_are_kept() -> None:
    cast = Cast(members=4, schedule="random", rounds=20)
    for round in range(20):
        found = layout(cast.agreement, round)
        assert found.seats == {
            client: tuple(sorted(group for group, members in found.groups.items() if client in members))
            for client in range(4)
        }
    assert len(layout_module._kept) == 16
    assert layout(cast.agreement, 19) is found
    assert [round for _, round in layout_module._kept] == list(range(4, 20))


def test_the_limits_of_a_sum_are_those_of_the_agreement() -> None:
    policy = replace(ROUND, anonymity=3, max_leverage=0.5)
    agreement, _ = make_agreement(members=5, size=5, length=1, clip=1.0, policy=policy, weights=[1, 1, 1, 1, 2])
    terms = agreement.terms
    assert objection(terms, (0, 1, 2)) == ""
    assert objection(terms, (0, 1)) == "2 members are summed, and the agreement asks for 3"
    assert objection(terms, (0, 1, 2, 3, 4)) == ""  # 4 / 8
    assert objection(terms, (0, 1, 4)) == "the leverage of client 4 is 0.667, above 0.5"
    third = replace(terms, policy=replace(policy, max_leverage=1 / 3))
    assert objection(third, (0, 1, 2)) == ""  # a computed third is no more than a written one
    half = replace(terms, policy=replace(policy, max_leverage=0.5 - 1e-9))
    assert objection(half, (0, 1, 2, 3, 4)) == ""  # the last leverage that is taken for the written one
    assert objection(replace(terms, policy=replace(policy, max_leverage=0.5 - 2e-9)), (0, 1, 2, 3, 4)) != ""
