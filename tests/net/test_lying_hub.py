"""A hub that lies: another agreement, replays, two hubs, other data, other certificates, endless bodies."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from secagg import Policy
from secagg.agreement import MemberFolder, Proposal
from secagg.agreement.credentials import Credentials
from secagg.cli.source import file_source
from secagg.errors import AlreadyUsed, PeerError, UsageError
from secagg.net import Hub, Limits, messages
from secagg.net.answers import Membership, SurvivorAnswers, Wanted, WholeAnswers
from secagg.net.enrol import Enrolment
from secagg.net.invitation import Invitation
from secagg.net.listener import TAG
from secagg.protocol import Server, Stage
from secagg.protocol import encode as encode_step
from secagg.whole import Hello, encode
from secagg.whole import Server as WholeServer
from tests.net.common import FAST, RunningSite, expected, make_world, running, vector

ROUND = Policy(anonymity=2, memory="round")


def answers(proposal: Proposal, place: Path, member: int, name: str = "state") -> Any:
    """What a site does with messages, without a network."""
    kind: Any = WholeAnswers if proposal.terms.groups == "whole" else SurvivorAnswers
    folder = place / str(member) / name
    folder.mkdir(exist_ok=True)
    member_of = Membership(
        agreement=proposal.agreement,
        signatures=proposal.signature_bytes,
        me=member,
        identity=MemberFolder(place / str(member)).identity,
        folder=folder,
        journal=folder / "journal",
    )
    return kind(member_of)


def sent(reply: Any) -> bytes:
    assert not isinstance(reply, Wanted)
    return b"".join(bytes(part) for part in reply)


# --- whole groups ------------------------------------------------------------------------------------------


def test_a_round_is_answered_once_whatever_data_comes_later(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)
    sites = {v: answers(proposal, tmp_path, v) for v in range(3)}
    hub, second = WholeServer(proposal.agreement), WholeServer(proposal.agreement)
    for v, message in hub.hello(0).items():
        advert = sent(sites[v].open(encode(message)))
        assert hub.receive(v, advert) is None
        assert second.receive(v, advert) is None
    rounds, others = hub.begin(0, data=b"one"), second.begin(0, data=b"two")
    wanted = sites[0].open(encode(rounds[0]))
    assert isinstance(wanted, Wanted)
    assert (wanted.round, wanted.data) == (0, b"one")
    first = sent(sites[0].answer(wanted, vector(0, 0)))
    assert sent(sites[0].open(encode(rounds[0]))) == first
    assert sent(sites[0].open(encode(others[0]))) == first, "another hub gets the same bytes, under the first context"
    assert second.receive(0, first) == "it answered with another context: it computed its update from other data"
    again = answers(proposal, tmp_path, 0)  # the process was killed and started again
    assert sent(again.open(encode(others[0]))) == first


def test_a_vector_computed_for_one_hub_is_not_sent_to_another(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)
    sites = {v: answers(proposal, tmp_path, v) for v in range(3)}
    hub, second = WholeServer(proposal.agreement), WholeServer(proposal.agreement)
    for v, message in hub.hello(0).items():
        advert = sent(sites[v].open(encode(message)))
        hub.receive(v, advert)
        second.receive(v, advert)
    wanted = sites[0].open(encode(hub.begin(0, data=b"one")[0]))
    sites[0].open(encode(second.begin(0, data=b"two")[0]))
    with pytest.raises(UsageError, match="not for the task that waits"):
        sites[0].answer(wanted, vector(0, 0))


def test_the_key_of_a_round_is_stored_before_its_advert_is_sent(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)
    hello = encode(Hello(proposal.agreement.fingerprint, 0))
    advert = sent(answers(proposal, tmp_path, 0).open(hello))
    assert sent(answers(proposal, tmp_path, 0).open(hello)) == advert


def test_messages_of_another_agreement_or_kind_are_refused(tmp_path: Path) -> None:
    whole, many = make_world(tmp_path, 3), make_world(tmp_path / "s", 3, groups="survivors", policy=ROUND)
    site, other = answers(whole, tmp_path, 0), answers(many, tmp_path / "s", 0)
    with pytest.raises(PeerError, match="another agreement"):
        site.open(encode(Hello(bytes(32), 0)))
    with pytest.raises(PeerError, match="another agreement"):
        other.begin(messages.Begin(bytes(32), 0, 0, b""))
    with pytest.raises(PeerError, match="not in the agreement"):
        other.begin(messages.Begin(many.agreement.fingerprint, 50, 0, b""))
    with pytest.raises(PeerError, match="as the agreement says"):
        site.open(b"\x02\x02" + bytes(90))
    with pytest.raises(PeerError, match="no run has begun"):
        other.open(encode(Hello(many.agreement.fingerprint, 0)))
    for short in (b"", b"\x02"):
        with pytest.raises(PeerError, match="ends too early"):
            site.open(short)


# --- survivors ---------------------------------------------------------------------------------------------


def begin(proposal: Proposal, sites: dict[int, Any], data: bytes, attempt: int = 0) -> Server:
    """A run after stage KEYS."""
    server = Server(proposal.agreement.plan(0, 0, messages.run_context(data)))
    for v, site in sites.items():
        message = messages.Begin(proposal.agreement.fingerprint, 0, attempt, data)
        assert server.receive(v, sent(site.begin(message))) is None
    server.advance()
    return server


def test_another_hub_with_other_data_gets_no_second_run_of_an_update(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3, groups="survivors", policy=ROUND)
    sites = {v: answers(proposal, tmp_path, v) for v in range(3)}
    one = begin(proposal, sites, b"one")
    for v, message in one.outbox().items():
        assert one.receive(v, sent(sites[v].open(encode_step(message)))) is None
    with pytest.raises(PeerError, match="which is over here"):
        sites[0].begin(messages.Begin(proposal.agreement.fingerprint, 0, 0, b"two"))
    two = begin(proposal, sites, b"two", attempt=1)
    with pytest.raises(AlreadyUsed, match="another plan"):
        sites[0].open(encode_step(two.outbox()[0]))


def test_the_same_message_gets_the_same_answer_in_every_stage_also_after_a_crash(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3, groups="survivors", policy=ROUND)
    sites = {v: answers(proposal, tmp_path, v) for v in range(3)}
    server = begin(proposal, sites, b"")
    while server.stage < Stage.DONE:
        for v, message in server.outbox().items():
            data = encode_step(message)
            found = sites[v].open(data)
            if isinstance(found, Wanted):
                found = sites[v].answer(found, vector(v, 0))
            first = sent(found)
            assert sent(sites[v].open(data)) == first
            sites[v] = answers(proposal, tmp_path, v)
            assert sent(sites[v].open(data)) == first
            assert server.receive(v, first) is None
        server.advance()
    assert np.allclose(server.result().sum(), expected(range(3), 0), atol=1e-6)
    with pytest.raises(PeerError, match="or it is over"):
        sites[0].open(b"\x02\x06" + bytes(30))


def test_a_run_that_a_site_refused_stays_over_after_a_restart(tmp_path: Path) -> None:
    """Otherwise a hub that makes a site restart gets a second try, and the keys of the run stay on the disk."""
    proposal = make_world(tmp_path, 3, groups="survivors", policy=ROUND)
    sites = {v: answers(proposal, tmp_path, v) for v in range(3)}
    server = begin(proposal, sites, b"")
    message = encode_step(server.outbox()[0])
    with pytest.raises(PeerError):
        sites[0].open(message[:-1])
    again = answers(proposal, tmp_path, 0)
    with pytest.raises(PeerError, match="or it is over"):
        again.open(message)
    assert again.begin(messages.Begin(proposal.agreement.fingerprint, 0, 1, b""))


def test_a_site_of_survivors_wants_all_signatures(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3, groups="survivors", policy=ROUND)
    wrong = replace(
        proposal, signatures={**proposal.signatures, 2: replace(proposal.signatures[2], signature=bytes(64))}
    )
    with pytest.raises(PeerError, match="client 2: wrong signature"):
        answers(wrong, tmp_path, 0)


# --- over the network --------------------------------------------------------------------------------------


def test_a_site_sends_nothing_to_a_hub_with_another_certificate(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)

    async def play() -> None:
        asked = []

        async def handler(request: web.Request) -> web.StreamResponse:
            asked.append(request.path)
            return web.Response(status=204)

        app = web.Application()
        app.router.add_route("*", "/{any:.*}", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(Credentials.create(tmp_path / "impostor").path)
        place = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await place.start()
        port = runner.addresses[0][1]
        async with RunningSite(proposal, tmp_path, 0, port) as site:
            for _ in range(100):
                await asyncio.sleep(0.02)
                if any(name == "hub not reached" for name, _ in site.events):
                    break
        assert asked == []
        told = [values["reason"] for name, values in site.events if name == "hub not reached"]
        assert "not the hub of the agreement" in told[0]
        await runner.cleanup()

    asyncio.run(play())


async def lying(proposal: Proposal, place: Path, handler: Any) -> tuple[web.AppRunner, int]:
    """A server with the hub's own key that answers as it likes."""
    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{any:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / "hub" / "tls.pem")
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    return runner, runner.addresses[0][1]


def test_a_site_does_not_read_an_endless_body(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)

    async def play() -> None:
        async def endless(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={TAG: "x"})
            await response.prepare(request)
            with suppress(ConnectionError):
                for _ in range(2**14):  # 1 GB
                    await response.write(bytes(2**16))
            return response

        runner, port = await lying(proposal, tmp_path, endless)
        site = RunningSite(proposal, tmp_path, 0, port)
        site.site._settings = replace(FAST, limits=Limits(data=2**20))
        async with site:
            assert site.task is not None
            with pytest.raises(PeerError, match="more than 1115648 bytes"):
                await asyncio.wait_for(asyncio.shield(site.task), 20)
        await runner.cleanup()

    asyncio.run(play())


def test_what_a_lying_hub_says_ends_the_site_or_is_refused(tmp_path: Path) -> None:
    """Garbage is refused and the hub is told so; a hub that serves another agreement ends the site."""
    proposal = make_world(tmp_path, 3)

    async def play() -> None:
        refusals = []

        async def handler(request: web.Request) -> web.StreamResponse:
            if request.path == "/v1/next":
                if len(refusals) < 3:
                    body = [b"\x02", b"\x02\x22" + bytes(40), b"\x02\x40" + bytes(60)][len(refusals)]
                    return web.Response(body=body, headers={TAG: f"t{len(refusals)}"})
                return web.Response(status=409, text="another\nagreement")
            refusals.append((request.path, await request.read()))
            return web.Response(status=204)

        runner, port = await lying(proposal, tmp_path, handler)
        async with RunningSite(proposal, tmp_path, 0, port) as site:
            assert site.task is not None
            with pytest.raises(PeerError, match="refuses this site: another"):
                await asyncio.wait_for(asyncio.shield(site.task), 20)
        assert [path for path, _ in refusals] == ["/v1/refusals"] * 3
        assert site.calls == []
        await runner.cleanup()

    asyncio.run(play())


def test_a_site_follows_no_redirection(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)

    async def play() -> None:
        asked = []

        async def elsewhere(request: web.Request) -> web.StreamResponse:
            asked.append(request.path)
            return web.Response(status=302, headers={"Location": "/elsewhere"})

        runner, port = await lying(proposal, tmp_path, elsewhere)
        async with RunningSite(proposal, tmp_path, 0, port) as site:
            assert site.task is not None
            with pytest.raises(PeerError, match="got status 302"):
                await asyncio.wait_for(asyncio.shield(site.task), 20)
        assert asked == ["/v1/next"]
        await runner.cleanup()

    asyncio.run(play())


def test_a_hub_that_sends_only_garbage_is_asked_less_and_less(tmp_path: Path) -> None:
    """Otherwise its messages would fill the site's log as fast as the network carries them."""
    proposal = make_world(tmp_path, 3)
    old = messages.encode(messages.Over(proposal.agreement.fingerprint, 0, 0, b"once more"))
    bodies = [b"\x02", old, old, b"\x02\x22" + bytes(40), old, b"\x02", b"\x02"]

    async def play() -> None:
        times: list[float] = []
        done = asyncio.Event()

        async def handler(request: web.Request) -> web.StreamResponse:
            if request.path != "/v1/next":
                return web.Response(status=204)
            times.append(asyncio.get_running_loop().time())
            if len(times) >= len(bodies):
                done.set()
            return web.Response(body=bodies[len(times) % len(bodies)], headers={TAG: f"t{len(times)}"})

        runner, port = await lying(proposal, tmp_path, handler)
        async with RunningSite(proposal, tmp_path, 0, port) as site:
            await asyncio.wait_for(done.wait(), 30)
        assert times[-1] - times[0] >= 0.02 + 0.04 + 0.08 + 0.16 + 0.3, "the first note is news, and costs no pause"
        assert [name for name, _ in site.events].count("round over") == 1
        await runner.cleanup()

    asyncio.run(play())


def test_what_a_hub_says_while_an_agreement_is_made_cannot_change_a_terminal(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)

    async def play() -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            return web.Response(status=409, text="no\x1b]0;title\x07")

        runner, port = await lying(proposal, tmp_path, handler)
        certificate = Credentials(tmp_path / "hub").certificate
        async with Enrolment(Invitation.to(f"https://127.0.0.1:{port}", certificate, bytes(16))) as hub:
            with pytest.raises(PeerError) as refused:
                await hub.send("")
        assert str(refused.value) == "the hub refuses: no?]0;title?"
        await runner.cleanup()

    asyncio.run(play())


def test_a_site_that_poses_as_another_is_not_counted(tmp_path: Path) -> None:
    """Site 2's certificate, site 0's messages: the hub takes nothing of it."""
    proposal = make_world(tmp_path, 3)

    async def play() -> None:
        async with running(tmp_path, proposal, [0, 1]) as (hub, _):
            thief = answers(proposal, tmp_path, 0, "copy")
            reply = sent(thief.open(encode(Hello(proposal.agreement.fingerprint, 0))))
            assert hub._rounds.receive(2, reply) == "its message names client 0"

    asyncio.run(play())


def test_a_hub_serves_one_agreement(tmp_path: Path) -> None:
    """Two agreements of the same members and the same hub: their sites are told apart."""
    first = make_world(tmp_path, 3)
    second = make_world(tmp_path, 3, name="second")

    async def play() -> None:
        async with Hub(first, tmp_path / "hub", settings=FAST) as hub:
            site = RunningSite(second, tmp_path, 0, hub.port)
            async with site:
                assert site.task is not None
                with pytest.raises(PeerError, match="compare the fingerprints"):
                    await asyncio.wait_for(asyncio.shield(site.task), 20)

    asyncio.run(play())


def test_the_command_refuses_data_that_it_does_not_know(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)
    np.save(tmp_path / "values.npy", np.ones(4))
    source = file_source(proposal, tmp_path / "values.npy")
    assert np.array_equal(source(0, b""), np.ones(4))
    with pytest.raises(UsageError, match="sent data with the round"):
        source(0, b"only rows with age 40")
    np.save(tmp_path / "values.npy", np.ones(5))
    with pytest.raises(UsageError, match="expected 4 numbers, got 5"):
        source(0, b"")
    (tmp_path / "values.npy").write_bytes(b"\x80\x04.")
    with pytest.raises(UsageError, match="expected an array"):
        source(0, b"")
