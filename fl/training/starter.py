"""One process that has loaded torch and forks the workers of this one.

Loading torch takes seconds and a quarter of a gigabyte. A worker that is forked from a process that has loaded it
starts in milliseconds and shares this memory. The process is a fresh interpreter: this one has threads of OpenMP and
numba, which do not survive a fork, and the user's script, which must not run again. It has one thread and computes
nothing, so a fork of it is safe. It ends with the process that started it, and after a minute without workers.

glibc's malloc keeps freed memory: each training step allocates the same tens of megabytes, and giving them back costs a
tenth of the speed.
"""

from __future__ import annotations

import atexit
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from fl.errors import WorkerError
from fl.training.channel import Message, receive, send

ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # otherwise numpy starts threads, and a process with threads must not fork
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the most that glibc accepts
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
PROGRAM: Final = "import sys; from fl.training.starter import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"
LOADED: Final = "fl.training.worker"  # what every worker needs
KEPT: Final = 60.0  # seconds that the process waits for a new worker after the last one has ended


class Process:
    """A process that a starter has forked: its id, a way to end it, and how it ended."""

    def __init__(self, starter: Starter, pid: int) -> None:
        self._starter, self.pid = starter, pid
        self._status: int | None = None

    def wait(self, seconds: float, *, kill: bool = False) -> int | None:
        """Its exit status, negative for a signal; None if it goes on for so long, or if the starter has died."""
        if self._status is None:
            self._status = self._starter.wait(self.pid, seconds, kill)
        return self._status


class Starter:
    """This process's side of the one that forks. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._asking = False
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def start(self, module: str, theirs: socket.socket) -> Process:
        """A new process that runs `serve(socket, parent)` of a module, with this one's environment, folder and path."""
        streams = [stream for stream in (1, 2) if _inherited(stream)]
        request = {
            "module": module,
            "path": [os.path.abspath(entry) for entry in sys.path],
            "environment": {**os.environ, **ENVIRONMENT},
            "folder": os.getcwd(),
            "streams": streams,
        }
        files = [theirs.fileno(), *streams]
        with self._lock:
            reply = self._ask(request, files) or self._ask(request, files)  # it may have ended a moment ago
        if reply is None:
            raise WorkerError("the process that starts workers has died, perhaps because memory ran out")
        return Process(self, reply["pid"])

    def wait(self, pid: int, seconds: float, kill: bool) -> int | None:
        """The exit status of a process; with `kill` it is ended first. Only a running starter can tell.

        A pool that the garbage collector finds while this thread waits for a reply gets None. Its workers end
        nevertheless, because their sockets are closed.
        """
        with self._lock:
            there = self._channel is not None and self._owner == os.getpid() and not self._asking
            reply = self._ask({"wait": pid, "seconds": seconds, "kill": kill}) if there else None
        return None if reply is None else reply["status"]

    def end(self) -> None:
        """End the process, and with it its workers."""
        process, channel, ours = self._process, self._channel, self._owner == os.getpid()
        self._process = self._channel = None
        if channel is not None:
            channel.close()
        if process is not None and ours:
            process.kill()
            process.wait()

    def _ask(self, request: Message, files: Sequence[int] = ()) -> Message | None:
        """The reply to a request; None if the process has died. An interrupt ends it, so that no reply is left over."""
        self._asking, reply = True, None
        try:
            if self._channel is None or self._owner != os.getpid():  # a fork of the process that had it
                self._begin()
            assert self._channel is not None
            with suppress(OSError):
                send(self._channel, request, files)
                reply = receive(self._channel)[0]
        finally:
            self._asking = False
            if reply is None:
                self.end()
        return reply

    def _begin(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._owner = os.getpid()
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=None if _inherited(1) else subprocess.DEVNULL,
                stderr=None if _inherited(2) else subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
                process_group=0,
            )


def _inherited(stream: int) -> bool:
    """Whether this is a stream for a new process. In a process that has closed it, the number can be of any file."""
    try:
        return os.get_inheritable(stream)
    except OSError:
        return False


STARTER: Final = Starter()
atexit.register(STARTER.end)


def serve(descriptor: int, parent: int) -> None:
    """Fork workers until the parent closes the socket or ends, or needs none for a minute."""
    importlib.import_module(LOADED)
    channel = socket.socket(fileno=descriptor)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    workers, last = _Workers(), time.monotonic()
    while os.getppid() == parent and (workers.alive or time.monotonic() - last < KEPT):
        if not poll.poll(1000):
            workers.look()
            continue
        message, files = receive(channel)
        if message is None:
            break
        if "wait" in message:
            reply: Message = {"status": workers.ended(message["wait"], message["seconds"], message["kill"])}
        else:
            reply = {"pid": workers.add(_fork(channel, message, files))}
        for file in files:
            os.close(file)
        last = time.monotonic()
        try:
            send(channel, reply)
        except OSError:
            break
    os._exit(0)  # workers see it, and end too


class _Workers:
    """The workers of a starter: those that run, and the exit status of those that nobody has asked about yet."""

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self._statuses: dict[int, int] = {}

    def add(self, pid: int) -> int:
        self.alive.add(pid)
        self._statuses.pop(pid, None)  # of an older process with this number
        return pid

    def look(self) -> None:
        for pid in list(self.alive):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.alive.discard(pid)
                self._statuses[pid] = os.waitstatus_to_exitcode(status)

    def ended(self, pid: int, seconds: float, kill: bool) -> int | None:
        """The exit status of a worker that ends, or is ended, within so many seconds."""
        end = time.monotonic() + seconds
        self.look()
        if kill and pid in self.alive:
            os.kill(pid, signal.SIGKILL)
        while pid in self.alive and time.monotonic() < end:
            time.sleep(0.002)
            self.look()
        return self._statuses.pop(pid, None)


def _fork(channel: socket.socket, message: Message, files: list[int]) -> int:
    starter = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        channel.close()
        own, *streams = files
        os.setpgid(0, 0)
        for stream, file in zip(message["streams"], streams, strict=True):
            os.dup2(file, stream)
            os.close(file)
        os.environ.clear()
        os.environ.update(message["environment"])
        os.chdir(message["folder"])
        sys.path[:] = message["path"]
        importlib.invalidate_caches()
        importlib.import_module(message["module"]).serve(own, starter)
        status = 0
    except BaseException:  # this is a process of its own: nobody above could tell of it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
