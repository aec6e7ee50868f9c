"""A process that this one starts, sends JSON messages to, and that ends when this one does.

It is in a process group of its own, so Ctrl-C at the terminal reaches only the parent. `fl.training.starter` forks it.
"""

import signal
import socket

from fl.errors import WorkerError
from fl.training.channel import Message, receive
from fl.training.starter import STARTER


class Child:
    """The parent's side of a process that runs `serve(socket, parent)` of a module."""

    def __init__(self, module: str) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = STARTER.start(module, theirs)

    def heard(self) -> Message | None:
        """The next message; None if the process has ended."""
        try:
            return receive(self.socket)[0]
        except OSError:
            return None

    def died(self, what: str) -> WorkerError:
        """The error that says how the process ended while it did this."""
        status = self.process.wait(5)
        if status is None:
            return WorkerError(f"a worker process closed its socket while {what}")
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return WorkerError(f"a worker process {how} while {what}")

    def end(self) -> None:
        """Kill the process. It holds nothing that could be lost."""
        self.socket.close()
        self.process.wait(5, kill=True)
