"""What operators see: status, check, and the agreement of an app."""

import difflib
import json
import re
import shlex
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fl.cli import main, parser
from fl.config.checks import load
from fl.errors import ConfigError, RecordError
from fl.flower.apps.propose import app_terms, count_parameters, parse_metrics
from fl.flower.apps.trial import agree_in
from fl.flower.check import check_node
from fl.flower.node import make_node
from fl.flower.status import read_status
from fl.flower.training import Enrolled
from fl.training.loop import run
from secagg.agreement import read_agreement
from tests.flower.certificates import make_certificates

DOCS = Path(__file__).parents[2] / "docs"
APP_ROUNDS = [
    {
        "time": 0.0,
        "round": 1,
        "kind": "train",
        "agreed_round": 0,
        "connected": [0, 1, 2],
        "answered": [0, 1, 2],
        "opened": 1,
        "groups": 1,
        "dropouts": [],
        "blamed": {},
        "skipped": "",
    },
    {
        "time": 1.0,
        "round": 1,
        "kind": "evaluate",
        "agreed_round": 1,
        "connected": [0, 1],
        "answered": [0, 1],
        "opened": 0,
        "groups": 1,
        "dropouts": [{"client": 2, "name": "node-2", "why": "its node is not connected"}],
        "blamed": {},
        "skipped": "",
    },
]


def members(count: int) -> list[Enrolled]:
    return [Enrolled(f"node-{i}", bytes([i]) * 32, 100 + i) for i in range(count)]


def test_the_status_of_an_app_counts_answers_and_gives_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "agreement.record"
    record.mkdir()
    agree_in(tmp_path, app_terms(members(3), 4, name="x", rounds=2))
    assert "no round has ended yet" in "\n".join(read_status(record).lines())
    text = "".join(json.dumps(line) + "\n" for line in APP_ROUNDS) + '{"half a li'
    (record / "rounds.jsonl").write_text(text)
    found = read_status(record)
    assert [(node.name, node.answered, node.dropped) for node in found.nodes] == [
        ("node-0", 2, 0),
        ("node-1", 2, 0),
        ("node-2", 1, 1),
    ]
    assert main(["flower", "status", str(record)]) == 0
    shown = capsys.readouterr().out
    assert "node-2  1         1            round 1: its node is not connected" in shown
    assert "1      evaluate  0 of 1" in shown
    assert main(["flower", "status", str(record), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"][1]["dropouts"] == {"node-2": "its node is not connected"}


def test_the_status_of_a_training_is_read_from_its_record(tmp_path: Path) -> None:
    line = {
        "round": 1,
        "skipped": "",
        "accuracy": 0.5,
        "clusters": [{"members": [0, 1, 2], "state": "opened"}, {"members": [3, 4], "state": "lost"}],
        "dropouts": [{"client": 5, "stage": "inputs", "why": "it did not answer in time"}],
        "blamed": {"4": "it signed two answers"},
    }
    (tmp_path / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "summary.json").write_text("{}")
    found = read_status(tmp_path)
    assert found.ended
    assert [(node.client, node.answered, node.dropped) for node in found.nodes][4:] == [(4, 1, 0), (5, 0, 1)]
    lines = "\n".join(found.lines())
    assert "cheated: it signed two answers" in lines
    assert "50.0%" in lines
    with pytest.raises(RecordError, match="there is no folder"):
        read_status(tmp_path / "other")


def test_check_says_what_a_node_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLWR_TELEMETRY_ENABLED", raising=False)
    (folder, *_) = agree_in(tmp_path, app_terms(members(3), 4, name="x", rounds=2))
    findings = [str(finding) for finding in check_node(folder)]
    assert findings[0].startswith(f"ok      folder {folder}: member 0 (node-0) of 'x', ")
    assert "WARNING telemetry" in findings[3]
    assert main(["flower", "check", str(folder)]) == 0
    (folder / "agreement.toml").unlink()
    assert main(["flower", "check", str(folder)]) == 1
    assert "there is no" in str(next(check_node(folder)))
    make_node(tmp_path / "new")
    assert "share flower propose" in str(next(check_node(tmp_path / "new")))


@contextmanager
def tls_server(place: Path, status: str) -> Iterator[int]:
    """A server that answers one request."""
    certificates = make_certificates(place)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                plain, _ = listener.accept()
                with context.wrap_socket(plain, server_side=True) as connection:
                    connection.recv(10_000)
                    connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
            except OSError:
                pass  # the client did not like the certificate

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def link_findings(place: Path, status: str, *, host: str = "127.0.0.1", other: bool = False) -> str:
    folder = agree_in(place, app_terms(members(3), 4, name="x", rounds=2))[0]
    with tls_server(place / "tls", status) as port:
        root = make_certificates(place / "other") if other else place / "tls"
        found = list(check_node(folder, f"{host}:{port}", root / "ca.crt"))
    return "\n".join(map(str, found))


def test_check_looks_at_the_superlink(tmp_path: Path) -> None:
    closed = link_findings(tmp_path / "a", "403 Forbidden")
    assert "the certificate is right" in closed
    assert "only nodes get in" in closed
    assert "whoever reaches this port can start runs" in link_findings(tmp_path / "b", "200 OK")
    assert "its certificate is not right" in link_findings(tmp_path / "c", "200 OK", other=True)
    folder = tmp_path / "a" / "node-0"
    assert "no connection" in str(list(check_node(folder, "127.0.0.1:1"))[-1])
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        list(check_node(folder, "127.0.0.1"))


def test_propose_writes_terms_that_members_can_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "".join(f"site-{i} {make_node(tmp_path / str(i)).public.hex()} {50 * (i + 1)}\n" for i in range(6))
    (tmp_path / "members.txt").write_text(lines)
    (tmp_path / "own_model.py").write_text("import numpy as np\ndef model():\n    return {'w': np.zeros((3, 4))}\n")
    out = tmp_path / "agreement.toml"
    command = ["flower", "propose", str(tmp_path / "members.txt"), "--name", "trial", "--rounds", "5"]
    command += ["--train", "loss=20", "--evaluate", "accuracy=1", "--out", str(out)]
    assert main([*command, "--model", "own_model:model", "--modules", str(tmp_path)]) == 0
    terms = read_agreement(out.read_text()).terms
    assert (terms.segments[0].length, len(terms.rounds), terms.policy.memory) == (12, 10, "training")
    weights = [member.weight for member in terms.members]
    assert max(weights) <= 1.42 * min(weights)
    assert main([*command, "--parameters", "3"]) == 2
    assert main([*command[:-1], str(tmp_path / "b.toml")]) == 2
    assert "either --model" in capsys.readouterr().err


def test_wrong_options_of_propose_are_named(tmp_path: Path) -> None:
    for text in ("loss", "loss=", "=3", "loss=-1", "loss=nan"):
        with pytest.raises(ConfigError, match="expected NAME=MOST"):
            parse_metrics([text])
    with pytest.raises(ConfigError, match="expected at least 3"):
        app_terms(members(6), 4, name="x", rounds=1, size=2)
    with pytest.raises(ConfigError, match="would leave 2 out in every round; use groups of 4 or 8"):
        app_terms(members(8), 4, name="x", rounds=1)
    with pytest.raises(ConfigError, match="expected a torch module"):
        count_parameters("math:tau.hex", tmp_path)


def test_the_demonstration_learns() -> None:
    """`share flower local --nodes 8 flower-digits` trains the model of this simulation, bit for bit."""
    found = run(load("flower-digits", ["rounds=2", "machine.workers=0"]))
    assert found.summary["accuracy"] > 0.85


def commands_in(page: str) -> list[list[str]]:
    """The `share flower` commands in the shell blocks of a page."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.rstrip("& "), comments=True)
            for start in [i for i in range(len(words) - 1) if words[i : i + 2] == ["share", "flower"]]:
                found.append(words[start + 1 :])
    return found


@pytest.mark.parametrize(("page", "least"), [("flower.md", 8), ("flower-apps.md", 3), ("flower-operating.md", 2)])
def test_the_commands_of_the_pages_exist(page: str, least: int) -> None:
    commands = commands_in(page)
    assert len(commands) >= least
    for words in commands:
        parser().parse_args(words)  # SystemExit for an unknown command or option


def test_the_page_for_apps_shows_what_the_example_changes() -> None:
    page = (DOCS / "flower-apps.md").read_text()
    for file in ("client_app.py", "server_app.py"):
        before, after = (
            (DOCS / "examples/flower-pytorch" / which / "pytorch_app" / file).read_text().splitlines()
            for which in ("before", "after")
        )
        changed = [line for line in difflib.ndiff(before, after) if line.startswith(("+ ", "- "))]
        assert changed
        assert all(f"{line[0]}{line[2:]}" in page for line in changed)
