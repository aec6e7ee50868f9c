"""Commands of `secagg` as processes of their own."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

from tests.net.zygote import COMMAND, Process

DRAFT = """
version = 2
name = "study"
[rounds]
last = 9
[groups]
size = 3
[vector]
length = 4
clip = 8.0
[transport]
hubs = ["https://127.0.0.1:{port}"]
[[members]]
name = "north"
[[members]]
name = "south"
[[members]]
name = "west"
"""
NAMES = ("north", "south", "west")


def free_port() -> int:
    """A free port below those that the system gives to outgoing connections."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def start(place: Path, *words: str) -> Process:
    """Run `secagg` with these words in this folder."""
    place.mkdir(exist_ok=True)
    return Process(COMMAND, words, place)


def line_with(process: Process, text: str) -> str:
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"{text!r} did not come; {process.stderr.read()}")


def finish(process: Process, code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, (out, err)
    return out, err
