"""Flat sums: a member leaves a round only by its own signed release, and enough must be left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from secagg.errors import PeerError
from secagg.exposure.audit import Policy
from secagg.whole import Release, WholeResult
from tests.secagg.whole.cast import Cast, update_of

ROUND = Policy(min_survivors=2, anonymity=2, max_leverage=1.0, memory="round")
FLAT = {"members": 5, "size": 5, "policy": ROUND}


def release(cast: Cast, member: int, round: int = 0) -> Release:
    client = cast.clients[member]
    pending = client.release(round)
    client.stored(cast.stores[member].keep(pending))
    assert isinstance(pending.message, Release)
    return pending.message


def run(cast: Cast, *released: int) -> WholeResult:
    for member in released:
        assert cast.server.receive(member, release(cast, member)) is None
    for member, message in cast.begin(absent=released).items():
        assert cast.server.receive(member, cast.answer(member, message)) is None
    return cast.server.close()


def test_a_flat_sum_goes_on_without_released_members() -> None:
    cast = Cast(**FLAT)
    result = run(cast, 1, 4)
    assert result.groups[0, 0].members == (0, 2, 3)
    assert (result.sum() == sum(update_of(cast.agreement, v, 0) for v in (0, 2, 3))).all()
    assert (result.dropouts, result.lost) == ({}, {})


def test_a_member_that_releases_after_its_advert_is_not_asked() -> None:
    cast = Cast(members=5, size=5)
    for member in cast.server.hello(0):
        assert cast.server.receive(member, cast.hello(member)) is None
    assert cast.server.receive(3, release(cast, 3)) is None
    messages = cast.server.begin(0)
    assert sorted(messages) == [0, 1, 2, 4]
    for member, message in messages.items():
        assert cast.server.receive(member, cast.answer(member, message)) is None
    result = cast.server.close()
    assert result.groups[0, 0].members == (0, 1, 2, 4)
    assert not result.dropouts


def test_enough_members_must_be_left() -> None:
    cast = Cast(**FLAT)
    result = run(cast, 0, 1, 2, 4)
    assert result.groups == {}
    assert set(result.lost) == {(0, 0)}


def test_in_other_schedules_a_released_member_loses_its_group() -> None:
    cast = Cast(size=3)
    result = run(cast, 1)
    assert set(result.lost) == {group for group, members in cast.groups().items() if 1 in members}
    assert set(result.lost.values()) == {"client 1: it released the round"}


def test_clients_check_releases_and_do_not_sum_fewer_members_without_them() -> None:
    cast = Cast(**FLAT)
    right = release(cast, 4)
    cast.server.receive(4, right)
    message = cast.begin(absent=[4])[0]
    client = cast.clients[0]
    bad = [replace(right, signature=bytes(64)), replace(right, sender=3), replace(right, sender=77)]
    other = cast.new_client(4).release(1).message
    assert isinstance(other, Release)
    for wrong in (*bad, other):
        with pytest.raises(PeerError):
            client.receive(replace(message, releases=(wrong,)))
    mine = cast.new_client(0).release(0).message
    assert isinstance(mine, Release)
    with pytest.raises(PeerError, match="none of mine"):
        client.receive(replace(message, releases=(mine, right)))
    client.receive(replace(message, releases=()))
    with pytest.raises(PeerError, match="client 4: no advert"):
        client.answer(client.task, update_of(cast.agreement, 0, 0))
    assert cast.answer(0, message).groups == ((0, 0),)


def test_the_server_checks_releases() -> None:
    cast = Cast(**FLAT)
    right = release(cast, 4)
    assert cast.server.receive(4, replace(right, signature=bytes(64))) == "client 4: wrong signature"
    assert cast.server.receive(3, right) == "its message names client 4"
    assert 4 in cast.server.hello(0)
    assert cast.server.receive(4, replace(right, round=8)) == "round 8 is not in the agreement"
    assert cast.server.receive(4, right) is None
    assert 4 not in cast.server.hello(0)
