"""A process that this one starts, sends JSON messages to, and that ends when this one does.

A fresh interpreter, not a fork: threads of OpenMP and numba do not survive a fork, and a child that `multiprocessing`
spawns imports the user's script again. It is in a process group of its own, so Ctrl-C at the terminal reaches only the
parent. glibc's malloc keeps freed memory: each training step allocates the same tens of megabytes, and giving them back
costs a tenth of the speed. It also asks the kernel for huge pages (glibc 2.35 or newer): a step of the paper's LSTM
then takes 0.46 s of processor time instead of 0.67.
"""

import os
import signal
import socket
import subprocess
import sys
from typing import Final

from fl.config.own import paths_of_a_worker
from fl.errors import WorkerError
from fl.training.channel import Message, receive

ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the most that glibc accepts
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
HUGE_PAGES: Final = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # unless the user has set this variable
PROGRAM: Final = (  # this package and its libraries first: a user's folders may have other things of their names
    "import sys; from {} import serve; from fl.config.own import find_modules; find_modules(sys.argv[3:]); "
    "serve(int(sys.argv[1]), int(sys.argv[2]))"
)


def _above_standard(end: socket.socket) -> socket.socket:
    """The same socket under a number that no child has for its input and output, also where those were closed."""
    import fcntl

    if end.fileno() > 2:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _standard(descriptor: int) -> int | None:
    """What a child gets as its output: that of this process, or nothing where this one has none to pass on."""
    try:
        return None if os.get_inheritable(descriptor) else subprocess.DEVNULL
    except OSError:  # it is closed
        return subprocess.DEVNULL


class Child:
    """The parent's side of a process that runs `serve(socket, parent)` of a module."""

    def __init__(self, module: str) -> None:
        self.socket, theirs = map(_above_standard, socket.socketpair())
        modules, others = paths_of_a_worker()
        numbers = str(theirs.fileno()), str(os.getpid())
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM.format(module), *numbers, *modules],
                stdin=subprocess.DEVNULL,
                stdout=_standard(1),
                stderr=_standard(2),
                pass_fds=(theirs.fileno(),),
                env={**HUGE_PAGES, **os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(others)},
                process_group=0,
            )

    def heard(self) -> Message | None:
        """The next message; None if the process has ended."""
        try:
            return receive(self.socket)[0]
        except OSError:
            return None

    def died(self, what: str) -> WorkerError:
        """The error that says how the process ended while it did this."""
        try:
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return WorkerError(f"a worker process closed its socket while {what}")
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return WorkerError(f"a worker process {how} while {what}")

    def end(self) -> None:
        """Kill the process. It holds nothing that could be lost."""
        self.socket.close()
        self.process.kill()
        self.process.wait()
