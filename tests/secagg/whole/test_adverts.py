"""The keys of adverts: how long a client keeps them, and which messages end a task."""

from dataclasses import replace
from typing import Any

import pytest

from secagg.errors import PeerError, UsageError
from secagg.whole import Resend, Server, State, Task, masking
from secagg.whole import client as client_module
from tests.secagg.whole.cast import Cast, with_advert


@pytest.mark.parametrize(("ahead", "is_kept"), [(1, True), (3, True), (4, False)])
def test_a_client_keeps_keys_of_three_rounds_ahead(ahead: int, is_kept: bool) -> None:
    cast = Cast()
    first = cast.hello(0, round=ahead)
    cast.hello(0, round=0)
    assert (cast.hello(0, round=ahead).key == first.key) == is_kept


def test_a_client_forgets_keys_of_rounds_that_it_was_not_asked_about_again() -> None:
    cast = Cast()
    first = cast.hello(0, round=0)
    cast.hello(0, round=1)
    assert cast.hello(0, round=0).key != first.key
    client = cast.clients[0]
    assert {key.round for key in client._memory.keys} == {0, 1}
    assert set(client._pairs) == set(client._memory.keys)


def test_an_answer_brings_keys_of_the_next_three_rounds_and_the_last_has_none() -> None:
    cast = Cast(rounds=5)
    seen = []
    for round in range(5):
        for member, message in cast.begin(round).items():
            answer = cast.answer(member, message)
            cast.server.receive(member, answer)
            if member == 0:
                seen.append([advert.round for advert in answer.adverts])
        cast.server.close()
    assert seen == [[1, 2, 3], [4], [], [], []]


def test_a_hello_ends_the_task_that_waits() -> None:
    cast = Cast()
    box = cast.begin(0)
    client = cast.clients[0]
    task = client.receive(box[0])
    assert isinstance(task, Task)
    assert client.task == task
    assert task.present == ()  # there is no roll call
    cast.hello(0, round=1)
    assert client.task is None
    assert client.state is State.IDLE
    assert [state.value for state in State] == [0, 1, 2]
    with pytest.raises(UsageError, match="Update came, but no round waits for it"):
        client.answer(task, [0] * 5)


def test_a_round_that_was_answered_is_sent_again_only_for_this_agreement() -> None:
    cast = Cast()
    box = cast.begin(0)
    cast.answer(0, box[0])
    client = cast.clients[0]
    again = client.receive(box[0])
    assert isinstance(again, Resend)
    assert (again.round, client.answered) == (0, 0)
    with pytest.raises(PeerError, match="the message belongs to another agreement"):
        client.receive(replace(box[0], fingerprint=bytes(32)))


def test_a_key_that_is_erased_leaves_no_pair_behind() -> None:
    cast = Cast()
    box = cast.begin(0)
    cast.answer(0, box[0])
    client = cast.clients[0]
    assert {key.round for key in client._memory.keys} == {1, 2, 3}
    assert set(client._pairs) <= set(client._memory.keys)
    cast.hello(0, round=1)
    cast.hello(0, round=2)
    assert {key.round for key in client._pairs} == {2}  # 1 is forgotten, 3 was never used


CROSSED = {"members": 9, "size": 3, "schedule": "transversal", "groupings": 2}


def test_a_group_that_the_server_does_not_list_is_left_out_and_the_others_are_answered() -> None:
    cast = Cast(**CROSSED)
    message = cast.begin()[0]
    first, second = message.groups
    answer = cast.answer(0, replace(message, groups=(second,)))
    assert answer.groups == (second,)
    assert cast.clients[0].left_out == {first: "the server did not list it"}


def test_a_client_needs_the_signatures_of_its_mates_and_knows_its_own_key() -> None:
    cast = Cast(**CROSSED)
    message = cast.begin()[0]
    mine = next(advert for advert in message.adverts if advert.sender == 0)
    answer = cast.answer(0, with_advert(message, replace(mine, signature=bytes(64))))
    assert answer.groups == message.groups


def test_masks_of_a_mate_are_of_the_grouping_that_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the keys of a pair that meets in two groupings differ."""
    cast, seen, real = Cast(**CROSSED), list[tuple[int, int]](), masking.mask_keys

    def watched(*given: Any) -> Any:
        seen.extend((grouping, advert.sender) for grouping, advert in given[4])
        return real(*given)

    monkeypatch.setattr(client_module, "mask_keys", watched)
    cast.answer(0, cast.begin()[0])
    mine = {group: members for group, members in cast.groups().items() if 0 in members}
    assert any(place != grouping for grouping, place in mine)  # a group's number is not that of its grouping
    assert sorted(seen) == sorted((group[0], v) for group, members in mine.items() for v in members if v != 0)


def test_a_server_asks_those_whose_adverts_are_missing() -> None:
    cast = Cast()
    cast.server.receive(4, cast.hello(4))
    cast.server.receive(2, cast.hello(2))
    assert cast.server.present(0) == (2, 4)
    assert list(cast.server.hello(0)) == [0, 1, 3, 5]
    assert repr(cast.server) == "<whole.Server of 6 members, IDLE>"
    assert cast.server.round is None
    cast.begin(0)
    assert cast.server.round == 0
    with pytest.raises(UsageError, match="round 0 is over: round 0 was begun"):
        cast.server.present(0)
    assert isinstance(cast.server, Server)
