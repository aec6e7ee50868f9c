"""`share flower local`: a SuperLink and N SuperNodes on loopback, one experiment, and nothing left behind.

Everything runs as it would on N machines, each process started by its own command. Node keys, the enrolment
and Flower's own files live in a temporary folder; the record goes where the user says. Every process that is
started is in a session of its own, and its whole group is ended at the end, however the end comes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from fl.config.schema import LABEL_FLIP, NO_ATTACK, Experiment
from fl.errors import ConfigError, FlowerError
from fl.flower.client import FOLDER, SIMULATE
from fl.flower.enrolment import TRAINING, Enrolment, Party, agree, write_enrolment
from fl.flower.node import make_node
from fl.secure.layout import training_seed

STARTING: Final = 60.0  # seconds for the SuperLink to listen
ENDING: Final = 10.0  # seconds between asking a process to end and ending it
MARK: Final = "SHARE_FEDERATION"
QUIET: Final = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


@dataclass(slots=True)
class Federation:
    """Processes of one federation on this machine. Use it in a `with` statement."""

    place: Path
    port: int = 0
    nodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    certificates: Path | None = None  # a folder with ca.crt, server.pem and server.key: TLS
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _logs: list[IO[bytes]] = field(default_factory=list)

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        found = dict(os.environ) | QUIET | {"FLWR_HOME": str(self.place / "flwr"), MARK: str(self.place)}
        found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{found.get('PATH', '')}"
        found.setdefault("OMP_NUM_THREADS", "1")
        return found

    def start_link(self, *more: str) -> None:
        """A SuperLink on a free port of loopback."""
        self.port = self.port or free_port()
        home = self.place / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        secure = self.certificates is not None
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\n'
            + (
                f"root-certificates = {json.dumps(str(self.certificates / 'ca.crt'))}\n"
                if self.certificates
                else "insecure = true\n"
            )
        )
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation", *more]
        if self.certificates:
            command += ["--ssl-ca-certfile", str(self.certificates / "ca.crt")]
            command += ["--ssl-certfile", str(self.certificates / "server.pem")]
            command += ["--ssl-keyfile", str(self.certificates / "server.key")]
        link = self._start([*command] if secure else [*command, "--insecure"], "superlink")
        end = time.monotonic() + STARTING
        while not _listening(self.port):
            if link.poll() is not None or time.monotonic() > end:
                raise FlowerError(f"the SuperLink did not start; see {self.place / 'superlink.log'}")
            time.sleep(0.1)

    def start_node(self, number: int, folder: Path, *more: str, simulate: bool = False) -> None:
        """A SuperNode for the node of this folder."""
        told = f'{FOLDER}="{folder}"' + (f" {SIMULATE}=true" if simulate else "")
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1"]
        command += ["--port", str(free_port()), "--node-config", told, *more]
        command += (
            ["--root-certificates", str(self.certificates / "ca.crt")]
            if self.certificates
            else ["--insecure"]
        )
        self.nodes[number] = self._start(command, f"node-{number}")

    def run(self, app: Path, settings: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """`flwr run`, which stays until the app ends."""
        command = ["flwr", "run", str(app), "here", "--stream"]
        if settings:
            command += ["--run-config", " ".join(settings)]
        return self._start(command, "run")

    def log(self, name: str) -> str:
        file = self.place / f"{name}.log"
        return file.read_text("utf-8", "replace") if file.exists() else ""

    def kill_node(self, number: int) -> None:
        """SIGKILL to a node and all that it started, as a power cut would."""
        process = self.nodes.pop(number)
        _signal(process, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End every process that was started, and wait until it is gone. Impatience does not stop this."""
        with _deaf():
            self._end_all()

    def _end_all(self) -> None:
        started = self._started
        for process in started:
            _signal(process, signal.SIGTERM)
        _wait_until(lambda: not any(map(_alive, started)))
        for process in started:
            _signal(process, signal.SIGKILL)
            process.wait()
        _wait_until(self._no_strays)
        for log in self._logs:
            log.close()

    def _strays(self) -> list[int]:
        """Processes of this federation that have left their groups: the SuperLink detaches one of its own."""
        found = []
        mark = f"{MARK}={self.place}".encode()
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in entry.read_bytes().split(b"\0"):
                    found.append(int(entry.parent.name))
        return [number for number in found if number != os.getpid()]

    def _no_strays(self) -> bool:
        """Kill them; they may have started others meanwhile, so once more until there are none."""
        strays = self._strays()
        for number in strays:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return not strays

    def _start(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        log = (self.place / f"{name}.log").open("ab")
        self._logs.append(log)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.place,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise ConfigError("Flower is not installed; type: pip install 'share-secagg[flower]'") from None
        self._started.append(process)
        return process


def enrol_here(e: Experiment, sizes: Sequence[int], place: Path) -> tuple[Enrolment, list[Path]]:
    """Keys for every node in a folder of its own, and the enrolment that lists them, in each."""
    folders = [place / f"node-{i}" for i in range(len(sizes))]
    members = [Party(f"node-{i}", make_node(folders[i]), int(size)) for i, size in enumerate(sizes)]
    enrolment = agree(e, training_seed(e.seed), members)
    for folder in (*folders, place):
        (folder / TRAINING).write_text(write_enrolment(enrolment), "utf-8")
    return enrolment, folders


def write_app(
    place: Path,
    *,
    client: str = "fl.flower.local_client:app",
    server: str = "fl.flower.local_server:app",
    name: str = "share-local",
) -> Path:
    """A Flower app that only says where the two halves are; both come from what is installed."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "1.0.0"\ndescription = "SHARE on this machine"\n'
        'license = "Apache-2.0"\ndependencies = []\n\n'
        '[tool.flwr.app]\npublisher = "share"\n\n'
        f'[tool.flwr.app.components]\nserverapp = "{server}"\nclientapp = "{client}"\n\n'
        '[tool.flwr.app.config]\ntraining = "training.toml"\nout = "run"\n'
        "join-seconds = 120.0\nstage-seconds = 60.0\ntraining-seconds = 600.0\ntries = 2\n",
        "utf-8",
    )
    return place


def check_simulable(e: Experiment) -> None:
    """What every node can simulate on its own; attacks that need to know other updates cannot."""
    if e.attack.name not in (NO_ATTACK, LABEL_FLIP):
        raise ConfigError(
            f"attack.name: {e.attack.name} needs the updates of others, which no node has; over Flower "
            f"use {LABEL_FLIP!r}, or attack.protocol"
        )


def run_here(
    e: Experiment,
    out: Path,
    *,
    settings: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
    keep: Path | None = None,
) -> None:
    """Train an experiment with one node process per client."""
    from fl.training.loop import prepare

    check_simulable(e)
    sizes = [int(size) for size in prepare(e).sizes]
    run_app(e, sizes, out, settings=settings, tell=tell, keep=keep, simulate=True)


def run_app(
    e: Experiment,
    sizes: Sequence[int],
    out: Path,
    *,
    app: Path | None = None,
    settings: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
    keep: Path | None = None,
    simulate: bool = False,
) -> None:
    """All parties of an app on this machine: keys, enrolment, SuperLink, a SuperNode per client, the run."""
    from fl.errors import RecordError

    if (out / "config.toml").exists():
        raise RecordError(f"{out} holds a run already: choose another --out")
    with ExitStack() as stack:
        place = keep or Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="share-flower-", ignore_cleanup_errors=True)
            )
        )
        place.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_ending_politely())
        _, folders = enrol_here(e, sizes, place)
        federation = stack.enter_context(Federation(place))
        tell(f"starting a SuperLink and {len(folders)} SuperNodes")
        federation.start_link()
        for number, folder in enumerate(folders):
            federation.start_node(number, folder, simulate=simulate)
        told = [f"training={json.dumps(str(place / TRAINING))}", f"out={json.dumps(str(out.resolve()))}"]
        process = federation.run(app or write_app(place / "app"), [*told, *settings])
        for text in followed(federation, process):
            tell(text)
        if not (out / "summary.json").exists():
            logs = out.parent / f"{out.name}-logs"
            logs.mkdir(parents=True, exist_ok=True)
            for log in place.glob("*.log"):
                shutil.copy(log, logs)
            raise FlowerError(f"the training did not end; Flower's logs are in {logs}")


def followed(federation: Federation, process: subprocess.Popen[bytes]) -> Iterator[str]:
    """What our ServerApp says while it runs, line by line, until Flower's command ends."""
    seen = 0
    while True:
        over = process.poll() is not None
        lines = federation.log("run").splitlines()
        for line in lines[seen : None if over else -1]:
            seen += 1
            if "share: " in line:
                yield line.split("share: ", 1)[1]
        if over:
            return
        time.sleep(0.5)


def free_port() -> int:
    """A port of loopback that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """To the process and all it started: they share its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _wait_until(gone: Callable[[], bool]) -> None:
    end = time.monotonic() + ENDING
    while not gone() and time.monotonic() < end:
        time.sleep(0.1)


def _alive(process: subprocess.Popen[bytes]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


STOPPING: Final = tuple(s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP"))


@contextmanager
def _ending_politely() -> Iterator[None]:
    """Any request to stop ends this command as Ctrl-C does: by the `with` that stops what was started."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling(stop):
        yield


def _deaf() -> AbstractContextManager[None]:
    """While processes are being ended, requests to stop are not heard: there is nothing to stop."""
    return _handling(signal.SIG_IGN)


@contextmanager
def _handling(handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in STOPPING}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
