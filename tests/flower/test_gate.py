"""The door of a SuperLink: what nodes send passes, everything else does not."""

import asyncio
import io
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from fl.errors import ConfigError
from fl.flower.gate import gate_app, run_gate


async def statuses(paths: list[tuple[str, str]]) -> tuple[list[int], list[tuple[str, bytes, str]]]:
    """What the gate answers to requests, and what a SuperLink behind it got."""
    seen: list[tuple[str, bytes, str]] = []

    async def link(request: web.Request) -> web.Response:
        seen.append((request.path, await request.read(), request.headers.get("flwr-signature", "")))
        return web.Response(body=b"answer", headers={"flwr-version": "1"})

    behind = web.Application(client_max_size=2**24)
    behind.router.add_route("*", "/{anything:.*}", link)
    found = []
    async with (
        TestServer(behind, host="127.0.0.1") as server,
        TestClient(TestServer(gate_app(f"127.0.0.1:{server.port}"), host="127.0.0.1")) as client,
        aiohttp.ClientSession() as session,
    ):
        for method, path in paths:
            url = client.make_url("/").with_path(path, encoded=True)
            body = io.BytesIO(b"x" * 2**21) if method == "POST" else None
            async with session.request(method, url, data=body, headers={"flwr-signature": "abc"}) as reply:
                found.append(reply.status)
                if reply.status == 200:
                    assert (await reply.read(), reply.headers["flwr-version"]) == (b"answer", "1")
    return found, seen


def test_only_what_nodes_send_passes() -> None:
    passed = [("POST", "/v1/fleet/pull-messages"), ("POST", "/v1/fleet/send-node-heartbeat")]
    refused = [
        ("GET", "/v1/fleet/pull-messages"),
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/runtime/pull-messages"),
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "/v1/fleet/..%2fcontrol%2fstart-run"),
        ("POST", "/v1/fleet//v1/control/start-run"),
        ("POST", "/v1/fleet/"),
        ("POST", "/"),
    ]
    found, seen = asyncio.run(statuses(passed + refused))
    assert found == [200, 200] + [403] * len(refused)
    assert [path for path, _, _ in seen] == [path for _, path in passed]
    assert all((len(body), signature) == (2**21, "abc") for _, body, signature in seen)


def test_a_superlink_that_is_not_there_is_a_bad_gateway() -> None:
    async def ask() -> int:
        async with TestClient(TestServer(gate_app("127.0.0.1:1"), host="127.0.0.1")) as client:
            return (await client.post("/v1/fleet/pull-messages")).status

    assert asyncio.run(ask()) == 502


@pytest.mark.parametrize("link", ["192.0.2.1:8000", "example.org:8000", "127.0.0.1", ":8000", "127.0.0.1:x"])
def test_the_superlink_must_be_on_this_machine(link: str) -> None:
    with pytest.raises(ConfigError, match=r"--link: expected"):
        gate_app(link)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "server.pem").write_text("nothing")
    with pytest.raises(ConfigError, match="are not a certificate with its key"):
        run_gate("127.0.0.1:1", "127.0.0.1:0", tmp_path / "server.pem", tmp_path / "server.pem", None, print)
