"""`share flower local`: a SuperLink and N SuperNodes on this machine, for one experiment.

Everything runs as on N machines, each process started by its own command; the nodes share one warm executor. Node keys,
the agreement and Flower's own files are in a temporary folder; the record goes where the user says. Every process that
is started has its own session, and its whole group is stopped at the end, whatever ends the command. If this process is
killed, Linux ends the others, and the warm executor removes the temporary folder.
"""

import ctypes
import json
import os
import random
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
from fl.errors import ConfigError, FlowerError, RecordError
from fl.flower.node import make_node
from fl.flower.now import Follower
from fl.flower.supernode import POLL, QUIET, Executor, with_config
from fl.flower.training import TRAINING, Enrolled, Training, check_experiment, enrolled, proposed_terms, write_training
from fl.reporting.progress import Progress
from fl.secure.layout import simulated_agreement
from fl.secure.population import capped_weights
from secagg.simulation import agree_on

STARTING: Final = 60.0  # seconds for the SuperLink to listen
ENDING: Final = 10.0  # seconds between SIGTERM and SIGKILL
POLL_PER_NODE: Final = 0.1  # seconds
SLOWEST_POLL: Final = 3.0  # Flower's own
PORTS: Final = range(20_000, 32_000)  # below those of outgoing connections
MARK: Final = "SHARE_FEDERATION"
STOPPING: Final = tuple(s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP"))


@dataclass
class Federation(AbstractContextManager["Federation"]):
    """The processes of one federation on this machine. Use it in a `with` statement."""

    place: Path
    port: int = 0
    nodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    certificates: Path | None = None  # a folder with ca.crt, server.pem and server.key, for TLS
    temporary: bool = False  # whether nobody needs the folder afterwards
    expected: int = 1  # nodes
    slow: bool = False  # whether nodes are started as Flower starts them, without a warm executor
    _executor: Executor | None = None
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _logs: list[IO[bytes]] = field(default_factory=list)

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def poll(self) -> float:
        """Seconds between two questions of a node to the SuperLink: each costs both of them some computing."""
        return min(SLOWEST_POLL, max(POLL, POLL_PER_NODE * self.expected))

    @property
    def environment(self) -> dict[str, str]:
        found = dict(os.environ) | QUIET | {"FLWR_HOME": str(self.place / "flwr"), MARK: str(self.place)}
        found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{found.get('PATH', '')}"
        found.setdefault("OMP_NUM_THREADS", "1")
        return found

    def start_link(self, *more: str) -> None:
        """Start a SuperLink on a free port of this machine, and the executor of the nodes."""
        if self._executor is None and not self.slow:
            clean = self.place if self.temporary else None
            self._executor = Executor.start(self.place / "warm", environment=self.environment, clean=clean)
        self.port = self.port or free_port()
        home = self.place / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation", *more]
        if self.certificates:
            security = f"root-certificates = {json.dumps(str(self.certificates / 'ca.crt'))}"
            files = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
            for option, file in files.items():
                command += [f"--ssl-{option}", str(self.certificates / file)]
        else:
            security = "insecure = true"
            command.append("--insecure")
        address = f'address = "127.0.0.1:{self.port}"'
        config = f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{address}\n{security}\n'
        (home / "config.toml").write_text(config)
        link = self._start(command, "superlink")
        end = time.monotonic() + STARTING
        while not _listening(self.port):
            if link.poll() is not None or time.monotonic() > end:
                raise FlowerError(f"the SuperLink did not start; see {self.place / 'superlink.log'}")
            time.sleep(0.1)

    def start_node(self, number: int, folder: Path, *more: str, simulate: bool = False) -> None:
        """Start a SuperNode for the node of this folder."""
        options = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port()), *more]
        if self.certificates:
            options += ["--root-certificates", str(self.certificates / "ca.crt")]
        else:
            options.append("--insecure")
        if self._executor is None:
            command = ["flower-supernode", *with_config(folder, options, simulate)]
        else:
            own = ["--executor", str(self._executor.wait()), "--poll", str(self.poll)]
            own += ["--simulate"] if simulate else []
            command = [sys.executable, "-m", "fl", "flower", "node", *own, str(folder), *options]
        self.nodes[number] = self._start(command, f"node-{number}")

    def run(self, app: Path, settings: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start `flwr run`, which ends with the app."""
        command = ["flwr", "run", str(app), "here", "--stream"]
        if settings:
            command += ["--run-config", " ".join(settings)]
        return self._start(command, "run")

    def log(self, name: str) -> str:
        file = self.place / f"{name}.log"
        return file.read_text("utf-8", "replace") if file.exists() else ""

    def kill_node(self, number: int) -> None:
        """Send SIGKILL to a node and all that it started, like a power cut."""
        process = self.nodes.pop(number)
        _signal(process, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """Stop every process that was started and wait for its end. Signals do not interrupt this."""
        with _signals_handled_by(signal.SIG_IGN):
            for process in self._started:
                _signal(process, signal.SIGTERM)
            _wait_until(lambda: not any(map(_alive, self._started)))
            for process in self._started:
                _signal(process, signal.SIGKILL)
                process.wait()
            if self._executor is not None:
                self._executor.stop()
            _wait_until(self._kill_strays)
            for log in self._logs:
                log.close()

    def _kill_strays(self) -> bool:
        """Kill the processes that left their groups, as one of the SuperLink's does. True if none was left.

        They may start others meanwhile, so call this until it returns True.
        """
        mark, strays = f"{MARK}={self.place}".encode(), []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in entry.read_bytes().split(b"\0") and int(entry.parent.name) != os.getpid():
                    strays.append(int(entry.parent.name))
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
                preexec_fn=_end_with_this_process,
            )
        except FileNotFoundError:
            raise ConfigError("Flower is not installed; type: pip install 'share-secagg[flower]'") from None
        self._started.append(process)
        return process


def agree_here(
    e: Experiment, sizes: Sequence[int], place: Path, *, length: int, simulate: bool = False
) -> tuple[Training, list[Path]]:
    """Make every node in a folder of its own: they agree, sign, and keep the training.

    The agreement of a simulated training is the one that a simulation makes, so that both draw the same clusters; its
    keys follow from the public seed.
    """
    folders = [place / f"node-{i}" for i in range(len(sizes))]
    check_experiment(e)
    if simulate:
        weights = capped_weights(sizes, e.privacy.weight_ratio)
        agreement, identities = simulated_agreement(e, weights, length)
        for i, folder in enumerate(folders):
            make_node(folder, identities[i])
    else:
        identities = {i: make_node(folder) for i, folder in enumerate(folders)}
        members = [Enrolled(f"node-{i}", identities[i].public, int(size)) for i, size in enumerate(sizes)]
        e = enrolled(e, members)
        agreement = agree_on(proposed_terms(e, members, length), identities)
    signatures = {i: agreement.sign(i, identities[i]) for i in identities}
    training = Training(agreement, e, tuple(map(int, sizes)), signatures)
    for folder in (*folders, place):
        write_training(training, folder)
    return training, folders


def write_app(
    place: Path,
    *,
    server: str = "fl.flower.simulation_server:app",
    client: str = "fl.flower.simulation_client:app",
    more: str = "",
) -> Path:
    """Write a Flower app that only names its two parts, which are installed; by default those of simulations.

    `more` are lines of its configuration.
    """
    place.mkdir(parents=True, exist_ok=True)
    (place / "pyproject.toml").write_text(
        '[project]\nname = "share-local"\nversion = "1.0.0"\ndescription = "SHARE on this machine"\n'
        'license = "Apache-2.0"\ndependencies = []\n\n'
        '[tool.flwr.app]\npublisher = "share"\n\n'
        f'[tool.flwr.app.components]\nserverapp = "{server}"\nclientapp = "{client}"\n\n'
        '[tool.flwr.app.config]\ntraining = "training.toml"\nout = "run"\n'
        "join-seconds = 120.0\nstage-seconds = 60.0\ntraining-seconds = 600.0\ntries = 2\nskipped-rounds = 3\n"
        f"{more}",
        "utf-8",
    )
    return place


def run_here(
    e: Experiment,
    out: Path,
    *,
    settings: Sequence[str] = (),
    show: Progress | None = None,
    keep: Path | None = None,
    slow: bool = False,
) -> None:
    """Train an experiment with one node per client, or with `slow` as Flower starts nodes itself."""
    from fl.training.loop import prepare

    if e.attack.name not in (NO_ATTACK, LABEL_FLIP):
        raise ConfigError(
            f"attack.name: {e.attack.name} needs the updates of others, which no node has; over Flower "
            f"use {LABEL_FLIP!r}, or attack.protocol"
        )
    sizes = [int(size) for size in prepare(e).sizes]
    run_app(e, sizes, out, settings=settings, show=show, keep=keep, simulate=True, slow=slow)


def run_app(
    e: Experiment,
    sizes: Sequence[int],
    out: Path,
    *,
    app: Path | None = None,
    settings: Sequence[str] = (),
    show: Progress | None = None,
    keep: Path | None = None,
    simulate: bool = False,
    test: str | None = None,
    classes: int | None = None,
    slow: bool = False,
) -> None:
    """Run a whole app on this machine: keys, agreement, SuperLink, a SuperNode per client, the training.

    `test` and `classes` are those of `server_app`: they say how many parameters the model has.
    """
    from fl.flower.task import model_length

    show = show or Progress()
    if (out / "config.toml").exists():
        raise RecordError(f"{out} holds a run already: choose another --out")
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="share-flower-", ignore_cleanup_errors=True)
        place = keep or Path(stack.enter_context(temporary))
        place.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_signals_handled_by(_interrupt))
        length = model_length(e, test, classes)
        _, folders = agree_here(e, sizes, place, length=length, simulate=simulate)
        federation = stack.enter_context(Federation(place, temporary=keep is None, expected=len(folders), slow=slow))
        show.note(f"starting a SuperLink and {len(folders)} SuperNodes")
        federation.start_link()
        for number, folder in enumerate(folders):
            federation.start_node(number, folder, simulate=simulate)
        files = [f"training={json.dumps(str(place / TRAINING))}", f"out={json.dumps(str(out.resolve()))}"]
        process = federation.run(app or write_app(place / "app"), [*files, *settings])
        for text in server_lines(federation, process, Follower(out)):
            show.note(text)
        if not (out / "summary.json").exists():
            logs = out.parent / f"{out.name}-logs"
            logs.mkdir(parents=True, exist_ok=True)
            for log in place.glob("*.log"):
                shutil.copy(log, logs)
            raise FlowerError(f"the training did not finish; Flower's logs are in {logs}")


def server_lines(
    federation: Federation, process: subprocess.Popen[bytes], follower: Follower | None = None
) -> Iterator[str]:
    """What the ServerApp prints while it runs, as soon as a line is complete, until Flower's command ends.

    With a follower, also what a round that takes long waits for.
    """
    seen = 0
    while True:
        over = process.poll() is not None
        lines = federation.log("run").splitlines(keepends=True)
        whole = len(lines) if over or not lines or lines[-1].endswith("\n") else len(lines) - 1
        for line in lines[seen:whole]:
            if "share: " in line:
                yield line.split("share: ", 1)[1].rstrip()
        seen = whole
        if over:
            return
        if follower is not None:
            yield from follower.lines()
        time.sleep(0.5)


def free_port() -> int:
    """A free port of this machine, outside the range from which the system takes ports for outgoing connections."""
    for _ in range(100):
        port = random.SystemRandom().choice(PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise FlowerError(f"expected a free port from {PORTS[0]} to {PORTS[-1]} on this machine, found none in 100 tries")


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal the process and all that it started: they share its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


_LIBRARY: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG


def _end_with_this_process() -> None:
    """In a process that was just started: get SIGTERM when the one that started it ends, even if that is killed."""
    if _LIBRARY is not None:
        _LIBRARY.prctl(_DEATH_SIGNAL, signal.SIGTERM)


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + ENDING
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)


def _alive(process: subprocess.Popen[bytes]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Any request to stop ends the command as Ctrl-C does: through the `with` that stops every process."""
    raise KeyboardInterrupt


@contextmanager
def _signals_handled_by(handler: Any) -> Iterator[None]:
    """Handle the requests to stop this way, where that is possible: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in STOPPING}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
