"""The TLS handshake and the guard behind it, one connection at a time."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from secagg.net.listener import Guard
from tests.net.common import make_world, running
from tests.net.hostile import Attacker


def scene(tmp_path: Path, who: str) -> bytes:
    """What the hub answers to a connection with these credentials."""
    proposal = make_world(tmp_path, 3)

    async def play() -> bytes:
        async with running(tmp_path, proposal, []) as (hub, _):
            # behind the handshake, the guard would turn strangers away too: here only the handshake does
            hub._listener.admit = lambda guard, transport: 0  # type: ignore[method-assign]
            attacker = Attacker(tmp_path, tmp_path / "0", tmp_path / "1", hub.port, hub.agreement.fingerprint.hex(), 1)
            try:
                return await attacker.send(who, attacker.request("POST", "/v1/refusals", b"no"))
            except (ssl.SSLError, OSError):
                return b""

    return asyncio.run(play())


@pytest.mark.parametrize("who", ["nobody", "stranger", "forged"])
def test_strangers_fail_in_the_handshake(tmp_path: Path, who: str) -> None:
    assert scene(tmp_path, who) == b""


def test_an_earlier_version_of_tls_is_refused(tmp_path: Path) -> None:
    assert scene(tmp_path, "old") == b""


def test_a_member_passes_the_handshake(tmp_path: Path) -> None:
    assert scene(tmp_path, "member").startswith(b"HTTP/1.1 ")


def test_a_connection_that_is_not_admitted_is_closed_before_a_byte_is_parsed(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)
    parsed = []

    async def play() -> bytes:
        async with running(tmp_path, proposal, []) as (hub, _):
            take = Guard.data_received

            def watched(guard: Guard, data: bytes) -> None:
                if guard.member is not None:
                    parsed.append(data)
                take(guard, data)

            hub._listener.admit = lambda guard, transport: None  # type: ignore[method-assign]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Guard, "data_received", watched)
                attacker = Attacker(tmp_path, tmp_path / "0", tmp_path / "1", hub.port, "", 1)
                began = asyncio.get_running_loop().time()
                answer = await attacker.send("member", b"GET / HTTP/1.1\r\n\r\n", wait=3)
                assert asyncio.get_running_loop().time() - began < 2, "the connection stayed open"
                return answer

    assert asyncio.run(play()) == b""
    assert parsed == []
