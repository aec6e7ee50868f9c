"""Strangers that hold connections stop neither a hub nor an agreement that is made over one."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from secagg import JournalError
from secagg.agreement import file
from secagg.agreement.credentials import Credentials
from secagg.net import files
from secagg.net.collect import _CONNECTIONS, Collection
from secagg.net.door import Door
from secagg.net.limits import Bucket
from secagg.net.tls import open_context
from tests.net.common import RunningSite, expected, make_world, running
from tests.net.hostile import context
from tests.net.processes import DRAFT, finish, free_port
from tests.net.zygote import Process


async def silent(port: int, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connections on which nothing is said."""
    found = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    await asyncio.sleep(0.3)
    return found


def closed(pairs: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> int:
    return sum(reader.at_eof() or reader.exception() is not None for reader, _ in pairs)


@pytest.mark.parametrize(("per_address", "total"), [(4, 100), (100, 6)])
def test_strangers_have_few_places_and_the_oldest_gives_way(tmp_path: Path, per_address: int, total: int) -> None:
    proposal = make_world(tmp_path, 3)

    async def play() -> None:
        async with running(tmp_path, proposal, []) as (hub, _):
            door = hub._listener._door
            assert door is not None
            door.most_per_address, door.most_strangers = per_address, total
            pairs = await silent(hub.port, 20)
            assert door.strangers == min(per_address, total)
            for reader, _ in pairs:
                if reader.at_eof():
                    assert await reader.read() == b""
            assert closed(pairs) == 20 - door.strangers
            assert closed(pairs[-door.strangers :]) == 0, "the newest stay"
            assert hub.metrics.get("secagg_refused_total", reason="handshakes") == 20 - door.strangers
            async with AsyncExitStack() as sites:
                for v in proposal.terms.ids:
                    await sites.enter_async_context(RunningSite(proposal, tmp_path, v, hub.port))
                outcome = await hub.round()
            assert np.allclose(outcome.sum(), expected(range(3), 0), atol=1e-6)
            for _, writer in pairs:
                writer.transport.abort()

    asyncio.run(play())


def test_a_process_may_open_as_many_files_as_the_system_allows() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 400))\n"
        "from secagg.net.door import Door\n"
        "door = Door(lambda: None, print)\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE), door.most_strangers, door.most_members)"
    )
    out, _ = finish(Process(code, (), Path.cwd()))
    assert out.split() == ["400", "400", "100", "200"]


def test_a_file_is_written_as_soon_as_a_descriptor_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = os.open, 3

    def full(path: Any, *more: Any) -> int:
        nonlocal left
        if str(path).endswith(".new") and left:
            left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *more)

    monkeypatch.setattr(files.os, "open", full)
    monkeypatch.setattr(files, "_PAUSE", 0.001)
    files.replace_file(tmp_path / "state", [b"kept"])
    assert (tmp_path / "state").read_bytes() == b"kept"
    left = 10**6
    with pytest.raises(JournalError, match="Too many open files"):
        files.replace_file(tmp_path / "state", [b"lost"])
    assert (tmp_path / "state").read_bytes() == b"kept"


def collecting(place: Path, play: Callable[[Collection, int], Any], patience: float = 10.0) -> None:
    async def scene() -> None:
        document = file.parse(DRAFT.format(port=free_port()))
        async with Collection(document, place / "hub", lambda line: None) as collection:
            collection.patience = patience
            await play(collection, await collection.start("127.0.0.1:0"))

    asyncio.run(scene())


def test_a_connection_must_show_a_token_soon(tmp_path: Path) -> None:
    async def play(collection: Collection, port: int) -> None:
        mute = await silent(port, 2)
        more: Any = {"ssl": context(None), "server_hostname": "hub"}
        begun = [await asyncio.open_connection("127.0.0.1", port, **more) for _ in range(3)]
        for _, writer in begun:
            writer.write(b"GET /v1/proposal HTTP/1.1\r\nX-Never: ")
        door: Door | None = collection._door
        assert door is not None
        await asyncio.sleep(0.1)
        assert door.strangers == 5
        await asyncio.sleep(1.2)
        assert door.strangers == 0
        assert closed(mute) == 2
        assert closed(begun) == 3
        for _, writer in (*mute, *begun):
            writer.transport.abort()

    collecting(tmp_path, play, patience=0.7)


async def ask(session: aiohttp.ClientSession, port: int, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    async with session.post(f"https://127.0.0.1:{port}/v1/part", headers=headers, data=b"") as response:
        return response.status


def client(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=0))


def test_strangers_take_no_requests_from_members(tmp_path: Path) -> None:
    async def play(collection: Collection, port: int) -> None:
        tokens = {name: one.token.hex() for name, one in collection.invitations.items()}
        collection._strangers = Bucket(0.001)
        collection._buckets["south"] = Bucket(0.001)
        async with client(context(None)) as session:
            assert [await ask(session, port, "x") for _ in range(3)] == [403, 429, 429]
            assert [await ask(session, port, tokens["north"]) for _ in range(3)] == [422, 422, 422]
            assert [await ask(session, port, tokens["south"]) for _ in range(2)] == [422, 429]

    collecting(tmp_path, play)


def test_a_member_holds_few_connections_while_an_agreement_is_made(tmp_path: Path) -> None:
    async def play(collection: Collection, port: int) -> None:
        tokens = {name: one.token.hex() for name, one in collection.invitations.items()}
        sessions = [client(context(None)) for _ in range(_CONNECTIONS + 1)]
        try:
            found = [await ask(session, port, tokens["north"]) for session in sessions]
            assert found == [422] * _CONNECTIONS + [429]
            assert await ask(sessions[0], port, tokens["north"]) == 422, "a connection that it holds goes on"
            assert await ask(sessions[-1], port, tokens["south"]) == 422
            await sessions[0].close()
            await asyncio.sleep(0.1)
            assert await ask(sessions[-1], port, tokens["north"]) == 422
        finally:
            for session in sessions:
                await session.close()

    collecting(tmp_path, play)


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_connection_that_is_sent_away_leaves_nothing_behind(tmp_path: Path, steps: int) -> None:
    """However far its handshake is: a file descriptor that is still watched would be the next connection's."""

    async def play() -> None:
        loop: Any = asyncio.get_running_loop()
        door = Door(asyncio.Protocol, lambda reason, who: None)
        mine, other = socket.socketpair()
        mine.setblocking(False)
        number = mine.fileno()
        door._named["peer"] = asyncio.Event()
        task = door._strangers["peer"] = asyncio.create_task(
            door._greet(mine, "peer", open_context(Credentials.create(tmp_path).path))
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        held = loop._transports.get(number)
        assert held is None or held.is_closing()
        for _ in range(3):
            await asyncio.sleep(0)
        assert mine.fileno() == -1, "it is closed"
        assert number not in loop._selector.get_map()
        other.close()

    asyncio.run(play())


def test_a_connection_that_is_sent_away_right_after_its_handshake_is_not_closed_under_the_event_loop(
    tmp_path: Path,
) -> None:
    async def play() -> None:
        loop: Any = asyncio.get_running_loop()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                task.cancel()

        door = Door(Protocol, lambda reason, who: None, until_named=True)
        mine, other = socket.socketpair()
        mine.setblocking(False)
        number = mine.fileno()
        door._named["peer"] = asyncio.Event()
        tls = open_context(Credentials.create(tmp_path).path)
        task = door._strangers["peer"] = asyncio.create_task(door._greet(mine, "peer", tls))
        _, writer = await asyncio.open_connection(sock=other, ssl=context(None), server_hostname="hub")
        await asyncio.gather(task, return_exceptions=True)
        held = loop._transports.get(number)
        assert held is None or held.is_closing()
        for _ in range(3):
            await asyncio.sleep(0)
        assert mine.fileno() == -1
        writer.transport.abort()

    asyncio.run(play())


def test_an_error_of_the_event_loop_is_trouble_and_not_the_end_of_a_site(tmp_path: Path) -> None:
    """A connection that is cancelled at a bad moment can leave a descriptor behind that is watched for a while."""
    proposal = make_world(tmp_path, 3)

    async def play() -> None:
        async with running(tmp_path, proposal, [1, 2]) as (hub, _):
            site = RunningSite(proposal, tmp_path, 0, hub.port)
            async with site:
                once, left = site.site._channel._once, 2

                async def fails(*words: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left >= 0:
                        raise RuntimeError("File descriptor 28 is used by transport")
                    return await once(*words)

                site.site._channel._once = fails  # type: ignore[method-assign]
                for _ in range(2):  # the question that is held now is answered first
                    assert (await hub.round()).opened
            told = [values["reason"] for name, values in site.events if name == "hub not reached"]
            assert len(told) == 2

    asyncio.run(play())
