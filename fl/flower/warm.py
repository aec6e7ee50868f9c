"""A process that has imported everything once and forks for each message that Flower brings.

Flower's executor starts the command `flwr-clientapp` for every message, and that imports Flower, torch and SHARE again:
seconds of computing for a message that needs milliseconds. Flower has no executor of this kind for client apps, and no
means to add one (`--executor` knows `subprocess` and `kubernetes`). But it looks for its commands on PATH, so
`share flower node` puts a folder first on PATH in which `flwr-clientapp` is a few lines: they hand their arguments to
this process, whose fork runs Flower's own `flwr-clientapp` with them. If this process does not answer, they start
Flower's own command instead, and say so.

This process reads nothing of a node: the fork takes the connection, reads the arguments, and pulls message and keys
itself. So a fork holds no secret of another message.

    FOLDER/flwr-clientapp   the command; the folder is readable by its owner alone
    FOLDER/socket           where this process listens
    FOLDER/lock             held as long as it lives
"""

import fcntl
import json
import os
import select
import shlex
import shutil
import signal
import socket
import stat
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import numpy as np

from fl.flower import own_code

COMMAND: Final = "flwr-clientapp"
SOCKET: Final = "socket"
LOCK: Final = "lock"
CLEANING: Final = 30.0  # seconds
MOST_ARGUMENTS: Final = 65536  # bytes
IMPORTED: Final = ("fl.flower.client", "fl.flower.task")

SCRIPT: Final = """#!/bin/sh
'''exec' {python} -IS "$0" "$@"
' '''  # for a shell the line above starts Python, whose path may be long or have spaces; for Python it is a text
# Hands a message of Flower to the warm executor; if it does not answer, starts Flower's own command.
import json, os, socket, sys

here, before = os.path.dirname(os.path.abspath(__file__)), os.getcwd()
try:
    os.chdir(here)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        link.connect("{socket}")
        socket.send_fds(link, [json.dumps([before, sys.argv[1:]]).encode()], [1, 2])
        link.shutdown(socket.SHUT_WR)
        taken = link.recv(1)
except OSError:
    taken = b""
if not taken:
    print("share: the warm executor does not answer; this message starts a process of its own", file=sys.stderr)
    os.chdir(before)
    os.execv({own!r}, [{own!r}, *sys.argv[1:]])
"""


def prepare(folder: Path, app: str = "") -> Path:
    """Write the command into a new folder of this process; the folder. With an `app`, no other code runs from it."""
    folder.mkdir(mode=0o700, parents=True)
    own = shutil.which(COMMAND) or str(Path(sys.executable).with_name(COMMAND))
    script = folder / COMMAND
    if app:
        own_code.write_commands(folder, app)
        own = str(script.rename(folder / "own-code"))  # also if the warm process does not answer
    script.write_text(SCRIPT.format(python=shlex.quote(sys.executable), socket=SOCKET, own=own), "utf-8")
    script.chmod(stat.S_IRWXU)
    return folder


def remove_stale(folders: Path) -> None:
    """Remove what killed processes have left below a folder. A living one holds its lock."""
    for folder in folders.glob("*/"):
        try:
            with (folder / LOCK).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


def serve(folder: Path, ready: Callable[[], None], owner: int, app: str = "") -> None:
    """Listen in a prepared folder until `owner`, the read end of a pipe, is closed at the other end."""
    lock = (folder / LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    run = preload(app)
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(SOCKET)
        listener.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork: its answer goes through Flower
        ready()
        while True:
            waiting, _, _ = select.select([listener.fileno(), owner], [], [])
            if owner in waiting:
                break
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                lock.close()
                os.close(owner)
                _fork(connection, run)
            connection.close()
    shutil.rmtree(folder, ignore_errors=True)


def preload(app: str = "") -> Callable[[], object]:
    """Import everything that a message needs, and load the numeric loops; Flower's own command as a function.

    With an `app`, the command runs this one and not what the SuperLink sends.
    """
    import secagg

    (command,) = entry_points(group="console_scripts", name=COMMAND)
    run: Callable[[], object] = own_code.own_command(app) if app else command.load()
    for module in IMPORTED:
        import_module(module)
    secagg.warm_up()
    return run


def _fork(connection: socket.socket, run: Callable[[], object]) -> None:
    """Take the arguments of one message and run Flower's command with them. It never returns."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        place, arguments = _receive(connection)
        np.random.seed()  # otherwise all forks would draw the same numbers
        os.chdir(place)
        sys.argv = [COMMAND, *arguments]
        connection.sendall(b"1")
        connection.close()
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _receive(connection: socket.socket) -> tuple[str, list[str]]:
    """The working folder and the arguments of a message. Its output goes where the command's would go."""
    data, files, _, _ = socket.recv_fds(connection, MOST_ARGUMENTS, 2)
    for number, file in zip((1, 2), files, strict=True):
        os.dup2(file, number)
        os.close(file)
    while more := connection.recv(MOST_ARGUMENTS):
        data += more
    place, arguments = json.loads(data)
    return str(place), [str(argument) for argument in arguments]


def main() -> None:
    """`python -m fl.flower.warm FOLDER OWNER APP [CLEAN]`: serve until the pipe OWNER is closed, then remove CLEAN.

    A line on stdout says "ready". APP may be empty.
    """
    folder, owner, app, clean = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    serve(folder, lambda: print("ready", flush=True), owner, app)
    for place in clean:  # whoever started this was killed, or has removed it already
        end = time.monotonic() + CLEANING
        while Path(place).exists() and time.monotonic() < end:
            shutil.rmtree(place, ignore_errors=True)  # until the last process has stopped writing there
            time.sleep(0.5)
    os._exit(0)  # there is nothing to save, and taking so many modules apart takes a while


if __name__ == "__main__":
    main()
