"""Hostile requests while rounds run: none reaches a state machine that it should not, none stops a round."""

from __future__ import annotations

import asyncio
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement

from secagg.net import Limits
from tests.net.common import FAST, expected, make_world, running
from tests.net.hostile import Attacker
from tests.net.kill import memory
from tests.net.test_faults import QUICK

HOSTILE = 3
LIMITS = Limits(requests=200, connections=8, patience=1.0)


async def play(place: Path, attacks: int, at_once: int) -> dict[str, Any]:
    """Groups of two: the attacker's group may be lost, the other one must open in every round."""
    proposal = make_world(place, 4, size=2, rounds=100_000, clip=2.0**14)
    settings = replace(QUICK, limits=LIMITS, deadlines=replace(QUICK.deadlines, gather=0.3, answers=120))
    honest = next(members for members in proposal.agreement.groups(0).values() if HOSTILE not in members)
    mate = next(v for v in range(3) if v not in honest)
    async with running(place, proposal, [*honest, mate], settings) as (hub, _):
        received: list[tuple[int, bytes]] = []
        take = hub._rounds.receive
        fingerprint = proposal.agreement.fingerprint.hex()
        attacker = Attacker(place, place / str(HOSTILE), place / "0", hub.port, fingerprint, seed=7)

        def receive(member: int, message: bytes) -> str | None:
            received.append((member, message[:64]))
            if len(attacker.captured) < 50:
                attacker.captured.append(message)
            why = take(member, message)
            assert member != HOSTILE or why is not None, "a message of the attacker counted"
            return why

        hub._rounds.receive = receive  # type: ignore[method-assign]
        opened, left = 0, attacks

        async def attack() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await attacker.attack()

        tasks = [asyncio.create_task(attack()) for _ in range(at_once)]
        while not all(task.done() for task in tasks):
            outcome = await hub.round()
            group = next((g for g, members in outcome.members.items() if members == honest), None)
            assert group is not None, (outcome.lost, outcome.dropouts)
            assert np.allclose(outcome.sum(group), expected(honest, outcome.round), rtol=0, atol=1e-3)
            opened += 1
        await asyncio.gather(*tasks)
        await asyncio.sleep(1.5)
        held = [guard for guard in hub._listener._guards.values() if guard.member == HOSTILE]
        return {"opened": opened, "refused": hub.metrics, "held": held, "statuses": attacker.statuses}


def test_a_few_hundred_hostile_requests(tmp_path: Path) -> None:
    found = asyncio.run(play(tmp_path, 250, 16))
    assert found["opened"] >= 2
    assert found["held"] == []
    for name in ("no tag 410", "oversized 413", "chunked 411", "compressed 411", "agreement 409"):
        assert found["statuses"].get(name), (name, found["statuses"])


@pytest.mark.long
def test_ten_thousand_hostile_requests(tmp_path: Path) -> None:
    before = memory()
    found = asyncio.run(play(tmp_path, 10_000, 16))
    assert found["opened"] >= 10
    assert found["held"] == []
    assert memory() < before + 200


def test_a_member_has_few_connections_and_slow_ones_are_closed(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)
    settings = replace(FAST, limits=Limits(connections=2, patience=0.6))

    async def scene() -> None:
        async with running(tmp_path, proposal, [], settings) as (hub, _):
            attacker = Attacker(tmp_path, tmp_path / "0", tmp_path / "1", hub.port, hub.agreement.fingerprint.hex(), 1)
            pairs = []
            for _ in range(5):
                more: Any = {"ssl": attacker.contexts["member"], "server_hostname": "hub"}
                pairs.append(await asyncio.open_connection("127.0.0.1", hub.port, **more))
            await asyncio.sleep(0.2)
            assert len(hub._listener._guards) == 2
            assert hub.metrics.get("secagg_refused_total", reason="connections") == 3
            pairs[0][1].write(b"GET /v1/next HTTP/1.1\r\nX-Never: ")
            await asyncio.sleep(1.2)
            assert len(hub._listener._guards) == 0
            slow = attacker.request("POST", "/v1/messages", b"x", {"Content-Length": "1000", "Secagg-Tag": "x"})
            began = asyncio.get_running_loop().time()
            answer = await attacker.send("member", slow, wait=5)
            assert answer.split()[1] == b"408"
            assert asyncio.get_running_loop().time() - began < 3
            for _, writer in pairs:
                writer.transport.abort()

    asyncio.run(scene())


def test_too_many_requests_are_refused(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)
    settings = replace(FAST, limits=Limits(requests=1))

    async def scene() -> None:
        async with running(tmp_path, proposal, [], settings) as (hub, _):
            attacker = Attacker(tmp_path, tmp_path / "0", tmp_path / "1", hub.port, hub.agreement.fingerprint.hex(), 1)
            for _ in range(8):
                await attacker.send("member", attacker.request("POST", "/v1/refusals", b"no"))
            assert hub.metrics.get("secagg_refused_total", reason="requests") >= 3

    asyncio.run(scene())


async def one_member(place: Path, play: Any) -> None:
    """A hub with three members of which none is connected, and an attacker with the certificate of member 0."""
    proposal = make_world(place, 3)
    async with running(place, proposal, []) as (hub, _):
        fingerprint = hub.agreement.fingerprint.hex()
        received: list[bytes] = []
        hub._rounds.receive = lambda member, message: received.append(message)  # type: ignore[method-assign]
        await play(hub, Attacker(place, place / "0", place / "1", hub.port, fingerprint, 1), received)


def test_answers_to_other_messages_reach_nothing(tmp_path: Path) -> None:
    async def play(hub: Any, attacker: Attacker, received: list[bytes]) -> None:
        hub._desk.put(0, b"\x02\x20first")
        old = await attacker.tag(10)
        hub._desk.put(0, b"\x02\x20second")
        new = await attacker.tag(10)
        for tag, status in ((old, b"410"), ("", b"410"), (new, b"204")):
            request = attacker.request("POST", "/v1/messages", tag.encode(), {"Secagg-Tag": tag})
            assert (await attacker.send("member", request)).split()[1] == status
        assert received == [new.encode()]

    asyncio.run(one_member(tmp_path, play))


def test_a_refusal_counts_once(tmp_path: Path) -> None:
    async def play(hub: Any, attacker: Attacker, received: list[bytes]) -> None:
        heard: list[str] = []
        hub._rounds.refused = lambda member, reason: heard.append(reason)
        for message in (b"\x02\x20first", b"\x02\x20second"):
            hub._desk.put(0, message)
            tag = await attacker.tag(10)
            request = attacker.request("POST", "/v1/refusals", b"no \x1b[2J", {"Secagg-Tag": tag})
            for _ in range(5):
                assert (await attacker.send("member", request)).split()[1] == b"204"
        assert heard == ["no ?[2J"] * 2

    asyncio.run(one_member(tmp_path, play))


def test_a_body_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    async def play(hub: Any, attacker: Attacker, received: list[bytes]) -> None:
        hub._desk.put(0, b"\x02\x20first")
        tag = await attacker.tag(10)
        body = bytes(hub._listener._most + 1)
        request = attacker.request("POST", "/v1/messages", body, {"Secagg-Tag": tag})
        assert (await attacker.send("member", request)).split()[1:2] in ([b"413"], [])
        allowed = attacker.request("POST", "/v1/messages", body[1:], {"Secagg-Tag": tag})
        assert (await attacker.send("member", allowed)).split()[1] == b"204"
        assert [len(one) for one in received] == [len(body) - 1]

    asyncio.run(one_member(tmp_path, play))


def test_a_member_sends_few_bodies_at_once(tmp_path: Path) -> None:
    async def play(hub: Any, attacker: Attacker, received: list[bytes]) -> None:
        slow = attacker.request("POST", "/v1/messages", b"x", {"Content-Length": "900", "Secagg-Tag": "x"})
        waiting = [asyncio.create_task(attacker.send("member", slow, wait=1.5)) for _ in range(2)]
        await asyncio.sleep(0.5)
        assert (await attacker.send("member", slow, wait=1.5)).split()[1:2] == [b"429"]
        assert await asyncio.gather(*waiting) == [b"", b""]

    asyncio.run(one_member(tmp_path, play))


def test_requests_that_do_not_wait_for_answers_are_not_read(tmp_path: Path) -> None:
    """aiohttp limits how many requests it parses ahead of their answers since 3.14.1."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    needed = next(Requirement(one) for one in project["project"]["optional-dependencies"]["net"])
    assert (needed.name, "3.14.0" in needed.specifier, "3.14.1" in needed.specifier) == ("aiohttp", False, True)

    async def play(hub: Any, attacker: Attacker, received: list[bytes]) -> None:
        more: Any = {"ssl": attacker.contexts["member"], "server_hostname": "hub"}
        _, writer = await asyncio.open_connection("127.0.0.1", hub.port, **more)
        writer.write(attacker.request("GET", "/v1/next", b"") * 5000)
        await asyncio.sleep(0.5)
        (guard,) = hub._listener._guards.values()
        assert guard.requests == 1
        assert 0 < len(guard._inner._messages) < 100
        writer.transport.abort()

    asyncio.run(one_member(tmp_path, play))
