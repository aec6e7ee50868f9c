"""What an operator sees and sets: health, metrics, logs, one configuration file, an authority, a clean stop."""

from __future__ import annotations

import asyncio
import datetime
import io
import ipaddress
import json
import logging
import signal
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import aiohttp
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from secagg.agreement import MemberFolder, Transport, write_agreement
from secagg.errors import UsageError
from secagg.net import Deadlines, Limits, join, read_settings, serve
from secagg.net.events import LOGGER, JsonLines
from secagg.net.listener import Guard
from secagg.net.metrics import MOST_REASONS, Metrics
from secagg.net.progress import Progress
from tests.net.common import FAST, RunningSite, expected, make_world, running
from tests.net.processes import finish, free_port, start


def test_health_and_metrics_say_what_happened(tmp_path: Path) -> None:
    proposal, port = make_world(tmp_path, 3), free_port()

    async def play() -> tuple[dict[str, Any], str]:
        async with running(tmp_path, proposal, None, replace(FAST, ops=f"127.0.0.1:{port}")) as (hub, _):
            await hub.round()
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
                    health = await response.json()
                async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
                    return health, await response.text()

    health, text = asyncio.run(play())
    assert (health["status"], health["round"]) == ("ok", 1)
    assert health["key"] == MemberFolder(tmp_path / "hub").identity.public.hex()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['secagg_rounds_total{outcome="opened"}'] == "1"
    assert lines['secagg_stages_total{stage="answers"}'] == "1"
    assert float(lines['secagg_bytes_total{direction="in"}']) > 3 * 4 * 4
    assert lines["secagg_members"] == "3"
    assert "# TYPE secagg_rounds_total counter" in text


def test_rounds_keep_their_distance_also_after_a_restart_and_end_with_the_agreement(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3, port=free_port(), rounds=3)

    def play(rounds: int, every: float) -> list[int]:
        settings = replace(FAST, listen="")
        return [one.round for one in serve(proposal, tmp_path / "hub", rounds=rounds, every=every, settings=settings)]

    def together(rounds: int, every: float) -> tuple[list[int], float]:
        """With sites, which end when they are told that it is over."""
        sites = [
            Thread(target=join, args=(proposal, tmp_path / str(v), lambda round, data: [1.0] * 4)) for v in range(3)
        ]
        for one in sites:
            one.start()
        began = time.monotonic()
        found = play(rounds, every), time.monotonic() - began
        for one in sites:
            one.join()
        return found

    assert together(1, 0)[0] == [0]
    found, seconds = together(1, 3.0)
    assert found == [1]
    assert seconds > 1.5, "it waits for the rest of the three seconds"
    assert together(5, 0)[0] == [2]
    with pytest.raises(UsageError, match="was the last one"):
        play(5, 0)


def test_metrics_have_few_labels_whatever_members_send() -> None:
    metrics = Metrics()
    for number in range(10 * MOST_REASONS):
        metrics.add("secagg_dropouts_total", reason=f'it said "{number}"\n')
    text = metrics.text()
    assert len(text.splitlines()) <= MOST_REASONS + 3
    assert metrics.total("secagg_dropouts_total") == 10 * MOST_REASONS
    assert r'reason="it said \"3\"\n"' in text


def test_log_lines_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    LOGGER.addHandler(handler)
    try:
        LOGGER.warning("round over", extra={"values": {"round": 3}})
    finally:
        LOGGER.removeHandler(handler)
    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"], line["round"]) == ("round over", "warning", 3)


def test_progress_is_one_line_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress(stream)
    progress("waiting", {"round": 2, "stage": "answers", "waiting_for": [f"site {v}" for v in range(12)]})
    progress("stage over", {})
    assert stream.getvalue().startswith("\rround 2: answers, waiting for site 0, site 1")
    assert stream.getvalue().endswith("and 4 more")
    progress.close()
    assert "\n" not in stream.getvalue()


def test_settings_are_read_and_mistakes_are_named() -> None:
    made = read_settings('listen = "0.0.0.0:9000"\n[deadlines]\nanswers = 5\n[limits]\nconnections = 3')
    assert (made.listen, made.deadlines, made.limits) == ("0.0.0.0:9000", Deadlines(answers=5), Limits(connections=3))
    for text, problem in (
        ("deadline = 3", "did you mean 'deadlines'"),
        ("[deadlines]\nanswer = 3", "did you mean 'answers'"),
        ("[deadlines]\nkeys = 0", "positive number of seconds"),
        ("[limits]\ndata = -1", "positive number"),
        ('listen = "8443"', "a host and a port"),
        ('ops = "host:99999"', "a host and a port"),
        ("poll = 0", "positive number of seconds"),
        ("not toml", "in TOML"),
    ):
        with pytest.raises(UsageError, match=problem):
            read_settings(text)


def test_sigterm_stops_a_hub_and_a_site_cleanly(tmp_path: Path) -> None:
    port = free_port()
    proposal = make_world(tmp_path, 3, port=port)
    (tmp_path / "study.toml").write_text(write_agreement(proposal))
    np.save(tmp_path / "values.npy", np.ones(4))
    hub = start(tmp_path, "serve", "study.toml", "hub", "--listen", f"127.0.0.1:{port}", "--json")
    site = start(tmp_path, "join", "study.toml", "0", "--data", "values.npy")
    for line in hub.stderr:
        if json.loads(line)["event"] == "waiting" and len(json.loads(line)["waiting_for"]) == 2:
            break
    shown = json.loads(finish(start(tmp_path, "status", "hub", "--json"))[0])
    assert (shown[0]["alive"], shown[0]["stage"]) == (True, "gather")
    for process in (site, hub):
        process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    out, _ = finish(site)
    assert out == "Stopped by a signal.\n", "these are not the hub's words"
    finish(hub)
    assert time.monotonic() - began < 20
    assert not json.loads(finish(start(tmp_path, "status", "hub", "--json"))[0])[0]["alive"]


# --- one authority instead of pinned certificates ----------------------------------------------------------


def issue(place: Path, names: list[str], ca: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """A key and a certificate for these names, by this authority (None: an authority)."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    builder = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(ca[1].subject if ca else subject)
        .public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca is None, path_length=None), critical=True)
    )  # fmt: skip
    if ca:
        shown = [
            x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name) for name in names
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(shown), critical=False)
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate = builder.sign(ca[0] if ca else key, SHA256())
    if ca:
        place.mkdir(exist_ok=True)
        path = place / "tls.pem"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(secret + certificate.public_bytes(Encoding.PEM))
    return key, certificate


def test_an_authority_can_replace_pinned_certificates(tmp_path: Path) -> None:
    authority = issue(tmp_path, ["authority"])
    names = tuple(f"site{v}.example" for v in range(3))
    transport = Transport(hubs=("https://127.0.0.1:1",), authority=authority[1].public_bytes(Encoding.DER), names=names)
    proposal = make_world(tmp_path, 3, change={"transport": transport})
    issue(tmp_path / "hub", ["127.0.0.1"], authority)
    for v, name in enumerate(names):
        issue(tmp_path / str(v), [name], authority)

    async def play() -> None:
        async with running(tmp_path, proposal) as (hub, _):
            assert np.allclose((await hub.round()).sum(), expected(range(3), 0), atol=1e-6)
        issue(tmp_path / "hub", ["elsewhere.example"], authority)
        async with running(tmp_path, proposal, [0]) as (_, sites):
            for _ in range(200):
                await asyncio.sleep(0.02)
                told = [values["reason"] for name, values in sites[0].events if name == "hub not reached"]
                if told:
                    break
            assert "not the hub of the agreement" in told[0]
        issue(tmp_path / "hub", ["127.0.0.1"], authority)
        issue(tmp_path / "stranger", ["other.example"], authority)
        async with running(tmp_path, proposal, []) as (hub, _):
            site = RunningSite(proposal, tmp_path, 0, hub.port)
            site.site._credentials.path = tmp_path / "stranger" / "tls.pem"
            async with site:
                for _ in range(200):
                    await asyncio.sleep(0.02)
                    if hub.metrics.get("secagg_refused_total", reason="certificate"):
                        break
            assert hub.metrics.get("secagg_refused_total", reason="certificate")
            assert hub.present() == set()

    asyncio.run(play())


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    proposal = make_world(tmp_path, 3)
    (tmp_path / "0" / "tls.pem").chmod(0o640)
    with pytest.raises(UsageError, match="others can read it"):
        RunningSite(proposal, tmp_path, 0, 1)
    (tmp_path / "1" / "tls.pem").write_text("nothing")
    with pytest.raises(UsageError, match="damaged"):
        RunningSite(proposal, tmp_path, 1, 1)


class ClosedTwice(asyncio.Transport):
    """What asyncio of Python 3.11.2 has after a second `close` of a TLS connection."""

    def abort(self) -> None:
        raise AttributeError("'NoneType' object has no attribute '_abort'")


def test_a_connection_that_was_closed_twice_does_not_keep_a_hub_from_stopping() -> None:
    guard = Guard(None, asyncio.Protocol())  # type: ignore[arg-type]
    guard.abort()
    guard.transport = ClosedTwice()
    guard.abort()
