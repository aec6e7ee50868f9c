"""Commands as processes of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

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
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def start(place: Path, *words: str, **more: object) -> subprocess.Popen[str]:
    place.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "secagg", *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=place, text=True, **pipes, **more)  # type: ignore[call-overload,no-any-return]


def line_with(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"{text!r} did not come; {process.stderr.read() if process.stderr else ''}")


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, (out, err)
    return out, err
