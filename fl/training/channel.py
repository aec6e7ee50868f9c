"""Messages between a process and those that it starts: JSON over a socket, with open files beside them."""

import json
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

Message = dict[str, Any]


def send(channel: socket.socket, message: Message, files: Sequence[int] = ()) -> None:
    """Send one JSON message with its length before it, and open files beside its first bytes."""
    content = json.dumps(message).encode()
    frame = struct.pack(">I", len(content)) + content
    sent = socket.send_fds(channel, [frame], files) if files else 0
    channel.sendall(frame[sent:])


def receive(channel: socket.socket) -> tuple[Message | None, list[int]]:
    """The next message and its open files; None when the other side has closed the socket."""
    first, files, _, _ = socket.recv_fds(channel, 4, 8)
    header = _rest(channel, first, 4) if first else b""
    if len(header) < 4:
        return None, list(files)
    (size,) = struct.unpack(">I", header)
    content = _rest(channel, b"", size)
    return (json.loads(content) if len(content) == size else None), list(files)


def _rest(channel: socket.socket, first: bytes, size: int) -> bytes:
    """These first bytes and what follows, `size` in all; fewer if the other side closes the socket."""
    content = bytearray(first)
    while len(content) < size:
        part = channel.recv(min(size - len(content), 1 << 20))
        if not part:
            break
        content += part
    return bytes(content)


def answer_all(channel: socket.socket, parent: int, answer: Callable[[Message, list[int]], Message]) -> None:
    """Answer requests until the parent closes the socket or ends.

    A parent that is killed before it has read every reply resets the socket. That is an end like any other.
    """
    threading.Thread(target=watch, args=(channel, parent), daemon=True).start()
    with suppress(ConnectionError):
        while True:
            message, files = receive(channel)
            if message is None:
                return
            send(channel, answer(message, files))


def watch(channel: socket.socket, parent: int) -> None:
    """End this process when the parent has ended, whatever the main thread is doing.

    The closed socket alone would be enough if no other process could hold a copy of the parent's end.
    """
    poll = select.poll()
    poll.register(channel, 0)
    while os.getppid() == parent and not poll.poll(1000):
        pass
    os._exit(0)
