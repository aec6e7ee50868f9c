"""A process of a sweep for tests: it needs no torch, and does what the name of its job says."""

import os
import signal
import socket

from fl.training.channel import receive, send


def serve(descriptor: int, parent: int) -> None:
    """Finish, fail or die, as the job asks."""
    channel = socket.socket(fileno=descriptor)
    while True:
        message, _ = receive(channel)
        if message is None:
            return
        if message["experiment"]["name"] == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        send(channel, {"do": "begun", "rounds": 1, "done": 0})
        if message["experiment"]["name"] == "fails":
            send(channel, {"do": "failed", "error": "no reason"})
        else:
            send(channel, {"do": "finished", "process": os.getpid()})
