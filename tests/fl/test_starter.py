"""Workers are forked from one process that has loaded torch: as separate from each other as if each were started."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fl.training.starter
from fl.errors import WorkerError
from fl.training.channel import receive, send
from fl.training.child import Child
from fl.training.starter import STARTER, Starter
from tests.fl.test_workers import wait_until_gone

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system has no /proc")

MODULE = "tests.fl.starter_module"


@pytest.fixture
def children() -> Iterator[list[Child]]:
    found: list[Child] = []
    yield found
    for child in found:
        child.end()


def asked(child: Child, **message: Any) -> Any:
    send(child.socket, message)
    return child.heard()


def test_processes_come_from_one_that_has_loaded_torch_has_one_thread_and_not_the_users_script(
    children: list[Child],
) -> None:
    children += [Child(MODULE), Child(MODULE)]
    one, other = (asked(child, do="tell") for child in children)
    assert one["parent"] == other["parent"] != os.getpid()
    assert one["threads"] == 1
    assert one["torch"]
    assert one["main"] is None
    assert one["group"] == children[0].process.pid != other["group"]  # Ctrl-C reaches neither


def test_a_process_holds_its_own_socket_only(children: list[Child]) -> None:
    """With the socket of another, it would keep the other from seeing that its parent is gone."""
    children += [Child(MODULE), Child(MODULE), Child(MODULE)]
    for child in children:
        assert asked(child, do="tell")["sockets"] == 1


def test_each_process_has_the_folder_the_path_and_the_environment_of_its_start(
    children: list[Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children.append(Child(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("STARTER_TEST", "caf\udce9")
    children.append(Child(MODULE))
    before, after = (asked(child, do="tell") for child in children)
    assert (before["variable"], after["variable"]) == (None, "caf\udce9")
    assert after["folder"] == str(tmp_path) != before["folder"]
    assert str(tmp_path) in after["path"]
    assert str(tmp_path) not in before["path"]


def test_what_a_process_prints_goes_where_its_parent_prints(capfd: pytest.CaptureFixture[str]) -> None:
    child = Child(MODULE)
    asked(child, do="print")
    child.end()
    assert capfd.readouterr().out == "printed\n"


def test_a_process_that_ends_says_how(children: list[Child], capfd: pytest.CaptureFixture[str]) -> None:
    children += [Child(MODULE) for _ in range(4)]
    ending, failing, killed, running = children
    assert asked(ending, do="end", status=7) is None
    assert str(ending.died("resting")) == "a worker process ended with status 7 while resting"
    assert asked(failing, do="fail") is None
    assert "ended with status 1" in str(failing.died("failing"))
    assert "RuntimeError: as it was told" in capfd.readouterr().err
    os.kill(killed.process.pid, signal.SIGKILL)
    assert killed.heard() is None
    assert "was ended by SIGKILL" in str(killed.died("waiting"))
    running.end()
    assert running.process.wait(0) in (0, -signal.SIGKILL)  # it also sees that its socket is closed
    assert wait_until_gone([running.process.pid], 0.1)


def test_a_status_is_known_even_if_nobody_asks_for_a_while(children: list[Child]) -> None:
    children.append(Child(MODULE))
    assert asked(children[0], do="end", status=3) is None
    time.sleep(1.5)  # the starter looks once a second
    assert children[0].process.wait(5) == 3


def test_a_starter_that_dies_takes_its_workers_along_and_is_replaced(children: list[Child]) -> None:
    children.append(Child(MODULE))
    first = asked(children[0], do="tell")["parent"]
    os.kill(first, signal.SIGKILL)
    assert wait_until_gone([children[0].process.pid])
    assert children[0].heard() is None
    assert "closed its socket" in str(children[0].died("waiting"))
    children.append(Child(MODULE))
    assert asked(children[1], do="tell")["parent"] != first


class Silent(Starter):
    """A starter whose process gives no answer, or none at all."""

    def __init__(self, then: type[BaseException] | None = None) -> None:
        super().__init__()
        self.begun, self._then = 0, then

    def _begin(self) -> None:
        self.begun += 1
        self._owner, (self._channel, self.theirs) = os.getpid(), socket.socketpair()
        if self._then is None:
            self.theirs.close()


def test_a_starter_that_dies_twice_is_an_error() -> None:
    starter = Silent()
    with socket.socket() as theirs, pytest.raises(WorkerError, match="has died, perhaps because memory ran out"):
        starter.start(MODULE, theirs)
    assert starter.begun == 2


def test_an_interrupt_leaves_no_reply_for_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: socket.socket) -> Any:
        raise KeyboardInterrupt

    starter = Silent(KeyboardInterrupt)
    monkeypatch.setattr(fl.training.starter, "receive", interrupted)
    with socket.socket() as theirs, pytest.raises(KeyboardInterrupt):
        starter.start(MODULE, theirs)
    assert starter._channel is None
    assert receive(starter.theirs)[0] is not None  # the request
    assert receive(starter.theirs)[0] is None  # and the end
    starter.theirs.close()


def test_a_pool_that_is_collected_in_the_middle_of_a_request_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request would take the reply of the other one."""
    starter, found = Silent(KeyboardInterrupt), []

    def collecting(_: socket.socket) -> Any:
        found.append(starter.wait(1, 5, kill=True))
        return {"pid": 4711}, []

    monkeypatch.setattr(fl.training.starter, "receive", collecting)
    with socket.socket() as theirs:
        assert starter.start(MODULE, theirs).pid == 4711
    assert found == [None]
    starter.end()
    starter.theirs.close()


def test_after_a_fork_each_process_has_its_own_starter() -> None:
    Child(MODULE).end()
    mine, owner = STARTER._process, STARTER._owner
    assert mine is not None
    pid = os.fork()
    if pid == 0:
        STARTER.end()  # as at the end of a process: it must not end its parent's starter
        os._exit(0)
    os.waitpid(pid, 0)
    assert owner == os.getpid()
    assert mine.poll() is None


SHORT = """
import sys
import fl.training.starter as starter
starter.KEPT, starter.LOADED = 0.5, "json"
starter.serve(int(sys.argv[1]), int(sys.argv[2]))
"""


def short_lived() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        words = [sys.executable, "-c", SHORT, str(theirs.fileno()), str(os.getpid())]
        return ours, subprocess.Popen(words, pass_fds=(theirs.fileno(),))


def test_a_starter_without_workers_ends_after_a_while_and_one_with_workers_does_not() -> None:
    ours, process = short_lived()
    theirs, other = socket.socketpair()
    request = {"module": MODULE, "path": sys.path, "environment": dict(os.environ), "folder": os.getcwd()}
    with ours, theirs:
        with other:
            send(ours, {**request, "streams": []}, [other.fileno()])
        assert receive(ours)[0] is not None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.5)
        theirs.close()
        assert process.wait(20) == 0
        assert receive(ours)[0] is None


def test_a_starter_ends_when_its_parent_closes_the_socket() -> None:
    ours, process = short_lived()
    ours.close()
    assert process.wait(20) == 0


def test_a_process_without_output_starts_workers() -> None:
    """A daemon has closed its streams."""
    code = (
        "import os; os.close(1)\n"
        "from tests.fl.test_starter import MODULE, Child, asked\n"
        "child = Child(MODULE)\n"
        "os.write(2, repr(asked(child, do='tell')['torch']).encode())\n"
        "child.end()\n"
    )
    said = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=True)
    assert said.stderr == "True"
