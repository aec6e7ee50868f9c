"""Worker processes give the same bits as one process, end with their parent, and report every error."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from fl.data import Examples, Federated, federate, flip_labels, from_clients, load
from fl.errors import TrainingError, WorkerError
from fl.training.channel import Message, answer_all, receive, send
from fl.training.learner import Learner, LocalTraining, Task
from fl.training.loop import run
from fl.training.workers import Pool, open_trainer
from secagg.simulation import cores
from tests.fl.runs import tiny

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="workers share open files")

LOCAL = LocalTraining(epochs=2, batch_size=16, lr=0.05)


@pytest.fixture(scope="module")
def task() -> Task:
    """Clients of unequal sizes, some with flipped labels, and a validation set."""
    data = federate(load("digits"), clients=12, seed=1, partition="dirichlet", alpha=0.5, validation=0.2)
    return Task("small-cnn", flip_labels(data, [2, 5]), LOCAL, seed=7)


@pytest.fixture(scope="module")
def pool(task: Task) -> Iterator[Pool]:
    with Pool(task, 2) as found:
        yield found


def worker_pids(pool: Pool) -> list[int]:
    return [worker.process.pid for worker in pool._workers]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_the_bits_do_not_depend_on_the_number_of_workers(task: Task, pool: Pool, workers: int):
    """One worker is below. Two are those that other tests use, because a new process imports torch for seconds."""
    learner = Learner(task)
    x = learner.initial()
    clients = [7, 0, 3, 11, 2, 9, 1]
    with nullcontext(pool) if workers == pool.count else Pool(task, workers) as asked:
        assert np.array_equal(asked.initial(), x)
        assert asked.dimension == learner.dimension
        for round_index in (0, 5):
            expected = learner.train(x, clients, round_index=round_index)
            assert asked.train(x, clients, round_index=round_index).tobytes() == expected.tobytes()
        assert asked.evaluate(x + expected[0]) == learner.evaluate(x + expected[0])
        assert asked.evaluate(x, "validation") == learner.evaluate(x, "validation")
        rows = np.random.default_rng(0).integers(0, len(task.data.validation or ()), 128)
        losses = learner.losses(expected, rows, at=x)
        assert asked.losses(expected, rows, at=x).tobytes() == losses.tobytes()
        assert asked.losses(x + expected).tobytes() == learner.losses(x + expected).tobytes()
        assert asked.gradient(x, rows).tobytes() == learner.gradient(x, rows).tobytes()


def test_small_clients_are_assigned_several_at_a_time(task: Task, pool: Pool):
    data = federate(load("digits"), clients=200, seed=1)
    small = Task("linear", data, LOCAL, seed=3)
    with Pool(small, 1) as crowd:
        chunks = crowd._chunks(range(200))
        assert len(chunks) < 20
        assert sorted(row for chunk in chunks for row in chunk) == list(range(200))
        x = crowd.initial()
        expected = Learner(small).train(x, range(200), round_index=0)
        assert np.array_equal(crowd.train(x, range(200), round_index=0), expected)


def test_large_clients_go_first(task: Task, pool: Pool):
    order = [row for chunk in pool._chunks(range(12)) for row in chunk]
    sizes = task.data.sizes[order]
    assert np.all(np.diff(sizes) <= 0)


def test_updates_belong_to_the_caller(task: Task, pool: Pool):
    x = pool.initial()
    first = pool.train(x, [0, 1], round_index=0)
    kept = first.copy()
    pool.train(x, [0, 1], round_index=1)
    assert np.array_equal(first, kept)
    first += 1  # and may be written to
    out = np.empty_like(first)
    assert pool.train(x, [0, 1], round_index=0, out=out) is out
    assert np.array_equal(out, kept)


def test_wrong_requests_are_refused_before_they_are_sent(task: Task, pool: Pool):
    x = pool.initial()
    with pytest.raises(ValueError, match="there are no clients"):
        pool.train(x, [], round_index=0)
    with pytest.raises(ValueError, match="for a model of 13706"):
        pool.train(x[:-1], [0], round_index=0)
    with pytest.raises(ValueError, match="no client 12: the clients are 0 to 11"):
        pool.train(x, [0, 12], round_index=0)
    with pytest.raises(ValueError, match="float32"):
        pool.train(x.astype(np.float64), [0], round_index=0)
    with pytest.raises(ValueError, match="has no holdout examples"):
        pool.evaluate(x, "holdout")


def test_open_files_do_not_accumulate_over_rounds(task: Task, pool: Pool):
    """Shared memory that is not released shows as open files, here and in the workers."""
    x = pool.initial()

    def open_files() -> list[int]:
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), *worker_pids(pool))]

    def one_round() -> None:
        pool.train(x, range(6), round_index=0)
        pool.losses(x[None])
        pool.gradient(x)
        pool.evaluate(x)

    for _ in range(10):  # a worker keeps some files open from its first work on
        one_round()
    before = open_files()
    for _ in range(5):
        one_round()
    assert open_files() == before


@pytest.fixture
def own_nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Models in a folder that only this process has on its path."""
    (tmp_path / "own_worker_nets.py").write_text(
        "import time, torch\n"
        "from torch import nn\n"
        "class Fragile(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.out = nn.Linear(4, classes)\n"
        "    def forward(self, inputs):\n"
        "        if (inputs == 1000).any():\n"
        "            raise RuntimeError('the input is 1000')\n"
        "        if (inputs == 2000).any():\n"
        "            time.sleep(1000)\n"
        "        return self.out(inputs)\n"
        "def fragile(shape, classes):\n"
        "    return Fragile(classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "own_worker_nets:fragile"


def special(value: float, client: int) -> Federated:
    """Three clients of four examples; one input of `client` holds a value that `Fragile` reacts to."""
    clients = [Examples(torch.rand(4, 4), torch.arange(4) % 2) for _ in range(3)]
    clients[client].inputs[2, 1] = value
    return from_clients(clients, clients[0], classes=2)


def test_an_error_names_the_client_and_the_pool_stays_usable(own_nets: str):
    with Pool(Task(own_nets, special(1000, 1), LOCAL, 0), 1) as pool:
        x = pool.initial()
        with pytest.raises(TrainingError, match="client 1: RuntimeError: the input is 1000"):
            pool.train(x, [0, 1, 2], round_index=0)
        assert np.isfinite(pool.train(x, [0, 2], round_index=0)).all()


def test_a_model_that_a_worker_cannot_build_is_an_error(own_nets: str, tmp_path: Path):
    pool = Pool(Task(own_nets, special(0, 0), LOCAL, 0), 1)
    (tmp_path / "own_worker_nets.py").write_text("raise ImportError('gone')\n")
    with pool, pytest.raises(TrainingError, match="setup: ImportError: gone"):
        pool.train(pool.initial(), [0], round_index=0)


def test_a_killed_worker_is_reported_and_replaced(own_nets: str):
    """The worker is killed while it trains client 1, as the kernel does when memory runs out."""
    with Pool(Task(own_nets, special(2000, 1), LOCAL, 0), 1) as pool:
        x = pool.initial()
        pool.train(x, [0], round_index=0)
        (pid,) = worker_pids(pool)
        threading.Timer(1.0, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(WorkerError, match="was ended by SIGKILL while training client 1"):
            pool.train(x, [1], round_index=0)
        assert np.isfinite(pool.train(x, [2], round_index=0)).all()


def test_closing_or_deleting_a_pool_ends_its_workers(own_nets: str):
    task = Task(own_nets, special(0, 0), LOCAL, 0)
    pool = Pool(task, 1)
    pool.train(pool.initial(), [0], round_index=0)
    pids = worker_pids(pool)
    pool.close()
    assert wait_until_gone(pids)
    pool.train(pool.initial(), [0], round_index=0)  # starts them again
    pids = worker_pids(pool)
    del pool
    assert wait_until_gone(pids)


PARENT = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
import numpy as np
from tests.fl.test_workers import LOCAL, special, worker_pids
from fl.training.learner import Task
from fl.training.workers import Pool

pool = Pool(Task("own_worker_nets:fragile", special(2000, 1), LOCAL, 0), 2)
x = pool.initial()
before = pool.train(x, [0, 2], round_index=0)
print(*worker_pids(pool), flush=True)
try:
    pool.train(x, [1], round_index=0)  # sleeps for 1000 seconds
except KeyboardInterrupt:
    print("interrupted", worker_pids(pool), flush=True)
    again = pool.train(x, [0, 2], round_index=0)
    print("same" if np.array_equal(before, again) else "different", *worker_pids(pool), flush=True)
    pool.train(x, [1], round_index=0)
"""


@pytest.fixture
def parent(own_nets: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()])}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        yield process
        process.kill()


def started(parent: subprocess.Popen[str]) -> list[int]:
    """The workers' process ids. Returns after the long training has begun."""
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2, parent.stderr.read() if parent.stderr else ""
    time.sleep(1)
    assert all(map(alive, pids))
    return pids


def test_ctrl_c_reaches_only_the_parent_and_workers_die_with_a_parent_killed_by_signal_9(
    parent: subprocess.Popen[str],
):
    """A terminal sends SIGINT to the whole foreground process group. The parent continues with new workers."""
    first = started(parent)
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.stdout is not None
    assert parent.stderr is not None
    assert parent.stdout.readline() == "interrupted []\n"
    assert wait_until_gone(first)
    same, *pids = parent.stdout.readline().split()
    assert same == "same"
    second = [int(pid) for pid in pids]
    assert len(second) == 2
    assert all(map(alive, second))
    parent.send_signal(signal.SIGKILL)
    assert wait_until_gone(second)
    assert parent.stderr.read() == ""  # workers print nothing


@pytest.mark.parametrize("busy", [True, False])
def test_a_parent_that_dies_with_an_unread_reply_ends_a_worker_without_an_error(
    monkeypatch: pytest.MonkeyPatch, busy: bool
):
    """The kernel then resets the worker's socket, where it closes it after a parent that has read everything.

    A busy worker finds out when it answers, an idle one while it waits.
    """
    monkeypatch.setattr("fl.training.channel.watch", lambda *_: None)  # it would end this process
    ours, theirs = socket.socketpair()
    answered = 0

    def answer(message: Message, files: list[int]) -> Message:
        nonlocal answered
        answered += 1
        if busy and answered == 2:
            ours.close()
        return {}

    with ours, theirs, ThreadPoolExecutor(1) as executor:
        for _ in range(2):
            send(ours, {})
        served = executor.submit(answer_all, theirs, os.getpid(), answer)
        if not busy:
            while len(ours.recv(100, socket.MSG_PEEK)) < 12:  # two replies of six bytes
                time.sleep(0.01)
            ours.close()
        assert served.result(timeout=20) is None
    assert answered == 2


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 5])
def test_a_message_that_is_cut_off_is_no_message(cut: int):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall((b"\0\0\0\2" + b"{}")[:cut])
        ours.close()
        assert receive(theirs) == (None, [])


def test_a_model_without_an_import_path_needs_no_workers(task: Task):
    local = Task(lambda shape, classes: torch.nn.Linear(4, classes), special(0, 0), LOCAL, 0)
    with pytest.raises(ValueError, match="workers import the model, the loss and the metrics by name"):
        Pool(local, 2)
    with open_trainer(local) as trainer:
        assert isinstance(trainer, Learner)
    with pytest.raises(ValueError, match="at least one worker"):
        Pool(task, 0)


def test_workers_are_used_only_for_enough_work(task: Task, monkeypatch: pytest.MonkeyPatch):
    assert isinstance(open_trainer(task), Learner)
    assert isinstance(open_trainer(task, workers=0), Learner)
    asked = open_trainer(task, workers=3)
    assert isinstance(asked, Pool)
    assert asked.count == 3
    monkeypatch.setattr("fl.training.workers.WORTH_WORKERS", 1)
    monkeypatch.setattr("fl.training.workers.cores", lambda: 3)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    decided = open_trainer(task, device="auto")
    assert isinstance(decided, Pool)
    assert decided.count == 3
    monkeypatch.setattr("fl.training.workers.cores", lambda: 1)
    assert isinstance(open_trainer(task), Learner)
    assert cores() >= 1


def test_other_devices_train_clients_together(task: Task):
    """The device `meta` stands for a GPU here, because nothing is computed."""
    with pytest.raises(ValueError, match="workers are for the CPU"):
        open_trainer(task, device="meta", workers=2)


def test_peak_memory_counts_the_workers() -> None:
    alone, helped = (run(tiny(rounds=1, machine={"workers": count})) for count in (0, 1))
    peaks = [trained.summary["peak_memory_mb"] for trained in (alone, helped)]
    assert peaks[1] > peaks[0] + 100  # a worker imports torch


@pytest.mark.parametrize("own", [None, "glibc.malloc.arena_max=4"])
def test_workers_ask_for_huge_pages_unless_the_user_has_tuned_malloc(
    own: str | None, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if own:
        monkeypatch.setenv("GLIBC_TUNABLES", own)
    with Pool(task, 1) as pool:
        pool.train(pool.initial(), [0], round_index=0)
        environment = Path(f"/proc/{worker_pids(pool)[0]}/environ").read_text().split("\0")
    found = [entry for entry in environment if entry.startswith("GLIBC_TUNABLES=")]
    assert found == [f"GLIBC_TUNABLES={own or 'glibc.malloc.hugetlb=1'}"]
