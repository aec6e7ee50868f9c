"""What `secagg serve` and `secagg join` print and exit with, and that nothing is printed as Python would."""

from __future__ import annotations

import io
import json
import logging
import socket
import ssl
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from secagg.agreement import write_agreement
from secagg.cli.main import main
from secagg.errors import AgreementRefused, BudgetExceeded, LossWarning, PeerError, TooFewSurvivors, UsageError
from secagg.net import Outcome
from secagg.net.events import LOGGER
from secagg.net.progress import Progress
from secagg.net.trouble import in_words
from tests.net.common import make_world
from tests.net.processes import finish
from tests.net.zygote import Process

Shown = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("study")
    (made / "study.toml").write_text(write_agreement(make_world(made, 3)))
    np.save(made / "values.npy", np.ones(4))
    return made


def outcome(place: Path, opened: bool) -> Outcome:
    from secagg.agreement import read_agreement

    terms = read_agreement((place / "study.toml").read_text()).terms
    sums = {(0, 0): np.ones(4)} if opened else {}
    members, lost = ({(0, 0): (0, 1, 2)}, {}) if opened else ({}, {(0, 0): "2: it did not answer in time"})
    return Outcome(round=0, sums=sums, members=members, lost=lost, dropouts={}, blamed={}, terms=terms)


@pytest.mark.parametrize(
    ("play", "code"),
    [
        (lambda place: [outcome(place, True)], 0),
        (lambda place: [], 0),  # a signal stopped it
        (lambda place: [outcome(place, True), outcome(place, False)], 1),
        (lambda place: TooFewSurvivors("too few sites are there"), 1),
        (lambda place: UsageError("this folder is another's"), 2),
    ],
)
def test_exit_codes_of_serve(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown, play: Callable[[Path], Any], code: int
) -> None:
    def serve(*_: Any, **__: Any) -> Any:
        found = play(place)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("secagg.net.serve", serve)
    assert main(["serve", str(place / "study.toml"), str(place / "hub")]) == code
    found = play(place)
    assert not isinstance(found, Exception) or capsys.readouterr().err == f"secagg: {found}\n"
    for bad in (("--rounds", "0"), ("--most-lost", "0"), ("--every", "-1")):
        assert main(["serve", str(place / "study.toml"), str(place / "hub"), *bad]) == 2
        assert "expected at least" in capsys.readouterr().err


def refusing(error: Exception | None) -> Callable[..., str]:
    def join(*_: Any, on_event: Any, **__: Any) -> str:
        on_event("refused", {"reason": str(error or "a reason")})
        if error:
            raise error
        return "all rounds are done"

    return join


def failing(error: Exception) -> Callable[..., str]:
    def join(*_: Any, **__: Any) -> str:
        raise error

    return join


@pytest.mark.parametrize(
    ("play", "code", "out"),
    [
        (lambda *_, **__: "all rounds are done", 0, "The hub says: all rounds are done\n"),
        (lambda *_, **__: None, 0, "Stopped by a signal.\n"),
        (refusing(None), 1, "The hub says: all rounds are done\n"),
        (refusing(AgreementRefused("it does not name the first")), 1, ""),
        (refusing(BudgetExceeded("epsilon")), 1, ""),
        (failing(AgreementRefused("of another kind")), 2, ""),
        (failing(PeerError("the hub refuses this site")), 2, ""),
    ],
)
def test_exit_codes_of_join(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown, play: Callable[..., Any], code: int, out: str
) -> None:
    monkeypatch.setattr("secagg.net.join", play)
    words = ["join", str(place / "study.toml"), str(place / "0"), "--data", str(place / "values.npy")]
    assert main(words) == code
    told = capsys.readouterr()
    assert told.out == out
    assert told.err.count("secagg: ") == (code == 2)


def test_join_shows_how_rounds_ended(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown) -> None:
    def join(*_: Any, on_event: Any, **__: Any) -> str:
        on_event("round over", {"round": 3, "opened": True, "sites": 3, "reason": ""})
        on_event("round over", {"round": 4, "opened": False, "sites": 0, "reason": "west: it did not answer in time"})
        return "all rounds are done"

    monkeypatch.setattr("secagg.net.join", join)
    words = ["join", str(place / "study.toml"), str(place / "0"), "--data", str(place / "values.npy")]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Round 3: the hub opened a sum of 3 sites",
        "Round 4: this site is in no opened sum. The hub says: west: it did not answer in time",
        "The hub says: all rounds are done",
    ]
    assert main([*words, "--json"]) == 0
    assert [json.loads(line).get("opened") for line in capsys.readouterr().out.splitlines()] == [True, False, None]


def test_data_that_cannot_be_sent_is_found_before_the_first_round(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    monkeypatch.setattr("secagg.net.join", failing(AssertionError("it is not called")))
    for bad, problem in ((np.nan, "NaN"), (np.inf, "infinit")):
        np.save(place / "bad.npy", np.array([1, 2, bad, 4]))
        words = ["join", str(place / "study.toml"), str(place / "0"), "--data", str(place / "bad.npy")]
        assert main(words) == 2
        assert problem.lower() in capsys.readouterr().err.lower()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("live", [True, False])
def test_warnings_and_log_records_are_not_printed_as_python_does(live: bool, capsys: Shown) -> None:
    stream = Terminal() if live else io.StringIO()
    before = LOGGER.handlers[:], logging.getLogger("asyncio").handlers[:], warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with Progress(stream) as progress:
            progress("hub not reached", {"reason": "nobody listens there"})
            LOGGER.warning("hub not reached", extra={"values": {"reason": "nobody listens there"}})
            warnings.warn("2 of 4 values were clipped", LossWarning, stacklevel=1)
            logging.getLogger("asyncio").error("Fatal error on SSL protocol\nprotocol: <object at 0x7f>")
            progress.say("north refused: no")
    told = capsys.readouterr()
    assert told.out + told.err == ""
    text = stream.getvalue()
    assert "LossWarning" not in text
    assert "site-packages" not in text
    if live:
        assert "\rno hub yet, trying again: nobody listens there" in text
        assert "secagg: warning: 2 of 4 values were clipped\n" in text
        assert "secagg: Fatal error on SSL protocol\n" in text
        assert "0x7f" not in text
        assert "secagg: north refused: no\n" in text
    else:
        rows = [json.loads(line) for line in text.splitlines()]
        assert [row["event"] for row in rows][:2] == ["hub not reached", "warning"]
        assert rows[1]["reason"] == "2 of 4 values were clipped"
    assert (LOGGER.handlers[:], logging.getLogger("asyncio").handlers[:], warnings.showwarning) == before


def test_a_program_without_logging_sees_no_lines() -> None:
    """Python prints warnings of a logger that nobody has set up."""
    code = "from secagg.net.events import LOGGER; LOGGER.warning('hub not reached')"
    assert finish(Process(code, (), Path.cwd())) == ("", "")


def test_connection_errors_are_plain_words() -> None:
    key: Any = aiohttp.client_reqrep.ConnectionKey("hub", 8443, True, True, None, None, None)
    refused = ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 8443)")
    for failed, words in (
        (aiohttp.ClientConnectorError(key, refused), "nobody listens there"),
        (refused, "nobody listens there"),
        (aiohttp.ClientConnectorDNSError(key, socket.gaierror(-2, "Name or service not known")), "no machine has"),
        (aiohttp.ClientConnectorSSLError(key, ssl.SSLError(1, "[SSL] bad")), "no TLS connection"),
        (ssl.SSLCertVerificationError(1, "self-signed"), "not the hub of the agreement"),
        (aiohttp.ServerTimeoutError("Connection timeout to host https://hub"), "no answer in time"),
        (aiohttp.ServerDisconnectedError(), "closed the connection"),
        (OSError(113, "No route to host"), "this machine cannot be reached"),
        (aiohttp.ClientOSError(32, "Broken pipe"), "closed the connection"),
        (aiohttp.InvalidURL("x"), "the connection failed (InvalidUrlClientError)"),
    ):
        text = in_words(failed)
        assert words in text or isinstance(failed, aiohttp.InvalidURL), text
        assert not any(bad in text for bad in ("ssl:", "object at", "[", "Errno")), text
