"""A process that has loaded everything and forks: a command starts in milliseconds, in a process of its own.

Starting an interpreter and loading the compiled code costs a second of CPU, and the tests of the network service start
dozens of commands. Each has its own folder, pipes, process id and exit code, as a started command has; only the
loading is shared. The process has no threads, and it ends when the one that started it does.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
COMMAND: Final = "import sys; from secagg.cli.main import main; raise SystemExit(main(sys.argv[1:]))"


class Process:
    """One process: what `subprocess.Popen` offers of a command, as far as the tests need it."""

    def __init__(self, code: str, words: tuple[str, ...], place: Path) -> None:
        (read_in, stdin), (stdout, write_out), (stderr, write_err), (report, write) = (os.pipe() for _ in range(4))
        request = json.dumps({"code": code, "words": ["secagg", *words], "place": str(place)}).encode()
        theirs = [read_in, write_out, write_err, write]
        socket.send_fds(_zygote(), [len(request).to_bytes(4, "big") + request], theirs)
        for one in theirs:
            os.close(one)
        self.stdin, self.stdout, self.stderr = os.fdopen(stdin, "w"), os.fdopen(stdout), os.fdopen(stderr)
        self._report = os.fdopen(report, "rb")
        self.pid = int(self._report.readline())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code; minus the number of the signal that ended it."""
        if self.returncode is None:
            self.returncode = int(self._report.readline())
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it still prints, and its exit code in `returncode`. It is killed after so many seconds."""
        signal.signal(signal.SIGALRM, lambda *_: self.send_signal(signal.SIGKILL))
        signal.alarm(int(timeout) or 1)
        try:
            self.stdin.close()
            out, err = _read_both(self.stdout, self.stderr)
            self.wait()
            return out, err
        finally:
            signal.alarm(0)
            for one in (self.stdout, self.stderr, self._report):
                one.close()


def _read_both(first: io.TextIOWrapper, second: io.TextIOWrapper) -> tuple[str, str]:
    """Both to their ends; neither may fill up while the other is read."""
    from threading import Thread

    found: list[str] = []
    other = Thread(target=lambda: found.append(second.read()))
    other.start()
    text = first.read()
    other.join()
    return text, found[0]


@cache
def _zygote() -> socket.socket:
    """The connection to the process that forks, which begins with the first command and ends with this process.

    It is no child of this process: other tests look for children that were left behind.
    """
    mine, other = socket.socketpair()
    command = [sys.executable, "-m", "tests.net.zygote", str(other.fileno())]
    subprocess.run(command, cwd=ROOT, pass_fds=[other.fileno()], check=True)
    other.close()
    atexit.register(mine.close)
    return mine


# --- in the process that forks -----------------------------------------------------------------------------


def _serve(connection: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, _bury)
    while True:
        head, handles, *_ = socket.recv_fds(connection, 4, 4)
        if not head:
            return
        request = json.loads(_exactly(connection.recv, int.from_bytes(head, "big")))
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            _watch(request, handles)
            os._exit(0)
        for one in handles:
            os.close(one)


def _bury(*_: Any) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _exactly(receive: Callable[[int], bytes], size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += receive(size - len(found))
    return found


def _watch(request: dict[str, Any], handles: list[int]) -> None:
    """Fork again, and report the process id and how it ended."""
    child = os.fork()
    if child == 0:
        os.close(handles[3])
        _become(request, handles[:3])
    for one in handles[:3]:
        os.close(one)
    os.write(handles[3], b"%d\n" % child)
    _, status = os.waitpid(child, 0)
    os.write(handles[3], b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(request: dict[str, Any], handles: list[int]) -> None:
    code = 1
    try:
        for number, one in enumerate(handles):
            os.dup2(one, number)
            os.close(one)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(request["place"])
        sys.argv = request["words"]
        exec(request["code"], {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # whoever started this has no child left
    import secagg.net
    import secagg.statistics
    import tests.net.kill  # noqa: F401

    secagg.warm_up()
    _serve(socket.socket(fileno=int(sys.argv[1])))
