"""Messages between a process and those that it starts: JSON over a socket, with open files beside them."""

import json
import os
import select
import socket
import struct
from collections.abc import Sequence
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
    header, files, _, _ = socket.recv_fds(channel, 4, 8)
    while header and len(header) < 4:
        header += channel.recv(4 - len(header))
    if not header:
        return None, []
    (size,) = struct.unpack(">I", header)
    content = bytearray()
    while len(content) < size:
        part = channel.recv(min(size - len(content), 1 << 20))
        if not part:
            return None, list(files)
        content += part
    return json.loads(content), list(files)


def watch(channel: socket.socket, parent: int) -> None:
    """End this process when the parent has ended, whatever the main thread is doing.

    The closed socket alone would be enough if no other process could hold a copy of the parent's end.
    """
    poll = select.poll()
    poll.register(channel, 0)
    while os.getppid() == parent and not poll.poll(1000):
        pass
    os._exit(0)
