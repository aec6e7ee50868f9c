"""No secret of a run in any log, output, repr, error or traceback: everything captured, everything searched.

Searched for: identity keys, both X25519 keys, seeds, every agreed secret and mask key, every share and nonce,
and the inputs; as raw bytes, as Python writes bytes, in hex, in base64 at any alignment, and as numbers.
What a client sends on purpose (shares in stage 4) and saved states are not output; they are not searched.
"""

from __future__ import annotations

import base64
import gc
import io
import logging
import random
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
import pytest

from secagg import Client, MemoryJournal, Schedule, SecAggError, Stage, UsageError, reference
from secagg.crypto.keys import AgreementKey
from secagg.protocol import outcome as server_module
from secagg.protocol.wire import encode
from tests.secagg.cheats import CHEATS
from tests.secagg.cluster import Cluster, identity, make_inputs, make_plan, remembered_signatures

PLAN = make_plan(6, colluders=1, threshold=4, schedule=Schedule(name="random", size=3, groupings=2))


@pytest.fixture(autouse=True)
def _secrets_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests can compare with them after the run; `test_repairs.py` shows that they are dropped."""
    monkeypatch.setattr(Client, "_forget_secrets", lambda client: None)


def secrets_of(cluster: Cluster) -> dict[str, bytes]:
    """Every secret of a run that has ended, by name."""
    plan, found = cluster.plan, {}
    for v, client in cluster.clients.items():
        memory = client._memory
        found[f"identity {v}"] = identity(v).private
        found[f"channel key {v}"] = memory.channel
        found[f"mask key {v}"] = memory.mask
        for r, seed in enumerate(memory.seeds):
            found[f"seed {v} {r}"] = seed
            found[f"self mask {v} {r}"] = reference.self_key(seed, plan.hash, v, r)
        for held in memory.held:
            found[f"nonce {held.dealer} for {v}"] = held.nonce
            for k in range(len(plan.groupings) + 1):
                found[f"share {k} of {held.dealer} for {v}"] = held.share(k)
                found[f"nonce {k} of {held.dealer} for {v}"] = reference.share_nonce(held.nonce, k)
        for advert in memory.adverts:
            if advert.sender != v:
                for name, private, public in (
                    ("channel", memory.channel, advert.channel),
                    ("mask", memory.mask, advert.mask),
                ):
                    agreed = AgreementKey.from_private(private).agree(public)
                    found[f"agreed {name} {v} {advert.sender}"] = agreed
                    for r in range(len(plan.groupings)):
                        found[f"pairwise {v} {advert.sender} {r}"] = reference.pairwise_key(
                            agreed, plan.hash, v, advert.sender, r
                        )
        encoded = np.asarray(cluster.inputs[v]).astype("<u4")
        found[f"input {v}"] = encoded.tobytes()
    return found


def spellings(secret: bytes) -> Iterator[str]:
    """How a secret might be written, cut to what is still unmistakable."""
    yield repr(secret)[2:-1]
    yield secret.decode("latin-1")
    yield secret.hex()
    yield secret.hex().upper()
    yield secret.hex(" ")
    yield str(int.from_bytes(secret, "little"))
    yield str(int.from_bytes(secret, "big"))
    yield str(list(secret))[1:-1]
    yield " ".join(f"{byte:3d}" for byte in secret[:8])  # numpy's way
    for offset in range(3):
        padded = base64.b64encode(bytes(offset) + secret).decode()
        yield padded[4 : len(secret) * 4 // 3 - 2]
        yield base64.urlsafe_b64encode(bytes(offset) + secret).decode()[4 : len(secret) * 4 // 3 - 2]
    if len(secret) == 4 * PLAN.length:
        numbers = np.frombuffer(secret, "<u4")
        yield str(numbers)[1:-1]
        yield str(numbers.tolist())[1:-1]


def leaks(text: str, secrets: dict[str, bytes]) -> list[str]:
    return [name for name, secret in secrets.items() if any(way in text for way in spellings(secret))]


def reprs() -> Iterator[str]:
    """How every object of the package that is alive right now shows itself."""
    for thing in gc.get_objects():
        if str(getattr(type(thing), "__module__", "")).split(".")[0] == "secagg":
            yield repr(thing)
            yield str(thing)


class Capture:
    """Collects logs, output, warnings, reprs and errors into one text."""

    def __init__(self) -> None:
        self.out = io.StringIO()
        self._noted: set[str] = set()
        self.handler = logging.StreamHandler(self.out)

    def __enter__(self) -> Capture:
        gc.collect()
        gc.freeze()  # what is alive already belongs to others, and need not show itself
        root = logging.getLogger()
        self._level = root.level
        root.addHandler(self.handler)
        root.setLevel(logging.DEBUG)
        logging.getLogger("numba").setLevel(logging.WARNING)  # it would dump its own bytecode
        self._redirects = (redirect_stdout(self.out), redirect_stderr(self.out))
        for redirect in self._redirects:
            redirect.__enter__()
        self._warnings = warnings.catch_warnings(record=True)
        self._caught = self._warnings.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, *_: object) -> None:
        self._warnings.__exit__(None, None, None)
        for warning in self._caught or ():
            self.out.write(str(warning.message))
        for redirect in reversed(self._redirects):
            redirect.__exit__(None, None, None)
        gc.unfreeze()
        root = logging.getLogger()
        root.removeHandler(self.handler)
        root.setLevel(self._level)

    def note(self, texts: Iterable[str]) -> None:
        for text in texts:
            if text not in self._noted:  # most things show themselves the same way all the time
                self._noted.add(text)
                self.out.write(text + "\n")

    def error(self, error: BaseException) -> None:
        self.note([str(error), repr(error), repr(error.args), "".join(traceback.format_exception(error))])

    @property
    def text(self) -> str:
        return self.out.getvalue()


def run_captured(capture: Capture, cluster: Cluster) -> None:
    """A run in lockstep; after each message, everything alive is asked to show itself."""
    cluster.start()
    capture.note(repr(identity(v)) for v in cluster.plan.ids)  # made before the run, so `reprs` does not see them
    while cluster.server.stage < Stage.DONE:
        cluster.deliver_all()
        capture.note(reprs())
        cluster.advance()
    capture.note(reprs())
    result = cluster.server.result()
    capture.note([repr(result), repr(result.groups), repr(result.dropouts), repr(result.blamed)])
    capture.note(f"{v}: {error!r}" for v, error in cluster.errors.items())


def test_the_search_finds_a_secret_however_it_is_written() -> None:
    """Otherwise the tests below could not fail."""
    secret = bytes(range(7, 39))
    for text in (
        repr({"key": secret}),
        f"key={secret.hex()}",
        f"key={base64.b64encode(secret).decode()}",
        f"key={base64.b64encode(b'x' + secret).decode()}",
        str(int.from_bytes(secret, "little")),
        str(list(secret)),
    ):
        assert leaks(f"some log line {text} and more", {"planted": secret}) == ["planted"]
    assert leaks("some log line and more", {"planted": secret}) == []


def test_no_secret_in_anything_that_an_honest_run_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    rebuild = server_module.rebuild

    def watched(*args: Any) -> Any:
        """The server's last step, where rebuilt secrets are alive."""
        made = rebuild(*args)
        shown.extend(reprs())
        shown.append(repr(made))
        return made

    monkeypatch.setattr(server_module, "rebuild", watched)
    with Capture() as capture:
        cluster = Cluster(PLAN, make_inputs(PLAN), cheats={5: CHEATS["silence at input"]})
        run_captured(capture, cluster)
        capture.note(shown)
    assert "Rebuilt(" in capture.text
    assert "Memory(" in capture.text
    assert "Unmasking(" in capture.text
    assert leaks(capture.text, secrets_of(cluster)) == []


@pytest.mark.parametrize("name", sorted(CHEATS)[::8])
def test_no_secret_in_reports_about_malicious_clients(name: str) -> None:
    with Capture() as capture, remembered_signatures():
        cluster = Cluster(PLAN, make_inputs(PLAN), cheats={2: CHEATS[name]})
        run_captured(capture, cluster)
    assert leaks(capture.text, secrets_of(cluster)) == []


def test_no_secret_in_any_refusal_of_a_client_or_a_server() -> None:
    """Messages damaged at random in every stage; every error with its whole traceback."""
    rng = random.Random(4)
    with Capture() as capture, remembered_signatures():
        clusters = []
        for trial in range(12):
            cluster = Cluster(PLAN, make_inputs(PLAN), seed=b"%d" % trial).start()
            clusters.append(cluster)
            while cluster.server.stage < Stage.DONE:
                for letter in cluster.flying:
                    if rng.random() < 0.1:
                        place = rng.randrange(len(letter.data))
                        letter.data = letter.data[:place] + bytes([rng.randrange(256)]) + letter.data[place + 1 :]
                cluster.deliver_all()
                try:
                    cluster.advance()
                except SecAggError as error:
                    capture.error(error)
                    break
            for error in cluster.errors.values():
                capture.error(error)
            capture.note(repr(out) for out in cluster.server._memory.dropouts.values())
    assert capture.text.count("Traceback") > 10
    for cluster in clusters:
        assert leaks(capture.text, secrets_of(cluster)) == []


def test_no_secret_in_errors_about_saved_bytes() -> None:
    with Capture() as capture:
        cluster = Cluster(PLAN, make_inputs(PLAN)).start()
        cluster.deliver_all()
        cluster.advance()
        cluster.deliver_all()
        secrets = secrets_of(cluster)
        data = cluster.clients[0].save()
        for place in range(0, len(data), 41):
            damaged = data[:place] if place % 2 else data[:place] + b"\xff" + data[place + 1 :]
            try:
                Client.restore(damaged, identity(0), cluster.agreed, MemoryJournal())
            except UsageError as error:
                capture.error(error)
    assert capture.text.count("Traceback") > 3
    assert leaks(capture.text, secrets) == []


def test_the_package_logs_and_prints_nothing_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[logging.LogRecord] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    handler, root = Collect(), logging.getLogger()
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.DEBUG)
    try:
        Cluster(PLAN, make_inputs(PLAN), cheats={2: CHEATS["garbage at shares"]}).start().finish()
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    assert [record for record in seen if record.name.startswith("secagg")] == []
    assert capfd.readouterr() == ("", "")


def test_messages_that_carry_shares_show_none_of_them() -> None:
    cluster = Cluster(PLAN, make_inputs(PLAN), cheats={5: CHEATS["silence at input"]}).start()
    cluster.finish()
    secrets = secrets_of(cluster)
    for sent in cluster.sent.values():
        for message in sent:
            assert leaks(repr(message), secrets) == []
    raw = b"".join(encode(message) for sent in cluster.sent.values() for message in sent)
    carried = [name for name, secret in secrets.items() if name.startswith("share") and secret in raw]
    assert len(carried) > 20  # they are in the bytes, on purpose, and only there
    never = [n for n, s in secrets.items() if n.startswith(("identity", "channel", "mask key")) and s in raw]
    assert never == []
    given = {name for name, secret in secrets.items() if name.startswith("seed") and secret in raw}
    opened = {f"seed {v} {r}" for (r, _), one in cluster.server.result().groups.items() for v in one.members}
    assert given == opened  # a client's own seeds of opened groups, in stage 4
