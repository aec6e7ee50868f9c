"""Real SuperLink and SuperNode processes on this machine. `-m long` runs more than one short training."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fl.config.checks import experiment
from fl.config.read import to_toml
from fl.config.schema import Experiment, to_tables
from fl.errors import FlowerError
from fl.flower.federation import PORTS, Federation, agree_here, free_port, run_here, server_lines, write_app
from fl.flower.task import model_length
from fl.training.loop import prepare, run
from tests.flower.certificates import make_certificates
from tests.flower.runs import assert_same_model, small, whole

ROOT = Path(__file__).parents[2]
STAGES = ("deal", "mask", "sign", "unmask")
SETTINGS = ("stage-seconds=60.0", "training-seconds=120.0", "join-seconds=120.0")


@dataclass
class Running:
    """A federation with its node folders, and a training whose output is collected."""

    federation: Federation
    folders: list[Path]
    place: Path
    out: Path
    lines: list[str] = field(default_factory=list)
    failed: bool = False
    _thread: threading.Thread | None = None

    def begin(self, settings: Sequence[str] = SETTINGS) -> None:
        files = [f"training={json.dumps(str(self.place / 'training.toml'))}", f"out={json.dumps(str(self.out))}"]
        process = self.federation.run(self.place / "app", [*files, *settings])

        def follow() -> None:
            for line in server_lines(self.federation, process):
                self.lines.append(line)

        self._thread = threading.Thread(target=follow, daemon=True)
        self._thread.start()

    def end(self, seconds: float) -> None:
        assert self._thread is not None
        self._thread.join(seconds)
        if self._thread.is_alive() or not (self.out / "summary.json").exists():
            pytest.fail("the training did not end:\n" + self.federation.log("run")[-6000:])

    def rounds(self) -> list[dict[str, Any]]:
        file = self.out / "rounds.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@contextmanager
def federation_of(
    e: Experiment, tmp_path: Path, certificates: Path | None = None, link: Sequence[str] = ()
) -> Iterator[Running]:
    place = tmp_path / "nodes"
    sizes = [int(size) for size in prepare(e).sizes]
    _, folders = agree_here(e, sizes, place, length=model_length(e), simulate=True)
    write_app(place / "app")
    with Federation(place, certificates=certificates, expected=len(folders)) as federation:
        federation.start_link(*(["--enable-supernode-auth"] if certificates else []), *link)
        yield Running(federation, folders, place, tmp_path / "run")
    assert processes_of(place) == []


def processes_of(place: Path) -> list[str]:
    """The command lines of the processes that were started with this Flower home."""
    return [command for _, command in started(place)]


def started(place: Path) -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"FLWR_HOME={place / 'flwr'}".encode() in (entry / "environ").read_bytes():
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append((int(entry.name), command))
            except OSError:
                continue
    return found


def test_a_training_over_real_processes_gives_the_model_of_a_simulation(tmp_path: Path) -> None:
    """One exchange in the second round. The warm executor never holds a key or a message."""
    e = whole(clients=3, rounds=2, clusters={"size": 3})
    with federation_of(e, tmp_path) as running:
        for number, folder in enumerate(running.folders):
            running.federation.start_node(number, folder, simulate=True)
        running.begin()
        running.end(1800)
        (executor,) = [number for number, command in started(running.place) if "fl.flower.warm" in command]
        keys = [file for folder in running.folders for file in folder.glob("*.key")]
        secrets = [bytes.fromhex(file.read_text()) for file in keys]
        answers = [file.read_bytes()[:64] for folder in running.folders for file in folder.glob("whole/*/*.spool")]
        assert len(secrets) == 6
        assert len(answers) == 3
        memory = memory_of(executor)
        assert b"flwr-clientapp" in memory
        assert not any(secret in memory or secret.hex().encode() in memory for secret in (*secrets, *answers))
        assert not any("starts a process of its own" in running.federation.log(f"node-{i}") for i in range(3))
    assert_same_model(running.out, e)
    assert [record["dropouts"] for record in running.rounds()] == [[], []]
    assert [record["exchanges"] for record in running.rounds()] == [2, 1]


def test_a_free_port_is_free_and_none_that_the_system_gives_away() -> None:
    found = [free_port() for _ in range(20)]
    assert set(found) <= set(PORTS)
    assert len(set(found)) > 10
    with socket.create_server(("127.0.0.1", found[0])) as taken:
        assert taken.getsockname()[1] == found[0]


def test_a_machine_without_a_free_port_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(FlowerError, match="free port from 20000 to 31999"):
        free_port()


def memory_of(number: int) -> bytes:
    """What a process holds in its own memory, without the files that it has mapped."""
    found = []
    with Path(f"/proc/{number}/maps").open() as maps, Path(f"/proc/{number}/mem").open("rb", 0) as memory:
        for line in maps:
            area, rights, _, _, file = line.split(maxsplit=4) if line.count(" ") > 4 else (*line.split(), "", "")[:5]
            start, end = (int(part, 16) for part in area.split("-"))
            if rights.startswith("rw") and not file.strip().endswith("[vvar]"):
                memory.seek(start)
                found.append(memory.read(end - start))
    return b"".join(found)


def test_a_wrong_command_fails_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(to_toml(small()))
    command = [sys.executable, "-m", "fl", "flower", "local", "--nodes", "8", str(file)]
    attack = ["--set", 'attack.name="sign_flip"', "--set", "byzantine=1"]
    done = subprocess.run([*command, *attack], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "needs the updates of others" in done.stderr


@pytest.mark.long
def test_share_flower_local_with_eight_nodes(tmp_path: Path) -> None:
    """The final model is that of a simulation, and no process is left afterwards."""
    e = small(rounds=3)
    place = tmp_path / "kept"
    run_here(e, tmp_path / "run", keep=place)
    assert_same_model(tmp_path / "run", e)
    assert processes_of(place) == []


@pytest.mark.long
def test_ctrl_c_stops_everything_that_was_started(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(to_toml(small(rounds=50)))
    command = [sys.executable, "-m", "fl", "flower", "local", "--nodes", "8", str(file)]
    env = dict(os.environ) | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 300
    while time.monotonic() < end and not list(tmp_path.glob("runs/*/run.json")):
        time.sleep(0.5)
    homes = list(tmp_path.glob("share-flower-*"))
    assert homes
    assert processes_of(homes[0])
    process.send_signal(2)
    process.wait(60)
    assert process.returncode == 130
    assert processes_of(homes[0]) == []


@pytest.mark.long
def test_a_node_killed_in_each_stage_is_a_dropout_and_returns(tmp_path: Path) -> None:
    """SIGKILL to one node in each of the first four rounds, each time in another stage."""
    e = small(rounds=6)
    with federation_of(e, tmp_path) as running:
        for number, folder in enumerate(running.folders):
            running.federation.start_node(number, folder, simulate=True)
        running.begin()
        for t, stage in enumerate(STAGES):
            wait_for_stage(running, t, stage, 900, node=t)
            running.federation.kill_node(t)
            running.federation.start_node(t, running.folders[t], simulate=True)
        running.end(1800)
    records = running.rounds()
    dropouts = [{entry["client"] for entry in record["dropouts"]} for record in records]
    print(dropouts, [record["exchanges"] for record in records])
    assert len(records) == 6
    assert not any(record["skipped"] for record in records)
    assert all(t in dropouts[t] for t in range(4))
    assert all(t not in dropped for t in range(4) for dropped in dropouts[t + 2 :])
    replay(e, records, running.out)


def wait_for_stage(running: Running, t: int, stage: str, seconds: float, node: int | None = None) -> None:
    """Wait until this node, or any, is asked for this stage of round t."""
    asked = re.compile(rf"ROUND {t + 1}\](?s:(?:(?!ROUND \d).)*)query.{stage} message")
    numbers = range(len(running.folders)) if node is None else (node,)
    end = time.monotonic() + seconds
    while not any(asked.search(running.federation.log(f"node-{number}")) for number in numbers):
        assert time.monotonic() < end, running.federation.log("run")[-3000:]
        time.sleep(0.05)


@pytest.mark.long
def test_two_of_eight_killed_at_random_moments_in_each_of_five_rounds(tmp_path: Path) -> None:
    """Every round has the right sums or is skipped; accuracy stays within 2 points of the undisturbed run."""
    e = small(rounds=5, data={"name": "digits"}, local={"epochs": 5, "batch_size": 8, "lr": 0.1})
    generator = random.Random(7)
    killed: list[dict[int, str]] = [{} for _ in range(5)]
    with federation_of(e, tmp_path) as running:
        for number, folder in enumerate(running.folders):
            running.federation.start_node(number, folder, simulate=True)
        running.begin()
        for t in range(5):
            for moment, node in zip(
                sorted(generator.choices(range(4), k=2)), generator.sample(range(8), 2), strict=True
            ):
                wait_for_stage(running, t, STAGES[moment], 600)
                time.sleep(generator.uniform(0, 3))
                assert len(running.rounds()) == t, "too late for this round"
                running.federation.kill_node(node)
                killed[t][node] = STAGES[moment]
                running.federation.start_node(node, running.folders[node], simulate=True)
        running.end(1200)
    records = running.rounds()
    undisturbed = run(e)
    print(killed, [record["accuracy"] for record in records], undisturbed.accuracy)
    dropouts = [{entry["client"] for entry in record["dropouts"]} for record in records]
    print([record["skipped"] or sorted(dropped) for record, dropped in zip(records, dropouts, strict=True)])
    assert len(records) == 5
    assert [len(nodes) for nodes in killed] == [2] * 5
    assert sum(len(dropped & set(nodes)) for dropped, nodes in zip(dropouts, killed, strict=True)) >= 5
    assert sum(bool(record["skipped"]) for record in records) <= 2
    assert abs(records[-1]["accuracy"] - undisturbed.accuracy) <= 0.02
    replay(e, records, running.out)


@pytest.mark.long
@pytest.mark.parametrize(("stage", "lost"), [("deal", False), ("sign", True)])
def test_a_server_that_is_killed_and_restarted_continues_from_its_checkpoint(
    stage: str, lost: bool, tmp_path: Path
) -> None:
    """SIGKILL in the third round of four. A new run has new contexts, so a signed round is lost."""
    e = small(rounds=4)
    with federation_of(e, tmp_path) as running:
        for number, folder in enumerate(running.folders):
            running.federation.start_node(number, folder, simulate=True)
        running.begin()
        wait_for_stage(running, 2, stage, 600)
        early = running.rounds()[:2]
        servers = [pid for pid, command in started(running.place) if "flwr-serverapp" in command]
        assert servers
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
        assert not (running.out / "summary.json").exists()
        running.begin()
        running.end(900)
    records = running.rounds()
    print([(record["round"], record["skipped"], record["dropouts"]) for record in records])
    assert records[:2] == early
    assert [record["round"] for record in records] == [1, 2, 3, 4]
    assert bool(records[2]["skipped"]) == lost
    assert not records[3]["skipped"]
    replay(e, records, running.out)


def replay(e: Experiment, records: list[dict[str, Any]], out: Path) -> None:
    """Check the sums: the same survivors in the clear give the same accuracies and the same model."""
    schedule: list[dict[str, Any]] = []
    for record in records:
        late = ("consistency", "unmasking")
        early = [d["client"] for d in record["dropouts"] if d["stage"] not in late]
        if record["skipped"]:
            early = list(range(e.clients))
        if early:
            schedule.append({"round": record["round"], "clients": early, "stage": "inputs"})
    tables = {**to_tables(e), "dropout": {"schedule": schedule}, "secure": False}
    in_the_clear = experiment(tables)
    for mine, theirs in zip(records, run(in_the_clear).history, strict=True):
        assert mine["accuracy"] == theirs["accuracy"], mine["round"]
    assert_same_model(out, in_the_clear)


@pytest.mark.long
def test_the_papers_vector_in_three_groupings_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """d = 2,156,490 and R = 3 over the real transport."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where the nodes find the model
    e = whole(
        clients=9,
        rounds=2,
        model="tests.flower.wide:wide",
        clusters={"size": 3, "groupings": 3, "schedule": "random"},
        privacy={"audit": "report-even-if-exposed", "memory": "round"},
        data={"name": "digits", "examples": 60, "test_examples": 50},
        local={"epochs": 1, "batch_size": 4, "lr": 0.01},
    )
    with federation_of(e, tmp_path) as running:
        for number, folder in enumerate(running.folders):
            running.federation.start_node(number, folder, simulate=True)
        running.begin()
        running.end(1800)
    for record in running.rounds():
        assert record["dropouts"] == []
        assert record["cryptography"]["bytes_up"]["inputs"] > 9 * 3 * 4 * 2_156_490
        print(record["seconds"], record["cryptography"])
    assert_same_model(running.out, e)


@pytest.mark.long
def test_thirty_nodes_complete_three_rounds(tmp_path: Path) -> None:
    """Prints what the rounds took, and the memory of all processes together."""
    e = whole(clients=30, rounds=3, clusters={"size": 5}, data={"examples": 600})
    with federation_of(e, tmp_path) as running:
        start = time.monotonic()
        for number, folder in enumerate(running.folders):
            running.federation.start_node(number, folder, simulate=True)
        running.begin(("stage-seconds=600.0", "training-seconds=1200.0", "join-seconds=2400.0"))
        memory = 0
        while not (running.out / "summary.json").exists() and time.monotonic() < start + 3600:
            memory = max(memory, sum(share_of_memory(number) for number, _ in started(running.place)))
            time.sleep(2)
        running.end(600)
        passed = time.monotonic() - start
    records = running.rounds()
    print([round(record["seconds"]["total"], 1) for record in records], f"{memory / 1e9:.1f} GB, {passed:.0f} s")
    assert [record["dropouts"] for record in records] == [[], [], []]
    assert_same_model(running.out, e)


def share_of_memory(number: int) -> int:
    """The bytes of a process; what several processes share is divided among them."""
    try:
        text = Path(f"/proc/{number}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


@pytest.mark.long
def test_a_killed_launcher_leaves_no_process_and_no_key_behind(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(to_toml(whole(rounds=50, clients=3, clusters={"size": 3})))
    command = [sys.executable, "-m", "fl", "flower", "local", "--nodes", "3", str(file)]
    env = dict(os.environ) | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 900
    while not list(tmp_path.glob("runs/*/run.json")):
        assert time.monotonic() < end
        time.sleep(0.5)
    (home,) = tmp_path.glob("share-flower-*")
    assert processes_of(home)
    process.kill()
    process.wait()
    while processes_of(home) or home.exists():
        assert time.monotonic() < end, processes_of(home)
        time.sleep(0.5)


@pytest.mark.long
def test_tls_and_node_authentication(tmp_path: Path) -> None:
    """Nodes also authenticate to the SuperLink, which rejects one that is not registered."""
    certificates = make_certificates(tmp_path / "tls")
    e = small(clients=5, rounds=1, clusters={"size": 5}, privacy={"colluders": 1})
    with federation_of(e, tmp_path, certificates) as running:
        keys = [tmp_path / "tls" / f"node-{number}" for number in range(6)]
        for key in keys:
            subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", key], check=True)
        for key in keys[:5]:
            subprocess.run(
                ["flwr", "supernode", "register", f"{key}.pub", "here"],
                env=running.federation.environment,
                check=True,
                capture_output=True,
            )
        for number, (folder, key) in enumerate(zip(running.folders, keys, strict=False)):
            running.federation.start_node(number, folder, "--auth-supernode-private-key", str(key), simulate=True)
        running.federation.start_node(
            99, running.folders[0], "--auth-supernode-private-key", str(keys[5]), simulate=True
        )
        running.begin()
        running.end(300)
        assert running.federation.nodes[99].poll() is not None  # rejected
    assert_same_model(running.out, e)


@pytest.mark.long
def test_the_example_app_runs_unchanged(tmp_path: Path) -> None:
    """What `share flower new` writes: its own model and data, eight nodes."""
    subprocess.run([sys.executable, "-m", "fl", "flower", "new", "app"], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "on-this-machine"], cwd=tmp_path / "app", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "app" / "run" / "summary.json").read_text())
    assert summary["accuracy"] > 0.8
    assert summary["exposed"] == []
